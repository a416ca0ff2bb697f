"""The metrics of a step, computed from its groups and the learner's statistics."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from outdo.metrics.played import measure_played
from outdo.types import Group, Trajectory

Metrics = dict[str, float | None]  # None: not measured
Said = str | tuple[int, ...]

_THINKING = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)


class Clock:
    """Measures the phases of a step: `with clock("update"): …`"""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[phase] = self.spent.get(phase, 0.0) + time.perf_counter() - start

    def leave_out(self, seconds: float) -> None:
        """Time that is not the step's own."""
        self._start += seconds

    def total(self) -> float:
        return time.perf_counter() - self._start


def measure(
    groups: Sequence[Group], trained: Sequence[Group], learned: Mapping[str, float], clock: Clock, audit: str = ""
) -> Metrics:
    """The metrics of one step. `groups` are all sampled groups, `trained` those that were kept and have advantages;
    `audit` names a reward that is not trained on.

    None is a value that was not measured: KL without a reference, a mean over nothing.
    """
    answers = [completion for group in groups for completion in group.trajectories]
    grades = [grade for group in groups for grade in group.grades]
    rewards = [grade.reward for grade in grades if grade.reward is not None]
    advantages = [advantage for group in trained for advantage in group.advantages]
    tokens = sum(answer.num_tokens for answer in answers)
    seconds = clock.total()
    row: Metrics = {
        "reward_mean": _mean(rewards),
        "reward_std": _std(rewards),
        "success_rate": _mean([grade.verdict == "right" for grade in grades if grade.verdict != "broken"]),
        "kl_mean": learned.get("kl"),
        "entropy_mean": _mean([-logprob for answer in answers for logprob in answer.logprobs]),
        "clipfrac": learned.get("clipfrac"),
        "adv_mean": _mean(advantages),
        "adv_std": _std(advantages),
        "group_diversity": _mean([len({*map(_said, g.trajectories)}) / len(g.trajectories) for g in groups]),
        **_spread(groups),
        "len_mean": tokens / max(len(answers), 1),
        "reasoning_tokens_mean": _mean([_reasoning_tokens(answer) for answer in answers]),
        "truncated": _mean([_is_truncated(answer) for answer in answers]),
        "grader_broken": _mean([grade.verdict == "broken" for grade in grades]),
        "grader_disagreement": _disagreement(groups),
        "mismatch_kl": learned.get("mismatch_kl"),
        "mismatch_ratio_std": learned.get("mismatch_ratio_std"),
        "grad_norm": learned.get("grad_norm"),
        "lr": learned.get("lr"),
        "beta": learned.get("beta"),
        "loss": learned.get("loss"),
        "ratio_mean": learned.get("ratio_mean"),
        "step_kl": learned.get("step_kl"),
        "skipped_updates": learned.get("skipped_updates"),
        "tokens": tokens,
        "trained_tokens": learned.get("tokens"),
        "tokens_per_s": tokens / seconds,
        "time/step": seconds,
        **{f"time/{phase}": spent for phase, spent in clock.spent.items()},
        **measure_played(groups),
    }
    names = dict.fromkeys(name for grade in grades for name in grade.parts)
    for name in names:
        row[f"reward/{name}"] = _mean([grade.parts[name] for grade in grades if grade.parts.get(name) is not None])
    if audit:
        row["audit_reward_mean"] = row.get(f"reward/{audit}")
    return row


def _said(answer: Trajectory) -> Said:
    """What makes two answers the same: the text, over several turns all that was said."""
    return answer.token_ids if answer.episode else answer.text


def _disagreement(groups: Sequence[Group]) -> float | None:
    """Of the answers that a group has more than once, the share with different verdicts; None if there are none."""
    verdicts: dict[tuple[Said, int, str, int], set[tuple[str, float | None]]] = {}
    counts: dict[tuple[Said, int, str, int], int] = {}
    for index, group in enumerate(groups):
        for answer, grade in zip(group.trajectories, group.grades, strict=True):
            if grade.verdict != "broken":
                key = (_said(answer), len(answer.token_ids), answer.finish, index)
                verdicts.setdefault(key, set()).add((grade.verdict, grade.reward))
                counts[key] = counts.get(key, 0) + 1
    return _mean([len(verdicts[key]) > 1 for key, count in counts.items() if count > 1])


def _spread(groups: Sequence[Group]) -> dict[str, float | None]:
    """The share of groups with spread, and the shares without because all answers are right, or all wrong."""
    flat = [{grade.verdict for grade in group.grades} - {"broken"} for group in groups if not group.has_spread]
    count = max(len(groups), 1)
    return {
        "informative": 1.0 - len(flat) / count,
        "all_right": sum(verdicts == {"right"} for verdicts in flat) / count,
        "all_wrong": sum(verdicts == {"wrong"} for verdicts in flat) / count,
    }


def _is_truncated(answer: Trajectory) -> bool:
    """At the limit of tokens; a limit of turns is a signal of its own."""
    return answer.finish == "length" and not (answer.episode and answer.episode.out_of_turns)


def _reasoning_tokens(answer: Trajectory) -> float:
    """Tokens of the reasoning, estimated by its share of the characters."""
    thought = sum(map(len, _THINKING.findall(answer.text)))
    return answer.num_tokens * thought / max(len(answer.text), 1)


def _std(values: Sequence[float]) -> float | None:
    return statistics.pstdev(values) if values and all(map(math.isfinite, values)) else None


def _mean(values: Sequence[float | None]) -> float | None:
    return statistics.fmean(values) if values else None  # type: ignore[arg-type]
