"""Several rewards on each answer, with weights, into one grade. A grader that breaks is broken, never a silent 0.

Every function sees one group at a time: nothing leaks between prompts, and statistics inside it are the group's.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outdo import plugins
from outdo.errors import GraderError
from outdo.grade import answer, form, games
from outdo.types import Completion, Grade, Group, Prompt, RewardFunction, Verdict

REWARDS: dict[str, RewardFunction] = {
    "numeric": answer.numeric,
    "exact": answer.exact,
    "gsm8k": answer.gsm8k,
    "format": form.format,
    "overlong": form.overlong,
    "countdown": games.countdown,
}


@dataclass(frozen=True)
class Reward:
    name: str
    function: RewardFunction
    weight: float = 1.0


@dataclass(frozen=True)
class Rewards:
    """What an answer is judged by. `truth` names the one whose verdict is success; its weight may be 0."""

    parts: tuple[Reward, ...]
    truth: str
    max_completion_length: int = 0


def find_rewards(
    names: Sequence[str],
    weights: Sequence[float],
    truth: str,
    max_completion_length: int = 0,
    own: Mapping[str, RewardFunction] | None = None,
) -> Rewards:
    """The rewards by name, the user's `own` among them. Raises GraderError.

    `truth` is added with weight 0 where it is not among the names: success is always measured by it.
    """

    def made(name: str, weight: float) -> Reward:
        function = plugins.find(name, {**REWARDS, **(own or {})}, "outdo.rewards", GraderError)
        return Reward(name.rpartition(":")[2], function, weight)

    parts = [made(name, weight) for name, weight in zip(names, weights or [1.0] * len(names), strict=True)]
    short = truth.rpartition(":")[2]
    if short not in [part.name for part in parts]:
        parts.append(made(truth, 0.0))
    if len({part.name for part in parts}) < len(parts):
        raise GraderError(f"reward_funcs names the same reward twice: {', '.join(part.name for part in parts)}")
    for part in parts:
        if not callable(part.function):
            raise GraderError(f"reward {part.name} is a {type(part.function).__name__}, not a function")
    return Rewards(tuple(parts), short, max_completion_length)


def grade(group: Group, rewards: Rewards) -> Group:
    """The same group with its grades."""
    per_part = [_judge(part, group, rewards) for part in rewards.parts]
    return replace(group, grades=tuple(_combine(rewards, judged) for judged in zip(*per_part, strict=True)))


def check_rewards(rewards: Rewards, prompt: Prompt) -> None:
    """Judges two made-up answers before anything is loaded, so that a reward that cannot run says so at once."""
    made_up = tuple(Completion((0,), (0.0,), text, "stop", 0) for text in ("", str(prompt.answer)))
    raise_if_all_broken([grade(Group(prompt, (0,), made_up), rewards)])


def raise_if_all_broken(groups: Sequence[Group]) -> None:
    """A grader that judged not one answer is an error of its own, not data."""
    grades = [grade for group in groups for grade in group.grades]
    if grades and all(grade.verdict == "broken" for grade in grades):
        raise GraderError(f"not one of {len(grades)} answers could be judged; the first: {grades[0].reason}")


def _judge(part: Reward, group: Group, rewards: Rewards) -> list[Grade | None]:
    """One reward's grade for each answer of a group; answers are tried alone where the group fails as a whole."""
    try:
        return _called(part, group, rewards)
    except GraderError:
        raise
    except Exception as error:
        if len(group.completions) == 1:
            return [Grade(None, "broken", reason=f"{part.name} raised {_where(error)}")]
        alone = [replace(group, completions=(completion,)) for completion in group.completions]
        return [grade for one in alone for grade in _judge(part, one, rewards)]


def _called(part: Reward, group: Group, rewards: Rewards) -> list[Grade | None]:
    values = part.function(**_arguments(part.function, group, rewards))
    if not isinstance(values, (list, tuple)) or len(values) != len(group.completions):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        raise GraderError(
            f"reward {part.name} returned {got} for {len(group.completions)} completions: return a list of one each"
        )
    return [_as_grade(value, part.name) for value in values]


def _arguments(function: RewardFunction, group: Group, rewards: Rewards) -> dict[str, Any]:
    """Every column that the function takes, one value for each answer; all of them where it takes **columns."""
    n = len(group.completions)
    columns: dict[str, Any] = {key: [value] * n for key, value in group.prompt.meta.items()}
    columns |= {
        "completions": [completion.text for completion in group.completions],
        "prompts": [group.prompt.text] * n,
        "answer": [group.prompt.answer] * n,
        "completion_ids": [completion.token_ids for completion in group.completions],
        "finish": [completion.finish for completion in group.completions],
        "max_completion_length": rewards.max_completion_length,  # the one number among the lists
    }
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in columns]
    if missing:
        name = getattr(function, "__name__", "reward")
        raise GraderError(
            f"reward {name} wants {', '.join(missing)}, which the task has not; it has {', '.join(columns)}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return columns
    return {p.name: columns[p.name] for p in named if p.name in columns}


def _as_grade(value: Any, name: str) -> Grade | None:
    """Numbers as users return them: 1 or more is right, None abstains. Anything else cannot be a reward."""
    if value is None or (isinstance(value, Grade) and (value.reward is None or math.isfinite(value.reward))):
        return value
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        return Grade(None, "broken", reason=f"{name} returned {value!r}, which is no finite number (or None)")
    return Grade(number, "right" if number >= 1.0 else "wrong")


def _combine(rewards: Rewards, judged: Sequence[Grade | None]) -> Grade:
    """The weighted sum. A part that abstains (None) is left out, unless it is the truth or the last that is paid."""
    parts: Mapping[str, float | None] = {
        part.name: grade.reward if grade else None for part, grade in zip(rewards.parts, judged, strict=True)
    }
    broken = [grade for grade in judged if grade and grade.verdict == "broken"]
    truth = next(grade for part, grade in zip(rewards.parts, judged, strict=True) if part.name == rewards.truth)
    weighed = [
        part.weight * grade.reward
        for part, grade in zip(rewards.parts, judged, strict=True)
        if part.weight and grade and grade.reward is not None
    ]
    if broken or truth is None or not weighed or not math.isfinite(sum(weighed)):
        why = "every paid reward abstained" if not weighed else f"the rewards sum to {sum(weighed)}"
        reason = broken[0].reason if broken else f"{rewards.truth} abstained" if truth is None else why
        return Grade(None, "broken", parts, reason)
    verdict: Verdict = "right" if truth.verdict == "right" else "wrong"
    return Grade(sum(weighed), verdict, parts, truth.reason)


def _where(error: Exception) -> str:
    """What a user's function raised, and in which line of theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
