"""GSM8K, grade-school word problems, from a folder with `train.jsonl` and `test.jsonl` as published, or from the hub.

One training problem in twenty, by its hash, is in the split `dev` instead of `train`, to choose settings without using
`test`. Demonstrations are the published solutions without their calculator annotations.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.files import parse_json
from outdo.tasks.sources import Splits
from outdo.types import Prompt

HUB = "openai/gsm8k"
COLUMNS = {"prompt": "question", "answer": "answer"}  # with any others, the hub data set is treated as plain data
DEV_EVERY = 20  # one training problem in so many
_ANNOTATIONS = re.compile(r"<<[^<>]*>>")


def prompts(split: str, seed: int, data_dir: str = "") -> Iterator[Prompt]:
    """The split's problems once, in an order that the seed decides."""
    if not data_dir:
        raise TaskError(
            "gsm8k: set task_args.data_dir to a folder with train.jsonl and test.jsonl, "
            f"or dataset_name={HUB} to download them from the hub"
        )
    return _select(_read(Path(data_dir).expanduser() / f"{_published_split(split)}.jsonl"), split, seed)


def from_rows(splits: Splits) -> Callable[[str, int], Iterator[Prompt]]:
    """The task's function for rows that were read elsewhere."""
    prompts = {
        name: [_prompt(line.row, f"{name}.jsonl-{number}", line.where) for number, line in enumerate(splits[name], 1)]
        for name in ("train", "test")
    }
    return lambda split, seed: _select(prompts[_published_split(split)], split, seed)


def teacher(prompt: Prompt, rng: random.Random) -> str:
    return prompt.meta["solution"]


def _published_split(split: str) -> str:
    return "test" if split == "test" else "train"


def _select(prompts: Iterable[Prompt], split: str, seed: int) -> Iterator[Prompt]:
    is_dev = split == "dev"
    kept = [p for p in prompts if split == "test" or (seed_of("gsm8k dev", p.text) % DEV_EVERY == 0) == is_dev]
    random.Random(seed).shuffle(kept)
    yield from kept


def _read(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(
            f"gsm8k: {path} cannot be read ({error.strerror}): set task_args.data_dir to its folder"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _prompt(parse_json(line, where), f"{path.name}-{number}", where)


def _prompt(row: Any, key: str, where: str) -> Prompt:
    question, solution = (row.get("question"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(question, str) or not isinstance(solution, str) or "####" not in solution:
        raise TaskError(f"{where}: a row must have `question` and `answer`, and the answer end in `#### N`")
    gold = solution.rpartition("####")[2].strip()
    meta = {"solution": _ANNOTATIONS.sub("", solution)}
    return Prompt(key, ({"role": "user", "content": question},), gold, meta)
