"""Prompts from a JSON Lines file: `prompt` (text) or `messages` on each line, `answer`, and any further columns.

One line in ten, chosen by its prompt's hash, is held out; a file with `"split": "train" | "test"` decides itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.tasks.splits import belongs
from outdo.types import Prompt


def prompts(split: str, seed: int, path: str = "") -> Iterator[Prompt]:
    """The split's prompts once, in an order that the seed decides."""
    found = [prompt for prompt, own in _read(Path(path)) if (own == split if own else belongs(prompt.id, split))]
    random.Random(seed).shuffle(found)
    yield from found


def _read(path: Path) -> Iterator[tuple[Prompt, str | None]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"dataset_name={path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"dataset_name={path}: cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _prompt(line, f"{path}, line {number}")


def _prompt(line: str, where: str) -> tuple[Prompt, str | None]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON: {error.msg}") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: a line holds an object, this is a {type(row).__name__}")
    messages = row.pop("messages", None)
    text = row.pop("prompt", None)
    if messages is None and isinstance(text, str):
        messages = [{"role": "user", "content": text}]
    if not _are_messages(messages):
        have = ", ".join(row) or "nothing else"
        raise TaskError(f"{where}: needs `prompt` (text) or `messages` (role and content each); it has {have}")
    own = row.pop("split", None)
    key = json.dumps(messages, sort_keys=True)
    return Prompt(str(row.pop("id", key)), tuple(messages), row.pop("answer", None), row), own


def _are_messages(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
    )
