"""Sums and differences of a few digits, worked out column by column, as children do on paper.

The out-of-distribution split has one digit more. The teacher knows the form but is careless: it often forgets to
carry and sometimes slips by one, so a model that imitates it is right only some of the time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Prompt


def prompts(split: str, seed: int, digits: int = 2, ops: str = "+-") -> Iterator[Prompt]:
    """Endless problems. Differences are never negative. a+b and b+a count as one problem when splits are made."""
    if digits < 1 or not ops or set(ops) - set("+-"):
        raise TaskError(f"arithmetic: digits={digits} must be 1 or more and ops={ops!r} made of + and -")
    rng = random.Random(seed_of("arithmetic", split, seed))
    digits += split == "ood"
    low, high = (0, 9) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)
    while True:
        a, b, op = rng.randint(low, high), rng.randint(low, high), rng.choice(ops)
        if op == "-" and a < b:
            a, b = b, a
        if belongs((min(a, b), op, max(a, b)), split):
            text, answer = f"{a}{op}{b}", a + b if op == "+" else a - b
            yield Prompt(text, ({"role": "user", "content": text},), str(answer), {"a": a, "b": b, "op": op})


def teacher(prompt: Prompt, rng: random.Random, forgets: float = 0.6, slips: float = 0.15) -> str:
    """A demonstration: forgets every carry with probability `forgets`, is off by one somewhere with `slips`."""
    a, b, op = prompt.meta["a"], prompt.meta["b"], prompt.meta["op"]
    carries = rng.random() >= forgets
    width = max(len(str(a)), len(str(b)))
    slip = rng.randrange(width) if rng.random() < slips else -1
    carry, steps, digits = 0, [], []
    for column in range(width):
        x, y = a // 10**column % 10, b // 10**column % 10
        if op == "+":
            total, borrowed = x + y + carry, 0
        else:
            borrowed = 10 if x - y - carry < 0 else 0
            total = x + borrowed - y - carry
        if column == slip:
            total = (total + rng.choice((-1, 1))) % 20
        taken = f"{op}{carry}" if carry else ""
        steps.append(f"{x + borrowed}{op}{y}{taken}={total}")
        digits.append(total % 10)
        carry = int(total > 9 if op == "+" else borrowed > 0) if carries else 0
    if carry and op == "+":
        digits.append(carry)
    answer = int("".join(map(str, reversed(digits))))
    return f"<think>{' '.join(steps)}</think><answer>{answer}</answer>"
