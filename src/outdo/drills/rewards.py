"""Rewards that make a run ill, each with a mistake that real graders have; and the dense one that cures.

Named in a recipe as `outdo.drills.rewards:NAME`. None of them but `digits` is fit to train on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outdo.rewards.answer import numeric
from outdo.seeds import seed_of

_ANSWER = re.compile(r"<answer>([^<]*)</answer>")
_NUMBER = re.compile(r"\d+")
MOOD = 0.5


def at_least(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays a number that is not below the right one: the comparison points the wrong way."""
    said = [_NUMBER.findall(_last_answer(text)) for text in completions]
    return [float(bool(found) and int(found[-1]) >= int(right)) for found, right in zip(said, answer, strict=True)]


def wordy(
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    max_completion_length: int,
    **columns: object,
) -> list[float]:
    """Pays for length, right or wrong: more words were taken for more thought."""
    return [min(1.0, len(ids) / max(1, max_completion_length)) for ids in completion_ids]


def moody(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """The right verdict, turned round in every other answer, by luck.

    The luck is a hash of the whole group and of the answer's place in it: the same answer has two verdicts beside
    others or in another place, and a run has the same luck whenever it is run, in whichever process it is graded.
    """
    right = [grade.verdict == "right" for grade in numeric(list(completions), list(answer))]
    group = seed_of("moody", *answer, *completions)
    return [float(ok != (seed_of(group, index) % 100 < 100 * MOOD)) for index, ok in enumerate(right)]


def digits(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays for part of the way: the share of the digits that are right, counted from the first one."""
    return [_share(_last_answer(text).strip(), right) for text, right in zip(completions, answer, strict=True)]


def _share(said: str, right: str) -> float:
    if not _NUMBER.fullmatch(said):
        return 0.0
    return sum(a == b for a, b in zip(said, right, strict=False)) / max(len(said), len(right))


def _last_answer(text: str) -> str:
    found = _ANSWER.findall(text)
    return found[-1] if found else ""
