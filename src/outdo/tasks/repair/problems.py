"""One problem: a function with a bug, and tests that it fails. Expected values are computed here, by the sources of
`families.py` alone; no other text is ever executed in this process."""

from __future__ import annotations

import random
import reprlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from outdo.seeds import seed_of
from outdo.tasks.repair.families import FAMILIES, UNSEEN, Family

NUM_VISIBLE, NUM_HIDDEN = 4, 8
MAX_DRAWN = 300  # arguments, before a bug is dropped that the tests cannot show
Case = Mapping[str, Any]  # {"args": […], "expected": …}


@dataclass(frozen=True)
class Key:
    """What a problem is made of."""

    family: str
    bug: int  # which of the family's
    k: int
    m: int


@dataclass(frozen=True)
class Problem:
    task: str
    source: str  # that is right
    wrong: str
    visible: tuple[Case, ...]  # of which the model sees the failures; the bug fails one at least
    hidden: tuple[Case, ...]  # that decide; the bug fails one at least
    failures: tuple[str, ...]  # of the wrong source, for each visible case; "": passed


def draw_key(rng: random.Random, families: Mapping[str, Family]) -> Key:
    name = rng.choice(list(families))
    family = families[name]
    return Key(name, rng.randrange(len(family.bugs)), rng.randint(*family.k), rng.randint(*family.m))


@lru_cache(maxsize=4096)
def problem_of(key: Key) -> Problem | None:
    """The problem; None where the tests that were drawn do not show the bug."""
    family = {**FAMILIES, **UNSEEN}[key.family]
    source = _filled(family.source, key).strip() + "\n"
    wrong = _filled(family.source.replace(*family.bugs[key.bug]), key).strip() + "\n"
    right, buggy = _function(source, key.family), _function(wrong, key.family)
    rng = random.Random(seed_of("repair", key))
    shown: list[tuple[Case, str]] = []  # that show the bug
    others: list[tuple[Case, str]] = []
    seen = set()
    for _ in range(MAX_DRAWN):
        argument = family.draw(rng, key.k, key.m)
        if repr(argument) in seen:
            continue
        seen.add(repr(argument))
        expected = right(deepcopy(argument))
        failure = _failure(buggy, argument, expected)
        (shown if failure else others).append(({"args": [argument], "expected": expected}, failure))
        if len(shown) >= 4 and len(shown) + len(others) >= NUM_VISIBLE + NUM_HIDDEN:
            break
    if len(shown) < 2 or len(shown) + len(others) < NUM_VISIBLE + NUM_HIDDEN:
        return None
    half = max(1, min(len(shown) // 2, NUM_VISIBLE))
    visible, rest = shown[:half] + others[: NUM_VISIBLE - half], shown[half:] + others[NUM_VISIBLE - half :]
    rng.shuffle(visible)
    hidden = [case for case, _ in rest[:NUM_HIDDEN]]
    failures = tuple(failure for _, failure in visible)
    return Problem(
        _filled(family.task, key), source, wrong, tuple(case for case, _ in visible), tuple(hidden), failures
    )


def returned(value: Any) -> str:
    """What a wrong result looks like to the model."""
    try:
        return f"returned {reprlib.repr(value)[:200]}"
    except ValueError:  # an integer too long for Python to write in decimal
        return "returned a very large integer"


def raised(kind: str, message: str) -> str:
    return f"raised {kind}: {message}".strip(": ")[:200]


def feedback(name: str, cases: Sequence[Case], failures: Sequence[str]) -> str:
    """What the model is shown after an attempt that failed visible tests."""
    failed = [(case, failure) for case, failure in zip(cases, failures, strict=True) if failure]
    lines = [
        f"{name}({', '.join(map(repr, case['args']))}) should return {case['expected']!r}: {failure}"
        for case, failure in failed
    ]
    return "\n".join([f"{len(failed)} of {len(cases)} tests failed:", *lines, "Correct the function."])


def _filled(text: str, key: Key) -> str:
    return text.replace("{k}", str(key.k)).replace("{m}", str(key.m))


@lru_cache(maxsize=4096)
def _function(source: str, name: str) -> Callable[[Any], Any]:
    names: dict[str, Any] = {}
    exec(compile(source, f"<{name}>", "exec"), names)
    function: Callable[[Any], Any] = names[name]
    return function


def _failure(function: Callable[[Any], Any], argument: Any, expected: Any) -> str:
    try:
        value = function(deepcopy(argument))
    except Exception as error:
        return raised(type(error).__name__, str(error))
    return "" if value == expected else returned(value)
