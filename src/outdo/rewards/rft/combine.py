"""Grades from outcomes: of one grader, and of several by the formula of a multi grader.

Where an answer made a grader fail, it gets the worst value that the formula has for any score of that grader: the
lowest score may be the best one, as in `1 - penalty`. Where the formula has no value for an answer's scores, it gets
the lowest that the formula has for other scores, and at most 0; where it has none for any, the grader is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import cast

from outdo.rewards.blame import Worst
from outdo.rewards.rft.formula import FormulaError
from outdo.rewards.rft.outcome import Outcome, bounds, depends_on_answer
from outdo.rewards.rft.spec import Multi, Single
from outdo.types import Grade

ROUNDING = 1e-9  # 0.7 + 0.2 + 0.1 is a little less than 1, and must pass a threshold of 1
_ENDS = (0.0, 0.5, 1.0)
_SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)  # of a grader's range, at which a formula is evaluated
_MAX_WORST = 1e6  # a score beyond it would drown all others
_MAX_POINTS = 5_000  # at which a formula is evaluated to find its lowest value


def single_grades(spec: Single, outcomes: Sequence[Outcome]) -> list[Grade]:
    low, high = bounds(spec, outcomes)
    return [_single(one, spec.pass_threshold, low, high) for one in outcomes]


def _single(one: Outcome, threshold: float, low: float, high: float) -> Grade:
    if one.score is not None:
        right = one.score >= threshold - ROUNDING
        return Grade(one.score, "right" if right else "wrong", reason="" if right else one.reason)
    if one.fault == "answer":
        return Worst(low, "wrong", reason=one.reason, highest=high, failed=one.failed)
    return Grade(None, "broken", reason=one.reason)


def _reason(spec: Multi, of: Mapping[str, Outcome]) -> str:
    """Those of the graders that the answer does not pass."""
    return "; ".join(f"{key}: {one.reason}" for key, one in of.items() if not _passes(one, spec.graders[key]))


def _passes(one: Outcome, spec: Single) -> bool:
    return one.score is not None and one.score >= spec.pass_threshold - ROUNDING


def multi_grades(
    spec: Multi, used: Mapping[str, Single], outcomes: Mapping[str, Sequence[Outcome]], count: int
) -> list[Grade]:
    """A grade for each answer, from its outcomes by grader."""
    ranges = {key: bounds(one, outcomes[key]) for key, one in used.items()}
    grades = [_multi(spec, {key: outcomes[key][i] for key in used}, ranges) for i in range(count)]
    if all(isinstance(grade, Grade) for grade in grades):
        return cast(list[Grade], grades)
    paid = [grade.reward for grade in grades if isinstance(grade, Grade) and grade.reward is not None]
    scores = [{key: outcomes[key][place].score for key in used} for place in range(count)]
    return [
        grade if isinstance(grade, Grade) else _without_value(spec, used, of, ranges, paid, str(grade))
        for grade, of in zip(grades, scores, strict=True)
    ]


def _multi(spec: Multi, of: Mapping[str, Outcome], ranges: Mapping[str, tuple[float, float]]) -> Grade | FormulaError:
    scores = {key: one.score for key, one in of.items() if one.score is not None}
    if len(scores) == len(of):
        try:
            score = spec.formula(scores)
        except FormulaError as error:
            return error
        if score >= spec.pass_threshold - ROUNDING:
            return Grade(score, "right", scores)
        return Grade(score, "wrong", scores, _reason(spec, of))
    for key, one in of.items():
        if one.fault not in ("", "answer"):
            return Grade(None, "broken", reason=f"{key}: {one.reason}")
    reason = _reason(spec, of)
    failed = [key for key in of if key not in scores]
    values = _values(spec, scores, {key: ranges[key] for key in failed}, (_ENDS,))
    if not values:
        return FormulaError(reason)
    parts = {key: scores.get(key, ranges[key][0]) for key in of}
    crashed = any(one.failed for one in of.values())
    return Worst(min(values), "wrong", parts, reason, highest=max(values), failed=crashed)


def _without_value(
    spec: Multi,
    used: Mapping[str, Single],
    scores: Mapping[str, float | None],
    ranges: Mapping[str, tuple[float, float]],
    paid: Sequence[float],
    reason: str,
) -> Grade:
    """The worst grade where the formula has values for other answers to this row; else broken."""
    free = {key: ranges[key] for key, one in used.items() if depends_on_answer(one)}
    fixed = {key: score for key, score in scores.items() if key not in free and score is not None}
    found = _values(spec, fixed, free)
    values = [*([value for value in found if abs(value) <= _MAX_WORST] or found), *paid]
    parts = dict(scores)
    if not values:
        return Grade(None, "broken", parts, reason)
    return Worst(min(0.0, *values), "wrong", parts, reason, highest=max(0.0, *values), failed=False)


def _values(
    spec: Multi,
    fixed: Mapping[str, float],
    free: Mapping[str, tuple[float, float]],
    options: Sequence[Sequence[float]] = (_SHARES, _ENDS),
) -> list[float]:
    """The formula's values where it has them, over the ranges of some graders, at the first option that is feasible."""
    values = []
    for point in _points(free, options):
        try:
            values.append(spec.formula({**fixed, **point}))
        except FormulaError:
            continue
    return values


def _points(free: Mapping[str, tuple[float, float]], options: Sequence[Sequence[float]]) -> Iterable[dict[str, float]]:
    """Scores of several graders: all combinations of some of each range, of fewer where there are many graders."""
    shares = next((one for one in (*options, (0.0, 1.0)) if len(one) ** len(free) <= _MAX_POINTS), None)
    combined = product(shares, repeat=len(free)) if shares else ([share] * len(free) for share in _SHARES)
    for point in combined:
        yield {key: low + share * (high - low) for (key, (low, high)), share in zip(free.items(), point, strict=True)}
