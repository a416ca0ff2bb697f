"""A run of another trainer as a run's folder, which every viewer reads.

The folder is a temporary one of this process. Its numbers are renewed when a viewer asks for the run and the source has
changed; its answers are translated when they are first looked at. New rows are appended, so that a viewer of a run in
progress gets them as it does ours; where earlier rows changed, the file is replaced.
"""

from __future__ import annotations

import atexit
import json
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.runs import layout
from outdo.runs.files import disk_errors, write_atomic
from outdo.runs.foreign.answers import MIN_INTERVAL, AnswerFiles, append_or_replace
from outdo.runs.foreign.events import EventLog
from outdo.runs.foreign.logs import Facts, LineLog, Log, StateLog
from outdo.runs.foreign.names import HELD_OUT, canonical_name, named_values
from outdo.runs.foreign.rows import Rows, merged
from outdo.runs.foreign.settings import evaluated_steps, reward_weights, settings, trainer_of
from outdo.runs.foreign.sources import Kind, Source, recognise
from outdo.runs.foreign.wandb_log import WandbLog
from outdo.runs.manifest import holds_run
from outdo.runs.safe_open import file_stamp
from outdo.runs.values import as_text, json_safe

READERS: dict[Kind, type[Log]] = {"state": StateLog, "events": EventLog, "wandb": WandbLog, "lines": LineLog}
QUIET = 600.0  # seconds without a new row, after which a run counts as ended
PATIENCE = 1.0  # seconds that a viewer waits for what is computed from answers
SHARE = 5.0  # a renewal takes at most one part in so many of the time
MAX_NOTES = 20
SUCCESS_WORDS = ("acc", "correct", "exact_match", "success", "pass", "solve")
UNKNOWN_END = "its log ends here; it does not say whether the run was finished"


