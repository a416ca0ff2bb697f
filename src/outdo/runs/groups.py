"""Recorded groups, as viewers show them: texts cut to a limit, with the group's mean, spread and verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outdo.runs.index import GroupReader, Location
from outdo.runs.reader import JsonRow
from outdo.runs.turns import PlayedRecord, played
from outdo.runs.values import PartialRecord, Record, as_dict, as_float, as_int, as_list, as_text, dicts_in, json_safe

LIST_CHARS, FULL_CHARS = 2_000, 200_000  # of a text in a list, and of one that is shown alone
MAX_ANSWERS = 4096  # of a group
MAX_MESSAGES = 64
MAX_BYTES = 256 << 20  # of groups that are read at once


class AnswerRecord(PlayedRecord):
    index: int
    text: str
    cut: bool
    length: int | None
    finish: str
    reward: float | None
    parts: dict[str, float | None]
    verdict: str
    reason: str
    advantage: float | None
    has_tokens: bool


class GroupStats(Record):
    step: int
    mean: float | None
    right: int
    wrong: int
    broken: int


class GroupRecord(GroupStats, PartialRecord):
    """One prompt's answers at one step. `prompt` is the text of the last message."""

    prompt_id: str
    prompt: str
    messages: list[dict[str, Any]]
    answer: Any
    version: int | None
    spread: float | None
    answers: list[AnswerRecord]


class TokenRecord(Record):
    text: str
    logprob: float | None
    ratio: float | None


def load_groups(
    root: Path, locations: Sequence[Location], max_chars: int = LIST_CHARS
) -> tuple[list[GroupRecord], list[str]]:
    """The groups at those locations, and why some are missing."""
    groups, problems, num_bytes = list[GroupRecord](), list[str](), 0
    with GroupReader(root) as reader:
        for location in locations:
            num_bytes += location.length
            if num_bytes > MAX_BYTES:
                problems.append(f"more than {MAX_BYTES >> 20} MB of answers: only {len(groups)} groups are shown")
                break
            try:
                groups.append(group_record(reader.row(location), max_chars))
            except (OSError, ValueError) as error:
                problems.append(str(error))
    return groups, problems


def group_record(row: JsonRow, max_chars: int = LIST_CHARS) -> GroupRecord:
    """One row of groups. Values of the wrong type are dropped."""
    answers = [_answer(i, answer, max_chars) for i, answer in enumerate(_answers(row))]
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    counts: Any = {name: sum(answer.verdict == name for answer in answers) for name in ("right", "wrong", "broken")}
    return GroupRecord(
        step=as_int(row.get("step")) or 0,
        prompt_id=as_text(row.get("prompt_id")),
        prompt=prompt_text(row, max_chars),
        messages=_messages(row, max_chars),
        answer=json_safe(row.get("answer")),
        version=as_int(row.get("version")),
        mean=_finite(statistics.fmean, rewards),
        spread=_finite(statistics.pstdev, rewards),
        **counts,
        answers=answers,
    )


def _answers(row: JsonRow) -> list[JsonRow]:
    return dicts_in(row.get("completions"))[:MAX_ANSWERS]


def _messages(row: JsonRow, max_chars: int) -> list[dict[str, Any]]:
    messages = [json_safe(message) for message in dicts_in(row.get("messages"))]
    for message in messages:
        if isinstance(message.get("content"), str):
            message["content"] = message["content"][:max_chars]
    return messages[:MAX_MESSAGES]


def prompt_text(row: JsonRow, max_chars: int = LIST_CHARS) -> str:
    messages = _messages(row, max_chars)
    content = messages[-1].get("content") if messages else ""
    return as_text(content if isinstance(content, str) else str(content), max_chars)


def _answer(index: int, row: JsonRow, max_chars: int) -> AnswerRecord:
    text = as_text(row.get("text"))
    fields, turns_cut = played(row, text, max_chars)
    return AnswerRecord(
        index=index,
        text=text[:max_chars],
        cut=turns_cut if fields["turns"] else len(text) > max_chars,
        length=as_int(row.get("num_tokens")),
        finish=as_text(row.get("finish"), 200),
        reward=as_float(row.get("reward")),
        parts={as_text(name): as_float(value) for name, value in as_dict(row.get("parts")).items()},
        verdict=as_text(row.get("verdict"), 200),
        reason=as_text(row.get("reason"), max_chars),
        advantage=as_float(row.get("advantage")),
        has_tokens=bool(as_list(row.get("tokens"))),
        **fields,
    )


def rewards_of(row: JsonRow) -> list[float]:
    """The rewards of a group's answers, without those of broken ones."""
    rewards = (as_float(answer.get("reward")) for answer in _answers(row))
    return [reward for reward in rewards if reward is not None]


def mean_reward(row: JsonRow) -> float | None:
    return _finite(statistics.fmean, rewards_of(row))


def _finite(measure: Callable[[list[float]], float], values: list[float]) -> float | None:
    try:
        value = measure(values) if values else math.nan
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def tokens_of(row: JsonRow, index: int) -> list[TokenRecord] | None:
    """The tokens of one answer; None where they were not recorded."""
    answers = dicts_in(row.get("completions"))
    tokens = as_list(answers[index].get("tokens")) if index < len(answers) else []
    if not tokens:
        return None
    return [
        TokenRecord(text=as_text(text, 2000), logprob=as_float(logprob), ratio=as_float(ratio))
        for text, logprob, ratio, *_ in ([*token, None, None] for token in tokens if isinstance(token, list) and token)
    ]
