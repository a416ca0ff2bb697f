"""What the doctor reports: a code, the evidence, one change of the recipe, and the signal that should respond."""

from __future__ import annotations

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
    """A key of the recipe, its value now and the value to set.

    Another trainer's log does not have its settings. Then both are None, and `words` are the change: "lower
    learning_rate 4×".
    """

    key: str
    old: Any
    new: Any
    words: str = ""

    @property
    def is_known(self) -> bool:
        return not self.words

    def pair(self) -> str:
        """As it is typed on the command line; in words where the value now is unknown."""
        return self.words or f"{self.key}={_typed(self.new)}"

    def describe(self) -> str:
        if self.words:
            return f"{self.words} (the log does not have its value)"
        return f"{self.key}: {_typed(self.old) if self.old is not None else 'current value'} → {_typed(self.new)}"

    def row(self) -> dict[str, Any]:
        return {"key": self.key, "from": self.old, "to": self.new, "words": self.describe()}


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
    also: tuple[str, ...] = ()  # codes of other failures that were seen, and that this one explains
    unrecoverable: bool = False  # no later step of the run can undo it
    unjudged: tuple[str, ...] = ()  # of a run without failures: rules that lack their signals, "code (signal)"

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
            "also": list(self.also),
            "unrecoverable": self.unrecoverable,
            "unjudged": list(self.unjudged),
        }


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _typed(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"[{','.join(map(_typed, value))}]" if isinstance(value, (list, tuple)) else str(value)