class Translation:
    """One source with its translated folder."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.answers = AnswerFiles(folder)
        self._logs: dict[Path, Log] = {}
        self._stamps: tuple[Any, ...] | None = None
        self._next, self._lock = 0.0, threading.Lock()
        self._ends_at = math.inf  # when the status changes by itself

    def refresh(self, patience: float = math.inf) -> None:
        """Renews the numbers and the manifest where the source has changed. What answers say of steps is computed for
        so many seconds, and continued the next time."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return
            if not self.source.path.exists():
                (self.folder / layout.MANIFEST).unlink(missing_ok=True)  # as a run that was removed
                return
            self.source = recognise(self.source.root, self.source.path) or self.source
            stamps = (self.source, *(file_stamp(path) for _, path in self.source.logs))
            if stamps != self._stamps or time.time() > self._ends_at:
                self._stamps = stamps if self._try_translate(patience) else None
            self._next = time.monotonic() + max(MIN_INTERVAL, SHARE * (time.monotonic() - now))

    def _try_translate(self, patience: float) -> bool:
        """Files that no trainer writes must not hide the runs beside them. Raises RunError where the disk is full."""
        with disk_errors(self.folder, "set TMPDIR to a place with more"):
            try:
                return self._translate(patience)
            except OSError:
                raise
            except Exception as error:
                note = f"cannot be read: {type(error).__name__}: {error}"[:300]
                facts = {"status": "stopped", "kind": "grpo", "trainer": "unknown", "source": str(self.source.path)}
                self._write(facts | {"why": note, "notes": [note], "recipe": {}})
                return True

    def _translate(self, patience: float) -> bool:
        logs = [self._log(kind, path) for kind, path in self.source.logs]
        for log in logs:
            log.read()
        logs = _newest_state(logs)
        rows = _all_rows(logs)
        named = {step: _named(values) for step, values in rows}
        recipe = settings(self.source, logs, rows, list(named.values()))
        self.answers.weights, self.answers.evaluated = reward_weights(recipe, rows), evaluated_steps(rows)
        last = max(named, default=-1)
        computed, is_complete = self.answers.computed(self.source, last, patience)
        for step, values in computed.items():
            named[step] = {**values, **named.get(step, {})}
        evals = [each for step in sorted(named) for each in _evaluations(step, named[step])]
        numbers = [{"step": step} | _without_evaluations(named[step]) for step in sorted(named)]
        _write_rows(self.folder / layout.METRICS, [row for row in numbers if len(row) > 1])
        _write_rows(self.folder / layout.EVALS, evals)
        if self._write_manifest(logs, rows, recipe) != "running":
            self._logs.clear()  # read again should they change after all: rows of many runs take memory
        return is_complete

    def _log(self, kind: Kind, path: Path) -> Log:
        if path not in self._logs:
            self._logs[path] = READERS[kind](self.source.root, path)
        return self._logs[path]

    def _write_manifest(self, logs: Sequence[Log], rows: Rows, recipe: Facts) -> str:
        """Returns the status."""
        status, why = self._status(logs)
        trainer = trainer_of(self.source, rows)
        firsts = [log.first for log in logs if log.first is not None]
        lasts = [log.last for log in logs if log.last is not None]
        notes = [*(note for log in logs for note in log.notes(status == "running")), *self.answers.notes()]
        titles = (as_text(log.facts.get("display_name"), 100) for log in logs)
        facts = {
            "status": status,
            "why": why,
            "kind": "grpo",
            "started": _date(min(firsts, default=None)),
            "ended": None if status == "running" else _date(max(lasts, default=None)),
            "trainer": trainer,
            "source": str(self.source.path),
            **({"title": title} if (title := next(filter(None, titles), "")) else {}),
            "notes": list(dict.fromkeys(notes))[:MAX_NOTES],
            "recipe": recipe,
        }
        self._write(facts)
        return status

    def _write(self, facts: Facts) -> None:
        write_atomic(self.folder / layout.MANIFEST, json.dumps(json_safe(facts), indent=2) + "\n", flush=False)

    def _status(self, logs: Sequence[Log]) -> tuple[str, str]:
        """Done where the source says so; running where it changed a short time ago."""
        self._ends_at = math.inf
        for log in logs:
            if (code := log.facts.get("exit_code")) is not None:
                return ("done", "") if code == 0 else ("failed", f"it ended with exit status {code}")
            steps, planned = log.facts.get("global_step"), log.facts.get("max_steps")
            if steps and planned and steps >= planned > 0:
                return "done", ""
        paths = [path for _, path in (*self.source.logs, *self.source.answers[-1:])]
        newest = max((stamp[2] / 1e9 for path in paths if (stamp := file_stamp(path))), default=0.0)
        if time.time() - newest < QUIET:
            self._ends_at = newest + QUIET
            return "running", ""
        return "stopped", UNKNOWN_END


def _newest_state(logs: Sequence[Log]) -> list[Log]:
    """Of the states of a run, which each have all rows so far, the one that is furthest."""
    states = [log for log in logs if isinstance(log, StateLog)]
    newest = max(states, key=lambda log: log.facts.get("global_step") or 0, default=None)
    return [log for log in logs if log not in states or log is newest]


def _all_rows(logs: Sequence[Log]) -> Rows:
    """Of event files one after the other; the state of a checkpoint, which has all digits, over those."""
    ordered = sorted(logs, key=lambda log: (log.first or 0.0, log.path.name))
    rows = merged([log.rows for log in ordered if not isinstance(log, StateLog)] or [Rows()])
    states = [log.rows for log in logs if isinstance(log, StateLog)]
    if not states:
        return rows
    out = Rows({step: dict(values) for step, values in rows}, dict(rows.last), rows.cells, rows.dropped)
    for step, values in merged(states):
        plain = {name: value for name, value in out.by_step.get(step, {}).items() if name not in values}
        out.by_step[step] = {**plain, **values}
        out.last.update(dict.fromkeys(values, step))
    return out


