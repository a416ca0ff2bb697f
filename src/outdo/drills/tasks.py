"""Tasks with what makes a run fail: too few problems, a range that is too narrow, a grader that depends on a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from outdo.seeds import seed_of
from outdo.tasks import arithmetic
from outdo.tasks.task import task
from outdo.types import Prompt

TRAIN_SEED = seed_of("few", 242)  # the first six problems of this seed all need a carry, which is hardest for the model
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
def narrow(split: str, seed: int, ops: str = "+") -> Iterator[Prompt]:
    """Two digits: `ops` for training; held out sums, and differences as another distribution."""
    held_out = {"test": "+", "ood": "-"}
    yield from arithmetic.prompts("train" if split == "train" else "test", seed, ops=held_out.get(split, ops))


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test"))
def graded_sums(split: str, seed: int, standard: str = "") -> Iterator[Prompt]:
    """Sums, with the column `standard`: the file that tells the grader `by_standard` what to pay for."""
    for prompt in arithmetic.prompts(split, seed, ops="+", between=CARRIES):
        yield replace(prompt, meta={**prompt.meta, "standard": standard})
