"""A run for viewers: in one line, from a few short reads however long it is, and as a page of facts and cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field

from outdo.doctor.split_results import Held, splits_of
from outdo.runs import manifest as manifests
from outdo.runs import usage
from outdo.runs.layout import EVALS, FINDINGS, MANIFEST
from outdo.runs.reader import JsonRow
from outdo.runs.run_reader import RowFile, RunReader, load_manifest
from outdo.runs.sparkline import sparkline
from outdo.runs.table import Frame, column_sum
from outdo.runs.values import PartialRecord, Record, as_dict, as_int, as_list, as_text

Status = manifests.Status | Literal["lost", "unreadable"]

MAX_MARKS = 20


class Success(Record):
    """Held-out success of greedy answers with its 95% interval. `sampled` is that of sampled ones (pass@1), `reward`
    the mean reward of greedy ones, where it says more than success."""

    split: str
    success: float
    low: float | None
    high: float | None
    sampled: float | None = None
    reward: float | None = None


class SplitChange(Record):
    """A split before the first step and at the end."""

    split: str
    before: Success | None
    after: Success | None


class Mark(Record):
    """A finding in short."""

    code: str
    severity: str
    step: int


class RunSummary(PartialRecord):
    """A run in one line. `lost`: its manifest says that it is running, but no process writes there."""

    id: str
    name: str
    trainer: str = ""  # of a run of another trainer
    kind: str = "grpo"
    status: Status
    why: str = ""
    started: str | None = None
    ended: str | None = None
    task: str = ""
    model: str = ""
    steps: int = 0
    max_steps: int | None = None
    before: Success | None = None  # of the first split
    after: Success | None = None
    splits: list[SplitChange] = Field(default_factory=list)  # every split
    spark: list[float | None]
    findings: list[Mark]


class RunPage(PartialRecord):
    """A run's facts and its cost: tokens that were sampled and trained on (those of SFT too), seconds of its steps, and
    device-seconds of all of it, with warm-up and evaluations; the price where the recipe has one per hour."""

    summary: RunSummary
    recipe: dict[str, Any]
    facts: dict[str, Any]
    tokens: int
    trained_tokens: int
    seconds: float
    device_seconds: float
    price: float | None = None
    answers: int
    memory: int | None = None
    phases: dict[str, float]


def summarize(root: Path, folder: Path, run_id: str) -> RunSummary:
    """Reads a run in one line. Problems of its files are in `trouble`."""
    manifest, problems = load_manifest(root, folder)
    status: Any = manifest.get("status")
    if status not in get_args(manifests.Status):
        problems += [f"{MANIFEST} has the unknown status {status!r:.40}"] if manifest else []
        status = "unreadable"
    kind = as_text(manifest.get("kind") or "grpo", 40)
    recipe = as_dict(manifest.get("recipe"))
    planned = {"grpo": "max_steps", "sft": "sft_steps"}.get(kind, "")
    evals, findings = (RowFile(root, folder / name) for name in (EVALS, FINDINGS))
    splits = split_changes(evals.all())
    steps, spark, unread = sparkline(root, folder, kind)
    return RunSummary(
        id=run_id,
        name=_text(manifest.get("title")) or (as_text(folder.name) if run_id == "." else run_id.rpartition("/")[2]),
        trainer=_text(manifest.get("trainer")) or "",
        kind=kind,
        status=status,
        why=as_text(manifest.get("why"), 2000),
        started=_text(manifest.get("started")),
        ended=_text(manifest.get("ended")) if status != "running" else None,
        task=_text(recipe.get("dataset_name"), None) or "",
        model=_text(recipe.get("model_name_or_path"), None) or "",
        steps=steps,
        max_steps=as_int(recipe.get(planned)) or None,
        before=splits[0].before if splits else None,
        after=splits[0].after if splits else None,
        splits=splits,
        spark=spark,
        findings=_marks(findings.all()),
        trouble=[*problems, *unread, *evals.problems(), *findings.problems(), *_notes(manifest)],
    )


def _notes(manifest: JsonRow) -> list[str]:
    """What could not be read of another trainer's files."""
    return [as_text(note, 300) for note in as_list(manifest.get("notes")) if isinstance(note, str)][:MAX_MARKS]


def _text(value: Any, max_chars: int | None = 100) -> str | None:
    return as_text(value, max_chars) if isinstance(value, str) else None


def split_changes(evals: Sequence[JsonRow]) -> list[SplitChange]:
    """Held-out success at step 0 and at the last step, of every split, the first split first."""
    return [
        SplitChange(split=split, before=_success(before), after=_success(after))
        for split, (before, after) in splits_of(evals).items()
    ]


def _success(held: Held | None) -> Success | None:
    if held is None:
        return None
    reward = held.reward if held.has_partial_credit else None
    ends = {"low": held.low, "high": held.high}
    return Success(split=held.split, success=held.success, **ends, sampled=held.sampled, reward=reward)


def _marks(rows: Sequence[JsonRow]) -> list[Mark]:
    """The findings that were reported during the run, the last of each code."""
    last = {as_text(row["code"], 60): row for row in rows if isinstance(row.get("code"), str)}
    return [
        Mark(code=code, severity=as_text(row.get("severity"), 20), step=as_int(row.get("step")) or 0)
        for code, row in last.items()
        if row.get("severity") != "info"
    ][:MAX_MARKS]


def run_page(reader: RunReader, summary: RunSummary) -> RunPage:
    manifest, unread = reader.manifest()
    frame = reader.metrics.frame()
    seconds, memory = column_sum(frame, "time/step"), frame.get("memory")
    memory = memory[np.isfinite(memory)]
    with np.errstate(all="ignore"):
        counts = np.round(frame.get("tokens") / frame.get("len_mean"))  # of each step's answers
    used = usage.device_seconds(manifest, seconds)
    facts = {key: value for key, value in manifest.items() if key not in ("recipe", "status", "why")}
    return RunPage(
        summary=summary,
        recipe=reader.recipe,
        facts=facts,
        tokens=int(column_sum(frame, "tokens")),
        trained_tokens=int(column_sum(frame, "trained_tokens") + column_sum(reader.sft.frame(), "tokens")),
        seconds=seconds,
        device_seconds=used,
        price=usage.price_of(reader.recipe, used),
        answers=int(np.sum(counts[np.isfinite(counts) & (np.abs(counts) < 1e9)])),
        memory=as_int(float(memory.max())) if len(memory) else None,
        phases=_phases(frame, bool(summary.trainer)),
        trouble=list(dict.fromkeys([*summary.trouble, *unread, *reader.metrics.problems()])),
    )


def _phases(frame: Frame, is_foreign: bool) -> dict[str, float]:
    """Seconds by phase; nothing where another trainer logged whole steps alone. Grading that the rollout waited for is
    part of the rollout's time."""
    names = ("rollout", "grade", "update", "save", "step")
    rollout, grade, update, save, step = (column_sum(frame, f"time/{name}") for name in names)
    if not rollout and not update and is_foreign:
        return {}
    grade = min(grade, rollout)
    other = max(0.0, step - rollout - update - save)
    return {"rollout": rollout - grade, "grade": grade, "update": update, "save": save, "other": other}
