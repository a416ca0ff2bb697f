"""GSM8K, grade-school word problems, from a folder with `train.jsonl` and `test.jsonl` as published.

One training problem in twenty, by its hash, is kept out of `train` as the split `dev`: settings are chosen there, so
that `test` is looked at once. The teacher is the published solution without its calculator marks.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.types import Prompt

DEV = 20  # one training problem in so many
_MARKS = re.compile(r"<<[^<>]*>>")


def prompts(split: str, seed: int, data_dir: str = "") -> Iterator[Prompt]:
    """The split's problems once, in an order that the seed decides."""
    if not data_dir:
        raise TaskError("gsm8k: task_args.data_dir must name a folder with train.jsonl and test.jsonl")
    found = list(_read(Path(data_dir).expanduser() / ("test.jsonl" if split == "test" else "train.jsonl")))
    if split != "test":
        found = [prompt for prompt in found if (seed_of("gsm8k dev", prompt.text) % DEV == 0) == (split == "dev")]
    random.Random(seed).shuffle(found)
    yield from found


def teacher(prompt: Prompt, rng: random.Random) -> str:
    return prompt.meta["solution"]


def _read(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TaskError(
            f"gsm8k: {path} cannot be read ({error.strerror}): task_args.data_dir names its folder"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _prompt(line, f"{path.name}-{number}", f"{path}, line {number}")


def _prompt(line: str, key: str, where: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON: {error.msg}") from None
    question, solution = (row.get("question"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(question, str) or not isinstance(solution, str) or "####" not in solution:
        raise TaskError(f"{where}: a problem has `question` and `answer`, and the answer ends in `#### N`")
    gold = solution.rpartition("####")[2].strip()
    meta = {"solution": _MARKS.sub("", solution)}
    return Prompt(key, ({"role": "user", "content": question},), gold, meta)
