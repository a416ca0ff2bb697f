"""The answers of another trainer's run as files of groups, translated when they are first looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.runs import layout
from outdo.runs.files import write_atomic
from outdo.runs.foreign import dumps
from outdo.runs.foreign.dumps import Unreadable, step_values, success_values
from outdo.runs.foreign.sources import Source
from outdo.runs.safe_open import Stamp, file_stamp

MIN_INTERVAL = 0.5  # seconds between two renewals
MAX_ANSWER_BYTES = 1 << 30  # of a run, as files: of a larger one only the last answers are read
EVALUATION = "is of an evaluation"


class AnswerFiles:
    """A file of ours is renewed as a whole where one of its steps changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights: Mapping[str, float] | None = None
        self.evaluated: Mapping[int, Mapping[str, float]] = {}  # of those steps, the means of the parts of the reward
        self._lock, self._next = threading.Lock(), 0.0
        self._written: dict[Path, tuple[Any, ...]] = {}
        self._problems: dict[Path, str] = {}
        self._values: dict[Path, tuple[Any, dict[str, float]]] = {}
        self._left_out = 0

    def notes(self) -> list[str]:
        over = sum(problem == EVALUATION for problem in self._problems.values())
        problems = [problem for problem in dict.fromkeys(self._problems.values()) if problem != EVALUATION]
        more = [f"and {len(problems) - 3} more files of answers"] if len(problems) > 3 else []
        if over:
            more.append(f"the answers of {over} steps are not shown: those of an evaluation were written over them")
        if self._left_out:
            more.append(f"the answers of the first {self._left_out} steps are not read: there are too many")
        return [*problems[:3], *more]

    def refresh(self, source: Source) -> None:
        """Translates what is new."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next:
                self._write(source)
                self._next = time.monotonic() + max(MIN_INTERVAL, time.monotonic() - now)

    def _write(self, source: Source) -> None:
        buckets: dict[Path, list[tuple[int, Path, Stamp | None]]] = {}
        for step, path, stamp in self._within_limit(source):
            buckets.setdefault(layout.group_file(self.folder, step), []).append((step, path, stamp))
        for target, files in buckets.items():
            key = (*files, *(self._key(step) for step, _, _ in files))
            if self._written.get(target) != key:
                lines = [line for step, path, _ in files for line in dumps.lines_of(self._groups(source, step, path))]
                target.parent.mkdir(exist_ok=True)
                append_or_replace(target, "".join(lines))
                self._written[target] = key

    def _within_limit(self, source: Source) -> list[tuple[int, Path, Stamp | None]]:
        stamped = [(step, path, file_stamp(path)) for step, path in source.answers]
        room, kept = MAX_ANSWER_BYTES, 0
        for _, _, stamp in reversed(stamped):
            room -= stamp[1] if stamp else 0
            if room < 0:
                break
            kept += 1
        self._left_out = len(stamped) - kept
        return stamped[self._left_out :]

    def _groups(self, source: Source, step: int, path: Path) -> list[dict[str, Any]]:
        try:
            answers = dumps.read_answers(source.root, path)
        except Unreadable as error:
            self._problems[path] = str(error)
            return []
        self._problems.pop(path, None)
        if not answers:
            self._problems[path] = f"{path.name} has no answers"
        groups = dumps.groups_of(answers, step, self.weights)
        if step in self.evaluated and not dumps.have_means(groups, self.evaluated[step]):
            self._problems[path] = EVALUATION
            return []
        return groups

    def _key(self, step: int) -> tuple[Any, ...]:
        """What the groups of a step depend on beside its file."""
        return tuple((self.weights or {}).items()), tuple(self.evaluated.get(step, {}).items())

    def computed(self, source: Source, last: int, patience: float) -> tuple[dict[int, dict[str, float]], bool]:
        """What the answers say of steps, and whether that is all: of steps after the last one that was logged,
        everything; of the others the success rate, which no log has. New files are read for so many seconds."""
        out: dict[int, dict[str, float]] = {}
        until, is_complete, needed = time.monotonic() + patience, True, True
        for step, path in reversed(source.answers):
            key = (file_stamp(path), step > last, self._key(step))
            if (cached := self._values.get(path)) is None or cached[0] != key:
                if not (needed or step > last):
                    continue
                if time.monotonic() > until:
                    is_complete = False
                    continue
                groups = self._groups(source, step, path)
                values = step_values(groups) if step > last else success_values(groups)
                cached = self._values[path] = (key, values)
                # Where the last answers do not say whether they are right, earlier ones do not either.
                needed = needed and (not groups or "success_rate" in values)
            out[step] = cached[1]
        return {step: values for step, values in out.items() if values}, is_complete


def append_or_replace(path: Path, text: str) -> None:
    data = text.encode("utf-8", "replace")
    old = path.read_bytes() if path.exists() else b""
    if old and data.startswith(old):
        with path.open("ab") as file:
            file.write(data[len(old) :])
    elif data != old or not path.exists():
        write_atomic(path, data, flush=False)
