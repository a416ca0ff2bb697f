"""Prompts of a data set: each row has `prompt` (text) or `messages`, and may have `answer`, `completion` and more.

`columns` maps our names to the data's. A row has a demonstration if it has a `completion`, a `solution`, or messages
that end with an assistant turn. The data's own test split is held out; if it has none, one row in ten is
(`eval_fraction`), by the hash of its prompt. All other columns are passed to the rewards by name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outdo.errors import TaskError
from outdo.tasks.files import Line, parse_json
from outdo.tasks.sources import UNSPLIT, Source, Splits, read
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

COMPLETION = "completion"
_PROMPT_COLUMNS = ("prompt", "messages")
ANSWER_COLUMNS = ("solution",)  # other names of the column `answer`
Labelled = tuple[Prompt, str | None]  # a prompt, and the split that its row names


@dataclass(frozen=True)
class Table:
    """A data set in memory: the prompts of each split, in the data's order."""

    rows: Mapping[str, Sequence[Prompt]]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split, prompts in self.rows.items() if prompts or split == "train")

    @property
    def has_demonstrations(self) -> bool:
        return any(demonstration(prompt) is not None for prompt in self.rows["train"])

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        """The split's prompts once, in an order that the seed decides."""
        prompts = list(self.rows[split])
        random.Random(seed).shuffle(prompts)
        yield from prompts


def demonstration(prompt: Prompt, rng: random.Random | None = None) -> str | None:
    """The answer in a row's completion or solution; None if it has neither."""
    texts = (prompt.meta.get(name) for name in (COMPLETION, "solution"))
    return next((text for text in texts if isinstance(text, str)), None)


def load_table(source: Source) -> Table:
    """Reads the data set. Raises TaskError."""
    return table_of(read(source), source)


def table_of(lines: Splits, source: Source) -> Table:
    """The prompts of rows, by the source's columns and splits. Raises TaskError."""
    _refuse_missing_columns(source, lines)
    labelled = {split: [_prompt(line, source.columns) for line in rows] for split, rows in lines.items()}
    labelled = _with_unique_ids(labelled)
    if UNSPLIT in labelled:
        return Table(_split_by_row(labelled[UNSPLIT], source))
    return Table(_split_by_name({name: [prompt for prompt, _ in rows] for name, rows in labelled.items()}, source))


def _with_unique_ids(splits: Mapping[str, list[Labelled]]) -> dict[str, list[Labelled]]:
    """One id per problem. Rows that share an id but differ in prompt or answer get their content as id: prompts with
    the same id count as one, so a problem would be lost."""
    problems: dict[str, set[str]] = {}
    for rows in splits.values():
        for prompt, _ in rows:
            problems.setdefault(prompt.id, set()).add(_content_id(prompt))
    return {
        split: [(replace(p, id=_content_id(p)) if len(problems[p.id]) > 1 else p, own) for p, own in rows]
        for split, rows in splits.items()
    }


def _content_id(prompt: Prompt) -> str:
    tools = [prompt.meta["tools"]] if "tools" in prompt.meta else []
    return json.dumps([_prompt_key(prompt.messages), prompt.answer, *tools], sort_keys=True, default=str)


def _split_by_row(rows: Sequence[Labelled], source: Source) -> dict[str, list[Prompt]]:
    """By the split that each row names, else by the hash of its prompt."""
    named = {source.train_split: "train", source.test_split: "test"}
    out: dict[str, list[Prompt]] = {"train": [], "test": []}
    for prompt, own in rows:
        out.setdefault(named.get(own, own) if own else _split_of(prompt, source), []).append(prompt)
    return out


def _split_of(prompt: Prompt, source: Source) -> str:
    share = source.eval_fraction
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise TaskError(f"eval_fraction={share!r:.60}: expected a share of the rows, more than 0 and less than 1")
    return "train" if belongs(_prompt_key(prompt.messages), "train", share) else "test"


def _split_by_name(rows: Mapping[str, list[Prompt]], source: Source) -> dict[str, list[Prompt]]:
    """The data's own splits under our names; if it has no test split, a share of its training rows is."""
    required = {"dataset_train_split": source.train_split}
    if source.test_split != "test":
        required["dataset_test_split"] = source.test_split
    for key, name in required.items():
        if name not in rows:
            raise TaskError(f"{key}={name}: {source.name} has no such split; it has {', '.join(rows)}")
    ours = {source.train_split, source.test_split, "train", "test"}
    rest = {name: prompts for name, prompts in rows.items() if name not in ours}
    train = rows[source.train_split]
    if source.test_split in rows:
        return {"train": train, "test": rows[source.test_split], **rest}
    splits = [_split_of(prompt, source) for prompt in train]
    by_hash = {name: [p for p, own in zip(train, splits, strict=True) if own == name] for name in ("train", "test")}
    return by_hash | rest


