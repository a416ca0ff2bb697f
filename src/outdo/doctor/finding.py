"""What the doctor says: a name, the numbers behind it, one change, and the signal that should answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["critical", "warning", "info"]
Direction = Literal["up", "down", "steady"]


@dataclass(frozen=True)
class Sign:
    """One number of the evidence: a signal before and after, its slope a step, or words where there is no number."""

    signal: str
    before: float | None = None
    after: float | None = None
    slope: float | None = None  # a step
    note: str = ""

    def words(self) -> str:
        shown = self.signal
        if self.after is not None:
            shown += (
                f" {_short(self.after)}" if self.before is None else f" {_short(self.before)} → {_short(self.after)}"
            )
        if self.slope is not None:
            shown += f" ({self.slope:+.2g} a step)"
        return f"{shown}: {self.note}" if self.note and self.after is not None else f"{shown} {self.note}".rstrip()

    def row(self) -> dict[str, Any]:
        return {"signal": self.signal, "before": self.before, "after": self.after, "slope": self.slope} | {
            "words": self.words()
        }


@dataclass(frozen=True)
class Change:
    """A key of the recipe, what it is now (None: not known) and what to set."""

    key: str
    old: Any
    new: Any

    def pair(self) -> str:
        """As it is typed on the command line."""
        return f"{self.key}={_typed(self.new)}"

    def words(self) -> str:
        return f"{self.key}: {_typed(self.old) if self.old is not None else 'as it is'} → {_typed(self.new)}"

    def row(self) -> dict[str, Any]:
        return {"key": self.key, "from": self.old, "to": self.new}


@dataclass(frozen=True)
class Expect:
    """Which signal should answer to the change, which way, and within how many steps."""

    signal: str
    direction: Direction
    steps: int

    def words(self) -> str:
        goes = {"up": "rises", "down": "falls", "steady": "holds"}[self.direction]
        return f"{self.signal} {goes} within {self.steps} steps"

    def row(self) -> dict[str, Any]:
        return {"signal": self.signal, "direction": self.direction, "steps": self.steps}


@dataclass(frozen=True)
class Finding:
    """One diagnosis. `step` is when it began; a healthy run has nothing to change."""

    code: str
    severity: Severity
    step: int
    evidence: tuple[Sign, ...]
    change: Change | None = None
    expect: Expect | None = None

    @property
    def page(self) -> str:
        return f"docs/playbook.md#{self.code}"

    def row(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "step": self.step,
            "evidence": [sign.row() for sign in self.evidence],
            "change": self.change.row() if self.change else None,
            "expect": self.expect.row() if self.expect else None,
            "page": self.page,
        }


def changed(recipe: Mapping[str, Any], key: str, new: Any) -> Change:
    """A change with what the recipe has now; it may be another trainer's, and unknown."""
    return Change(key, recipe.get(key), new)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _typed(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"[{','.join(map(_typed, value))}]" if isinstance(value, (list, tuple)) else str(value)
