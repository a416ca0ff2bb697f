"""A run as the rules see it: columns by our metric names, held-out success, the recipe, what its answers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outdo.doctor.names import KNOWN, LOST, judges, number, our_values
from outdo.doctor.signals import Curve, known, slope

MANY = 1e12  # steps: a larger number is something else, such as a time
EVAL_SIZE = 200  # problems that an evaluation is taken to have where it does not say


@dataclass(frozen=True)
class Held:
    """Held-out success at one step."""

    step: int
    success: float
    n: int = EVAL_SIZE


@dataclass(frozen=True)
class Answers:
    """What the answers themselves say, where they are kept."""

    repeated: int = 0  # sets of answers with the same text to the same prompt
    differing: int = 0  # of those, sets that were judged in different ways
    example: str = ""  # one of these
    broken: str = ""  # why most of the broken ones are
    gained: tuple[str, ...] = ()  # what the answers that gained most have in common, and some of them


@dataclass(frozen=True)
class History:
    """N steps. A column that nobody logged is not there, and a rule that needs it abstains."""

    steps: tuple[int, ...]
    columns: Mapping[str, Curve]
    held: tuple[Held, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    passed: tuple[str, ...] = ()  # lines of its files that are no rows

    def __len__(self) -> int:
        return len(self.steps)

    def has(self, *names: str, least: int = 4) -> bool:
        """Whether each of these was logged at that many steps."""
        return all(name in self.columns and len(known(self.columns[name])) >= least for name in names)

    def __getitem__(self, name: str) -> Curve:
        return self.columns[name]

    def step_at(self, index: int) -> int:
        return self.steps[min(index, len(self.steps) - 1)] if self.steps else 0

    @property
    def stride(self) -> float:
        """Steps from one row to the next: many trainers log every tenth."""
        return float(np.median(np.diff(self.steps))) if len(self) > 1 else 1.0

    def slope(self, name: str) -> float:
        """Change a step."""
        return slope(self[name]) / self.stride

    def since(self, index: int) -> History:
        """The same from a step on."""
        if not index:
            return self
        held = tuple(one for one in self.held if index < len(self) and one.step >= self.steps[index])
        columns = {name: curve[index:] for name, curve in self.columns.items()}
        return replace(self, steps=self.steps[index:], columns=columns, held=held)

    def until(self, index: int) -> History:
        """The same up to a step, and without it."""
        columns = {name: curve[:index] for name, curve in self.columns.items()}
        return replace(self, steps=self.steps[:index], columns=columns)


def from_rows(
    rows: Iterable[Mapping[str, Any]],
    evals: Sequence[Mapping[str, Any]] = (),
    recipe: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
) -> History:
    """A history of rows under our names, TRL's or verl's. `evals` are rows of evals.jsonl.

    Rows of one step are put together. Where a run went back and logs a step again, what it had logged since is gone.
    """
    logged = [values for row in rows if (values := our_values(row))]
    found: dict[int, dict[str, float]] = {}
    held: list[Held] = []
    for step, values in zip(_steps(logged), logged, strict=True):
        if "eval_success_rate" in values:
            held.append(Held(step, values["eval_success_rate"], max(1, int(values.get("eval_n", EVAL_SIZE)))))
        signals = {name: value for name, value in values.items() if name != "step" and not name.startswith("eval_")}
        if not signals:
            continue
        if found.get(step, {}).keys() & signals.keys() & KNOWN:
            while next(reversed(found)) > step:
                found.popitem()
            found[step] = {name: value for name, value in found[step].items() if not name.startswith(LOST)}
        found[step] = found.get(step, {}) | signals
    held = [*filter(None, map(_held, _main(evals))), *(held if all(0 <= one.success <= 1 for one in held) else ())]
    steps = tuple(sorted(found))
    return History(
        steps,
        _columns([found[step] for step in steps]),
        tuple(sorted(held, key=lambda one: one.step)),
        dict(recipe or {}),
        answers or Answers(),
    )


def _steps(logged: Sequence[Mapping[str, float]]) -> list[int]:
    """Of each row. One that does not say follows the one before; fractions are epochs, and rows are counted instead."""
    whole = all(values.get("step", 0.0).is_integer() and abs(values.get("step", 0.0)) < MANY for values in logged)
    steps: list[int] = []
    for values in logged:
        last = steps[-1] if steps else -1
        counts = bool(KNOWN & values.keys()) or not steps
        steps.append(int(values["step"]) if whole and "step" in values else last + counts)
    return steps


def _columns(found: Sequence[Mapping[str, float]]) -> dict[str, Curve]:
    """A curve for each name. Success is a share, else it is no success; a part of the reward may stand for it."""
    names = dict.fromkeys(name for values in found for name in values)
    columns = {name: np.array([values.get(name, np.nan) for values in found], dtype=np.float64) for name in names}
    if "success_rate" in columns and not is_share(columns["success_rate"]):
        del columns["success_rate"]
    if "success_rate" not in columns:
        judge = next((name for name, curve in columns.items() if judges(name) and is_share(curve)), None)
        return columns if judge is None else {**columns, "success_rate": columns[judge]}
    return columns


def is_share(curve: Curve) -> bool:
    """Whether all of it is from 0 to 1."""
    values = known(curve)
    return bool(np.all((values >= 0) & (values <= 1)))


def _main(evals: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the first split that was looked at; another distribution may well be out of reach."""
    return [row for row in evals if row.get("split") == evals[0].get("split")]


def _held(row: Mapping[str, Any]) -> Held | None:
    """Sampled success where it was measured, because training samples too."""
    sampled = number(row.get("pass@1"))
    success = number(row.get("success_rate")) if sampled is None else sampled
    if success is None or not 0 <= success <= 1:
        return None
    return Held(int(number(row.get("step")) or 0), success, max(1, int(number(row.get("n")) or EVAL_SIZE)))
