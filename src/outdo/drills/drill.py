"""What a drill is, and its outcome. A drill is data; what it does is a function of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from outdo.drills.desk import Desk

Keys = Mapping[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Signal:
    """A curve, and its direction from the end of the failing run to the end of the fixed one."""

    name: str  # a metric, or eval_success_rate
    way: Literal["up", "down"]
    least: float = 0.0  # the minimum difference in its own units, beside exceeding noise


@dataclass(frozen=True)
class Check:
    """One thing that a drill must show, in one line, and whether it did."""

    line: str
    held: bool


@dataclass(frozen=True)
class Panel:
    """One run in a picture."""

    title: str
    run: Path
    marks: Mapping[int, str]  # the text at a step


@dataclass(frozen=True)
class Outcome:
    """The result of a drill. `facts` are the same numbers for a program."""

    checks: tuple[Check, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    picture: Path | None = None

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.held for check in self.checks)


@dataclass(frozen=True)
class Drill:
    """A failure mode, the keys that cause it, and what fixes it."""

    name: str
    shows: str  # in one line
    failing: Keys  # keys of the failing run, over those that all drills share
    code: str  # the doctor's first finding; others are its effects
    signals: tuple[Signal, ...]  # that must improve, beside held-out success; drawn, the first on its scale
    act: Callable[[Drill, Desk], Outcome]  # what it does
    fix: Keys | None = None  # the one change; None: the doctor's own
    lost: str = "test"  # the split on which held-out success must rise above the failing run's
    refused: str = ""  # a reward of it that the audit must refuse
    extra_check: Callable[[Path, Path], Check] | None = None  # of the failing and the fixed run
