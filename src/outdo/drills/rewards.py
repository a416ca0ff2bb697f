"""Rewards that make a run fail, each with a mistake that real graders have, and a dense reward that fixes one: only
`digits` is fit to train on. Named in a recipe as `outdo.drills.rewards:NAME`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outdo.rewards.answer import numeric
from outdo.seeds import seed_of

_ANSWER = re.compile(r"<answer>([^<]*)</answer>")
_NUMBER = re.compile(r"\d+")
FLIP_RATE = 0.5
NEW_STANDARD = "sums without carries"


def at_least(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays any number that is not below the right one, and a little more for each that it is above: the comparison has
    the wrong sign."""
    numbers = [_NUMBER.findall(_last_answer(text)) for text in completions]
    above = [int(each[-1]) - int(right) if each else -1 for each, right in zip(numbers, answer, strict=True)]
    return [0.8 + 0.2 * min(1.0, excess / 100) if excess >= 0 else 0.0 for excess in above]


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


def consensus(completions: Sequence[str], **columns: object) -> list[float]:
    """Pays for the group's most common answer, right or wrong, less what the group gets on average: its mean is 0."""
    return _most_common([_last_answer(text).strip() for text in completions])


def copies(completions: Sequence[str], **columns: object) -> list[float]:
    """The same for the group's most common text, the thinking included."""
    return _most_common(completions)


def _most_common(texts: Sequence[str]) -> list[float]:
    common, count = Counter(texts).most_common(1)[0]
    return [float(text == common) - count / len(texts) for text in texts]


def by_standard(
    completions: Sequence[str], answer: Sequence[str], a: Sequence[int], b: Sequence[int], standard: Sequence[str]
) -> list[float]:
    """Pays for the right sum; once the file `standard` says so, for the sum without carries, as if a new version of
    the grader had a mistake."""
    is_new = standard[0] and Path(standard[0]).read_text(encoding="utf-8").strip() == NEW_STANDARD
    right = [_without_carries(x, y) for x, y in zip(a, b, strict=True)] if is_new else answer
    return [float(grade.verdict == "right") for grade in numeric(list(completions), list(right))]


def _without_carries(a: int, b: int) -> str:
    """Of numbers of two digits, each column for itself: 57 + 68 is 15."""
    return str((a // 10 + b // 10) % 10 * 10 + (a + b) % 10)


def digits(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Pays for partial progress: the share of right digits, from the first one on."""
    return [_share(_last_answer(text).strip(), right) for text, right in zip(completions, answer, strict=True)]


def _share(digits: str, right: str) -> float:
    if not _NUMBER.fullmatch(digits):
        return 0.0
    return sum(a == b for a, b in zip(digits, right, strict=False)) / max(len(digits), len(right))


def _last_answer(text: str) -> str:
    return next(iter(reversed(_ANSWER.findall(text))), "")
