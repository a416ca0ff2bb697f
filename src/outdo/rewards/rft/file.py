"""A grader's file: reading it within bounds, and telling what is wrong with it, each with its place and its line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.rewards.rft.read import Place, Problem, read_spec
from outdo.rewards.rft.spec import Spec
from outdo.rewards.rft.template import clipped

LARGEST_FILE = 2_000_000  # bytes
DEEPEST_FILE = 20  # objects and lists inside each other; a grader needs eight
_JSON = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def read_file(path: Path) -> tuple[Spec | None, list[str]]:
    """The grader in a file, or None; and what is wrong with it, each with its place."""
    try:
        text = _text(path)
        data = json.loads(text, parse_constant=no_constant)
        lines = _lines(text)
    except json.JSONDecodeError as error:
        return None, [f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}"]
    except RecursionError:
        return None, [f"{path}: nested too deeply"]
    except ValueError as error:
        return None, [f"{path}: {error}"]
    spec, problems = read_spec(data)
    return spec, [_told(path, problem, lines) for problem in problems]


def _text(path: Path) -> str:
    """The file's text. Raises ValueError, in words."""
    try:
        if not path.is_file():
            raise ValueError("is a folder" if path.is_dir() else "there is no such file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise ValueError(f"is larger than {LARGEST_FILE} bytes, which no grader needs")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from None


def no_constant(name: str) -> float:
    """Refuses NaN and Infinity, which Python reads and JSON has not. For json.loads(parse_constant=…)."""
    raise ValueError(f"{name} is not JSON")


def _lines(text: str) -> dict[Place, int]:
    """The line of every key and value of a valid JSON text. Raises ValueError for a key twice, or too deep a nest."""
    lines: dict[Place, int] = {}
    place: list[Any] = []  # None: an object whose next key is still to come
    line, at = 1, 0
    for match in _JSON.finditer(text):
        line, at, token = line + text.count("\n", at, match.start()), match.start(), match[0]
        if token in "}]":
            place.pop()
        elif token == ",":
            place[-1] = place[-1] + 1 if isinstance(place[-1], int) else None
        elif place and place[-1] is None and token not in "{[:":
            key = json.loads(token)
            place[-1] = key
            if tuple(place) in lines:
                raise ValueError(f"line {line}: the key {clipped(key)} stands there twice")
            lines[tuple(place)] = line
        elif token != ":":
            lines.setdefault(tuple(place), line)
            if token in "{[":
                place.append(None if token == "{" else 0)
        if len(place) > DEEPEST_FILE:
            raise ValueError(f"line {line}: nested more than {DEEPEST_FILE} deep")
    return lines


def _told(path: Path, problem: Problem, lines: Mapping[Place, int]) -> str:
    place = problem.place
    line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), 1)
    return f"{path}, line {line}: {_dotted(place)}{problem.text}"


def _dotted(place: Sequence[str | int]) -> str:
    """graders.accuracy.input[0].content"""
    steps = [f"[{step}]" if isinstance(step, int) else f".{clipped(step)[1:-1]}" for step in place]
    return "".join(steps).removeprefix(".") + (": " if steps else "")
