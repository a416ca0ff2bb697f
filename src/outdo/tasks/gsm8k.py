"""GSM8K, grade-school word problems, from a folder with `train.jsonl` and `test.jsonl` as published, or from the hub.

One training problem in twenty, by its hash, is kept out of `train` as the split `dev`: settings are chosen there, so
that `test` is looked at once. The teacher is the published solution without its calculator marks. With `variants` each
training problem that allows it comes with so many of other numbers (`tasks.renumber`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.renumber import renumbered
from outdo.tasks.sources import Splits, parsed
from outdo.types import Prompt

HUB = "openai/gsm8k"
COLUMNS = {"prompt": "question", "answer": "answer"}  # a recipe may name these; others make it any data set
DEV = 20  # one training problem in so many
_MARKS = re.compile(r"<<[^<>]*>>")


class Problem(NamedTuple):
    """As published: the solution with its calculator marks."""

    key: str
    question: str
    solution: str


def prompts(split: str, seed: int, data_dir: str = "", variants: int = 0) -> Iterator[Prompt]:
    """The split's problems once, in an order that the seed decides; of `train` with up to so many variants of each."""
    if not data_dir:
        raise TaskError(
            "gsm8k: task_args.data_dir must name a folder with train.jsonl and test.jsonl; "
            f"dataset_name={HUB} is the hub's"
        )
    return _chosen(_read(Path(data_dir).expanduser() / f"{_published(split)}.jsonl"), split, seed, variants)


def from_rows(splits: Splits) -> Callable[..., Iterator[Prompt]]:
    """The same task of the same rows from elsewhere."""
    found = {
        name: [_problem(line.row, f"{name}.jsonl-{number}", line.where) for number, line in enumerate(splits[name], 1)]
        for name in ("train", "test")
    }
    return lambda split, seed, variants=0: _chosen(found[_published(split)], split, seed, variants)


def teacher(prompt: Prompt, rng: random.Random) -> str:
    return prompt.meta["solution"]


def _published(split: str) -> str:
    return "test" if split == "test" else "train"


def _chosen(found: Iterable[Problem], split: str, seed: int, variants: int) -> Iterator[Prompt]:
    if type(variants) is not int or variants < 0:
        raise TaskError(f"gsm8k: variants={variants!r} is how many a problem has beside itself: 0 or more")
    kept = [p for p in found if split == "test" or (seed_of("gsm8k dev", p.question) % DEV == 0) == (split == "dev")]
    more = variants if split == "train" else 0
    turns = [(problem, number) for problem in kept for number in range(1 + more)]
    random.Random(seed).shuffle(turns)
    for problem, number in turns:
        if number == 0:
            yield _prompt(problem)
        elif number <= len(others := _variants(problem, more)):
            yield _prompt(others[number - 1], variant_of=problem.key)


@lru_cache(maxsize=10_000)
def _variants(problem: Problem, count: int) -> tuple[Problem, ...]:
    """The problem with other numbers, the same ones in every run, up to `count` times; none where it cannot be done."""
    made = renumbered(problem.question, problem.solution, count, random.Random(seed_of("variants", problem.question)))
    return tuple(Problem(f"{problem.key}+{number}", *texts) for number, texts in enumerate(made, 1))


def _read(path: Path) -> Iterator[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(
            f"gsm8k: {path} cannot be read ({error.strerror}): task_args.data_dir names its folder"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _problem(parsed(line, where), f"{path.name}-{number}", where)


def _problem(row: Any, key: str, where: str) -> Problem:
    question, solution = (row.get("question"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(question, str) or not isinstance(solution, str) or "####" not in solution:
        raise TaskError(f"{where}: a problem has `question` and `answer`, and the answer ends in `#### N`")
    return Problem(key, question, solution)


def _prompt(problem: Problem, **meta: str) -> Prompt:
    gold = problem.solution.rpartition("####")[2].strip()
    meta["solution"] = _MARKS.sub("", problem.solution)
    return Prompt(problem.key, ({"role": "user", "content": problem.question},), gold, meta)
