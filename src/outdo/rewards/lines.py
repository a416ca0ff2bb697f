"""Grades a file: one JSON object a line in, one grade a line out, in order.

A line holds `completion` (text, or chat messages whose last one is the answer) and the columns that the rewards need.
`prompt` or `messages` is the question; `solution` is the gold where there is no `answer`, as in data sets. Lines with
the same `group` are siblings: rewards that compare answers see them together. A line that cannot be parsed or graded
comes out as broken, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outdo.errors import GraderError
from outdo.rewards.compose import Rewards, grade_all
from outdo.tasks.data import pop_answer
from outdo.tasks.files import unique_keys
from outdo.types import Grade, Group, Prompt, Trajectory

CHUNK = 256  # lines graded together

Encoder = Callable[[str], list[int]]  # a tokenizer, for rewards that count tokens


@dataclass(frozen=True)
class Line:
    prompt: Prompt
    completion: Trajectory
    group: Any  # shared by siblings; None: no siblings


def graded_lines(lines: Iterable[str], rewards: Rewards, encode: Encoder | None = None) -> Iterator[Grade]:
    """A grade for each line that is not blank, in order."""
    chunk: list[Line | Grade] = []
    for number, text in enumerate(lines, 1):
        if text.strip():
            line = _parse(text, number, encode)
            if len(chunk) >= CHUNK and not _siblings(chunk[-1], line):
                yield from _graded(chunk, rewards)
                chunk = []
            chunk.append(line)
    yield from _graded(chunk, rewards)


def _siblings(a: Line | Grade, b: Line | Grade) -> bool:
    return isinstance(a, Line) and isinstance(b, Line) and a.group is not None and a.group == b.group


def _graded(chunk: list[Line | Grade], rewards: Rewards) -> list[Grade]:
    members: dict[Any, dict[int, Line]] = {}
    for index, line in enumerate(chunk):
        if isinstance(line, Line):
            gold = json.dumps([line.group, line.prompt.answer], sort_keys=True, default=str)
            key = index if line.group is None else gold  # siblings have one gold answer
            members.setdefault(key, {})[index] = line
    out = {index: line for index, line in enumerate(chunk) if isinstance(line, Grade)}
    siblings = [list(lines.values()) for lines in members.values()]
    groups = [Group(lines[0].prompt, (0,), tuple(line.completion for line in lines)) for lines in siblings]
    for lines, grades in zip(members.values(), _grades(groups, rewards), strict=True):
        out |= dict(zip(lines, grades, strict=True))
    return [out[index] for index in range(len(chunk))]


def _grades(groups: list[Group], rewards: Rewards) -> list[tuple[Grade, ...]]:
    """All groups together; where a row lacks a column, each group alone, so that only that row is broken."""
    try:
        return [group.grades for group in grade_all(groups, rewards)]
    except GraderError as error:
        if len(groups) <= 1:
            return [tuple(Grade(None, "broken", reason=str(error)) for _ in group.trajectories) for group in groups]
    return [grades for group in groups for grades in _grades([group], rewards)]


def _parse(text: str, number: int, encode: Encoder | None) -> Line | Grade:
    try:
        return _line(json.loads(text, object_pairs_hook=unique_keys), number, encode)
    except (ValueError, TypeError, RecursionError) as error:
        message = f"not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        return Grade(None, "broken", reason=f"line {number}: {message}")


def _line(row: Any, number: int, encode: Encoder | None) -> Line:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got a {type(row).__name__}")
    if "completion" not in row:
        raise ValueError(f"no `completion`; the line has {', '.join(row) or 'nothing'}")
    text, calls = _answer(row.pop("completion"))
    prompt, messages = row.pop("prompt", None), row.pop("messages", None)
    messages = messages or (prompt if isinstance(prompt, list) else None)
    conversational = bool(messages)
    if not messages:
        messages = [{"role": "user", "content": "" if prompt is None else str(prompt)}]
    if not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in messages):
        raise ValueError("each of `messages` needs a role and a content, which is text")
    ids = row.pop("completion_ids", None)
    ids = tuple(ids if ids is not None else encode(text) if encode else ())
    finish = row.pop("finish", "stop")
    group = row.pop("group", None)
    question = Prompt(str(row.pop("id", number)), tuple(messages), pop_answer(row), row, conversational)
    answer = Trajectory.single(ids, (0.0,) * len(ids), text, finish, 0)
    return Line(question, replace(answer, tool_calls=calls), group)


def _answer(completion: Any) -> tuple[str, Any]:
    """The text of an answer, and its tool calls where it is given as chat messages."""
    if isinstance(completion, str):
        return completion, None
    if isinstance(completion, Mapping):
        completion = [completion]
    if isinstance(completion, list) and completion and isinstance(last := completion[-1], Mapping):
        content = last.get("content")
        if isinstance(content, list):  # OpenAI's content parts
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if content is None or isinstance(content, str):
            return content or "", last.get("tool_calls")
    raise ValueError("`completion` must be text, or chat messages whose last one is the answer")
