"""A run in a line, from a few short reads whatever its length, and its page: what it is and what it has cost."""

from __future__ import annotations

import fcntl
import io
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outdo.dash.book import Book, Rows, listed, read_manifest
from outdo.dash.files import Row, Sign, as_float, as_int, opened, parsed_all, plain, sign_of, text_of
from outdo.dash.shapes import Mark, RunPage, RunSummary, Status, Success
from outdo.dash.table import Column, Frame, numbers, shrunk, starts
from outdo.evals.estimate import wilson

SPARK = 48  # points
SHORT = 128 << 10  # bytes of a file that is read whole for its spark line
LOOK = 16 << 10  # bytes that are read at each of the points of a longer one
NEAR = 8  # rows that such a point is the mean of, at most
FILES = ("run.json", "metrics.jsonl", "evals.jsonl", "findings.jsonl", "sft.jsonl")
FRESH = 2.0  # seconds that we believe a process to be there
MOST = 5000  # summaries that are kept
STATUSES: dict[str, Status] = {"running": "running", "done": "done", "stopped": "stopped", "failed": "failed"}

Signs = tuple[Sign | None, ...]


class Summaries:
    """Summaries of runs, each worked out again when its files change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: dict[Path, tuple[Signs, RunSummary]] = {}
        self._held: dict[Path, tuple[float, bool]] = {}
        self._lock = threading.Lock()

    def of(self, folder: Path, name: str) -> RunSummary:
        signs = tuple(sign_of(folder / file) for file in FILES)
        with self._lock:
            kept = self._kept.get(folder)
        if kept is None or kept[0] != signs or kept[1].id != name:
            kept = (signs, summary_of(self.root, folder, name))
            with self._lock:
                if len(self._kept) >= MOST:
                    self._kept.clear()
                self._kept[folder] = kept
        found = kept[1]
        if found.status == "running" and not self._is_held(folder):
            return found.model_copy(update={"status": "lost", "why": "its process ended without a word"})
        return found

    def _is_held(self, folder: Path) -> bool:
        """Asked at most once in a while: asking takes the lock for a moment, where nobody has it."""
        with self._lock:
            when, held = self._held.get(folder, (-math.inf, False))
            if time.monotonic() - when > FRESH:
                held = is_held(self.root, folder)
                self._held[folder] = (time.monotonic(), held)
            return held


def is_held(root: Path, folder: Path) -> bool:
    """Whether a process writes there, found without writing; on a disk without locks we take the run's word."""
    try:
        with opened(root, folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def summary_of(root: Path, folder: Path, name: str) -> RunSummary:
    manifest, trouble = read_manifest(root, folder)
    status = STATUSES.get(str(manifest.get("status")))
    if manifest and status is None:
        trouble.append(f"run.json says status {str(manifest.get('status'))[:40]!r}, which no run has")
    kind = text_of(manifest.get("kind") or "grpo")[:40]
    rows, findings = (Rows(root, folder / file) for file in ("evals.jsonl", "findings.jsonl"))
    before, after = before_and_after(rows.all())
    steps, spark, wrong = curve_of(root, folder / ("sft.jsonl" if kind == "sft" else "metrics.jsonl"))
    marks = marks_of(findings.all())
    return RunSummary(
        id=name,
        name=text_of(folder.name) if name == "." else name.rpartition("/")[2],
        kind=kind,
        status=status or "unreadable",
        why=text_of(manifest.get("why"))[:2000],
        started=_text(manifest.get("started")),
        ended=_text(manifest.get("ended")) if status != "running" else None,
        task=listed(manifest, "dataset_name"),
        model=listed(manifest, "model_name_or_path"),
        steps=steps,
        max_steps=_planned(manifest, kind),
        before=before,
        after=after,
        spark=spark,
        findings=marks,
        trouble=[*trouble, *wrong, *rows.trouble(), *findings.trouble()],
    )


def _text(value: Any) -> str | None:
    return text_of(value)[:100] if isinstance(value, str) else None


def _planned(manifest: Row, kind: str) -> int | None:
    recipe = manifest.get("recipe")
    name = {"grpo": "max_steps", "sft": "sft_steps"}.get(kind)
    return as_int(recipe.get(name)) or None if name and isinstance(recipe, dict) else None


def before_and_after(evals: Sequence[Row]) -> tuple[Success | None, Success | None]:
    """Held-out success at step 0 and at the last step, of the split looked at first; of a mixture, its tasks pooled."""
    whole = [row for row in evals if as_int(row.get("step")) is not None and isinstance(row.get("split"), str)]
    if not whole:
        return None, None
    kind = whole[0]["split"].partition("/")[0]
    ours = [row for row in whole if row["split"].partition("/")[0] == kind]
    last = max(row["step"] for row in ours)
    return tuple(  # type: ignore[return-value]
        _pooled(kind, [row for row in ours if row["step"] == step]) if step is not None else None
        for step in (0, last if last > 0 else None)
    )


def _pooled(kind: str, rows: Sequence[Row]) -> Success | None:
    known = [(rate, n) for row in rows if (rate := _share(row)) is not None and (n := as_int(row.get("n")))]
    if len(rows) == 1 and known:
        ends = {end: as_float(rows[0].get(end)) for end in ("low", "high")}
        return Success(split=kind, success=known[0][0], **ends)
    n = sum(n for _, n in known)
    if n <= 0:
        return None
    right = round(sum(rate * n for rate, n in known))
    low, high = wilson(right, n)
    return Success(split=kind, success=right / n, low=low, high=high)


def _share(row: Row) -> float | None:
    rate = as_float(row.get("success_rate"))
    return rate if rate is not None and 0 <= rate <= 1 else None


def marks_of(rows: Sequence[Row]) -> list[Mark]:
    """The findings that were noted as the run went on, the last of each kind."""
    last = {text_of(row["code"])[:60]: row for row in rows if isinstance(row.get("code"), str)}
    return [
        Mark(code=code, severity=text_of(row.get("severity"))[:20], step=as_int(row.get("step")) or 0)
        for code, row in last.items()
        if row.get("severity") != "info"
    ][:20]


def curve_of(root: Path, path: Path) -> tuple[int, list[float | None], list[str]]:
    """How many steps are done, and the reward (of a supervised run, the loss) in a few points."""
    name = "loss" if path.name == "sft.jsonl" else "reward_mean"
    try:
        with opened(root, path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= SHORT:
                return (*_short_curve(file, size, name), [])
            return _steps(_last_row(file, size)), _looks(file, size, name), []
    except FileNotFoundError:
        return 0, [], []
    except OSError as error:
        return 0, [], [f"{path.name} cannot be read: {error.strerror or error}"]


def _short_curve(file: io.FileIO, size: int, name: str) -> tuple[int, list[float | None]]:
    lines = os.pread(file.fileno(), size, 0).split(b"\n")[:-1]
    rows = [row for row in parsed_all(lines)[0] if name in row]
    values = numbers([row.get(name) for row in rows])
    return _steps(rows[-1] if rows else {}), as_list(shrunk(values, starts(len(values), SPARK)).mean)


def _steps(row: Mapping[str, Any]) -> int:
    step = as_int(row.get("step"))
    return step + 1 if step is not None and step >= 0 else 0


def _last_row(file: io.FileIO, size: int) -> Row:
    for length in (LOOK, 1 << 20):
        lines = os.pread(file.fileno(), length, max(0, size - length)).split(b"\n")[1:-1]
        if rows := parsed_all(lines[-1:])[0]:
            return rows[-1]
    return {}


def _looks(file: io.FileIO, size: int, name: str) -> list[float | None]:
    """A few rows at even places of a long file."""
    found = []
    for i in range(SPARK):
        at = (size - LOOK) * i // (SPARK - 1)
        lines = os.pread(file.fileno(), LOOK, at).split(b"\n")[1:-1]
        lines = lines[-NEAR:] if i == SPARK - 1 else lines[:NEAR]  # the end is the end
        values = numbers([row.get(name) for row in parsed_all(lines)[0]])
        known = values[np.isfinite(values)]
        found.append(float(f"{known.mean():.6g}") if len(known) else None)
    return found


def as_list(column: Column) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


# --- a run's page


def run_page(book: Book, summary: RunSummary) -> RunPage:
    manifest, wrong = book.manifest()
    frame = book.metrics.frame()
    seconds = total(frame, "time/step")
    facts = {key: value for key, value in manifest.items() if key not in ("recipe", "status", "why")}
    devices = as_int(manifest.get("world_size")) or 1
    recipe = manifest.get("recipe")
    trouble = dict.fromkeys([*summary.trouble, *wrong, *book.metrics.trouble()])
    return RunPage(
        summary=summary,
        recipe=recipe if isinstance(recipe, dict) else {},
        facts=plain(facts),
        tokens=int(total(frame, "tokens")),
        seconds=seconds,
        device_seconds=seconds * devices,
        answers=_answers(frame),
        memory=_memory(frame),
        phases=phases(frame),
        trouble=list(trouble),
    )


def total(frame: Frame, name: str) -> float:
    column = frame.get(name)
    with np.errstate(all="ignore"):
        found = float(np.nansum(column)) if len(column) else 0.0
    return found if math.isfinite(found) and abs(found) < 1 << 53 else 0.0


def _answers(frame: Frame) -> int:
    """The mean length of a step's answers is its tokens by their number."""
    tokens, length = frame.get("tokens"), frame.get("len_mean")
    with np.errstate(all="ignore"):
        each = np.round(tokens / length)
    return int(np.sum(each[np.isfinite(each) & (np.abs(each) < 1e9)]))


def _memory(frame: Frame) -> int | None:
    """The most that a step took, where it was measured."""
    column = frame.get("memory")
    known = column[np.isfinite(column)]
    return as_int(float(known.max())) if len(known) else None


def phases(frame: Frame) -> dict[str, float]:
    """Where the seconds went. Grading that was waited for is within the rollout's."""
    rollout, grade, update, save = (total(frame, f"time/{name}") for name in ("rollout", "grade", "update", "save"))
    grade = min(grade, rollout)
    other = max(0.0, total(frame, "time/step") - rollout - update - save)
    return {"rollout": rollout - grade, "grade": grade, "update": update, "save": save, "other": other}
