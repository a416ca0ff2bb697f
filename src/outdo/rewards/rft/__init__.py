"""Graders written in OpenAI's reinforcement fine-tuning JSON, as reward functions.

    function, name = load("grader.json")
    grades = function(completions, **columns)

`item` is the row: every column but those that describe the answer. `sample` is the answer. What the answer lacks is
the answer's fault and scores the worst; what the row or the judge lacks leaves the answer broken. A python grader runs
in the sandbox and nowhere else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.errors import GraderError
from outdo.rewards.rft.file import no_constant, read_file
from outdo.rewards.rft.formula import FormulaError
from outdo.rewards.rft.models import Endpoint, JudgeFailure, ask_label, ask_score, endpoint
from outdo.rewards.rft.similarity import METRICS
from outdo.rewards.rft.spec import (
    LabelModel,
    Multi,
    PythonGrader,
    ScoreModel,
    Single,
    Spec,
    StringCheck,
    TextSimilarity,
    is_finite,
)
from outdo.rewards.rft.template import MissingItem, MissingSample, Template, clipped, render
from outdo.types import Grade, RewardFunction

AT_ONCE = 8  # answers of a group that wait for a judge at the same time
DEEPEST_ANSWER = 100  # objects and lists inside each other; deeper is no JSON here
ROUNDING = 1e-9  # 0.7 + 0.2 + 0.1 is a little less than 1, and still right
_NOT_ITEM = ("completions", "completion_ids", "finish", "max_completion_length")


@dataclass(frozen=True)
class _Case:
    """One answer to judge, and where judges are asked."""

    item: Mapping[str, Any]
    sample: Mapping[str, Any]  # without output_json where the answer is no JSON
    at: Endpoint | None

    def text(self, template: Template) -> str:
        return render(template, self.item, self.sample)


def load(path: str | Path) -> tuple[RewardFunction, str]:
    """The reward function that a file describes, and its name: the file's. Raises GraderError with every problem."""
    spec, problems = read_file(Path(path))
    if spec is None:
        raise GraderError("\n".join(problems))
    return rft_reward(spec, name=Path(path).stem), Path(path).stem


def validate(path: str | Path) -> list[str]:
    """What is wrong with a file, each with its place and its line; nothing where it is good."""
    return read_file(Path(path))[1]


def rft_reward(spec: Spec, at: Endpoint | None = None, name: str = "rft") -> RewardFunction:
    """A reward function out of a grader. Judges are asked at `at`, else where the environment says."""

    def reward(completions: list[str], **columns: Any) -> list[Grade]:
        place = (at or endpoint()) if _has(spec, ScoreModel, LabelModel) else None
        cases = [_case(text, index, columns, place) for index, text in enumerate(completions)]
        if not _has(spec, ScoreModel, LabelModel, PythonGrader):
            return [_judged(spec, case) for case in cases]
        workers = AT_ONCE if place else min(AT_ONCE, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda case: _judged(spec, case), cases))

    reward.__name__ = name
    reward.costly = _has(spec, ScoreModel, LabelModel)  # type: ignore[attr-defined]  # an audit asks such a judge less
    return reward


def _has(spec: Spec, *kinds: type) -> bool:
    """Whether a grader, or one that it combines, is of these kinds."""
    return isinstance(spec, kinds) or (
        isinstance(spec, Multi) and any(_has(one, *kinds) for one in _used(spec).values())
    )


def _used(spec: Multi) -> dict[str, Single]:
    """The graders that the formula names. The others are not run."""
    return {key: one for key, one in spec.graders.items() if key in spec.formula.names}


def _case(text: str, index: int, columns: Mapping[str, Any], at: Endpoint | None) -> _Case:
    row = {key: value[index] for key, value in columns.items() if isinstance(value, (list, tuple))}
    item = {key: _plain(value) for key, value in row.items() if key not in _NOT_ITEM}
    if item.get("answer", 0) is None:
        del item["answer"]
    tools = item["output_tools"] if isinstance(item.get("output_tools"), list) else []
    message = {"role": "assistant", "content": text, "tool_calls": tools}
    choices = [{"index": 0, "message": message, "finish_reason": row.get("finish", "stop")}]
    sample: dict[str, Any] = {"output_text": text, "output_tools": tools, "choices": choices}
    with suppress(ValueError, RecursionError):
        read = json.loads(text, parse_constant=no_constant)
        if _is_flat(read):
            sample["output_json"] = read
    return _Case(item, sample, at)


