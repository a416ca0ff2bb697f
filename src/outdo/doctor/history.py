"""A run as the rules see it: columns under outdo's metric names, held-out success, the recipe, its answers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outdo.doctor.signals import Curve, finite, slope
from outdo.metrics.headline import deciding_metric
from outdo.runs.foreign.names import CORE_SIGNALS, HELD_OUT, NON_FINITE, SUCCESS_PART, canonical_values, finite_number

MAX_STEP = 1e12  # a larger number is something else, such as a time
OUTSIDE = re.compile(r"(?:^|[_/-])ood(?:$|[_/-])|out.of.(?:domain|distribution)", re.IGNORECASE)
VERDICTS = {"success_rate", "all_right", "all_wrong"}  # columns that say whether answers are right
EVAL_SIZE = 200  # problems of an evaluation that does not give their number


@dataclass(frozen=True)
class Held:
    step: int
    success: float
    n: int | None = None  # problems, where they were logged

    @property
    def size(self) -> int:
        return self.n or EVAL_SIZE


@dataclass(frozen=True)
class Answers:
    """What the answers show, where they are available."""

    repeated: int = 0  # answers given more than once to the same prompt
    differing: int = 0  # of those, answers with different verdicts
    example: str = ""  # one of these
    broken: str = ""  # the most common reason of broken grades
    error: str = ""  # the most common message of failed calls
    gained: tuple[str, ...] = ()  # what the answers that gained most have in common, and examples


@dataclass(frozen=True)
class History:
    """N steps. A signal that was not logged has no column, and a rule that needs it abstains."""

    steps: tuple[int, ...]
    columns: Mapping[str, Curve]
    held: tuple[Held, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    ended: str = ""  # why the run stopped or failed; empty where it did not
    skipped: tuple[str, ...] = ()  # lines of its files that are not JSON rows
    splits: Mapping[str, tuple[Held, ...]] = field(default_factory=dict)  # every held-out set; `held` is the first
    ignored: tuple[str, ...] = ()  # columns of its file that no rule reads
    full_reward: float | None = None  # the highest that any answer was paid, where the reward decides, not success

    def __len__(self) -> int:
        return len(self.steps)

    def has(self, *names: str, least: int = 4) -> bool:
        """Whether each of these was logged at that many steps."""
        return all(name in self.columns and len(finite(self.columns[name])) >= least for name in names)

    def __getitem__(self, name: str) -> Curve:
        return self.columns[name]

    def step_at(self, index: int) -> int:
        return self.steps[min(index, len(self.steps) - 1)] if self.steps else 0

    @property
    def first_step(self) -> int:
        """The number of the first step: 1, or 0 in logs that count from 0."""
        return min(1, self.steps[0]) if self.steps else 1

    @property
    def stride(self) -> float:
        """Steps from one row to the next: many trainers log every tenth."""
        return float(np.median(np.diff(self.steps))) if len(self) > 1 else 1.0

    def slope(self, name: str) -> float:
        """Change per step."""
        return slope(self[name]) / self.stride

    def since(self, index: int) -> History:
        if not index:
            return self
        first = self.steps[index] - self.first_step if index < len(self) else math.inf
        held, *others = (
            tuple(point for point in points if point.step >= first) for points in (self.held, *self.splits.values())
        )
        columns = {name: curve[index:] for name, curve in self.columns.items()}
        splits = dict(zip(self.splits, others, strict=True))
        return replace(self, steps=self.steps[index:], columns=columns, held=held, splits=splits)

    def until(self, index: int) -> History:
        columns = {name: curve[:index] for name, curve in self.columns.items()}
        return replace(self, steps=self.steps[:index], columns=columns)


def from_rows(
    rows: Iterable[Mapping[str, Any]],
    evals: Sequence[Mapping[str, Any]] = (),
    recipe: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
) -> History:
    """A history from rows under outdo's names, TRL's or verl's, and the rows of a run's evaluations.

    Rows of the same step are merged. Where a run was resumed from an earlier step and logs it again, later steps are
    dropped.
    """
    logged = [values for row in rows if (values := canonical_values(row))]
    by_step: dict[int, dict[str, float]] = {}
    splits: dict[str, list[Held]] = {}
    for row in evals:
        if point := _held(row):
            splits.setdefault(str(row.get("split") or ""), []).append(point)
    for step, values in zip(_steps(logged), logged, strict=True):
        for split, point in _printed_evals(step, values):
            splits.setdefault(split, []).append(point)
        signals = {name: value for name, value in values.items() if name != "step" and not name.startswith("eval_")}
        if not signals:
            continue
        if by_step.get(step, {}).keys() & signals.keys() & CORE_SIGNALS:
            while next(reversed(by_step)) > step:
                by_step.popitem()
            by_step[step] = {k: value for k, value in by_step[step].items() if not k.startswith(NON_FINITE)}
        by_step[step] = by_step.get(step, {}) | signals
    steps = tuple(sorted(by_step))
    columns = _columns([by_step[step] for step in steps])
    held = _ordered(splits)
    first = next(iter(held.values()), ())
    history = History(steps, columns, first, dict(recipe or {}), answers or Answers(), splits=held)
    return _by_reward(history, evals) if _reward_decides(history, evals) else history


def _reward_decides(history: History, evals: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the recipe says so, or no answer ever succeeds by the reward that the run is trained on: partial credit,
    with full marks below what counts as success. Success by another judge is the true signal, 0 or not."""
    metric = str(history.recipe.get("eval_metric") or "auto")
    if deciding_metric(metric, evals) != "reward":
        return False
    own = {row.get("judge") for row in evals} <= {*(history.recipe.get("reward_funcs") or ())}
    return metric == "reward" or (own and not np.any(finite(history.columns.get("success_rate", np.empty(0)))))


