"""Sums, differences and products of small numbers, computed column by column.

The out-of-distribution split has one more digit, or the next range of numbers. Demonstrations have the right format
but are often wrong: they forget to carry or are off by one, so that a model after SFT leaves room for GRPO.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Prompt

OPS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MAX_MISSES = 10_000  # problems in a row that belong to other splits, before this split is refused as empty


def prompts(
    split: str,
    seed: int,
    digits: int = 2,
    ops: str = "+-",
    between: Sequence[int] = (),
    ask: str = "{a}{op}{b}",
    think: bool = True,
) -> Iterator[Prompt]:
    """Endless problems. Differences are never negative. a+b and b+a are one problem when split.

    `between` is the smallest and the largest number, instead of `digits`; `ask` is the format of the question; with
    `think=False` demonstrations have only the answer.
    """
    if digits < 1 or not ops or set(ops) - set(OPS):
        raise TaskError(f"arithmetic: digits={digits} must be 1 or more, and ops={ops!r} consist of {', '.join(OPS)}")
    rng = random.Random(seed_of("arithmetic", split, seed))
    low, high = _range(digits, between, split == "ood")
    missed = 0
    while missed < MAX_MISSES:
        a, b, op = rng.randint(low, high), rng.randint(low, high), rng.choice(ops)
        if op == "-" and a < b:
            a, b = b, a
        missed += 1
        if belongs((min(a, b), op, max(a, b)), split):
            missed = 0
            yield problem(a, op, b, ask, think)
    raise TaskError(f"arithmetic: too few problems from {low} to {high}: split {split!r} is empty; widen the range")


def problem(a: int, op: str, b: int, ask: str = "{a}{op}{b}", think: bool = True) -> Prompt:
    text, meta = _format_question(ask, a, op, b), {"a": a, "b": b, "op": op, "think": think}
    return Prompt(f"{a}{op}{b}", ({"role": "user", "content": text},), str(OPS[op](a, b)), meta)


def _range(digits: int, between: Sequence[int], beyond: bool) -> tuple[int, int]:
    if between:
        is_pair = isinstance(between, Sequence) and len(between) == 2 and all(isinstance(n, int) for n in between)
        if not is_pair or not 0 <= between[0] < between[1]:
            raise TaskError(f"arithmetic: between={between} must be two numbers, such as [2, 12]")
        low, high = between
        return (high + 1, 2 * high - low + 1) if beyond else (low, high)
    digits += beyond
    return (0, 9) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)


def _format_question(ask: str, a: int, op: str, b: int) -> str:
    text = ask.replace("{a}", str(a)).replace("{op}", op).replace("{b}", str(b))
    if str(a) not in text or str(b) not in text:
        raise TaskError(f"arithmetic: ask={ask!r} must contain {{a}}, {{op}} and {{b}}")
    return text


def teacher(prompt: Prompt, rng: random.Random, forgets: float = 0.6, slips: float = 0.15) -> str:
    """A demonstration: forgets every carry with probability `forgets`, is off by one in a digit with `slips`."""
    thought, answer = _solve(prompt, rng, forgets, slips)
    think = f"<think>{thought}</think>" if prompt.meta.get("think", True) else ""
    return f"{think}<answer>{answer}</answer>"


def _solve(prompt: Prompt, rng: random.Random, forgets: float, slips: float) -> tuple[str, int]:
    a, b, op = prompt.meta["a"], prompt.meta["b"], prompt.meta["op"]
    if op == "*":
        total = max(0, a * b + (rng.choice((-1, 1)) if rng.random() < slips else 0))
        return f"{a}*{b}={total}", total
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
    return " ".join(steps), int("".join(map(str, reversed(digits))))
