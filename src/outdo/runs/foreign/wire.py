"""Protobuf's wire format, as far as event files need it: fields by number, without their definitions."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 50_000  # of one message
Value = int | bytes


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: integers as they are encoded, numbers of fixed size as bytes. Raises ValueError
    where the data ends too early or is no message."""
    position, size = 0, len(data)
    for _ in range(MAX_FIELDS):
        if position >= size:
            return
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == BYTES:
            length, position = _varint(data, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if position + length > size:
            raise ValueError("a field that ends after its message")
        yield number, data[position : position + length]
        position += length
    raise ValueError("a message of too many fields")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number that does not end")


def signed(value: Value) -> int:
    """An int64 that was encoded as it is."""
    number = int(value) if isinstance(value, int) else 0
    return number - (1 << 64) if number >= 1 << 63 else number


def double(value: Value) -> float:
    return float(struct.unpack("<d", value)[0]) if isinstance(value, bytes) and len(value) == 8 else float("nan")


def single(value: Value) -> float:
    return float(struct.unpack("<f", value)[0]) if isinstance(value, bytes) and len(value) == 4 else float("nan")


def text(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""
