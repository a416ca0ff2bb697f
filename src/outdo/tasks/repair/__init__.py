"""Functions with a bug, to be corrected within a few attempts: after each, the failures of some tests are shown.

Other tests decide, which nobody sees. `envs/repair.py` runs what the model writes, in the sandbox. The
out-of-distribution split has families of functions that training lacks. Demonstrations often answer with the bug at
first, and correct it once they see the failures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.repair.families import FAMILIES, UNSEEN
from outdo.tasks.repair.problems import Key, Problem, draw_key, feedback, problem_of
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

MAX_MISSES = 10_000  # problems in a row that belong to other splits, before this split is refused as empty
ATTEMPTS = 3


def prompts(split: str, seed: int, max_attempts: int = ATTEMPTS, with_code: bool = True) -> Iterator[Prompt]:
    """Endless problems. `with_code` shows the function with its bug; else there is only the description."""
    if max_attempts < 1:
        raise TaskError(f"repair: max_attempts={max_attempts} must be 1 or more")
    rng = random.Random(seed_of("repair", split, seed))
    missed = 0
    while missed < MAX_MISSES:
        key, missed = draw_key(rng, UNSEEN if split == "ood" else FAMILIES), missed + 1
        if belongs(tuple(asdict(key).values()), split) and (problem := problem_of(key)):
            missed = 0
            yield _prompt(key, problem, max_attempts, with_code)
    raise TaskError(f"repair: split {split!r} is empty")


def _prompt(key: Key, problem: Problem, max_attempts: int, with_code: bool) -> Prompt:
    name = key.family
    if with_code:
        text = f"The function `{name}` {problem.task}. This one has a bug:\n\n{_fenced(problem.wrong)}\n\nCorrect it."
    else:
        text = f"Write a function `{name}` that {problem.task}."
    attempts = "one attempt" if max_attempts == 1 else f"{max_attempts} attempts"
    text += f" Answer with the whole function in a Python block. It is tested; you have {attempts}."
    columns = {
        "entry_point": name,
        "visible": [dict(case) for case in problem.visible],
        "cases": [dict(case) for case in problem.hidden],
        "max_attempts": max_attempts,
        "problem": asdict(key),
    }
    id = f"{name}-{key.bug}-{key.k}-{key.m}"
    return Prompt(id, ({"role": "user", "content": text},), problem.source, columns)


def solution(prompt: Prompt) -> list[Message]:
    """The right function at once."""
    return [{"role": "assistant", "content": _fenced(_problem(prompt).source)}]


def teacher(prompt: Prompt, rng: random.Random, hasty: float = 0.7) -> list[Message]:
    """A demonstration: with probability `hasty`, each attempt has the bug still."""
    problem, messages = _problem(prompt), list[Message]()
    for attempt in range(1, prompt.meta["max_attempts"] + 1):
        if rng.random() >= hasty:
            return [*messages, {"role": "assistant", "content": _fenced(problem.source)}]
        messages.append({"role": "assistant", "content": _fenced(problem.wrong)})
        if attempt < prompt.meta["max_attempts"]:
            seen = feedback(prompt.meta["entry_point"], problem.visible, problem.failures)
            messages.append({"role": "user", "content": seen})
    return messages


def _problem(prompt: Prompt) -> Problem:
    problem = problem_of(Key(**prompt.meta["problem"]))
    assert problem, "it was generated from this key"
    return problem


def _fenced(source: str) -> str:
    return f"```python\n{source}```"
