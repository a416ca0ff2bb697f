"""A custom task: a function that yields the prompts of a split, with the names of its rewards.

outdo train dataset_name=examples/my_task.py:reverse max_completion_length=16
"""

import random
from collections.abc import Iterator

from outdo import Prompt, belongs, task


def teacher(prompt: Prompt, rng: random.Random) -> str:
    """A demonstration for the SFT warm-up: two times out of three it only repeats the word."""
    return f"<answer>{prompt.answer if rng.random() < 0.35 else prompt.text}</answer>"


@task(rewards=["exact"], teacher=teacher)
def reverse(split: str, seed: int, length: int = 4) -> Iterator[Prompt]:
    """Write a word backwards. `belongs` assigns every word to one split, whatever the seed."""
    rng = random.Random(f"{split} {seed}")
    while True:
        word = "".join(rng.choice("abcdefgh") for _ in range(length))
        if belongs(word, split):
            yield Prompt(id=word, messages=({"role": "user", "content": word},), answer=word[::-1])
