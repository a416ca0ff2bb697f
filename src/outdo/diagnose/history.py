"""A run as the rules see it: columns by our metric names, held-out success, the recipe, what its answers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outdo.diagnose.names import our_values
from outdo.diagnose.signals import Curve, known

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

    def __len__(self) -> int:
        return len(self.steps)

    def has(self, *names: str, least: int = 4) -> bool:
        """Whether each of these was logged at that many steps."""
        return all(name in self.columns and len(known(self.columns[name])) >= least for name in names)

    def __getitem__(self, name: str) -> Curve:
        return self.columns[name]

    def step_at(self, index: int) -> int:
        return self.steps[min(index, len(self.steps) - 1)] if self.steps else 0

    def since(self, index: int) -> History:
        """The same from a step on."""
        return replace(
            self, steps=self.steps[index:], columns={name: curve[index:] for name, curve in self.columns.items()}
        )


def from_rows(
    rows: Iterable[Mapping[str, Any]],
    evals: Sequence[Mapping[str, Any]] = (),
    recipe: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
) -> History:
    """A history of rows under our names, TRL's or verl's. `evals` are rows of evals.jsonl."""
    steps: list[int] = []
    found: list[dict[str, float]] = []
    held = [_held(row) for row in evals if row.get("success_rate") is not None and _is_main(row, evals)]
    for index, row in enumerate(rows):
        values = our_values(row)
        step = int(values.pop("step", index))
        success = values.pop("eval_success_rate", None)
        if success is not None:
            held.append(Held(step, success, int(values.pop("eval_n", EVAL_SIZE))))
        if values:
            steps.append(step)
            found.append(values)
    names = dict.fromkeys(name for values in found for name in values)
    columns = {name: np.array([values.get(name, np.nan) for values in found], dtype=np.float64) for name in names}
    held.sort(key=lambda one: one.step)
    return History(tuple(steps), columns, tuple(held), dict(recipe or {}), answers or Answers())


def _is_main(row: Mapping[str, Any], evals: Sequence[Mapping[str, Any]]) -> bool:
    """The first split that was looked at; another distribution may well be out of reach."""
    return bool(row.get("split") == evals[0].get("split"))


def _held(row: Mapping[str, Any]) -> Held:
    """Sampled success where it was measured, because training samples too."""
    sampled = row.get("pass@1")
    success = float(row["success_rate"] if sampled is None else sampled)
    return Held(int(row.get("step") or 0), success, int(row.get("n") or EVAL_SIZE))
