"""What the API answers with, beside the records of `outdo.runs` and `outdo.doctor`.

A field that a run has nothing for is null; `trouble` is what could not be read.
"""

from __future__ import annotations

from typing import Any

from outdo.doctor.report import FindingRecord
from outdo.doctor.summary import RunSummary
from outdo.evals.changes import Changes
from outdo.metrics.catalogue import Signal
from outdo.runs.curves import Curves, EvalRecord
from outdo.runs.groups import GroupRecord, GroupStats, TokenRecord
from outdo.runs.values import PartialRecord, Record


class SweepSummary(Record):
    id: str
    title: str
    cells: int
    done: int


class Runs(PartialRecord):
    root: str
    runs: list[RunSummary]
    sweeps: list[SweepSummary]


class Evals(PartialRecord):
    evals: list[EvalRecord]


class Charts(Record):
    """The charts of the catalogue. A band has two ends; null is no end on that side."""

    charts: tuple[Signal, ...]


class StepList(PartialRecord):
    """Steps whose answers are recorded, one by one and as ranges with both ends."""

    steps: list[int]
    ranges: list[list[int]]


class Groups(PartialRecord):
    step: int
    total: int
    groups: list[GroupRecord]


class Tokens(Record):
    tokens: list[TokenRecord]


class PromptStep(GroupStats):
    """A prompt at one step; `best` is the start of the answer with the highest reward."""

    rewards: list[float | None]
    best: str


class PromptPage(PartialRecord):
    prompt_id: str
    prompt: str
    seen: list[PromptStep]


class PromptGain(Record):
    prompt_id: str
    prompt: str
    first_step: int
    last_step: int
    first_mean: float
    last_mean: float
    gain: float


class Improved(PartialRecord):
    prompts: list[PromptGain]


class EvalChoice(Record):
    """The evaluations of a split whose answers are kept, by the number of steps done."""

    split: str
    steps: list[int]


class AnswerPage(PartialRecord):
    """Held-out answers side by side: the splits that both runs have, the evaluations of each, and of the two that are
    compared the counts and one page of problems, `total` in all. `changes` is null where there are none."""

    splits: list[str]
    evaluations: list[EvalChoice]
    others: list[EvalChoice]
    changes: Changes | None = None
    total: int = 0


class SweepPage(SweepSummary, PartialRecord):
    """A sweep: the `keys` it varies, its cells as `rows` (with the `run` of each that has one), the best setting."""

    keys: list[str]
    rows: list[dict[str, Any]]
    pick: str | None
    why: str
    default: str | None


class Detail(Record):
    """Why a request failed."""

    detail: str


class RunEvent(Record):
    """An event of /api/live."""

    run: str


class NewRows(RunEvent, Curves):
    """New rows of a run."""


class NewEvals(RunEvent):
    evals: list[EvalRecord]


class NewFindings(RunEvent):
    findings: list[FindingRecord]


class NewStatus(RunEvent):
    summary: RunSummary
