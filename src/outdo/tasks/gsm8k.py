"""GSM8K, grade-school word problems, from a folder with `train.jsonl` and `test.jsonl` as published, or from the hub.

One training problem in twenty, by its hash, is in the split `dev` instead of `train`, to choose settings without using
`test`. Demonstrations are the published solutions, without the calculator's marks (<<48/2=24>>) unless `marks` is set.
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
_MARKS = re.compile(r"<<[^<>]*>>")


def prompts(split: str, seed: int, data_dir: str = "", marks: bool = False) -> Iterator[Prompt]:
    """The split's problems once, in an order that the seed decides. `marks` keeps the calculator's marks in the
    solutions, for `tools: [calculator]` with `tool_format: marks`."""
    if not data_dir:
        raise TaskError(
            "gsm8k: set task_args.data_dir to a folder with train.jsonl and test.jsonl, "
            f"or dataset_name={HUB} to download them from the hub"
        )
    return _select(_read(Path(data_dir).expanduser() / f"{_published_split(split)}.jsonl", marks), split, seed)


def from_rows(splits: Splits) -> Callable[..., Iterator[Prompt]]:
    """The task's function for rows that were read elsewhere."""

    def prompts(split: str, seed: int, marks: bool = False) -> Iterator[Prompt]:
        name = _published_split(split)
        lines = enumerate(splits[name], 1)
        return _select([_prompt(x.row, f"{name}.jsonl-{i}", x.where, marks) for i, x in lines], split, seed)

    return prompts


def teacher(prompt: Prompt, rng: random.Random) -> str:
    return prompt.meta["solution"]


def _published_split(split: str) -> str:
    return "test" if split == "test" else "train"


def _select(prompts: Iterable[Prompt], split: str, seed: int) -> Iterator[Prompt]:
    is_dev = split == "dev"
    kept = [p for p in prompts if split == "test" or (seed_of("gsm8k dev", p.text) % DEV_EVERY == 0) == is_dev]
    random.Random(seed).shuffle(kept)
    yield from kept


def _read(path: Path, marks: bool) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(
            f"gsm8k: {path} cannot be read ({error.strerror}): set task_args.data_dir to its folder"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _prompt(parse_json(line, where), f"{path.name}-{number}", where, marks)


def _prompt(row: Any, key: str, where: str, marks: bool) -> Prompt:
    question, solution = (row.get("question"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(question, str) or not isinstance(solution, str) or "####" not in solution:
        raise TaskError(f"{where}: a row must have `question` and `answer`, and the answer end in `#### N`")
    gold = solution.rpartition("####")[2].strip()
    meta = {"solution": solution if marks else _MARKS.sub("", solution)}
    return Prompt(key, ({"role": "user", "content": question},), gold, meta)
