"""GSM8K, grade-school word problems, from a folder with `train.jsonl` and `test.jsonl` as published, or from the hub.

One training problem in twenty, by its hash, is kept out of `train` as the split `dev`: settings are chosen there, so
that `test` is looked at once. The teacher is the published solution without its calculator marks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.sources import Splits, parsed
from outdo.types import Prompt

HUB = "openai/gsm8k"
COLUMNS = {"prompt": "question", "answer": "answer"}  # a recipe may name these; others make it any data set
DEV = 20  # one training problem in so many
_MARKS = re.compile(r"<<[^<>]*>>")


def prompts(split: str, seed: int, data_dir: str = "") -> Iterator[Prompt]:
    """The split's problems once, in an order that the seed decides."""
    if not data_dir:
        raise TaskError(
            "gsm8k: task_args.data_dir must name a folder with train.jsonl and test.jsonl; "
            f"dataset_name={HUB} is the hub's"
        )
    return _chosen(_read(Path(data_dir).expanduser() / f"{_published(split)}.jsonl"), split, seed)


def from_rows(splits: Splits) -> Callable[[str, int], Iterator[Prompt]]:
    """The same task of the same rows from elsewhere."""
    found = {
        name: [_prompt(line.row, f"{name}.jsonl-{number}", line.where) for number, line in enumerate(splits[name], 1)]
        for name in ("train", "test")
    }
    return lambda split, seed: _chosen(found[_published(split)], split, seed)


def teacher(prompt: Prompt, rng: random.Random) -> str:
    return prompt.meta["solution"]


def _published(split: str) -> str:
    return "test" if split == "test" else "train"


def _chosen(found: Iterable[Prompt], split: str, seed: int) -> Iterator[Prompt]:
    kept = [p for p in found if split == "test" or (seed_of("gsm8k dev", p.text) % DEV == 0) == (split == "dev")]
    random.Random(seed).shuffle(kept)
    yield from kept


def _read(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(
            f"gsm8k: {path} cannot be read ({error.strerror}): task_args.data_dir names its folder"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _prompt(parsed(line, where), f"{path.name}-{number}", where)


def _prompt(row: Any, key: str, where: str) -> Prompt:
    question, solution = (row.get("question"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(question, str) or not isinstance(solution, str) or "####" not in solution:
        raise TaskError(f"{where}: a problem has `question` and `answer`, and the answer ends in `#### N`")
    gold = solution.rpartition("####")[2].strip()
    meta = {"solution": _MARKS.sub("", solution)}
    return Prompt(key, ({"role": "user", "content": question},), gold, meta)
