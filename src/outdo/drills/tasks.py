"""A task that has too few problems to train on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from outdo.seeds import seed_of
from outdo.tasks import arithmetic
from outdo.tasks.task import task
from outdo.types import Prompt

TRAIN_SEED = seed_of("few", 242)  # the first six problems of this seed all need a carry, which is hardest for the model


@task(rewards=["numeric"], teacher=arithmetic.teacher, splits=("train", "test"))
def few_sums(split: str, seed: int, size: int = 6) -> Iterator[Prompt]:
    """Sums of two digits: `size` of them for training, repeated; many that are held out."""
    if split != "train":
        yield from arithmetic.prompts(split, seed, ops="+")
        return
    chosen = list(islice(arithmetic.prompts(split, TRAIN_SEED, ops="+"), size))
    while True:
        yield from chosen
