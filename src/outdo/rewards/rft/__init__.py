"""Graders written in OpenAI's reinforcement fine-tuning JSON, as reward functions.

    function, name = load("grader.json")
    grades = function(completions, **columns)

`item` is the row: all columns except those of the answer, which is `sample`. If the answer lacks a value that a grader
needs, it gets the lowest score; if the row or the judge does, it is broken. Python graders only run in the sandbox.
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
from outdo.rewards.rft.file import read_file, refuse_constant
from outdo.rewards.rft.formula import FormulaError
from outdo.rewards.rft.models import Endpoint, JudgeFailure, endpoint_from_env, request_label, request_score
from outdo.rewards.rft.similarity import METRICS
from outdo.rewards.rft.spec import LabelModel, Multi, Python, ScoreModel, Spec, StringCheck, TextSimilarity, is_finite
from outdo.rewards.rft.template import MissingItem, MissingSample, Template, clipped, render
from outdo.types import Grade, RewardFunction

MAX_CONCURRENT = 8  # answers of a group graded at the same time
MAX_ANSWER_DEPTH = 100  # nested objects and lists; a deeper answer does not count as JSON
ROUNDING = 1e-9  # 0.7 + 0.2 + 0.1 is a little less than 1, and must pass a threshold of 1
_NOT_ITEM = ("completions", "completion_ids", "finish", "max_completion_length")


@dataclass(frozen=True)
class _Case:
    """One answer to grade, and the endpoint for judges."""

    item: Mapping[str, Any]
    sample: Mapping[str, Any]  # without output_json if the answer is not JSON
    endpoint: Endpoint | None

    def text(self, template: Template) -> str:
        return render(template, self.item, self.sample)


def load(path: str | Path) -> tuple[RewardFunction, str]:
    """The reward function of a grader file, and its name, the file's stem. Raises GraderError with all problems."""
    spec, problems = read_file(Path(path))
    if spec is None:
        raise GraderError("\n".join(problems))
    return rft_reward(spec, name=Path(path).stem), Path(path).stem


def validate(path: str | Path) -> list[str]:
    """The problems of a grader file, each with its line and path; empty if it is valid."""
    return read_file(Path(path))[1]


def rft_reward(spec: Spec, endpoint: Endpoint | None = None, name: str = "rft") -> RewardFunction:
    """The reward function of a grader. The default endpoint for judges comes from the environment."""

    def reward(completions: list[str], **columns: Any) -> list[Grade]:
        judge = (endpoint or endpoint_from_env()) if _uses(spec, ScoreModel, LabelModel) else None
        cases = [_case(text, index, columns, judge) for index, text in enumerate(completions)]
        if not _uses(spec, ScoreModel, LabelModel, Python):
            return [_grade(spec, case) for case in cases]
        workers = MAX_CONCURRENT if judge else min(MAX_CONCURRENT, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda case: _grade(spec, case), cases))

    reward.__name__ = name
    reward.costly = _uses(spec, ScoreModel, LabelModel)  # type: ignore[attr-defined]  # an audit calls it less often
    return reward


def _uses(spec: Spec, *kinds: type) -> bool:
    """Whether a grader, or one that it combines, is of these kinds."""
    parts = _used(spec).values() if isinstance(spec, Multi) else ()
    return isinstance(spec, kinds) or any(_uses(one, *kinds) for one in parts)


def _used(spec: Multi) -> dict[str, Spec]:
    """The graders that the formula uses. The others are not run."""
    return {key: one for key, one in spec.graders.items() if key in spec.formula.names}


def _case(text: str, index: int, columns: Mapping[str, Any], endpoint: Endpoint | None) -> _Case:
    row = {key: value[index] for key, value in columns.items() if isinstance(value, (list, tuple))}
    item = {key: _plain(value) for key, value in row.items() if key not in _NOT_ITEM}
    if item.get("answer", 0) is None:
        del item["answer"]
    tools = item["output_tools"] if isinstance(item.get("output_tools"), list) else []
    message = {"role": "assistant", "content": text, "tool_calls": tools}
    choices = [{"index": 0, "message": message, "finish_reason": row.get("finish", "stop")}]
    sample: dict[str, Any] = {"output_text": text, "output_tools": tools, "choices": choices}
    with suppress(ValueError, RecursionError):
        value = json.loads(text, parse_constant=refuse_constant)
        if _is_shallow(value):
            sample["output_json"] = value
    return _Case(item, sample, endpoint)