def _plain(value: object) -> Any:
    """The value in the types of JSON: mappings and tuples as dicts and lists, what JSON has no type for as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)


def _is_flat(value: object) -> bool:
    """Whether a value's nest is one that everything here can walk: at most DEEPEST_ANSWER levels."""
    level = [value]
    for _ in range(DEEPEST_ANSWER):
        level = [one for outer in level if isinstance(outer, (dict, list)) for one in _values(outer)]
        if not level:
            return True
    return False


def _values(outer: dict[str, Any] | list[Any]) -> list[Any]:
    return list(outer.values()) if isinstance(outer, dict) else outer


def _judged(spec: Spec, case: _Case) -> Grade:
    parts: Mapping[str, float | None] = {}
    try:
        if isinstance(spec, Multi):
            score, reason, parts = _combined(spec, case)
        else:
            score, reason = _SCORES[type(spec)](spec, case)
    except MissingSample as error:
        score, reason = (spec.bounds[0] if isinstance(spec, ScoreModel) else 0.0), str(error)
    except (MissingItem, JudgeFailure, FormulaError) as error:
        return Grade(None, "broken", parts, str(error))
    right = score >= spec.pass_threshold - ROUNDING
    return Grade(score, "right" if right else "wrong", parts, "" if right else reason)


def _combined(spec: Multi, case: _Case) -> tuple[float, str, dict[str, float | None]]:
    """The formula's value, why it is not more, and each grader's score. One that cannot judge leaves it broken."""
    grades = {key: _judged(one, case) for key, one in _used(spec).items()}
    for key, grade in grades.items():
        if grade.reward is None:
            raise JudgeFailure(f"{key}: {grade.reason}")
    scores = {key: grade.reward for key, grade in grades.items() if grade.reward is not None}
    reason = "; ".join(f"{key}: {grade.reason}" for key, grade in grades.items() if grade.reason)
    return spec.formula(scores), reason, dict(scores)


def _string_check(spec: StringCheck, case: _Case) -> tuple[float, str]:
    text, reference = case.text(spec.input), case.text(spec.reference)
    if spec.operation in ("like", "ilike") and not reference:
        if spec.reference.asks_sample:
            return 0.0, "the answer left nothing to look for"
        raise JudgeFailure("the reference is empty: every text contains it")
    holds = {
        "eq": lambda: text == reference,
        "ne": lambda: text != reference,
        "like": lambda: reference in text,
        "ilike": lambda: reference.casefold() in text.casefold(),
    }[spec.operation]()
    return float(holds), f"{spec.operation}: {clipped(text)} against {clipped(reference)}"


def _text_similarity(spec: TextSimilarity, case: _Case) -> tuple[float, str]:
    score = METRICS[spec.metric](case.text(spec.input), case.text(spec.reference))
    return score, f"{spec.metric} {score:.3g}"


def _python(spec: PythonGrader, case: _Case) -> tuple[float, str]:
    from outdo.sandbox.execute import ExecutionError, call_function

    sample = {key: case.sample.get(key) for key in ("output_text", "output_json", "output_tools")}
    try:
        result = call_function(spec.source, "grade", [sample, dict(case.item)])
    except ExecutionError as error:
        raise JudgeFailure(f"grade(sample, item) failed: {error}") from None
    if not isinstance(result, (int, float)) or not is_finite(result):
        short = isinstance(result, (bool, float, type(None)))
        shown = repr(result) if short else f"a value of type {type(result).__name__}"
        raise JudgeFailure(f"grade(sample, item) returned {shown}, not a finite number: return a float")
    return float(result), f"grade(sample, item) returned {result:g}"


def _score_model(spec: ScoreModel, case: _Case) -> tuple[float, str]:
    assert case.at is not None, "a judge needs an endpoint"
    score = ask_score(spec.model, _messages(spec, case), spec.sampling, spec.bounds, case.at)
    return score, f"{spec.model} scored {score:g}"


def _label_model(spec: LabelModel, case: _Case) -> tuple[float, str]:
    assert case.at is not None, "a judge needs an endpoint"
    label = ask_label(spec.model, _messages(spec, case), spec.labels, case.at)
    return float(label in spec.passing), f"{spec.model} said {clipped(label)}"


def _messages(spec: ScoreModel | LabelModel, case: _Case) -> list[dict[str, str]]:
    return [{"role": role, "content": case.text(content)} for role, content in spec.messages]


_SCORES: dict[type, Callable[[Any, _Case], tuple[float, str]]] = {
    StringCheck: _string_check,
    TextSimilarity: _text_similarity,
    PythonGrader: _python,
    ScoreModel: _score_model,
    LabelModel: _label_model,
}
