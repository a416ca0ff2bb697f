"""What the API answers with. A field that a run has nothing for is null; `trouble` says what could not be read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["running", "done", "stopped", "failed", "lost", "unreadable"]
Number = float | None


class Shape(BaseModel):
    """NaN goes out as null."""

    model_config = ConfigDict(ser_json_inf_nan="null", populate_by_name=True)


class Success(Shape):
    """Held-out success with its 95% interval."""

    split: str
    success: float
    low: Number
    high: Number


class Mark(Shape):
    """A finding in short."""

    code: str
    severity: str
    step: int


class RunSummary(Shape):
    """A run in a line. `lost`: it says that it runs, and no process writes there."""

    id: str
    name: str
    kind: str = "grpo"
    status: Status
    why: str = ""
    started: str | None = None
    ended: str | None = None
    task: str = ""
    model: str = ""
    steps: int = 0
    max_steps: int | None = None
    before: Success | None = None
    after: Success | None = None
    spark: list[Number] = []
    findings: list[Mark] = []
    trouble: list[str] = []


class SweepSummary(Shape):
    id: str
    title: str
    cells: int
    done: int


class Runs(Shape):
    root: str
    runs: list[RunSummary]
    sweeps: list[SweepSummary]
    trouble: list[str] = []


class RunPage(Shape):
    """A run's facts, and what it has cost: sampled tokens, seconds of its steps, the same times its devices."""

    summary: RunSummary
    recipe: dict[str, Any]
    facts: dict[str, Any]
    tokens: int
    seconds: float
    device_seconds: float
    answers: int
    memory: int | None = None
    phases: dict[str, float]
    trouble: list[str] = []


class Series(Shape):
    """One signal. `low` and `high` are the least and most of the rows that a point stands for; null where it is one."""

    mean: list[Number]
    low: list[Number] | None = None
    high: list[Number] | None = None


class Metrics(Shape):
    """`time` is seconds of training by the end of each step, `tokens` those sampled by then."""

    steps: list[int]
    time: list[Number]
    tokens: list[Number]
    series: dict[str, Series]
    total: int
    exact: bool
    trouble: list[str] = []


class Eval(Shape):
    step: int
    split: str
    n: int | None
    success: Number
    low: Number
    high: Number
    pass_at: dict[str, float] = {}


class Evals(Shape):
    evals: list[Eval]
    trouble: list[str] = []


class Change(Shape):
    """One key to set; `override` is what to type."""

    key: str
    old: Any = Field(alias="from", default=None)
    new: Any = Field(alias="to", default=None)
    words: str = ""
    override: str = ""


class Expect(Shape):
    signal: str
    direction: str
    steps: int | None
    words: str = ""


class Finding(Shape):
    """What the doctor says. `past`: it was noted during the run and no longer holds."""

    code: str
    severity: str
    step: int
    evidence: str
    numbers: dict[str, dict[str, Number]] = {}
    signals: list[str] = []
    change: Change | None = None
    expect: Expect | None = None
    page: str = ""
    what: str = ""
    why: str = ""
    do: str = ""
    seen: int | None = None
    past: bool = False


class Findings(Shape):
    findings: list[Finding]
    trouble: list[str] = []


class Chart(Shape):
    """One chart of the catalogue. A band has two ends; null is no end on that side."""

    name: str
    title: str
    unit: str
    what: str
    good: str
    bad: str
    good_band: list[Number] | None
    bad_band: list[Number] | None
    log: bool
    section: str
    also: list[str]


class Charts(Shape):
    charts: list[Chart]


class StepList(Shape):
    """Steps whose answers are kept, one by one and as ranges with both ends."""

    steps: list[int]
    ranges: list[list[int]]
    trouble: list[str] = []


class Answer(Shape):
    index: int
    text: str
    cut: bool
    length: int | None
    finish: str
    reward: Number
    parts: dict[str, Number]
    verdict: str
    reason: str
    advantage: Number
    has_tokens: bool


class Group(Shape):
    """One prompt's answers at one step. `prompt` is the text of the last message."""

    step: int
    prompt_id: str
    prompt: str
    messages: list[dict[str, Any]]
    answer: Any
    version: int | None
    mean: Number
    spread: Number
    right: int
    wrong: int
    broken: int
    answers: list[Answer]
    trouble: list[str] = []


class Groups(Shape):
    step: int
    total: int
    groups: list[Group]
    trouble: list[str] = []


class Token(Shape):
    text: str
    logprob: Number
    ratio: Number


class Tokens(Shape):
    tokens: list[Token]


class Seen(Shape):
    """A prompt at one step; `best` is the best-paid answer's beginning."""

    step: int
    rewards: list[Number]
    right: int
    wrong: int
    broken: int
    mean: Number
    best: str


class PromptPage(Shape):
    prompt_id: str
    prompt: str
    seen: list[Seen]
    trouble: list[str] = []


class Better(Shape):
    prompt_id: str
    prompt: str
    first_step: int
    last_step: int
    first_mean: float
    last_mean: float
    gain: float


class Improved(Shape):
    prompts: list[Better]
    trouble: list[str] = []


class Key(Shape):
    """A recipe's key in which runs differ, with its value in each, in the order asked for."""

    key: str
    values: list[Any]


class Compared(Shape):
    runs: list[str]
    keys: list[Key]
    rows: list[dict[str, Any]]
    differences: list[dict[str, Any]]
    notes: list[str]
    trouble: list[str] = []


class SweepPage(Shape):
    """A sweep: the `keys` it varies, its cells as `rows` (with the `run` of each that has one), the setting to take."""

    id: str
    title: str
    keys: list[str]
    rows: list[dict[str, Any]]
    pick: str | None
    why: str
    default: str | None
    done: int
    cells: int
    trouble: list[str] = []


class Detail(Shape):
    """Why there is nothing."""

    detail: str


class NewRows(Shape):
    """The rows that a run has more: an event of /api/live."""

    run: str
    steps: list[int]
    time: list[Number]
    tokens: list[Number]
    series: dict[str, Series]


class NewEvals(Shape):
    run: str
    evals: list[Eval]


class NewFindings(Shape):
    run: str
    findings: list[Finding]


class NewStatus(Shape):
    run: str
    summary: RunSummary


class OneRun(Shape):
    run: str
