"""The scores of one grader for the answers of a group, and whose fault it is where there is none.

An answer that lacks a value is to blame at once. Where a python grader or a judge fails on an answer, it is to blame if
the grader scores another one, a sibling or a control, and fails on it again; otherwise the grader is broken. An answer
on which it hung is not tried again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from outdo.rewards.blame import MAX_REMEMBERED
from outdo.rewards.rft.models import JudgeFailure, Unreadable
from outdo.rewards.rft.spec import LabelModel, Python, ScoreModel, Single, StringCheck, TextSimilarity
from outdo.rewards.rft.template import MissingItem, MissingSample, Template

MAX_CONTROLS = 10
CONTROL_SECONDS = 20.0  # no further control is tried after them
Fault = Literal["", "answer", "unknown", "other"]


class PythonFailure(ValueError):
    """`grade` raised, hung (`timed_out`), or returned no number. The answer may be the cause."""

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


@dataclass(frozen=True)
class Outcome:
    """The score that a grader gives an answer, or why it gives none."""

    score: float | None
    reason: str
    fault: Fault = ""
    failed: bool = False  # the grader raised or replied nonsense; else the answer lacks a value
    timed_out: bool = False  # a second try would cost as much


def outcome(grade: Callable[[], tuple[float, str]]) -> Outcome:
    """What a call of a grader gives."""
    try:
        return Outcome(*grade())
    except MissingSample as error:
        return Outcome(None, str(error), "answer")
    except PythonFailure as error:
        return Outcome(None, str(error), "unknown", timed_out=error.timed_out)
    except Unreadable as error:
        return Outcome(None, str(error), "unknown")
    except (MissingItem, JudgeFailure) as error:
        return Outcome(None, str(error), "other")


def settled(
    first: Sequence[Outcome],
    texts: Sequence[str],
    again: Callable[[int, str | None], Outcome],
    items: Sequence[Mapping[str, Any]],
    graded: list[str],
) -> list[Outcome]:
    """The outcomes, in which those of unknown fault are tried again and blamed. `again` grades the answer of a place,
    or another text in its place; `items` are the rows, and `graded` a few texts that this grader
    has scored, to which one is added."""
    if len(graded) < MAX_REMEMBERED:
        scored = (text for text, one in zip(texts, first, strict=True) if one.score is not None and text not in graded)
        graded.extend(islice(scored, 1))
    unknown = [place for place, one in enumerate(first) if one.fault == "unknown"]
    if not unknown:
        return list(first)
    works = any(one.score is not None for one in first) or _scores_control(
        again, unknown[0], [*graded, *controls(items[unknown[0]])]
    )
    out = list(first)
    known = {text for text, one in zip(texts, first, strict=True) if one.score is not None}
    for place in unknown:
        if works and texts[place] not in known and not out[place].timed_out:
            out[place] = again(place, None)
        if out[place].fault == "unknown":
            blamed = works and texts[place] not in known
            out[place] = Outcome(None, out[place].reason, "answer" if blamed else "other", failed=True)
    return out


def _scores_control(again: Callable[[int, str | None], Outcome], place: int, texts: Sequence[str]) -> bool:
    """Whether the grader scores one of the controls, within CONTROL_SECONDS."""
    deadline = time.monotonic() + CONTROL_SECONDS
    return any(again(place, text).score is not None for text in texts if time.monotonic() < deadline)


def controls(item: Mapping[str, Any]) -> list[str]:
    """Answers that the grader of a row should score: what the row holds, as text and as JSON, and almost nothing."""
    return list(dict.fromkeys(_controls(item)))[:MAX_CONTROLS]


def _controls(item: Mapping[str, Any]) -> Iterator[str]:
    if "answer" in item:
        yield _text(item["answer"])
    yield ""
    yield "{}"
    yield _text({key: value for key, value in item.items() if key not in ("messages", "prompts")})
    yield "0"
    for key, value in item.items():
        if key not in ("answer", "messages", "prompts"):
            yield _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def bounds(spec: Single, seen: Sequence[Outcome]) -> tuple[float, float]:
    """The lowest and the highest score of a grader; for a python grader, of those seen, 0 and 1."""
    if isinstance(spec, ScoreModel):
        return spec.bounds
    scores = [one.score for one in seen if one.score is not None] if isinstance(spec, Python) else []
    return min([0.0, *scores]), max([1.0, *scores])


def depends_on_answer(spec: Single) -> bool:
    """Whether a grader's score can change with the answer."""
    return isinstance(spec, Python) or any(template.uses_sample for template in _templates(spec))


def reads_json(spec: Single) -> bool:
    """Whether a grader may need the answer as JSON."""
    return isinstance(spec, Python) or any(template.uses_json for template in _templates(spec))


def _templates(spec: StringCheck | TextSimilarity | ScoreModel | LabelModel) -> list[Template]:
    if isinstance(spec, (ScoreModel, LabelModel)):
        return [template for _, template in spec.messages]
    return [spec.input, spec.reference]
