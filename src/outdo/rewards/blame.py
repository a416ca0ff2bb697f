"""Whose fault it is where a reward fails on an answer: the answer's, or the reward's and the row's.

A reward that fails on an answer, and again when it is asked once more, but grades a different sibling or one of a few
controls (the gold in several forms, an empty answer, the text of an answer that it graded before, each in the place of
this one), fails because of that answer: it is wrong, with the worst score.
So no answer can escape a bad grade, or halt a run, by what makes its grader raise, hang, crash or return no number.
Where no other answer is graded either, the reward or the row is at fault, and the answer is broken.

The worst score of a reward is the lowest one seen in this call (siblings and controls), and at most 0; at most -1 where
it pays nobody, and may be a penalty. Where its weight is negative, the highest one is the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from outdo.errors import GraderError
from outdo.rewards.arguments import COMPLETION_TOOLS, Inputs, texts
from outdo.rewards.calls import Failure, Grades, Judged
from outdo.rewards.probes import tagged
from outdo.types import Grade

MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 3, 20_000  # texts that a reward has graded, and their length
Retry = Callable[[Sequence[Inputs]], Sequence[Sequence[Judged] | Failure]]  # grades of several calls


@dataclass(frozen=True)
class Worst(Grade):
    """The grade of an answer that cannot be graded, and only itself is to blame: `reward` is the lowest score."""

    highest: float = 0.0  # score: the worst one where the weight is negative
    failed: bool = True  # the reward failed on it; False: the answer lacks what the reward needs


def worst(values: Sequence[float], reason: str, decides: bool = False) -> Worst:
    """The worst grade of a reward that has paid these values; `decides`: it says what is right, so it is no penalty."""
    low = min(0.0 if decides or any(value > 0 for value in values) else -1.0, *values, 0.0)
    high = max(0.0 if any(value < 0 for value in values) else 1.0, *values, 0.0)
    return Worst(low, "wrong", reason=reason, highest=high)


def is_failure(grade: Grade) -> bool:
    """Whether a reward failed on the answer, whoever is to blame."""
    return grade.verdict == "broken" or (isinstance(grade, Worst) and grade.failed)


def by_weight(grade: Grade | None, weight: float) -> Grade | None:
    """The grade, with the highest score where that is the worst."""
    return replace(grade, reward=grade.highest) if isinstance(grade, Worst) and weight < 0 else grade


def settled(judged: Sequence[Judged], inputs: Inputs, retry: Retry, decides: bool, graded: list[str]) -> Grades:
    """The grades of a call, in which failures are replaced by the grades of another try, the worst grade, or broken.
    `graded` has texts that this reward has graded; a few are added."""
    grades = _settled(judged, inputs, retry, decides, graded)
    if len(graded) < MAX_REMEMBERED:
        _remember(graded, grades, inputs)
    return grades


def _settled(judged: Sequence[Judged], inputs: Inputs, retry: Retry, decides: bool, graded: Sequence[str]) -> Grades:
    out = list(judged)
    first = {place: one for place, one in enumerate(out) if isinstance(one, Failure)}
    if not first:
        return _final(out, first)
    if not all(failure.retry_alone for failure in first.values()) and not _grades_controls(inputs, retry):
        return [_broken(one) if isinstance(one, Failure) else one for one in out]
    if inputs.count > 1:
        _try_again(out, list(first), inputs, retry)
    suspects = [place for place, one in enumerate(out) if isinstance(one, Failure)]
    if not suspects:
        return _final(out, first)
    seen = [one for one in (*out, *_control_grades(inputs, retry, graded)) if not isinstance(one, Failure)]
    healthy = [one for one in seen if one is None or one.reward is not None]
    if not healthy:
        return _final(out, first)
    answers = texts(inputs.lists["completions"])
    fine = {answers[place] for place in range(inputs.count) if place not in suspects}
    suspects = [place for place in suspects if answers[place] not in fine]  # the same answer was graded
    abandoned = {place for place in suspects if (one := out[place]) and isinstance(one, Failure) and one.abandoned}
    _try_again(out, [place for place in suspects if place not in abandoned], inputs, retry)
    values = [one.reward for one in healthy if one is not None and one.reward is not None]
    for place in suspects:
        if isinstance(failure := out[place], Failure):
            out[place] = worst(values, f"{failure.message}; other answers are graded", decides)
    return _final(out, first)


def _remember(graded: list[str], grades: Grades, inputs: Inputs) -> None:
    """Adds a text that was graded."""
    for one, text in zip(grades, inputs.lists["completions"], strict=True):
        if one is not None and one.reward is not None and not isinstance(one, Worst):
            (plain,) = texts([text])
            if plain not in graded and len(plain) <= MAX_REMEMBERED_CHARS:
                graded.append(plain)
            return


def _final(judged: Sequence[Judged], first: Mapping[int, Failure]) -> Grades:
    """What still fails is broken, with the first reason for it."""
    return [_broken(first[place]) if isinstance(one, Failure) else one for place, one in enumerate(judged)]


def _broken(failure: Failure) -> Grade:
    return Grade(None, "broken", reason=failure.message)


def _try_again(out: list[Judged], places: Sequence[int], inputs: Inputs, retry: Retry) -> None:
    """Grades some answers each alone."""
    results = retry([inputs.take(place, place + 1) for place in places]) if places else ()
    for place, result in zip(places, results, strict=True):
        out[place] = result if isinstance(result, Failure) else result[0]


def _grades_controls(inputs: Inputs, retry: Retry) -> bool:
    """Whether the reward returns one grade each for as many controls as there are answers."""
    controls = _controls(inputs)
    try:
        (result,) = retry([_with_answers(inputs, [controls[i % len(controls)] for i in range(inputs.count)])])
    except GraderError:
        return False
    return not isinstance(result, Failure)


def _control_grades(inputs: Inputs, retry: Retry, graded: Sequence[str]) -> list[Judged]:
    one = inputs.take(0, 1)
    controls = dict.fromkeys([*_controls(inputs), *graded])
    try:
        results = retry([_with_answers(one, [text]) for text in controls])
    except GraderError:
        return []
    return [result if isinstance(result, Failure) else result[0] for result in results]


def _controls(inputs: Inputs) -> list[str]:
    """Answers that any reward should grade: those that may be right for this row, and none at all."""
    golds = inputs.lists.get("answer") or [None]
    known = inputs.lists.get("gold") or [None]
    final = "" if golds[0] is None else str(golds[0]).rpartition("####")[2].strip()
    forms = [tagged(final), final, f"\\boxed{{{final}}}", f"#### {final}"] if final else []
    return list(dict.fromkeys([*([str(known[0])] if known[0] is not None else []), *forms, "", "I do not know."]))


def _with_answers(inputs: Inputs, given: Sequence[str]) -> Inputs:
    """The same call for other answers."""
    as_messages = not isinstance(inputs.lists["completions"][0], str)
    answers = [[{"role": "assistant", "content": text}] if as_messages else text for text in given]
    lists = {**inputs.lists, "completions": answers, "finish": ["stop"] * len(given)}
    lists.pop(COMPLETION_TOOLS, None)
    if "completion_ids" in lists:
        lists["completion_ids"] = [(0,) * (len(text.split()) + 1) for text in given]
    return replace(inputs, lists=lists)
