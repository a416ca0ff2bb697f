"""OpenAI's own client against the server, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
import torch

from outdo.models.load import Policy
from outdo.rollout.hf import HFEngine
from outdo.rollout.local import LocalEngine
from outdo.serve.api import Api
from outdo.serve.recording import Recorder, session_trajectory
from support.api_server import ADD, CALL, Server, http_server, open_engine, said, saying, with_tools

HI = said("12+30")


@pytest.fixture(params=[LocalEngine, HFEngine], ids=["local", "hf"])
def api(policy: Policy, request: pytest.FixtureRequest) -> Iterator[Api]:
    with open_engine(policy, request.param(policy), recorder=Recorder()) as api:
        yield api


@pytest.fixture
def server(api: Api) -> Iterator[Server]:
    with http_server(api) as server:
        yield server


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and client.models.retrieve("tiny").owned_by == "outdo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9/other")
    assert caught.value.code == "model_not_found" and "'tiny'" in caught.value.message


def test_chat(client: openai.OpenAI, policy: Policy) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HI, max_tokens=12, seed=5, temperature=0.8)
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and choice.message.content and choice.message.tool_calls is None
    assert reply.usage and reply.usage.prompt_tokens == 7  # <|user|>12+30<|assistant|>
    assert choice.finish_reason == ("stop" if reply.usage.completion_tokens < 12 else "length")
    again = client.chat.completions.create(model="tiny", messages=HI, max_tokens=12, seed=5, temperature=0.8)
    other = client.chat.completions.create(model="tiny", messages=HI, max_tokens=12, seed=6, temperature=0.8)
    assert again.choices[0].message.content == choice.message.content != other.choices[0].message.content
    assert again.id != reply.id


def test_logprobs_are_of_the_model(client: openai.OpenAI, policy: Policy) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=8, logprobs=True, temperature=0.5, extra_body={"return_token_ids": True}
    )
    choice = reply.choices[0]
    assert choice.logprobs and choice.logprobs.content and reply.usage
    ids, prompt = choice.token_ids, reply.prompt_token_ids  # type: ignore[attr-defined]
    assert len(ids) == len(choice.logprobs.content) == reply.usage.completion_tokens
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    policy.model.set_attn_implementation("outdo")
    expected = (logits / 0.5).log_softmax(-1)[torch.arange(len(ids)), ids]
    torch.testing.assert_close(torch.tensor([t.logprob for t in choice.logprobs.content]), expected, atol=1e-4, rtol=0)
    special = policy.renderer.tokenizer.all_special_tokens  # they are no text
    assert "".join(t.token for t in choice.logprobs.content if t.token not in special) == choice.message.content
    greedy = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=2, logprobs=True, top_logprobs=1, temperature=0
    )
    assert greedy.choices[0].logprobs and greedy.choices[0].logprobs.content
    for token in greedy.choices[0].logprobs.content:
        assert [(top.token, top.logprob) for top in token.top_logprobs] == [(token.token, token.logprob)]


def test_several_answers(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HI, max_tokens=9, n=3, seed=1)
    texts = [choice.message.content for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2] and len(set(texts)) == 3
    alone = client.chat.completions.create(model="tiny", messages=HI, max_tokens=9, n=1, seed=1)
    assert alone.choices[0].message.content == texts[0]


def test_streaming(client: openai.OpenAI) -> None:
    """Piece by piece, and together what the whole reply has."""
    more = {"model": "tiny", "messages": HI, "max_tokens": 40, "seed": 8, "n": 2, "logprobs": True}
    whole = client.chat.completions.create(**more)
    texts, ends, tokens, usage, pieces = ["", ""], ["", ""], [0, 0], None, 0
    for chunk in client.chat.completions.create(**more, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            pieces += bool(choice.delta.content)
            ends[choice.index] = choice.finish_reason or ""
            tokens[choice.index] += len(choice.logprobs.content or ()) if choice.logprobs else 0
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage and sum(tokens) == usage.completion_tokens and pieces > 2


def test_stop_texts(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HI, max_tokens=30, temperature=0)
    text = whole.choices[0].message.content or ""
    stop = text[4:6]
    more = {"model": "tiny", "messages": HI, "max_tokens": 30, "temperature": 0, "stop": [stop]}
    cut = client.chat.completions.create(**more).choices[0]
    assert cut.message.content == text[: text.index(stop)] and cut.finish_reason == "stop"
    streamed = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**more, stream=True)]
    assert "".join(streamed) == cut.message.content


def test_completions(client: openai.OpenAI, policy: Policy) -> None:
    two = client.completions.create(model="tiny", prompt=["1+1=", "2+2="], max_tokens=6, n=2, seed=3, logprobs=0)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    first = two.choices[0]
    assert first.logprobs and first.logprobs.tokens and first.logprobs.token_logprobs and first.logprobs.text_offset
    assert len(first.logprobs.tokens) == len(first.logprobs.token_logprobs) and first.logprobs.text_offset[0] == 0
    assert two.usage and two.usage.prompt_tokens == 8
    ids = list(policy.renderer.tokenizer("1+1=")["input_ids"])
    one = client.completions.create(model="tiny", prompt=ids, max_tokens=6, seed=3)
    assert one.choices[0].text == first.text
    assert client.completions.create(model="tiny", prompt="1", seed=0).usage.completion_tokens <= 16  # type: ignore
    stream = client.completions.create(model="tiny", prompt="1+1=", max_tokens=6, seed=3, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == first.text
    assert chunks[-1].choices[0].finish_reason == first.finish_reason


def test_errors(client: openai.OpenAI) -> None:
    def refused(kind: type[openai.APIStatusError], **fields: object) -> openai.APIStatusError:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": "tiny", "messages": HI, **fields})  # type: ignore[call-overload]
        return caught.value

    assert refused(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    long = refused(openai.BadRequestError, messages=said("1" * 600))
    assert long.code == "context_length_exceeded" and "602 tokens" in long.message and "512" in long.message
    both = refused(openai.BadRequestError, max_tokens=506)
    assert both.code == "context_length_exceeded" and both.param == "max_tokens"
    assert "7 tokens" in both.message and "506" in both.message and "512" in both.message
    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.BadRequestError, response_format={"type": "json_object"}).param == "response_format"
    assert refused(openai.BadRequestError, tools=[ADD]).param == "tools", "the template shows none"
    assert refused(openai.NotFoundError, extra_headers={"X-Outdo-Session": "unknown"}).code == "unknown_session"
    assert client.chat.completions.create(model="tiny", messages=HI, max_tokens=505).choices, "it fits exactly"


@pytest.mark.parametrize("streamed", [False, True])
def test_tools(policy: Policy, streamed: bool) -> None:
    engine = saying(with_tools(policy), f"Let me see.\n{CALL}{CALL}", "It is 42.", "<tool_call>\n{broken</tool_call>")
    with open_engine(policy, engine) as api, http_server(api) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

        def ask(messages: list, **more: object) -> tuple[str, list, str]:  # type: ignore[type-arg]
            fields = {"model": "tiny", "messages": messages, "tools": [ADD], **more}
            if not streamed:
                choice = client.chat.completions.create(**fields).choices[0]
                return choice.message.content or "", list(choice.message.tool_calls or ()), choice.finish_reason
            text, calls, end = "", [], ""
            for chunk in client.chat.completions.create(**fields, stream=True):
                choice = chunk.choices[0]
                text, end = text + (choice.delta.content or ""), choice.finish_reason or end
                calls += choice.delta.tool_calls or ()
            return text, calls, end

        text, calls, end = ask(list(HI))
        assert (text, end, len(calls)) == ("Let me see.", "tool_calls", 2) and calls[0].id != calls[1].id
        assert calls[0].type == "function" and calls[0].function.name == "add"
        assert json.loads(calls[0].function.arguments) == {"a": 12, "b": 30}
        called = {"role": "assistant", "content": text, "tool_calls": [call.model_dump() for call in calls]}
        result = {"role": "tool", "content": "42", "tool_call_id": calls[0].id}
        assert ask([*HI, called, result]) == ("It is 42.", [], "stop")
        prompt = policy.renderer.spell(engine.requests[1].prompt_ids)
        assert (
            prompt == f"<|user|>add <|user|>12+30<|assistant|>Let me see.{CALL}{CALL}<|end|><|user|>= 42<|assistant|>"
        )
        broken = ask(list(HI))
        assert broken == ("<tool_call>\n{broken</tool_call>", [], "stop"), "what cannot be read stays text"
        assert len(ask(list(HI), parallel_tool_calls=False)[1]) == 1
        assert CALL in saying_without_tools(client, engine)


def saying_without_tools(client: openai.OpenAI, engine: object) -> str:
    """No tools are shown, so that nothing is read as a call."""
    client.chat.completions.create(model="tiny", messages=HI)
    client.chat.completions.create(model="tiny", messages=HI)
    reply = client.chat.completions.create(model="tiny", messages=HI, tools=[ADD], tool_choice="none")
    return reply.choices[0].message.content or ""


def test_sessions_by_header_and_by_address(api: Api, server: Server) -> None:
    assert api.recorder
    one, two = api.recorder.open(seed=1), api.recorder.open(seed=1)
    by_header = openai.OpenAI(
        base_url=server.url, api_key="none", default_headers={"X-Outdo-Session": one.key}, max_retries=0
    )
    address = server.url.replace("/v1", f"/s/{two.key}/v1")
    by_address = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
    for client in (by_header, by_address):
        first = client.chat.completions.create(model="tiny", messages=HI, max_tokens=5).choices[0].message
        client.chat.completions.create(model="tiny", messages=[*HI, first, *said("7")], max_tokens=5)  # type: ignore
    results = [session_trajectory(api.recorder.close(session.key)) for session in (one, two)]
    assert results[0] == results[1] and sum(s.trained for s in results[0][1].segments) == 2
    with pytest.raises(openai.NotFoundError):
        by_address.models.list() and by_address.chat.completions.create(model="tiny", messages=HI)


def test_token_is_the_api_key(policy: Policy) -> None:
    with open_engine(policy, LocalEngine(policy)) as api, http_server(api, token="a-long-token") as server:
        good, bad = (openai.OpenAI(base_url=server.url, api_key=key, max_retries=0) for key in ("a-long-token", "x"))
        assert good.models.list().data and good.chat.completions.create(model="tiny", messages=HI, max_tokens=2)
        with pytest.raises(openai.AuthenticationError) as caught:
            bad.models.list()
        assert "Bearer TOKEN" in caught.value.message
        assert server.send("GET", "/v1/models?token=a-long-token").status == 401, "no token in an address"
        assert server.send("GET", "/v1/models").json["error"]["type"] == "authentication_error"


def test_many_clients_at_once(policy: Policy) -> None:
    """With other parameters, streamed or not: what each gets alone."""
    with open_engine(policy, LocalEngine(policy, rows=4)) as api, http_server(api) as server:

        async def ask(client: openai.AsyncOpenAI, index: int) -> str:
            fields = {"model": "tiny", "messages": said(str(index)), "max_tokens": 6 + index, "seed": index}
            fields |= {"temperature": (1.0, 0.5, 0.0)[index % 3]}
            if index % 2:
                stream = await client.chat.completions.create(**fields, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return (await client.chat.completions.create(**fields)).choices[0].message.content or ""

        async def run() -> tuple[list[str], list[str]]:
            async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
                together = await asyncio.gather(*(ask(client, index) for index in range(12)))
                return list(together), [await ask(client, index) for index in range(12)]

        together, alone = asyncio.run(run())
    assert together == alone and len(set(together)) > 8


def test_no_template(policy: Policy) -> None:
    """Messages are joined."""
    policy.renderer.tokenizer.chat_template = None
    plain = replace(policy, renderer=replace(policy.renderer))
    engine = saying(plain, "x")
    with open_engine(plain, engine) as api, http_server(api) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        client.chat.completions.create(model="tiny", messages=said("one", "two"))
        assert plain.renderer.spell(engine.requests[0].prompt_ids) == "one\ntwo"
