"""Countdown: reach a target from the given numbers, each used exactly once, with + - * and /."""

from __future__ import annotations

import random
from collections.abc import Iterator

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Prompt

MAX_MISSES = 100_000  # problems in a row that are invalid or of other splits, before this split is refused


def prompts(split: str, seed: int, numbers: int = 3, highest: int = 9, ops: str = "+-*") -> Iterator[Prompt]:
    """Endless problems from random expressions, so that each has a solution. The split `ood` has one more number."""
    if numbers < 2 or highest < 2 or not ops or set(ops) - set("+-*"):
        args = f"numbers={numbers} and highest={highest}"
        raise TaskError(f"countdown: {args} must be 2 or more, and ops={ops!r} consist of + - *")
    rng = random.Random(seed_of("countdown", split, seed))
    missed = 0
    while missed < MAX_MISSES:
        missed += 1
        given = [rng.randint(1, highest) for _ in range(numbers + (split == "ood"))]
        solution, target = _combine(given, ops, rng)
        if 0 < target <= 100 and belongs((*sorted(given), target), split):
            missed = 0
            text = f"{' '.join(map(str, given))} -> {target}"
            content = {"numbers": tuple(given), "target": target, "solution": solution}
            yield Prompt(text, ({"role": "user", "content": text},), str(target), content)
    raise TaskError(
        f"countdown: numbers={numbers}, highest={highest}, ops={ops!r}: split {split!r} is empty, because hardly any "
        "problem has a target from 1 to 100: change these arguments"
    )


def teacher(prompt: Prompt, rng: random.Random, wrong: float = 0.6) -> str:
    """The solution, or with probability `wrong` the same numbers with random operators."""
    solution = prompt.meta["solution"]
    if rng.random() < wrong:
        solution = "".join(rng.choice("+-*") if c in "+-*" else c for c in solution)
    return f"<answer>{solution}</answer>"


def _combine(given: list[int], ops: str, rng: random.Random) -> tuple[str, int]:
    """A random expression over all numbers, and its value."""
    terms = [(str(n), n) for n in rng.sample(given, len(given))]
    while len(terms) > 1:
        (left, x), (right, y) = terms.pop(), terms.pop()
        op = rng.choice(ops)
        value = {"+": x + y, "-": x - y, "*": x * y}[op]
        text = f"{left}{op}{right}"
        terms.append((f"({text})" if terms else text, value))
    return terms[0]
