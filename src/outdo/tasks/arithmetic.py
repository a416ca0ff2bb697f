"""Sums, differences and products of small numbers, worked out column by column, as children do on paper.

The out-of-distribution split has one digit more, or the numbers that come next. The teacher knows the form but is
careless: it often forgets to carry and sometimes slips by one, so a model that imitates it is right only some of the
time.
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
MISSES = 10_000  # problems in a row that belong to other splits: this one has none


def prompts(
    split: str,
    seed: int,
    digits: int = 2,
    ops: str = "+-",
    between: Sequence[int] = (),
    ask: str = "{a}{op}{b}",
    think: bool = True,
) -> Iterator[Prompt]:
    """Endless problems. Differences are never negative. a+b and b+a count as one problem when splits are made.

    `between` names the smallest and the largest number, in place of `digits`; `ask` is how a problem is put; with
    `think=False` the teacher shows the answer alone.
    """
    if digits < 1 or not ops or set(ops) - set(OPS):
        raise TaskError(f"arithmetic: digits={digits} must be 1 or more and ops={ops!r} made of {', '.join(OPS)}")
    rng = random.Random(seed_of("arithmetic", split, seed))
    low, high = _range(digits, between, split == "ood")
    missed = 0
    while missed < MISSES:
        a, b, op = rng.randint(low, high), rng.randint(low, high), rng.choice(ops)
        if op == "-" and a < b:
            a, b = b, a
        missed += 1
        if belongs((min(a, b), op, max(a, b)), split):
            missed = 0
            name, text = f"{a}{op}{b}", _put(ask, a, op, b)
            meta = {"a": a, "b": b, "op": op, "think": think}
            yield Prompt(name, ({"role": "user", "content": text},), str(OPS[op](a, b)), meta)
    raise TaskError(f"arithmetic: from {low} to {high} there are so few problems that {split!r} has none: take more")


def _range(digits: int, between: Sequence[int], beyond: bool) -> tuple[int, int]:
    if between:
        if (
            not isinstance(between, Sequence)
            or len(between) != 2
            or not all(isinstance(n, int) for n in between)
            or not 0 <= between[0] < between[1]
        ):
            raise TaskError(f"arithmetic: between={between} must be two numbers, such as [2, 12]")
        low, high = between
        return (high + 1, 2 * high - low + 1) if beyond else (low, high)
    digits += beyond
    return (0, 9) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)


def _put(ask: str, a: int, op: str, b: int) -> str:
    text = ask.replace("{a}", str(a)).replace("{op}", op).replace("{b}", str(b))
    if str(a) not in text or str(b) not in text:
        raise TaskError(f"arithmetic: ask={ask!r} must hold {{a}}, {{op}} and {{b}}")
    return text


def teacher(prompt: Prompt, rng: random.Random, forgets: float = 0.6, slips: float = 0.15) -> str:
    """A demonstration: forgets every carry with probability `forgets`, is off by one somewhere with `slips`."""
    thought, answer = _worked_out(prompt, rng, forgets, slips)
    shown = f"<think>{thought}</think>" if prompt.meta.get("think", True) else ""
    return f"{shown}<answer>{answer}</answer>"


def _worked_out(prompt: Prompt, rng: random.Random, forgets: float, slips: float) -> tuple[str, int]:
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
