"""What the doctor reports: a code, the evidence, one change of the recipe, and the signal that should respond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["critical", "warning", "info"]
Direction = Literal["up", "down", "steady"]


@dataclass(frozen=True)
class Evidence:
    """A signal before and after and its slope, or a note instead of numbers."""

    signal: str
    before: float | None = None
    after: float | None = None
    slope: float | None = None  # per step
    note: str = ""

    def describe(self) -> str:
        text = self.signal
        if self.after is not None:
            text += f" {'' if self.before is None else f'{_short(self.before)} → '}{_short(self.after)}"
        if self.slope is not None:
            text += f" ({self.slope:+.2g} per step)"
        return f"{text}: {self.note}" if self.note and self.after is not None else f"{text} {self.note}".rstrip()

    def row(self) -> dict[str, Any]:
        numbers = {"before": self.before, "after": self.after, "slope": self.slope}
        return {"signal": self.signal, **numbers, "words": self.describe()}


@dataclass(frozen=True)
class Change:
    """A key of the recipe, its value now (None: unknown) and the value to set."""

    key: str
    old: Any
    new: Any

    def pair(self) -> str:
        """As it is typed on the command line."""
        return f"{self.key}={_typed(self.new)}"

    def describe(self) -> str:
        return f"{self.key}: {_typed(self.old) if self.old is not None else 'current value'} → {_typed(self.new)}"

    def row(self) -> dict[str, Any]:
        return {"key": self.key, "from": self.old, "to": self.new}


@dataclass(frozen=True)
class Expect:
    """Which signal should respond to the change, in which direction, and within how many steps."""

    signal: str
    direction: Direction
    steps: int

    def describe(self) -> str:
        verb = {"up": "rises", "down": "falls", "steady": "holds"}[self.direction]
        return f"{self.signal} {verb} within {self.steps} steps"


@dataclass(frozen=True)
class Finding:
    """One diagnosis. `step` is its onset; a healthy run has no change."""

    code: str
    severity: Severity
    step: int
    evidence: tuple[Evidence, ...]
    change: Change | None = None
    expect: Expect | None = None
    unrecoverable: bool = False  # no later step of the run can undo it

    @property
    def page(self) -> str:
        return f"docs/playbook.md#{self.code}"

    def row(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "step": self.step,
            "evidence": [item.row() for item in self.evidence],
            "change": self.change.row() if self.change else None,
            "expect": asdict(self.expect) if self.expect else None,
            "page": self.page,
            "unrecoverable": self.unrecoverable,
        }


def set_key(recipe: Mapping[str, Any], key: str, new: Any) -> Change:
    """A change with the recipe's value now; another trainer's recipe may be unknown."""
    return Change(key, recipe.get(key), new)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _typed(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"[{','.join(map(_typed, value))}]" if isinstance(value, (list, tuple)) else str(value)
