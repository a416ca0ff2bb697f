"""TensorBoard's event files: records with checksums, each an Event of protobuf. Read without TensorBoard."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from outdo.runs.foreign.logs import Log
from outdo.runs.foreign.wire import double, fields, message, signed, single, text

MAX_RECORD_BYTES = 16 << 20
HEADER, FOOTER = 12, 4  # the length with its checksum; the checksum of the data
_TABLE = [0] * 256
for _i in range(256):
    _crc = _i
    for _ in range(8):
        _crc = (_crc >> 1) ^ 0x82F63B78 if _crc & 1 else _crc >> 1
    _TABLE[_i] = _crc


def masked_crc(data: bytes) -> int:
    """CRC-32C as TensorFlow's records have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class EventLog(Log):
    """One event file. A record that is not complete is read when it is."""

    def reset(self) -> None:
        super().reset()
        self._step, self._pending = 0, dict[str, float]()

    def take(self, data: bytes, is_end: bool) -> int:
        position = 0
        while position + HEADER <= len(data):
            length, check = struct.unpack_from("<QI", data, position)
            if masked_crc(data[position : position + 8]) != check:
                self.fail("has a record without a valid length: what follows is not read")
                break
            end = position + HEADER + length + FOOTER
            if length > MAX_RECORD_BYTES:
                self.fail(f"has a record of {length >> 20} MB: what follows is not read")
                break
            if end > len(data):
                break
            record = data[position + HEADER : end - FOOTER]
            (check,) = struct.unpack_from("<I", data, end - FOOTER)
            self._record(record, masked_crc(record) == check)
            position = end
        self._flush()
        return position

    def _record(self, record: bytes, is_valid: bool) -> None:
        try:
            if not is_valid:
                raise ValueError("checksum")
            self._event(record)
        except ValueError:
            self.skipped += 1

    def _event(self, record: bytes) -> None:
        step, summary = 0, b""
        for number, value in fields(record):
            if number == 1:
                self.seen_at(double(value))
            elif number == 2:
                step = signed(value)
            elif number == 5:
                summary = message(value)
        values: dict[str, float] = {}
        for number, value in fields(summary):
            if number == 1:
                tag, scalar, words = _tagged(message(value))
                if scalar is not None:
                    values[tag] = scalar
                elif words is not None:
                    self.texts[tag.removesuffix("/text_summary")] = words
        if step != self._step or self._pending.keys() & values.keys():
            self._flush()
        self._step = step
        self._pending.update(values)

    def _flush(self) -> None:
        """Values come one by one; those of a step are added together."""
        self.rows.add(self._step, self._pending)
        self._pending = {}


def _tagged(data: bytes) -> tuple[str, float | None, str | None]:
    """A value of a summary: its tag, and the number or the text that it is."""
    tag, scalar, words = "", None, None
    for number, value in fields(data):
        if number == 1:
            tag = text(value)
        elif number == 2:
            scalar = single(value)
        elif number == 8:
            scalar, words = _tensor(message(value))
    return tag, scalar, words


def _tensor(data: bytes) -> tuple[float | None, str | None]:
    """The only number or the first text of a tensor; neither where it is larger."""
    numbers, words = list[float](), None
    for number, value in fields(data):
        raw = message(value)
        if number == 4 and len(raw) in (4, 8):
            numbers += [single(raw) if len(raw) == 4 else double(raw)]
        elif number in (5, 6):
            numbers += list(_floats(raw, number == 6))
        elif number == 8:
            words = text(value) if words is None else words
    return (numbers[0] if len(numbers) == 1 else None), words


def _floats(raw: bytes, is_double: bool) -> Iterator[float]:
    size = 8 if is_double else 4
    if len(raw) == size:
        yield double(raw) if is_double else single(raw)
    elif raw:
        yield from (math.nan, math.nan)  # more than one
