"""Prompts of a data set: each row has `prompt` (text) or `messages`, and may have `answer`, `completion` and more.

`columns` gives the data's own names. A row can be imitated where it has a `completion`, a `solution`, or messages that
end in an assistant's turn. The data's own test split is held out; where it has none, one row in ten is, by the hash of
its prompt. Every further column reaches the rewards by name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outdo.errors import TaskError
from outdo.tasks.sources import UNSPLIT, Line, Source, Splits, read
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

COMPLETION = "completion"
_ASKING = ("prompt", "messages")


@dataclass(frozen=True)
class Table:
    """A data set in memory: the prompts of each split, in the data's order."""

    rows: Mapping[str, Sequence[Prompt]]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split, prompts in self.rows.items() if prompts or split == "train")

    @property
    def can_be_imitated(self) -> bool:
        return any(demonstration(prompt) is not None for prompt in self.rows["train"])

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        """The split's prompts once, in an order that the seed decides."""
        found = list(self.rows[split])
        random.Random(seed).shuffle(found)
        yield from found


def demonstration(prompt: Prompt, rng: random.Random | None = None) -> str | None:
    """The answer that a row shows; None where it shows none."""
    return next(
        (prompt.meta[name] for name in (COMPLETION, "solution") if isinstance(prompt.meta.get(name), str)), None
    )


def load(source: Source) -> Table:
    """The data set. Raises TaskError."""
    lines = read(source)
    _refuse_missing_columns(source, lines)
    found = {split: [_prompt(line, source.columns) for line in rows] for split, rows in lines.items()}
    found = _told_apart(found)
    if UNSPLIT in found:
        return Table(_by_row(found[UNSPLIT], source))
    return Table(_by_split({name: [prompt for prompt, _ in rows] for name, rows in found.items()}, source))


def _told_apart(splits: Mapping[str, list[tuple[Prompt, str | None]]]) -> dict[str, list[tuple[Prompt, str | None]]]:
    """One name for each problem. Where rows that ask different things, or want different answers, call themselves
    alike, they are named by what they ask and want: a name is what tells problems apart, and none shall be lost."""
    problems: dict[str, set[str]] = {}
    for rows in splits.values():
        for prompt, _ in rows:
            problems.setdefault(prompt.id, set()).add(_whole(prompt))
    return {
        split: [(replace(p, id=_whole(p)) if len(problems[p.id]) > 1 else p, own) for p, own in rows]
        for split, rows in splits.items()
    }


def _whole(prompt: Prompt) -> str:
    return json.dumps([_asked(prompt.messages), prompt.answer], sort_keys=True, default=str)


def _by_row(rows: Sequence[tuple[Prompt, str | None]], source: Source) -> dict[str, list[Prompt]]:
    """The split that a row names itself; else by the hash of its prompt."""
    named = {source.train_split: "train", source.test_split: "test"}
    out: dict[str, list[Prompt]] = {"train": [], "test": []}
    for prompt, own in rows:
        split = named.get(own, own) if own else "train" if belongs(_asked(prompt.messages), "train") else "test"
        out.setdefault(split, []).append(prompt)
    return out


def _by_split(rows: Mapping[str, list[Prompt]], source: Source) -> dict[str, list[Prompt]]:
    """The data's own splits under our names; where it has no test split, a tenth of its training rows."""
    asked = {"dataset_train_split": source.train_split}
    if source.test_split != "test":
        asked["dataset_test_split"] = source.test_split
    for key, name in asked.items():
        if name not in rows:
            raise TaskError(f"{key}={name}: {source.name} has no such split; it has {', '.join(rows)}")
    ours = {source.train_split, source.test_split, "train", "test"}
    rest = {name: found for name, found in rows.items() if name not in ours}
    train = rows[source.train_split]
    if source.test_split in rows:
        return {"train": train, "test": rows[source.test_split], **rest}
    halves = {split: [p for p in train if belongs(_asked(p.messages), split)] for split in ("train", "test")}
    return halves | rest


def _refuse_missing_columns(source: Source, lines: Splits) -> None:
    """A column that no row has is a slip of the recipe, whatever the rows say."""
    if not isinstance(source.columns, dict):
        raise TaskError(f"columns={source.columns!r}: give our names for the data's, such as columns.prompt=question")
    have = dict.fromkeys(name for rows in lines.values() for line in rows for name in line.row)
    for ours, theirs in source.columns.items():
        if have and theirs not in have:
            raise TaskError(
                f"columns.{ours}={theirs}: {source.name} has no column {theirs!r}; it has {', '.join(have)}"
            )


def _prompt(line: Line, columns: Mapping[str, str]) -> tuple[Prompt, str | None]:
    row = {**line.row, **{ours: line.row.get(theirs) for ours, theirs in columns.items()}}
    asked = {name: row.pop(name, None) for name in _ASKING}
    for name in _ASKING:
        row.pop(columns.get(name, name), None)
    if any(name in columns for name in _ASKING):  # what the recipe names is asked, not another column of our name
        asked = {name: value for name, value in asked.items() if name in columns}
    messages, shown = _split_off(_messages(asked, line), line)
    if (text := _completion(row.pop(COMPLETION, None), line)) or shown is not None:
        row[COMPLETION] = text or shown
    own = row.pop("split", None)
    key = row.pop("id", None)
    name = _asked(messages) if key is None else str(key)
    answer = row.pop("answer", None)
    answer = row.get("solution") if answer is None else answer
    return Prompt(name, messages, answer, row), None if own is None else str(own)


def _asked(messages: Sequence[Message]) -> str:
    """Which problem it is, whatever a row calls itself: rows that ask the same belong on one side of a split."""
    return json.dumps([dict(m) for m in messages], sort_keys=True)


def _messages(asked: Mapping[str, Any], line: Line) -> tuple[Message, ...]:
    """What a row asks, as messages. A prompt may be messages too, as TRL has it."""
    found = next((value for value in (asked.get("messages"), asked.get("prompt")) if value is not None), None)
    if isinstance(found, str):
        if not found.strip():
            raise TaskError(f"{line.where}: its prompt is empty")
        found = [{"role": "user", "content": found}]
    if found is not None and not isinstance(found, list):
        raise TaskError(f"{line.where}: its prompt is a {type(found).__name__}, not text: {found!r:.60}")
    if not found or not all(_is_message(m) for m in found):
        have = ", ".join(line.row) or "nothing"
        raise TaskError(
            f"{line.where}: needs `prompt` (text) or `messages` (role and content each); it has {have}. "
            "Another column is named by columns.prompt=NAME"
        )
    return tuple({key: value for key, value in m.items() if value is not None} for m in found)


def _is_message(m: Any) -> bool:
    return isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)


def _split_off(messages: tuple[Message, ...], line: Line) -> tuple[tuple[Message, ...], str | None]:
    """Messages that end in an assistant's turn are a prompt and the answer to imitate."""
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise TaskError(f"{line.where}: its messages are an answer without a question")
    return messages[:-1], messages[-1]["content"]


def _completion(value: Any, line: Line) -> str | None:
    if isinstance(value, list) and len(value) == 1 and _is_message(value[0]):  # as TRL has it
        value = value[0]["content"]
    if value is not None and not isinstance(value, str):
        raise TaskError(f"{line.where}: its completion is a {type(value).__name__}, not text: {value!r:.60}")
    return value