def _refuse_missing_columns(source: Source, lines: Splits) -> None:
    """Refuses a column of the recipe that no row has."""
    if not isinstance(source.columns, dict):
        raise TaskError(f"columns={source.columns!r}: expected our names and the data's: columns.prompt=question")
    names = dict.fromkeys(name for rows in lines.values() for line in rows for name in line.row)
    for ours, theirs in source.columns.items():
        if names and theirs not in names:
            raise TaskError(
                f"columns.{ours}={theirs}: {source.name} has no column {theirs!r}; it has {', '.join(names)}"
            )


def _prompt(line: Line, columns: Mapping[str, str]) -> Labelled:
    row = {**line.row, **{ours: line.row.get(theirs) for ours, theirs in columns.items()}}
    given = {name: row.pop(name, None) for name in _PROMPT_COLUMNS}
    for name in _PROMPT_COLUMNS:
        row.pop(columns.get(name, name), None)
    if any(name in columns for name in _PROMPT_COLUMNS):  # a column that the recipe names wins over one of our name
        given = {name: value for name, value in given.items() if name in columns}
    if all(given.get(name) is not None for name in _PROMPT_COLUMNS):
        raise TaskError(
            f"{line.where}: has both `prompt` and `messages`: remove one, or name the one to use, as "
            "columns.prompt=prompt or columns.messages=messages"
        )
    if (tools := _tools(row.pop("tools", None), line)) is not None:
        row["tools"] = tools
    conversational = any(isinstance(value, list) for value in given.values())  # TRL's rule
    messages, last_turn = _split_last_turn(_messages(given, line), line)
    if (text := _completion(row.pop(COMPLETION, None), line)) or last_turn is not None:
        row[COMPLETION] = text or last_turn
    own = row.pop("split", None)
    key = row.pop("id", None)
    name = _prompt_key(messages) if key is None else str(key)
    return Prompt(name, messages, pop_answer(row), row, conversational), None if own is None else str(own)


def pop_answer(row: dict[str, Any]) -> Any:
    """The gold answer of a row, under any of its names; only `answer` is removed from the row."""
    answer = row.pop("answer", None)
    return next((row[name] for name in ANSWER_COLUMNS if row.get(name) is not None), None) if answer is None else answer


def _prompt_key(messages: Sequence[Message]) -> str:
    """Identifies the prompt, whatever the row's id: rows with the same prompt belong in the same split."""
    return json.dumps([dict(m) for m in messages], sort_keys=True)


def _messages(given: Mapping[str, Any], line: Line) -> tuple[Message, ...]:
    """A row's prompt as messages. The column `prompt` may hold messages too, as in TRL."""
    value = next((value for value in (given.get("messages"), given.get("prompt")) if value is not None), None)
    if isinstance(value, str) and value == given.get("messages") and value.lstrip().startswith("["):
        value = parse_json(value, f"{line.where}, messages")  # a table holds them as text
    if isinstance(value, str):
        if not value.strip():
            raise TaskError(f"{line.where}: the prompt is empty")
        value = [{"role": "user", "content": value}]
    if value is not None and not isinstance(value, list):
        raise TaskError(f"{line.where}: the prompt is a {type(value).__name__}, not text: {value!r:.60}")
    if not value or not all(is_message(m) for m in value):
        names = ", ".join(line.row) or "nothing"
        raise TaskError(
            f"{line.where}: needs `prompt` (text) or `messages` (each with role and content); it has {names}. "
            "To use another column, set columns.prompt=NAME"
        )
    return tuple({key: value for key, value in m.items() if value is not None} for m in value)


def _tools(value: Any, line: Line) -> list[Any] | None:
    """The functions that the model may call, for its chat template: a list of JSON schemas, or that as text."""
    if value is None or value == "":
        return None
    tools = parse_json(value, f"{line.where}, tools") if isinstance(value, str) else value
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise TaskError(
            f"{line.where}: `tools` must be a list of JSON schemas, such as "
            '[{"type": "function", "function": {"name": "add", "parameters": {…}}}]'
        )
    return tools


def is_message(m: Any) -> bool:
    return isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)


def _split_last_turn(messages: tuple[Message, ...], line: Line) -> tuple[tuple[Message, ...], str | None]:
    """Messages that end with an assistant turn are a prompt and its demonstration."""
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise TaskError(f"{line.where}: the messages are an answer without a question")
    return messages[:-1], messages[-1]["content"]


def _completion(value: Any, line: Line) -> str | None:
    if isinstance(value, list) and len(value) == 1 and is_message(value[0]):  # as in TRL
        value = value[0]["content"]
    if value is not None and not isinstance(value, str):
        raise TaskError(f"{line.where}: the completion is a {type(value).__name__}, not text: {value!r:.60}")
    return value