def _plain(value: object) -> Any:
    """The value in JSON's types: mappings and tuples as dicts and lists, anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)


def _is_shallow(value: object) -> bool:
    """Whether a value has at most MAX_ANSWER_DEPTH levels, so that no recursion over it can overflow."""
    level = [value]
    for _ in range(MAX_ANSWER_DEPTH):
        containers = [outer for outer in level if isinstance(outer, (dict, list))]
        level = [one for outer in containers for one in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return True
    return False


def _grade(spec: Spec, case: _Case) -> Grade:
    parts: Mapping[str, float | None] = {}
    try:
        if isinstance(spec, Multi):
            score, reason, parts = _combine(spec, case)
        else:
            score, reason = _SCORES[type(spec)](spec, case)
    except MissingSample as error:
        score, reason = (spec.bounds[0] if isinstance(spec, ScoreModel) else 0.0), str(error)
    except (MissingItem, JudgeFailure, FormulaError) as error:
        return Grade(None, "broken", parts, str(error))
    right = score >= spec.pass_threshold - ROUNDING
    return Grade(score, "right" if right else "wrong", parts, "" if right else reason)


def _combine(spec: Multi, case: _Case) -> tuple[float, str, dict[str, float | None]]:
    """The formula's value, the reason for it, and each grader's score. A broken grade makes the whole grade broken."""
    grades = {key: _grade(one, case) for key, one in _used(spec).items()}
    for key, grade in grades.items():
        if grade.reward is None:
            raise JudgeFailure(f"{key}: {grade.reason}")
    scores = {key: grade.reward for key, grade in grades.items() if grade.reward is not None}
    reason = "; ".join(f"{key}: {grade.reason}" for key, grade in grades.items() if grade.reason)
    return spec.formula(scores), reason, dict(scores)


def _string_check(spec: StringCheck, case: _Case) -> tuple[float, str]:
    text, reference = case.text(spec.input), case.text(spec.reference)
    if spec.operation in ("like", "ilike") and not reference:
        if spec.reference.uses_sample:
            return 0.0, "the reference, taken from the answer, is empty"
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


def _python(spec: Python, case: _Case) -> tuple[float, str]:
    from outdo.sandbox.execute import ExecutionError, call_function

    sample = {key: case.sample.get(key) for key in ("output_text", "output_json", "output_tools")}
    try:
        result = call_function(spec.source, "grade", [sample, dict(case.item)])
    except ExecutionError as error:
        raise JudgeFailure(f"grade(sample, item) failed: {error}") from None
    if not isinstance(result, (int, float)) or not is_finite(result):
        short = isinstance(result, (bool, float, type(None)))
        value = repr(result) if short else f"a value of type {type(result).__name__}"
        raise JudgeFailure(f"grade(sample, item) returned {value}, not a finite number: return a float")
    return float(result), f"grade(sample, item) returned {result:g}"


def _score_model(spec: ScoreModel, case: _Case) -> tuple[float, str]:
    assert case.endpoint is not None, "a judge needs an endpoint"
    score = request_score(spec.model, _messages(spec, case), spec.sampling, spec.bounds, case.endpoint)
    return score, f"{spec.model} scored {score:g}"


def _label_model(spec: LabelModel, case: _Case) -> tuple[float, str]:
    assert case.endpoint is not None, "a judge needs an endpoint"
    label = request_label(spec.model, _messages(spec, case), spec.labels, case.endpoint)
    return float(label in spec.passing), f"{spec.model} chose {clipped(label)}"


def _messages(spec: ScoreModel | LabelModel, case: _Case) -> list[dict[str, str]]:
    return [{"role": role, "content": case.text(content)} for role, content in spec.messages]


_SCORES: dict[type, Callable[[Any, _Case], tuple[float, str]]] = {
    StringCheck: _string_check,
    TextSimilarity: _text_similarity,
    Python: _python,
    ScoreModel: _score_model,
    LabelModel: _label_model,
}
