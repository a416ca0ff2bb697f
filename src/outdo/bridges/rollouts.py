"""What a trainer of TRL's form samples in a step, as our groups: graded by our rewards, with its own advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from torch import Tensor

from outdo.bridges.environments import TRLEnvironment, finished
from outdo.learn.memory import MAX_TOKENS
from outdo.learn.score import group_logprobs
from outdo.models.load import Policy
from outdo.types import Episode, Finish, Group, Message, Prompt, Segment, Trajectory


def groups_of(
    policy: Policy,
    prompts: Sequence[Prompt],
    completion_ids: Sequence[Sequence[int]],
    completions: Sequence[Any],
    group_size: int,
    version: int,
    environments: Sequence[TRLEnvironment] = (),
) -> list[Group]:
    """The groups of a batch, without grades. `prompts` has one entry for each answer, neighbours in a group.
    Log-probabilities are NaN until they are known."""
    texts = policy.renderer.decode_answers(completion_ids)
    rows = zip(completion_ids, texts, strict=True)
    answers = [_trajectory(policy, *row, version) for row in rows]
    if environments:
        answers = [_played(*pair) for pair in zip(answers, completions, environments, strict=True)]
    starts = range(0, len(prompts), group_size)
    encoded = policy.renderer.encode_all([prompts[start] for start in starts])
    return [
        Group(prompts[start], ids, tuple(answers[start : start + group_size]))
        for start, ids in zip(starts, encoded, strict=True)
    ]


def _trajectory(policy: Policy, ids: Sequence[int], text: str, version: int) -> Trajectory:
    token_ids = tuple(map(int, ids))
    finish: Finish = "stop" if token_ids and token_ids[-1] in policy.eos_ids else "length"
    segment = Segment(token_ids, (math.nan,) * len(token_ids), version)
    return Trajectory((segment,), text, finish)


def _played(answer: Trajectory, messages: Sequence[Message], environment: TRLEnvironment) -> Trajectory:
    """An answer of several turns: how it went, from what was said. Its text is the last turn's."""
    turns = [one for one in messages if one.get("role") == "assistant"]
    calls = sum(len(one.get("tool_calls") or ()) for one in turns)
    episode = Episode(tuple(messages), num_turns=len(turns), num_calls=calls, num_failed_calls=None)
    last = str(turns[-1].get("content") or "") if turns else ""
    return replace(answer, text=last, episode=finished(environment, episode))


def completed(
    policy: Policy, groups: Sequence[Group], output: dict[str, Tensor], temperature: float
) -> tuple[list[Group], bool]:
    """The groups with what the trainer computed: its advantages, which tokens are an environment's, and the sampler's
    log-probabilities. Where it has none of these, they are computed with the policy, which has the same weights. Also
    whether its prompts have the tokens that ours have."""
    group_size = len(groups[0].trajectories)
    advantages = output["advantages"].float().cpu().view(-1, group_size).tolist()
    masks = output["tool_mask"].bool().tolist() if "tool_mask" in output else None
    groups = [_masked(group, masks[i * group_size :]) for i, group in enumerate(groups)] if masks else groups
    theirs = next((output[key] for key in ("sampling_per_token_logps", "old_per_token_logps") if key in output), None)
    if theirs is None:
        logprobs = group_logprobs(policy, groups, temperature, MAX_TOKENS.get(policy.device.type, MAX_TOKENS["cpu"]))
    else:
        rows = iter(theirs.float().tolist())
        logprobs = [[_own(next(rows), one) for one in group.trajectories] for group in groups]
    rows_of_prompts = zip(output["prompt_ids"].tolist(), output["prompt_mask"].tolist(), strict=True)
    prompt_ids = [tuple(token for token, used in zip(*row, strict=True) if used) for row in rows_of_prompts]
    is_same = all(group.prompt_ids == prompt_ids[i * group_size] for i, group in enumerate(groups))
    done = []
    for i, group in enumerate(groups):
        trajectories = tuple(map(_with_logprobs, group.trajectories, logprobs[i]))
        ids = prompt_ids[i * group_size]
        done.append(replace(group, prompt_ids=ids, trajectories=trajectories, advantages=tuple(advantages[i])))
    return done, is_same


def _masked(group: Group, masks: Sequence[Sequence[bool]]) -> Group:
    """With the tokens that an environment wrote in segments of their own."""
    return replace(group, trajectories=tuple(map(_in_segments, group.trajectories, masks)))


def _in_segments(answer: Trajectory, mask: Sequence[bool]) -> Trajectory:
    (whole,) = answer.segments
    segments, start = [], 0
    for is_own, run in groupby(mask[: len(whole.token_ids)]):
        end = start + len(list(run))
        ids = whole.token_ids[start:end]
        segments.append(Segment(ids, (math.nan,) * (len(ids) if is_own else 0), whole.version, trained=is_own))
        start = end
    return replace(answer, segments=tuple(segments) or (whole,))


def _own(row: Sequence[float], answer: Trajectory) -> list[float]:
    """Of the tokens that the model wrote."""
    mask = answer.mask or (True,) * len(answer.token_ids)
    return [value for value, own in zip(row, mask, strict=False) if own]


def _with_logprobs(answer: Trajectory, logprobs: Sequence[float]) -> Trajectory:
    values = iter(logprobs)
    segments = (
        replace(one, logprobs=tuple(next(values) for _ in one.logprobs)) if one.trained else one
        for one in answer.segments
    )
    return replace(answer, segments=tuple(segments))