def _named(values: Mapping[str, Any]) -> dict[str, float]:
    """Under our names, known ones first; NaN where a signal was not finite. Success on held-out problems only where the
    name says that it is success and the value is a share."""
    held = {name: value for name, value in values.items() if _is_unsure(name, value)}
    found, non_finite = named_values({k: v for k, v in values.items() if k not in held} if held else values)
    if "timing_s/gen" in values and {"time/rollout", "time/grade"} <= found.keys():
        found["time/rollout"] += found["time/grade"]  # ours includes grading, and verl's does not
    kept = {name: float(value) for name, value in held.items() if isinstance(value, float)}
    return {**found, **{name: math.nan for name in non_finite if name not in found}, **kept}


def _is_unsure(name: str, value: Any) -> bool:
    """Whether a held-out number would count as success by its place alone."""
    is_held = canonical_name(name)[0].startswith(HELD_OUT)
    is_share = isinstance(value, (int, float)) and 0.0 <= value <= 1.0
    return is_held and not (is_share and any(word in name.lower() for word in SUCCESS_WORDS))


def _evaluations(step: int, values: Mapping[str, float]) -> list[Facts]:
    rows = []
    for name, value in values.items():
        key, _, split = name.partition("/")
        if key == HELD_OUT and math.isfinite(value):
            count = values.get("eval_n")
            size = {"n": int(count)} if count is not None and math.isfinite(count) and count >= 1 else {}
            rows.append({"step": step, "split": split or "eval", "success_rate": value, **size})
    return rows


def _without_evaluations(values: Mapping[str, float]) -> Facts:
    return {name: value for name, value in values.items() if not name.startswith(HELD_OUT)}


def _write_rows(path: Path, rows: Sequence[Facts]) -> None:
    append_or_replace(path, "".join(json.dumps({k: _short(v) for k, v in row.items()}) + "\n" for row in rows))


def _short(value: Any) -> Any:
    """Six digits. NaN stays, for the doctor."""
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


class Translations:
    """All of this process, by source and by translated folder."""

    def __init__(self) -> None:
        self._base: Path | None = None
        self._is_closed = False
        self._by_path: dict[tuple[Path, Path], Translation] = {}
        self._by_folder: dict[Path, Translation] = {}
        self._lock = threading.Lock()

    def of(self, root: Path, path: Path) -> Translation | None:
        """Of the run in a folder or a file, not renewed yet; None where there is none."""
        with self._lock:
            if (known := self._by_path.get((root, path))) is not None:
                return known
        if self._is_closed or (source := recognise(root, path)) is None:
            return None
        with self._lock:
            folder = self._new_folder(source.name)
            made = self._by_path.setdefault((root, path), Translation(source, folder))
            self._by_folder[made.folder] = made
            return made

    def at(self, folder: Path) -> Translation | None:
        """That of a translated folder."""
        return self._by_folder.get(folder)

    def discard(self) -> None:
        """Removes the translated folders, at the end of the process. There are none afterwards."""
        self._is_closed = True
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)

    def _new_folder(self, name: str) -> Path:
        if self._base is None:
            self._base = Path(tempfile.mkdtemp(prefix="outdo-foreign-")).resolve()
            atexit.register(self.discard)
        folder = self._base / str(len(self._by_path)) / (name or "run")
        folder.mkdir(parents=True)
        return folder


TRANSLATIONS = Translations()


def translated(root: Path, path: Path, patience: float = math.inf) -> Path | None:
    """The folder of a run of another trainer, up to date; None where the path holds none."""
    translation = TRANSLATIONS.of(root, path)
    if translation is None:
        return None
    translation.refresh(patience)
    return translation.folder if holds_run(translation.folder) else None


def renew(folder: Path, with_answers: bool = False) -> None:
    """Renews a translated folder; nothing where it is a run of ours."""
    if (translation := TRANSLATIONS.at(folder)) is not None:
        translation.refresh(PATIENCE)
        if with_answers:
            translation.answers.refresh(translation.source)


def source_of(folder: Path) -> Path | None:
    """The folder or file that a translated folder was made from; None for a run of ours."""
    translation = TRANSLATIONS.at(folder)
    return translation.source.path if translation else None
