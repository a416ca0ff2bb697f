"""Graders written in OpenAI's reinforcement fine-tuning JSON, as reward functions.

    function, name = load("grader.json")
    grades = function(completions, **columns)

`item` is the row: all columns except those of the answer, which is `sample`. If the answer lacks a value that a grader
needs, or alone makes a grader fail, it gets the worst score; if the row or the judge fails, it is broken. Python
graders only run in the sandbox, within `reward_timeout`.
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
from outdo.rewards.answer import after_thinking
from outdo.rewards.arguments import COMPLETION_TOOLS
from outdo.rewards.jsontext import answer_value
from outdo.rewards.rft.combine import multi_grades, single_grades
from outdo.rewards.rft.file import read_file, refuse_constant
from outdo.rewards.rft.models import Endpoint, JudgeFailure, endpoint_from_env, request_label, request_score
from outdo.rewards.rft.outcome import Outcome, PythonFailure, outcome, reads_json, settled
from outdo.rewards.rft.similarity import METRICS
from outdo.rewards.rft.spec import (
    LabelModel,
    Multi,
    Python,
    ScoreModel,
    Single,
    Spec,
    StringCheck,
    TextSimilarity,
    is_finite,
)
from outdo.rewards.rft.template import Template, clipped, render
from outdo.rewards.schema import unique_object
from outdo.types import Grade, RewardFunction

MAX_CONCURRENT = 8  # answers of a group graded at the same time
MAX_ANSWER_DEPTH = 100  # nested objects and lists; a deeper answer does not count as JSON
TIMEOUT = 10.0  # seconds of a python grader, where `reward_timeout` is not given
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique_object)
_NOT_ITEM = ("completions", "completion_ids", COMPLETION_TOOLS, "finish", "verdicts", "max_completion_length")


@dataclass(frozen=True)
class _Case:
    """One answer to grade, and the endpoint for judges."""

    item: Mapping[str, Any]
    sample: Mapping[str, Any]  # without output_json if it is not JSON, and output_text if it is only thought
    endpoint: Endpoint | None
    seconds: float = TIMEOUT  # of a python grader

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

    used: dict[str, Single] = _used(spec) if isinstance(spec, Multi) else {"": spec}
    needs_json = any(map(reads_json, used.values()))
    graded: dict[str, list[str]] = {key: [] for key in used}

    def reward(completions: list[str], **columns: Any) -> list[Grade]:
        judge = (endpoint or endpoint_from_env()) if _uses(spec, ScoreModel, LabelModel) else None

        def case(place: int, text: str | None = None) -> _Case:
            answer = completions[place] if text is None else text
            return _case(answer, place, columns, judge, needs_json, is_control=text is not None)

        cases = [case(place) for place in range(len(completions))]
        jobs = [(one, each) for one in used.values() for each in cases]
        if _uses(spec, ScoreModel, LabelModel, Python):
            workers = MAX_CONCURRENT if judge else min(MAX_CONCURRENT, os.cpu_count() or 1)
            with ThreadPoolExecutor(workers) as pool:
                results = iter(list(pool.map(lambda job: _outcome(*job), jobs)))
        else:
            results = iter([_outcome(*job) for job in jobs])
        outcomes = {
            key: settled(
                [next(results) for _ in cases],
                completions,
                lambda place, text, one=one: _outcome(one, case(place, text)),  # type: ignore[misc]
                [each.item for each in cases],
                graded[key],
            )
            for key, one in used.items()
        }
        if isinstance(spec, Multi):
            return multi_grades(spec, used, outcomes, len(cases))
        return single_grades(spec, outcomes[""])

    reward.__name__ = name
    reward.costly = _uses(spec, ScoreModel, LabelModel)  # type: ignore[attr-defined]  # an audit calls it less often
    return reward


def _uses(spec: Spec, *kinds: type) -> bool:
    """Whether a grader, or one that it combines, is of these kinds."""
    parts = _used(spec).values() if isinstance(spec, Multi) else ()
    return isinstance(spec, kinds) or any(_uses(one, *kinds) for one in parts)


def _used(spec: Multi) -> dict[str, Single]:
    """The graders that the formula uses. The others are not run."""
    return {key: one for key, one in spec.graders.items() if key in spec.formula.names}


def _case(
    text: str, index: int, columns: Mapping[str, Any], endpoint: Endpoint | None, needs_json: bool, is_control: bool
) -> _Case:
    """One answer with its row; `is_control`: the text is not the answer, and has none of its calls."""
    row = {key: value[index] for key, value in columns.items() if isinstance(value, (list, tuple))}
    item = {key: _plain(value) for key, value in row.items() if key not in _NOT_ITEM}
    if item.get("answer", 0) is None:
        del item["answer"]
    calls = None if is_control else _plain(row.get(COMPLETION_TOOLS))
    tools = calls if isinstance(calls, list) else []
    message = {"role": "assistant", "content": text, "tool_calls": tools}
    choices = [{"index": 0, "message": message, "finish_reason": row.get("finish", "stop")}]
    sample: dict[str, Any] = {"output_tools": tools, "choices": choices}
    if (shown := after_thinking(text)) is not None:
        sample["output_text"] = shown.strip()
    if needs_json:
        with suppress(ValueError, RecursionError):
            sample["output_json"] = answer_value(text, _json)
    seconds = columns.get("reward_timeout", TIMEOUT)
    return _Case(item, sample, endpoint, seconds)


def _json(text: str) -> Any:
    """The JSON value of a text, with the numbers as they are written. Raises ValueError."""
    value = _DECODER.decode(text)
    if not _is_shallow(value):
        raise ValueError(f"JSON nested deeper than {MAX_ANSWER_DEPTH}")
    return value


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


def _outcome(spec: Single, case: _Case) -> Outcome:
    return outcome(lambda: _SCORES[type(spec)](spec, case))


def _string_check(spec: StringCheck, case: _Case) -> tuple[float, str]:
    text, reference = case.text(spec.input), case.text(spec.reference)
    if spec.operation in ("like", "ilike") and not reference:
        if spec.reference.uses_sample:
            return 0.0, "the reference, taken from the answer, is empty"
        raise JudgeFailure("the reference is empty: every text contains it")
    holds = {
        "eq": lambda: text.strip() == reference.strip(),
        "ne": lambda: text.strip() != reference.strip(),
        "like": lambda: reference in text,
        "ilike": lambda: reference.casefold() in text.casefold(),
    }[spec.operation]()
    return float(holds), f"{spec.operation}: {clipped(text)} against {clipped(reference)}"


def _text_similarity(spec: TextSimilarity, case: _Case) -> tuple[float, str]:
    score = METRICS[spec.metric](case.text(spec.input), case.text(spec.reference))
    return score, f"{spec.metric} {score:.3g}"


def _python(spec: Python, case: _Case) -> tuple[float, str]:
    from outdo.sandbox.execute import ExecutionError, TimedOut, call_function

    sample = {"output_text": "", "output_json": None, **case.sample}
    try:
        result = call_function(spec.source, "grade", [sample, dict(case.item)], case.seconds)
    except ExecutionError as error:
        raise PythonFailure(f"grade(sample, item) failed: {error}", isinstance(error, TimedOut)) from None
    if not isinstance(result, (int, float)) or not is_finite(result):
        short = isinstance(result, (bool, float, type(None)))
        value = repr(result) if short else f"a value of type {type(result).__name__}"
        raise PythonFailure(f"grade(sample, item) returned {value}, not a finite number: return a float")
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
