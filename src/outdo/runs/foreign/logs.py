"""Logs of other trainers that grow: each is read from where the last read ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from outdo.runs.foreign.names import canonical_name, parsed_number
from outdo.runs.foreign.rows import MAX_NAME_CHARS, Rows
from outdo.runs.safe_open import Stamp, open_regular, stamp_of
from outdo.runs.tail import Tail
from outdo.runs.values import as_dict, as_float, as_int, as_text, dicts_in, parse_object, parse_rows
from outdo.untrusted.parse import is_deep

MAX_STATE_BYTES = 128 << 20
MAX_LOG_BYTES = 1 << 30  # of one log
CHUNK_BYTES = 32 << 20  # read at a time; larger than any record
MAX_TEXT_CHARS = 1 << 20  # of settings that a log holds as text
IGNORED = ("_timestamp", "_runtime", "_wandb")  # of W&B
Facts = dict[str, Any]


class Log:
    """One file of numbers. `read` takes what is new; a file that was cut back or replaced is read again."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self._stamp: Stamp | None = None
        self.reset()

    def reset(self) -> None:
        self.offset, self.skipped, self.problem = 0, 0, ""
        self.rows, self.texts, self.config, self.facts = Rows(), dict[str, str](), Facts(), Facts()
        self.first: float | None = None  # seconds since 1970 of the first and the last record
        self.last: float | None = None
        self._is_failed, self._rest = False, 0

    def read(self) -> None:
        try:
            with open_regular(self.root, self.path) as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                if stamp == self._stamp:
                    return
                if self._stamp and (stamp[0] != self._stamp[0] or stamp[1] < self.offset):
                    self.reset()
                self._stamp = stamp
                while not self._is_failed and self.offset < min(stamp[1], MAX_LOG_BYTES):
                    data = os.pread(file.fileno(), CHUNK_BYTES, self.offset)
                    used = self.take(data, self.offset + len(data) >= stamp[1])
                    self.offset, self._rest = self.offset + used, len(data) - used
                    if not used:
                        break
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror or error}"

    def take(self, data: bytes, is_end: bool) -> int:
        """Reads the complete records at the start of the data, and returns how many bytes those are."""
        raise NotImplementedError

    def fail(self, problem: str) -> None:
        self._is_failed, self.problem = True, problem

    def seen_at(self, seconds: float) -> None:
        if 0 < seconds < 1e11:
            self.first = seconds if self.first is None else min(self.first, seconds)
            self.last = seconds if self.last is None else max(self.last, seconds)

    def notes(self, is_running: bool) -> list[str]:
        """What could not be read. A record that is not complete may still be written."""
        name = self.path.name
        cut = self._rest > 0 and not is_running and not self._is_failed
        found = {
            f"{name} {self.problem}": self.problem,
            f"{name}: {self.skipped} corrupt records are skipped": self.skipped,
            f"{name} ends in the middle of a record": cut,
            f"{name} is too large: {self.rows.dropped} values are not shown": self.rows.dropped,
        }
        return [note for note, holds in found.items() if holds]


class StateLog(Log):
    """`trainer_state.json` of transformers, which is replaced as a whole at every checkpoint."""

    def read(self) -> None:
        try:
            with open_regular(self.root, self.path) as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                if stamp == self._stamp:
                    return
                self.reset()
                self._stamp = stamp
                if stamp[1] > MAX_STATE_BYTES:
                    self.fail(f"has {stamp[1] >> 20} MB; at most {MAX_STATE_BYTES >> 20} MB are read")
                    return
                state = parse_object(file.read(MAX_STATE_BYTES))
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror or error}"
            return
        if state is None or is_deep(state):
            self.fail("is not a JSON object, or is cut off")
            return
        for row in dicts_in(state.get("log_history")):
            self.rows.add(step_of(row, len(self.rows.by_step) + 1), numbers_in(row))
        self.facts = {name: as_int(state.get(name)) for name in ("global_step", "max_steps")}


class LineLog(Log):
    """JSON Lines with a row per step: verl's {"step": 3, "data": {…}}, or names and numbers, as prime-rl's."""

    def reset(self) -> None:
        super().reset()
        self._tail = Tail(self.root, self.path)

    def read(self) -> None:
        more = True
        while more:
            update = self._tail.read()
            if update.restarted:
                self.rows, self.skipped = Rows(), 0
            rows, invalid = parse_rows(update.lines)
            self.skipped += invalid
            for row in rows:
                self._add(row)
            more = update.more and self._tail.offset < MAX_LOG_BYTES
        self.problem = self._tail.problem
        self._rest = 0

    def _add(self, row: Facts) -> None:
        inner = row.get("data")
        flat = {key: row[key] for key in row if key != "data"} | inner if isinstance(inner, dict) else row
        time = as_float(row.get("time"))
        if time is not None and time > 1e9:
            self.seen_at(time)
            flat = {key: value for key, value in flat.items() if key != "time"}
        self.rows.add(step_of(flat, len(self.rows.by_step) + 1), numbers_in(flat))

    def notes(self, is_running: bool) -> list[str]:
        return [note.replace("corrupt records", "lines that are not JSON rows") for note in super().notes(is_running)]


def step_of(row: Facts, default: int) -> int:
    """The step of a row, under any name; of several the most telling, such as train/global_step before _step."""
    named = [(canonical_name(name), as_int(value)) for name, value in row.items()]
    steps = [(rank, step) for (name, _, rank), step in named if name == "step" and step is not None]
    return min(steps)[1] if steps else default


def numbers_in(row: Facts) -> Facts:
    """The numbers of a row, NaN too, also as text; without its step."""
    named = {as_text(name): parsed_number(value) for name, value in row.items() if len(name) <= MAX_NAME_CHARS}
    kept = {name: value for name, value in named.items() if value is not None and name not in IGNORED}
    return {name: value for name, value in kept.items() if canonical_name(name)[0] != "step"}


def settings_text(log: Log) -> list[Facts]:
    """Settings that a log holds as JSON, such as transformers' training arguments in TensorBoard."""
    texts = [log.texts[name] for name in ("args", "model_config") if name in log.texts]
    parsed = [parse_object(text.encode()) for text in texts if len(text) <= MAX_TEXT_CHARS]
    return [as_dict(value) for value in parsed if value is not None and not is_deep(value)]
