"""The client in this process: OpenAI's names, the server's code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import openai
import pytest

from outdo.models.load import Policy
from outdo.rollout.local import LocalEngine
from outdo.serve.client import Client
from outdo.serve.errors import ApiError
from outdo.serve.start import load_client, name_of
from support.api_server import ADD, CALL, http_server, open_engine, said, saying, with_tools

HI = said("12+30")


def test_same_as_over_http(policy: Policy) -> None:
    """Attribute by attribute what OpenAI's client gets from the server."""
    more = {"messages": HI, "max_tokens": 8, "seed": 4, "n": 2, "logprobs": True}
    with open_engine(policy, LocalEngine(policy)) as api, http_server(api) as server:
        ours = asyncio.run(Client(api).chat.completions.create(model="any name", **more))
        theirs = openai.OpenAI(base_url=server.url, api_key="none").chat.completions.create(model="tiny", **more)
    assert (
        ours.model == "tiny" and ours.object == theirs.object and ours.usage.total_tokens == theirs.usage.total_tokens
    )
    for own, other in zip(ours.choices, theirs.choices, strict=True):
        assert (own.index, own.finish_reason) == (other.index, other.finish_reason)
        assert (own.message.role, own.message.content) == (other.message.role, other.message.content)
        assert own.message.tool_calls is None and own.message.refusal is None
        pairs = zip(own.logprobs.content, other.logprobs.content, strict=True)
        assert all((a.token, a.bytes) == (b.token, b.bytes) for a, b in pairs)
    with pytest.raises(AttributeError, match="it has index"):
        _ = ours.choices[0].mesage
    assert ours["choices"][0].message["content"] == ours.model_dump()["choices"][0]["message"]["content"]


def test_streams_and_completions(policy: Policy) -> None:
    async def talk(client: Client) -> None:
        more = {"messages": HI, "max_tokens": 12, "seed": 4}
        whole = (await client.chat.completions.create(**more)).choices[0].message.content
        stream = await client.chat.completions.create(**more, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == whole
        async with await client.chat.completions.create(**more, stream=True) as stream:
            assert (await anext(stream)).choices[0].delta.role == "assistant"
        text = await client.completions.create(prompt="1+1=", max_tokens=4, extra_body={"top_k": 5}, timeout=3)
        assert text.choices[0].text and (await client.models.list()).data[0].id == "tiny"
        assert (await client.models.retrieve("tiny")).max_model_len == 512

    with open_engine(policy, LocalEngine(policy)) as api:
        asyncio.run(talk(Client(api)))


def test_replies_may_be_sent_back(policy: Policy) -> None:
    """Ours and those of OpenAI's client, as agents do."""
    engine = saying(with_tools(policy), CALL, "42", CALL, "42")
    with open_engine(policy, engine) as api, http_server(api) as server:

        async def talk() -> None:
            theirs = openai.AsyncOpenAI(base_url=server.url, api_key="none")
            for client in (Client(api), theirs):
                first = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD])
                await Client(api).chat.completions.create(messages=[*HI, first.choices[0].message], tools=[ADD])
            await theirs.close()

        asyncio.run(talk())
    prompts = [policy.renderer.spell(request.prompt_ids) for request in engine.requests]
    assert prompts[1] == prompts[3] == f"<|user|>add <|user|>12+30<|assistant|>{CALL}<|end|><|assistant|>"


def test_errors_are_raised(policy: Policy) -> None:
    @dataclass
    class NotGiven:
        """What OpenAI's client has for a field that is left out."""

    async def talk(client: Client) -> None:
        assert await client.chat.completions.create(messages=HI, max_tokens=1, stop=NotGiven())
        with pytest.raises(ApiError, match="n: must be") as caught:
            await client.chat.completions.create(messages=HI, n=0)
        assert caught.value.status == 400 and caught.value.param == "n"
        with pytest.raises(ApiError, match="did you mean 'max_tokens'"):
            await client.chat.completions.create(messages=HI, max_token=5)
        with pytest.raises(ApiError, match="keeps no sessions"):
            await Client(client.api, "key").completions.create(prompt="x")
        with pytest.raises(ApiError, match="context"):
            await client.chat.completions.create(messages=said("x" * 600), stream=True)

    with open_engine(policy, LocalEngine(policy)) as api:
        asyncio.run(talk(Client(api)))


def test_load_client(tmp_path: object) -> None:
    async def talk() -> None:
        async with load_client("tiny", device="cpu", rows=2, context=64) as client:
            assert (await client.models.list()).data[0].max_model_len == 64
            reply = await client.chat.completions.create(messages=HI, max_tokens=3)
            assert reply.usage.completion_tokens <= 3
        with pytest.raises(ApiError, match="stopped"):
            await client.chat.completions.create(messages=HI)

    asyncio.run(talk())
    assert name_of("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B" and name_of(str(tmp_path)) == tmp_path.name  # type: ignore[attr-defined]
