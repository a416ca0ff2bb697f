"""The log of an offline run of Weights & Biases, `run-ID.wandb`: records in blocks, as in LevelDB, each a Record of
protobuf. Read without wandb."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from outdo.runs.foreign.logs import IGNORED, Facts, Log, numbers_in, step_of
from outdo.runs.foreign.wire import Value, fields, message, signed, text
from outdo.runs.values import parse_object

MAGIC = b":W&B"
HEADER, BLOCK, PREFIX = 7, 32768, 7  # bytes of the file's header, of a block, and before each piece
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAX_RECORD_BYTES = 16 << 20
MAX_KEYS = 5000  # of the configuration


class WandbLog(Log):
    """One file. Pieces of a record that is not complete are read again when it is."""

    def take(self, data: bytes, is_end: bool) -> int:
        position = 0
        if self.offset == 0:
            if len(data) < HEADER:
                return 0
            if not data.startswith(MAGIC):
                self.fail("is not a log of W&B")
                return len(data)
            position = HEADER
        done, parts = position, list[bytes]()
        while (piece := self._piece(data, position)) is not None:
            kind, content, position = piece
            if kind in (FULL, FIRST):
                parts = []
            parts = [*parts, content] if sum(map(len, parts)) + len(content) <= MAX_RECORD_BYTES else []
            if kind in (FULL, LAST):
                self._record(b"".join(parts))
                parts = []
            if kind in (0, FULL, LAST):
                done = position
        return done

    def _piece(self, data: bytes, position: int) -> tuple[int, bytes, int] | None:
        """Kind, content and end of the next piece; of kind 0 where the rest of a block is skipped. None: not there yet.

        Offsets count from the start of the file, whose header belongs to the first block."""
        room = BLOCK - (self.offset + position) % BLOCK
        if room < PREFIX:
            return (0, b"", position + room) if position + room <= len(data) else None
        if position + PREFIX > len(data):
            return None
        check, length, kind = struct.unpack_from("<IHB", data, position)
        end = position + PREFIX + length
        if kind > LAST or PREFIX + length > room:
            return self._skip(data, position + room)
        if end > len(data):
            return None
        content = data[position + PREFIX : end]
        if zlib.crc32(content, zlib.crc32(bytes([kind]))) != check:
            return self._skip(data, position + room)
        return kind, content, end

    def _skip(self, data: bytes, end: int) -> tuple[int, bytes, int] | None:
        """Goes to the next block, where records can be found again."""
        if end > len(data):
            self.fail("ends in a corrupt block")
            return None
        self.skipped += 1
        return 0, b"", end

    def _record(self, record: bytes) -> None:
        try:
            for number, value in fields(record):
                if number == 2:
                    self._history(message(value))
                elif number == 5:
                    self._configure(message(value))
                elif number == 17:
                    self._run(message(value))
                elif number == 18:
                    codes = [signed(each) for name, each in fields(message(value)) if name == 1]
                    self.facts["exit_code"] = codes[0] if codes else 0
        except ValueError:
            self.skipped += 1

    def _history(self, data: bytes) -> None:
        row: Facts = {}
        step = len(self.rows.by_step) + 1
        for number, value in fields(data):
            if number == 1:
                name, item = _item(message(value))
                row[name] = item
            elif number == 2:
                step = next((signed(each) for name, each in fields(message(value)) if name == 1), 0)
        if isinstance(time := row.get("_timestamp"), (int, float)):
            self.seen_at(time)
        numbers = {name: value for name, value in row.items() if name not in IGNORED}
        self.rows.add(step_of(numbers, step), numbers_in(numbers))

    def _run(self, data: bytes) -> None:
        for number, value in fields(data):
            if number == 4:
                self._configure(message(value))
            elif number in (1, 3, 8):
                self.facts[{1: "id", 3: "project", 8: "display_name"}[number]] = text(value)[:200]
            elif number == 17:
                self.seen_at(float(next((signed(each) for name, each in fields(message(value)) if name == 1), 0)))

    def _configure(self, data: bytes) -> None:
        for number, value in fields(data):
            if number == 1 and len(self.config) < MAX_KEYS:
                name, item = _item(message(value))
                if name != "_wandb":
                    self.config[name] = item


def _item(data: bytes) -> tuple[str, Any]:
    """A key, or a nested one with slashes, and the value that its JSON holds."""
    names, value = list[str](), None
    for number, content in fields(data):
        if number in (1, 2):
            names.append(text(content))
        elif number == 16:
            value = _json(content)
        elif number in (4, 5):
            value = signed(content)
    return "/".join(filter(None, names)), value


def _json(content: Value) -> Any:
    row = parse_object(b'{"x":' + message(content) + b"}")
    return row.get("x") if row else None
