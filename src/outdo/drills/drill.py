"""What a drill is, and what comes of one. A drill is data; what it does is a function that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from outdo.drills.desk import Desk

Keys = Mapping[str, Any]
Way = Literal["up", "down"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Signal:
    """A curve, and which way it must have gone once the run is cured. The end of one run is held against the other's.

    `least` is how far apart the two must be, in the signal's own units, beside being further than noise.
    """

    name: str  # of metrics.jsonl, or eval_success_rate
    way: Way
    least: float = 0.0


@dataclass(frozen=True)
class Check:
    """One thing that a drill has to show, in a line, and whether it did."""

    line: str
    held: bool


@dataclass(frozen=True)
class Marked:
    """A step that a picture points at."""

    step: int
    words: str


@dataclass(frozen=True)
class Panel:
    """One run in a picture: its folder, and what is marked in it."""

    title: str
    run: Path
    marks: tuple[Marked, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a drill found. `facts` are the same numbers for a program."""

    checks: tuple[Check, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    picture: Path | None = None

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.held for check in self.checks)


@dataclass(frozen=True)
class Drill:
    """An illness, how it is made, and what cures it."""

    name: str
    shows: str  # in a line
    ill: Keys  # keys of the ill run, over those that all drills share
    code: str  # what the doctor must say, first and alone
    signals: tuple[Signal, ...]  # what must have turned round; the first is the telling one, and drawn
    act: Callable[[Drill, Desk], Outcome]  # what it does
    cure: Keys | None = None  # the one change; None: the doctor's own
    steps: int = 30  # to run on for with the doctor's change
    refused: str = ""  # a reward of it that the audit must refuse
    more: Callable[[Path, Path], Check] | None = None  # something else to be shown of the ill and the cured run
