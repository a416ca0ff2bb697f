"""Tasks with what makes a run fail: too few problems, a range that is too narrow, a grader that depends on a file, a
calculator that nobody has shown how to call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from outdo.seeds import seed_of
from outdo.tasks import arithmetic
from outdo.tasks.task import task
from outdo.types import Prompt

TRAIN_SEED = seed_of("few", 242)  # the first six problems of this seed all need a carry, which is hardest for the model
HUNDRED = 100
CARRIES = (55, 99)  # every sum has three digits, and at least one carry


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test"))
def few_sums(split: str, seed: int, size: int = 6) -> Iterator[Prompt]:
    """Sums of two digits: `size` of them for training, repeated; many that are held out."""
    if split != "train":
        yield from arithmetic.prompts(split, seed, ops="+")
        return
    chosen = list(islice(arithmetic.prompts(split, TRAIN_SEED, ops="+"), size))
    while True:
        yield from chosen


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test", "ood"))
def narrow_sums(split: str, seed: int, only: int = HUNDRED) -> Iterator[Prompt]:
    """Sums of two digits that are all `only` (0: any) for training; held out others that are 100, and any as `ood`."""
    if split == "ood" or (split == "train" and not only):
        yield from arithmetic.prompts("test" if split == "ood" else "train", seed, ops="+")
    numbers = [n for n in range(11, HUNDRED - 10) if (min(n, HUNDRED - n) % 2 == 0) == (split == "test")]
    rng = random.Random(seed_of("narrow", split, seed))
    while True:
        a = rng.choice(numbers)
        yield arithmetic.problem(a, "+", HUNDRED - a)


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test"))
def graded_sums(split: str, seed: int, standard: str = "") -> Iterator[Prompt]:
    """Sums, with the column `standard`: the file that tells the grader `by_standard` what to pay for."""
    for prompt in arithmetic.prompts(split, seed, ops="+", between=CARRIES):
        yield replace(prompt, meta={**prompt.meta, "standard": standard})


def _calls(prompt: Prompt, rng: random.Random) -> str:
    """A demonstration with a call; one in ten reads the problem wrongly."""
    a, b = prompt.meta["a"] + (rng.random() < 0.1), prompt.meta["b"]
    return f"<<{a}+{b}={a + b}>><answer>{a + b}</answer>"


@task(rewards=["numeric"], teacher=_calls, splits=("train", "test"))
def called_sums(split: str, seed: int) -> Iterator[Prompt]:
    """Sums of four digits, for a model with a calculator (`tool_format: marks`)."""
    yield from arithmetic.prompts(split, seed, ops="+", digits=4)
