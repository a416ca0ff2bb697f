"""Rewards that make a run fail, each with a mistake that real graders have, and a dense reward that fixes one: only
`digits` is fit to train on. Named in a recipe as `outdo.drills.rewards:NAME`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from outdo.rewards.answer import numeric
from outdo.seeds import seed_of

_ANSWER = re.compile(r"<answer>([^<]*)</answer>")
_NUMBER = re.compile(r"\d+")
FLIP_RATE = 0.5


def at_least(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays any number that is not below the right one: the comparison has the wrong sign."""
    numbers = [_NUMBER.findall(_last_answer(text)) for text in completions]
    return [float(bool(each) and int(each[-1]) >= int(right)) for each, right in zip(numbers, answer, strict=True)]


def wordy(
    completions: Sequence[str], completion_ids: Sequence[Sequence[int]], max_completion_length: int, **columns: object
) -> list[float]:
    """Pays for length, right or wrong, as if longer answers were better reasoned."""
    return [min(1.0, len(ids) / max(1, max_completion_length)) for ids in completion_ids]


def moody(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """The right verdict, flipped for half of the answers by a hash of the group and of the answer's index in it: the
    same answer gets different verdicts in different groups or places, and a run is reproducible in any process."""
    right = [grade.verdict == "right" for grade in numeric(list(completions), list(answer))]
    group = seed_of("moody", *answer, *completions)
    return [float(ok != (seed_of(group, index) % 100 < 100 * FLIP_RATE)) for index, ok in enumerate(right)]


def digits(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays for partial progress: the share of right digits, from the first one on."""
    return [_share(_last_answer(text).strip(), right) for text, right in zip(completions, answer, strict=True)]


def _share(digits: str, right: str) -> float:
    if not _NUMBER.fullmatch(digits):
        return 0.0
    return sum(a == b for a, b in zip(digits, right, strict=False)) / max(len(digits), len(right))


def _last_answer(text: str) -> str:
    return next(iter(reversed(_ANSWER.findall(text))), "")