def _by_reward(history: History, evals: Sequence[Mapping[str, Any]]) -> History:
    """Without the columns of verdicts; held-out success is the mean reward as a share of the highest one."""
    full = max((value for row in evals if (value := finite_number(row.get("max_reward"))) is not None), default=0.0)
    splits: dict[str, list[Held]] = {}
    for row in evals if full > 0 else ():
        paid = row.get("reward_mean") if row.get("sampled_reward_mean") is None else row["sampled_reward_mean"]
        if point := _held({**row, "pass@1": (finite_number(paid) or 0.0) / full}):
            splits.setdefault(str(row.get("split") or ""), []).append(point)
    held = _ordered(splits)
    columns = {name: curve for name, curve in history.columns.items() if name not in VERDICTS}
    is_alone = len(history.recipe.get("reward_funcs") or ()) == 1 and not history.recipe.get("reward_weights")
    full_reward = full if is_alone and full > 0 else None
    return replace(history, columns=columns, held=next(iter(held.values()), ()), splits=held, full_reward=full_reward)


def _printed_evals(step: int, values: Mapping[str, float]) -> Iterator[tuple[str, Held]]:
    """Held-out success in a row of metrics, by its split: `eval_success_rate`, or that with /NAME."""
    for name, value in values.items():
        key, _, split = name.partition("/")
        if key == HELD_OUT:
            yield split, Held(step, value, _problems(values.get("eval_n")))


def _ordered(splits: Mapping[str, list[Held]]) -> dict[str, tuple[Held, ...]]:
    """Points by step. Splits that are no shares are dropped; one by the name of another distribution is not first."""
    shares = {name: points for name, points in splits.items() if all(0 <= point.success <= 1 for point in points)}
    names = sorted(shares, key=lambda name: bool(OUTSIDE.search(name)))  # stable: else as logged
    return {name: tuple(sorted(shares[name], key=lambda point: point.step)) for name in names}


def _steps(logged: Sequence[Mapping[str, float]]) -> list[int]:
    """The step of each row. A row without one follows the previous row; fractions are epochs, so rows are counted."""
    given = [values.get("step", 0.0) for values in logged]
    are_steps = all(step.is_integer() and abs(step) < MAX_STEP for step in given)
    steps: list[int] = []
    for values in logged:
        last = steps[-1] if steps else 0
        counts = bool(CORE_SIGNALS & values.keys()) or not steps
        steps.append(int(values["step"]) if are_steps and "step" in values else last + counts)
    return steps


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Curve]:
    """A curve for each name. Success in percent becomes a share, and is dropped where it is neither; a part of the
    reward may stand in for it."""
    names = dict.fromkeys(name for values in rows for name in values)
    columns = {name: np.array([values.get(name, np.nan) for values in rows], dtype=np.float64) for name in names}
    success = finite(columns.get("success_rate", np.empty(0)))
    if np.any((success < 0) | (success > 1)):
        is_percent = success.min() >= 0 and 5 < success.max() <= 100
        columns |= {"success_rate": columns["success_rate"] / 100} if is_percent else {}
        if not is_percent:
            del columns["success_rate"]
    part = next((name for name, curve in columns.items() if SUCCESS_PART.fullmatch(name) and is_share(curve)), None)
    if part is not None:
        columns.setdefault("success_rate", columns[part])
    return columns


def is_share(curve: Curve) -> bool:
    values = finite(curve)
    return bool(np.all((values >= 0) & (values <= 1)))


def _held(row: Mapping[str, Any]) -> Held | None:
    """Sampled success where it was measured, because training samples too."""
    sampled = finite_number(row.get("pass@1"))
    success = finite_number(row.get("success_rate")) if sampled is None else sampled
    if success is None or not 0 <= success <= 1:
        return None
    return Held(int(finite_number(row.get("step")) or 0), success, _problems(finite_number(row.get("n")) or None))


def _problems(n: float | None) -> int | None:
    return None if n is None else max(1, int(n))
