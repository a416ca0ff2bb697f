"""Agents: what they sample is what is trained on, limits hold, and one that fails harms nobody else."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outdo import train
from outdo.errors import ToolError
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.rollout.local import LocalEngine
from outdo.serve import agents
from outdo.serve.agents import AgentSampler, agent_of
from outdo.types import Engine, Group, SampleParams
from support.api_server import ADD, CALL, saying, with_tools
from support.basics import prompt_of
from support.scripted_engine import ScriptedEngine

SHORT: dict[str, Any] = {
    **{"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "eval_size": 4, "eval_samples": 0},
    **{"max_completion_length": 48, "device": "cpu", "sft_steps": 0, "reward_audit": False},
}


def played(
    policy: Policy, engine: Engine, agent: Any, prompts: int = 1, n: int = 1, seed: int = 0, **keys: Any
) -> list[Group]:
    params = SampleParams(keys.pop("max_completion_length", 64))
    play = agent_of(Recipe(**keys), agent)
    assert play
    sampler = AgentSampler(engine, policy.renderer, play)
    groups = list(sampler.sample([prompt_of(f"{p}+1") for p in range(prompts)], n, params, seed))
    return sorted(groups, key=lambda group: group.prompt.id)


async def twice_and_aside(client: Any, prompt: Any) -> str:
    """Two turns of one conversation, and a call with a prompt of its own."""
    messages = list(prompt.messages)
    first = await client.chat.completions.create(messages=messages, max_tokens=6)
    messages += [first.choices[0].message, {"role": "user", "content": "sure?"}]
    second = await client.chat.completions.create(messages=messages, max_tokens=6)
    await client.chat.completions.create(messages=[{"role": "user", "content": "judge"}], max_tokens=4)
    return str(second.choices[0].message.content)


def test_calls_become_a_trajectory(policy: Policy) -> None:
    """Tokens and log-probabilities are those of the engine, and the answer is what the agent says it is."""
    engine = saying(policy, "41", "42", "ok")
    ((group,),) = [played(policy, engine, twice_and_aside)]
    (answer,) = group.trajectories
    spell, end = policy.renderer.spell, "<|end|>"
    assert spell(group.prompt_ids) == "<|user|>0+1<|assistant|>"
    assert [(spell(s.token_ids), s.trained) for s in answer.segments] == [
        (f"41{end}", True),
        ("<|user|>sure?<|assistant|>", False),
        (f"42{end}", True),
        (f"ok{end}", True),
    ]
    assert spell(answer.segments[3].prompt_ids or ()) == "<|user|>judge<|assistant|>"
    assert [request.follows != "" for request in engine.requests] == [False, True, False]
    assert answer.text == "42" and answer.finish == "stop" and set(answer.logprobs) == {-0.5}
    episode = answer.episode
    assert episode and not episode.broken and episode.num_turns == 3 and episode.reward is None
    assert [message["content"] for message in episode.messages] == ["41", "sure?", "42", "judge", "ok"]


async def adder(client: Any, prompt: Any) -> dict[str, Any]:
    messages = list(prompt.messages)
    reply = await client.chat.completions.create(messages=messages, tools=[ADD])
    call = reply.choices[0].message.tool_calls[0]
    given = json.loads(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])}
    reply = await client.chat.completions.create(messages=[*messages, reply.choices[0].message, result], tools=[ADD])
    return {"content": reply.choices[0].message.content, "reward": 0.5}


def test_calls_of_tools(policy: Policy) -> None:
    (group,) = played(with_tools(policy), saying(policy, f"Well.{CALL}", "It is 42"), adder, max_completion_length=200)
    (answer,) = group.trajectories
    assert answer.episode and answer.text == "It is 42" and len(answer.branches) == 1
    assert (answer.episode.num_calls, answer.episode.reward) == (1, 0.5)
    assert answer.episode.messages[0]["tool_calls"] == [{"name": "add", "arguments": {"a": 12, "b": 30}}]


async def one_call(client: Any, prompt: Any) -> None:
    await client.chat.completions.create(messages=prompt.messages)


@pytest.mark.parametrize(
    ("returned", "text", "reward"),
    [(None, "41", None), ("mine", "mine", None), (1, "41", 1.0), (True, "41", 1.0), ({"reward": 0.25}, "41", 0.25)],
)
def test_what_an_agent_returns(policy: Policy, returned: Any, text: str, reward: float | None) -> None:
    async def agent(client: Any, prompt: Any) -> Any:
        await one_call(client, prompt)
        return returned

    (group,) = played(policy, saying(policy, "41"), agent)
    (answer,) = group.trajectories
    assert answer.episode and not answer.episode.broken
    assert (answer.text, answer.episode.reward) == (text, reward)


@pytest.mark.parametrize("returned", [[1], math.nan, {"reward": "1"}, {"content": 3}, {"answer": "41"}, object()])
def test_what_it_may_not_return(policy: Policy, returned: Any) -> None:
    async def agent(client: Any, prompt: Any) -> Any:
        await one_call(client, prompt)
        return returned

    (group,) = played(policy, saying(policy, "41"), agent)
    (answer,) = group.trajectories
    assert answer.episode and "returned" in answer.episode.broken and answer.num_tokens == 3


def test_failures_are_their_own(policy: Policy) -> None:
    """One raises, one exits, one calls nothing, one asks for what is not there: the others' answers are valid."""

    async def agent(client: Any, prompt: Any) -> None:
        number = int(prompt.id.partition("+")[0])
        if number == 0:
            raise ValueError("no")
        if number == 1:
            raise SystemExit(3)
        if number == 3:
            await client.chat.completions.create(messages=[{"role": "wizard", "content": "?"}])
        if number != 2:
            await one_call(client, prompt)

    groups = played(policy, saying(policy, "41"), agent, prompts=6, n=2)
    broken = [[bool(answer.episode and answer.episode.broken) for answer in group.trajectories] for group in groups]
    assert broken == [[True, True]] * 4 + [[False, False]] * 2
    assert "ValueError: no" in groups[0].trajectories[0].episode.broken  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (lambda client, prompt: None, "async"),
        (print, "async"),
        ("no_such", "unknown name"),
        (test_failures_are_their_own, "async"),
    ],
)
def test_what_cannot_be_an_agent(agent: Any, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        agent_of(Recipe(), agent) if callable(agent) else agent_of(Recipe(agent=agent))


def test_arguments_and_other_keys() -> None:
    async def alone(client: Any) -> None: ...

    with pytest.raises(ToolError, match="two arguments"):
        agent_of(Recipe(), alone)
    with pytest.raises(ToolError, match="tools"):
        agent_of(Recipe(tools=["calculator"]), one_call)
    assert agent_of(Recipe()) is None


async def endless(client: Any, prompt: Any) -> str:
    messages = list(prompt.messages)
    while True:
        reply = await client.chat.completions.create(messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": "more"}]


@pytest.mark.parametrize(("keys", "turns"), [({"max_turns": 3}, 3), ({"max_completion_length": 40}, 5)])
def test_limits_cut_an_answer_off(policy: Policy, keys: Any, turns: int) -> None:
    """Each turn has 3 tokens of the model and 6 or more that are added."""
    (group,) = played(policy, saying(policy, "41"), endless, **keys)
    (answer,) = group.trajectories
    assert answer.episode and not answer.episode.broken and answer.finish == "length" and answer.text == "41"
    assert answer.episode.num_turns == turns and answer.episode.out_of_turns == ("max_turns" in keys)
    assert len(answer.token_ids) <= keys.get("max_completion_length", 64)


def test_the_last_answer_is_cut_to_the_token(policy: Policy) -> None:
    engine = ScriptedEngine(lambda request, i: (5,) * 100)
    (group,) = played(policy, engine, endless, max_completion_length=20)
    (answer,) = group.trajectories
    assert len(answer.token_ids) == 20 and answer.finish == "length" and answer.episode
    assert not answer.episode.broken


async def ever_longer(client: Any, prompt: Any) -> None:
    for i in range(9):
        await client.chat.completions.create(messages=[{"role": "user", "content": "7" * 10**i}], max_tokens=4)


def test_a_prompt_that_is_too_long_cuts_an_answer_off(policy: Policy) -> None:
    answer = played(policy, saying(policy, "41"), ever_longer, max_prompt_length=200)[0].trajectories[0]
    assert answer.episode and not answer.episode.broken and answer.finish == "length" and len(answer.branches) == 3


def test_an_agents_own_limit_is_no_cut(policy: Policy) -> None:
    async def agent(client: Any, prompt: Any) -> None:
        await client.chat.completions.create(messages=prompt.messages, max_tokens=2)

    (group,) = played(policy, saying(policy, "41"), agent)
    assert group.trajectories[0].finish == "stop" and group.trajectories[0].num_tokens == 2


def test_hundreds_at_once(policy: Policy) -> None:
    """No agent ends before all have begun."""
    num, everyone = 0, asyncio.Event()

    async def agent(client: Any, prompt: Any) -> None:
        nonlocal num
        num += 1
        if num == 200:
            everyone.set()
        await one_call(client, prompt)
        await asyncio.wait_for(everyone.wait(), 30)
        await asyncio.sleep(0.2)

    start = time.monotonic()
    groups = played(policy, saying(policy, "41"), agent, prompts=25, n=8)
    assert time.monotonic() - start < 20
    assert sum(not answer.episode.broken for g in groups for answer in g.trajectories if answer.episode) == 200
    assert all(answer.episode.wait_seconds >= 0.2 for g in groups for answer in g.trajectories if answer.episode)


@pytest.mark.parametrize("blocks", [False, True])
def test_one_that_does_nothing(policy: Policy, monkeypatch: pytest.MonkeyPatch, blocks: bool) -> None:
    """It is given up, also where it holds up the event loop, and the next call works."""
    monkeypatch.setattr(agents, "IDLE_SECONDS", 0.3)

    async def agent(client: Any, prompt: Any) -> None:
        await one_call(client, prompt)
        if blocks:
            time.sleep(3)
        await asyncio.Event().wait()

    (group,) = played(policy, saying(policy, "41"), agent)
    assert "neither called" in group.trajectories[0].episode.broken  # type: ignore[union-attr]
    time.sleep(1.2)
    (group,) = played(policy, saying(policy, "41"), one_call)
    assert not group.trajectories[0].episode.broken  # type: ignore[union-attr]


async def side_by_side(client: Any, prompt: Any) -> str:
    """Three answers at once, of which the longest counts."""
    calls = [client.chat.completions.create(messages=prompt.messages, max_tokens=4 + i) for i in range(3)]
    replies = await asyncio.gather(*calls)
    return max((str(reply.choices[0].message.content) for reply in replies), key=len)


def test_the_same_seed_samples_the_same(policy: Policy) -> None:
    """Whatever runs beside it."""
    first = played(policy, LocalEngine(policy), side_by_side, prompts=2, n=3)
    again = played(policy, LocalEngine(policy), side_by_side, prompts=2, n=3)
    (alone, *_) = played(policy, LocalEngine(policy), side_by_side, n=3)
    other = played(policy, LocalEngine(policy), side_by_side, prompts=2, n=3, seed=1)

    def ids(group: Group) -> list[Any]:
        return [[segment.token_ids for segment in answer.segments] for answer in group.trajectories]

    assert list(map(ids, first)) == list(map(ids, again)) and ids(first[0]) == ids(alone)
    assert list(map(ids, first)) != list(map(ids, other))
    assert [len(answer.branches) for answer in first[0].trajectories] == [3, 3, 3]
    assert len({answer.token_ids for answer in first[0].trajectories}) == 3


def test_over_http(policy: Policy) -> None:
    """OpenAI's own client, and a stranger's session."""
    from openai import AsyncOpenAI, NotFoundError

    async def agent(client: Any, prompt: Any) -> str:
        own = AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
        foreign = AsyncOpenAI(base_url=client.base_url.replace("/s/", "/s/x"), api_key="none", max_retries=0)
        with pytest.raises(NotFoundError):
            await foreign.chat.completions.create(model=client.model, messages=list(prompt.messages))
        reply = await own.chat.completions.create(model=client.model, messages=list(prompt.messages), max_tokens=8)
        text = ""
        async for chunk in await own.chat.completions.create(
            model=client.model, messages=list(prompt.messages), max_tokens=8, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        return f"{reply.choices[0].message.content}|{text}"

    (group,) = played(policy, LocalEngine(policy), agent, n=2)
    for answer in group.trajectories:
        assert answer.episode and not answer.episode.broken, answer.episode
        assert len(answer.branches) == 2
        assert answer.text == "|".join(policy.renderer.decode_answers([b.token_ids for b in answer.branches]))


def test_training_with_an_agent(tmp_path: Path) -> None:
    """Three calls an answer; resumed, the run is the same as in one go, up to rounding: calls come in any order."""
    keys = {**SHORT, "dataset_name": "arithmetic", "reward_funcs": ["environment"], "save_steps": 1}

    async def agent(client: Any, prompt: Any) -> float:
        text = await twice_and_aside(client, prompt)
        return sum(map(ord, text)) % 7 / 7

    whole = train(agent=agent, **keys, output_dir=tmp_path / "whole")
    train(agent=agent, **{**keys, "max_steps": 1}, output_dir=tmp_path / "part")
    resumed = train(agent=agent, resume=tmp_path / "part", max_steps=2, force=True)
    weights = [load_file(result.folder / "model" / "model.safetensors") for result in (whole, resumed)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-6)
    rows = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["turns_mean"] for row in rows] == [3.0, 3.0] and all(row["grad_norm"] > 0 for row in rows)
    assert all(abs(row["mismatch_kl"]) < 1e-9 for row in rows)
