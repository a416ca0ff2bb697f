"""A task that has too few problems to train on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from outdo.seeds import seed_of
from outdo.tasks import arithmetic
from outdo.tasks.task import task
from outdo.types import Prompt

FIRST = seed_of("few", 242)  # the first six of this seed's problems all need a carry, which the model knows least


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test"))
def few_sums(split: str, seed: int, size: int = 6) -> Iterator[Prompt]:
    """Sums of two digits. Only `size` of them are for training, over and over; those that are held out are many."""
    if split != "train":
        yield from arithmetic.prompts(split, seed, ops="+")
        return
    chosen = list(islice(arithmetic.prompts(split, FIRST, ops="+"), size))
    while True:
        yield from chosen
