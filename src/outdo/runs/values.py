"""Values from untrusted files, parsed and made safe to hand on as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from outdo.runs.reader import JsonRow

MAX_DEPTH = 40  # levels of a nested value
MAX_EXACT_INT = 1 << 53  # integers beyond this are not exact in a browser


class Record(BaseModel):
    """What viewers read from a run, and what the dashboard's API answers with. NaN is written as null."""

    model_config = ConfigDict(ser_json_inf_nan="null", populate_by_name=True)


class PartialRecord(Record):
    """May be incomplete."""

    trouble: list[str] = []  # what could not be read


def parse_object(line: bytes) -> JsonRow | None:
    """The JSON object of a line; None where it holds none."""
    try:
        value = from_json(line)
    except ValueError:  # json also reads half a surrogate pair, and bytes that are not UTF-8
        try:
            value = json_safe(json.loads(line.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def parse_rows(lines: Sequence[bytes]) -> tuple[list[JsonRow], int]:
    """The objects of many lines, and the number of lines that hold none. All are parsed at once where they can be."""
    lines = [line for line in lines if line.strip()]
    try:
        rows = from_json(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return rows, 0
    except ValueError:
        pass
    valid = [row for row in map(parse_object, lines) if row is not None]
    return valid, len(lines) - len(valid)


def json_safe(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Without what JSON or a browser cannot hold: NaN, inexact integers, lone surrogates, endless depth."""
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_EXACT_INT else as_float(value)
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {as_text(str(key)): json_safe(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(each, depth - 1) for each in value]
    return as_text(str(value))


def as_float(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_int(value: Any) -> int | None:
    """An integer that a browser can hold, or None."""
    number = as_float(value)
    return int(number) if number is not None and abs(number) <= MAX_EXACT_INT else None


def as_text(value: Any, max_chars: int | None = None) -> str:
    """A text without lone surrogates, which no encoding has."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text[:max_chars]


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def dicts_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [each for each in as_list(value) if isinstance(each, dict)]
