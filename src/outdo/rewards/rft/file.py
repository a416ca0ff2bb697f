"""Reads a grader file within size limits, and reports its problems with line and path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.rewards.rft.read import Place, Problem, read_spec
from outdo.rewards.rft.spec import Spec
from outdo.rewards.rft.template import clipped

MAX_FILE_BYTES = 2_000_000
MAX_FILE_DEPTH = 20  # nested objects and lists; a grader needs eight
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def read_file(path: Path) -> tuple[Spec | None, list[str]]:
    """The grader in a file, or None; and its problems."""
    try:
        text = _text(path)
        data = json.loads(text, parse_constant=refuse_constant)
        lines = _lines(text)
    except json.JSONDecodeError as error:
        return None, [f"{path}, line {error.lineno}, column {error.colno}: invalid JSON: {error.msg}"]
    except RecursionError:
        return None, [f"{path}: nested too deeply"]
    except ValueError as error:
        return None, [f"{path}: {error}"]
    spec, problems = read_spec(data)
    return spec, [_format_problem(path, problem, lines) for problem in problems]


def _text(path: Path) -> str:
    """The file's text. Raises ValueError with a readable reason."""
    try:
        if not path.is_file():
            raise ValueError("is a folder" if path.is_dir() else "no such file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes, the limit for a grader")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from None


def refuse_constant(name: str) -> float:
    """Refuses NaN and Infinity, which Python accepts and JSON does not have. For json.loads(parse_constant=…)."""
    raise ValueError(f"{name} is not JSON")


def _lines(text: str) -> dict[Place, int]:
    """The line of every key and value of a valid JSON text. Raises ValueError for duplicate keys or deep nesting."""
    lines: dict[Place, int] = {}
    place: list[Any] = []  # None: an object whose next key has not been read yet
    line, at = 1, 0
    for match in _JSON_TOKEN.finditer(text):
        line, at, token = line + text.count("\n", at, match.start()), match.start(), match[0]
        if token in "}]":
            place.pop()
        elif token == ",":
            place[-1] = place[-1] + 1 if isinstance(place[-1], int) else None
        elif place and place[-1] is None and token not in "{[:":
            key = json.loads(token)
            place[-1] = key
            if tuple(place) in lines:
                raise ValueError(f"line {line}: duplicate key {clipped(key)}")
            lines[tuple(place)] = line
        elif token != ":":
            lines.setdefault(tuple(place), line)
            if token in "{[":
                place.append(None if token == "{" else 0)
        if len(place) > MAX_FILE_DEPTH:
            raise ValueError(f"line {line}: nested more than {MAX_FILE_DEPTH} levels deep")
    return lines


def _format_problem(path: Path, problem: Problem, lines: Mapping[Place, int]) -> str:
    place = problem.place
    line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), 1)
    steps = [f"[{step}]" if isinstance(step, int) else f".{clipped(step)[1:-1]}" for step in place]
    where = "".join(steps).removeprefix(".") + (": " if steps else "")  # graders.accuracy.input[0].content
    return f"{path}, line {line}: {where}{problem.text}"
