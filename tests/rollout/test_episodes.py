"""Answers of several turns, with real engines, templates and environments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from outdo.envs.environment import Observation
from outdo.envs.factory import find_environment
from outdo.envs.toolbox import with_tools
from outdo.envs.tools import find_tools
from outdo.models.load import Policy
from outdo.models.tool_formats import MARKS, choose_format
from outdo.rollout.episodes import EpisodeSampler
from outdo.rollout.local import LocalEngine
from outdo.types import Group, Prompt, SampleParams, Trajectory
from support.basics import prompt_of
from support.samplers import ending_with
from support.scripted_engine import ScriptedEngine

PARAMS = SampleParams(60)
PROMPTS = [prompt_of(text, "7") for text in ("1+1", "12+345", "9")]
closed: list[int] = []


@pytest.fixture(autouse=True)
def _none_closed() -> Iterator[None]:
    closed.clear()
    yield


class Echo:
    """Answers each message with its length, three times."""

    tools: Sequence[Any] = ()

    def reset(self, prompt: Prompt) -> Sequence[Any]:
        self.count, self.heard = 0, []
        return prompt.messages

    def step(self, message: Any) -> Observation:
        self.count += 1
        self.heard.append(message["content"])
        if self.count == 3:
            return Observation(reward=float(len(message["content"]) > 3), done=True)
        return Observation([{"role": "user", "content": str(len(message["content"]))}])

    def close(self) -> None:
        closed.append(self.count)


class SlowEcho(Echo):
    async def step(self, message: Any) -> Observation:  # type: ignore[override]
        await asyncio.sleep(0.2)
        return super().step(message)


class Fails(Echo):
    """In its second step, for answers to one prompt."""

    def reset(self, prompt: Prompt) -> Sequence[Any]:
        self.fails = prompt.text == "9"
        return super().reset(prompt)

    def step(self, message: Any) -> Observation:
        if self.fails and self.count == 1:
            raise ValueError("a shop that is closed")
        return super().step(message)


class Endless(Echo):
    def step(self, message: Any) -> Observation:
        self.count += 1
        return Observation([{"role": "user", "content": "more"}])


class NoReset(Echo):
    def reset(self, prompt: Prompt) -> Sequence[Any]:
        raise OSError("no such map")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class FailsUnspeakably(Echo):
    def step(self, message: Any) -> Observation:
        raise Unspeakable


class ResetsUnspeakably(Echo):
    def reset(self, prompt: Prompt) -> Sequence[Any]:
        raise Unspeakable


def ending(policy: Policy) -> Policy:
    """A random model ends its turns by chance: several tokens count as the end."""
    return ending_with(policy, policy.renderer.eos_ids[0], *range(40, 60))


def player(policy: Policy, environment: Any = Echo, max_turns: int = 8, rows: int = 16, paged: bool = False):  # type: ignore[no-untyped-def]
    engine = LocalEngine(policy, rows)
    if paged:
        engine.paged, engine.graphed, engine.late = True, False, True
    renderer = policy.renderer
    return EpisodeSampler(engine, renderer, choose_format(renderer.tokenizer), find_environment(environment), max_turns)


def sampled(sampler: EpisodeSampler, n: int = 4, params: SampleParams = PARAMS, seed: int = 0) -> list[Group]:
    return sorted(sampler.sample(PROMPTS, n, params, seed), key=lambda group: group.prompt.id)


def answers_of(groups: list[Group]) -> list[Trajectory]:
    return [answer for group in groups for answer in group.trajectories]


def test_turns_and_masks(policy: Policy) -> None:
    policy = ending(policy)
    groups = sampled(player(policy))
    assert len(groups) == len(PROMPTS) and all(len(group.trajectories) == 4 for group in groups)
    lengths = set()
    for answer in answers_of(groups):
        episode = answer.episode
        assert episode and not episode.broken
        own = [segment for segment in answer.segments if segment.trained]
        lengths.add(len(own))
        assert episode.num_turns == len(own) <= 3
        assert sum(answer.mask or (True,) * len(answer.token_ids)) == answer.num_tokens == len(answer.logprobs)
        assert len(answer.token_ids) <= PARAMS.max_completion_length
        said = [message["content"] for message in episode.messages if message["role"] == "assistant"]
        assert said[-1] == answer.text and len(said) == episode.num_turns
        if answer.finish == "stop":
            assert episode.num_turns == 3 and episode.reward == float(len(said[-1]) > 3)
        hints = [int(message["content"]) for message in episode.messages if message["role"] == "user"]
        assert hints == [len(text) for text in said[: len(hints)]]
    assert lengths >= {3} and len(closed) == 12


def test_logprobs_equal_a_plain_forward(policy: Policy) -> None:
    """What the engine sampled is what a plain forward over the whole text gives, the environment's tokens included."""
    policy = ending(policy)
    for group in sampled(player(policy, paged=True), n=2):
        for answer in group.trajectories:
            ids = torch.tensor([[*group.prompt_ids, *answer.token_ids]])
            policy.model.set_attn_implementation("eager")
            with torch.no_grad():
                logits = policy.model(input_ids=ids, use_cache=False).logits[0]
            policy.model.set_attn_implementation("outdo")
            logprobs = logits[len(group.prompt_ids) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            mask = torch.tensor(answer.mask or (True,) * len(answer.token_ids))
            torch.testing.assert_close(torch.tensor(answer.logprobs), expected[mask], atol=1e-5, rtol=1e-5)


def test_the_conversation_is_what_the_template_gives(policy: Policy) -> None:
    """Whatever special tokens a random model writes: the environment's are the template's."""
    policy, found = ending_with(policy, policy.renderer.eos_ids[0]), 0
    for answer in answers_of(sampled(player(policy), n=8, params=SampleParams(200))):
        assert answer.episode
        hints = [message["content"] for message in answer.episode.messages if message["role"] == "user"]
        texts = [policy.renderer.spell(segment.token_ids) for segment in answer.segments if not segment.trained]
        assert texts == [f"<|user|>{hint}<|assistant|>" for hint in hints][: len(texts)]
        found += len(texts)
    assert found > 10


@pytest.mark.parametrize("environment", [Echo, SlowEcho])
def test_answers_do_not_depend_on_the_batch(policy: Policy, environment: type) -> None:
    policy = ending(policy)
    together = answers_of(sampled(player(policy, environment)))
    for rows, paged in ((3, False), (5, True)):
        others = answers_of(sampled(player(policy, environment, rows=rows, paged=paged)))
        assert [one.token_ids for one in others] == [one.token_ids for one in together]
        assert [one.mask for one in others] == [one.mask for one in together]
    assert [one.token_ids for one in answers_of(sampled(player(policy), seed=1))] != [one.token_ids for one in together]


def test_waiting_is_shared(policy: Policy) -> None:
    """Twelve answers that wait 0.2 s a turn wait at the same time."""
    policy = ending(policy)
    start = time.monotonic()
    answers = answers_of(sampled(sampler := player(policy, SlowEcho)))
    seconds = time.monotonic() - start
    waited = sum(answer.episode.wait_seconds for answer in answers if answer.episode)
    assert waited > 3 * seconds
    assert 0.2 < sampler.idle.seconds < seconds  # the engine, while all of them waited


def test_a_broken_environment_breaks_its_answer_alone(policy: Policy) -> None:
    policy = ending(policy)
    groups = sampled(player(policy, Fails))
    for group in groups:
        for answer in group.trajectories:
            assert answer.episode
            if group.prompt.text == "9" and answer.episode.num_turns > 1:
                assert "ValueError: a shop that is closed" in answer.episode.broken
            else:
                assert not answer.episode.broken
    assert len(closed) == 12
    (broken,) = {answer.episode.broken for answer in answers_of(sampled(player(policy, NoReset))) if answer.episode}
    assert "reset" in broken and "no such map" in broken
    for odd in (FailsUnspeakably, ResetsUnspeakably):
        (broken,) = {answer.episode.broken for answer in answers_of(sampled(player(policy, odd))) if answer.episode}
        assert "Unspeakable: an error without a message" in broken


def test_limits(policy: Policy) -> None:
    policy = ending(policy)
    answers = answers_of(sampled(player(policy, Endless, max_turns=2)))
    assert all(answer.episode and answer.episode.num_turns <= 2 and answer.finish == "length" for answer in answers)
    assert all(answer.episode.out_of_turns == (answer.episode.num_turns == 2) for answer in answers if answer.episode)
    longest = answers_of(sampled(player(policy, Endless, max_turns=99)))
    assert not any(answer.episode.out_of_turns for answer in longest if answer.episode)
    assert {answer.finish for answer in longest} == {"length"}
    assert max(len(answer.token_ids) for answer in longest) == 60
    assert max(answer.episode.num_turns for answer in longest if answer.episode) > 2


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (99, "6*7=<<6*7=42>>42"),
        (12, "6*7=<<6*7="),  # the result does not fit
        (14, "6*7=<<6*7="),  # it would leave no room to go on
        (10, "6*7=<<6*7="),
        (3, "6*7"),
    ],
)
def test_results_within_a_turn(policy: Policy, room: int, text: str) -> None:
    """The text is what the tokens say, wherever a limit cuts it."""
    encode, end = policy.renderer.encode_texts, policy.renderer.eos_ids[0]
    first, second = encode(["6*7=<<6*7=", "42"])
    script = ScriptedEngine(lambda request, _: (*second, end) if request.follows else tuple(first))
    sampler = EpisodeSampler(script, policy.renderer, MARKS, with_tools(find_tools(["calculator"])), 8)
    (answer,) = answers_of(list(sampler.sample(PROMPTS[:1], 1, SampleParams(room), 0)))
    spelled = policy.renderer.spell([i for i in answer.token_ids if i != end])
    assert (answer.text, spelled) == (text, text)
    assert answer.episode and (answer.episode.num_turns, answer.episode.num_calls) == (1, int(room > 10))
    assert len(answer.token_ids) <= room
