"""Reading OpenAI's grader JSON strictly: every problem with its place, and the nearest right name for a wrong one.

Python sources are parsed here and never run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.errors import did_you_mean
from outdo.rewards.rft import formula, template
from outdo.rewards.rft.formula import Formula
from outdo.rewards.rft.similarity import METRICS
from outdo.rewards.rft.spec import (
    LabelModel,
    Multi,
    PythonGrader,
    ScoreModel,
    Spec,
    StringCheck,
    TextSimilarity,
    is_finite,
)
from outdo.rewards.rft.template import Template, clipped

Place = tuple[str | int, ...]  # keys and indices from the top of the file

OPERATIONS = ("eq", "ne", "like", "ilike")
ROLES = ("system", "developer", "user", "assistant")
LARGEST_SOURCE = 256 * 1024  # bytes
MOST_PROBLEMS = 20  # are told; a file made to have a million is not read on
SAMPLING = {  # the grader's name for it: the chat endpoint's
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_completions_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "reasoning_effort": "reasoning_effort",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file."""

    place: Place
    text: str


class _Enough(Exception):
    """So many problems were found that more would help nobody."""


@dataclass(frozen=True)
class _At:
    """One object of the file, its place, and where to put problems. Getters return a stand-in where they note one."""

    data: Mapping[str, Any]
    place: Place
    problems: list[Problem]

    def note(self, text: str, *steps: str | int) -> None:
        self.problems.append(Problem((*self.place, *steps), text))
        if len(self.problems) >= MOST_PROBLEMS:
            raise _Enough

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if isinstance(value, str):
            return value
        if key in self.data:  # a key that is not there was noted already
            self.note(f"is {_kind(value)}, and must be a text", key)
        return ""

    def template(self, key: str) -> Template:
        try:
            return template.parse(self.text(key))
        except template.TemplateError as error:
            self.note(str(error), key)
            return Template(())

    def choice(self, key: str, options: Sequence[str]) -> str:
        value = self.text(key)
        if value not in options and isinstance(self.data.get(key), str):
            self.note(f"{clipped(value)} is not one of {', '.join(options)}{_meant(value, options)}", key)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.data.get(key)
        if value is None:
            return default
        if not is_finite(value):
            self.note(f"is {_kind(value)}, and must be a finite number", key)
            return default
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return tuple(value)
        if key in self.data:
            self.note("must be a list of texts, and not an empty one", key)
        return ()


def read_spec(data: object) -> tuple[Spec | None, list[Problem]]:
    """The grader that parsed JSON describes, or None; and its problems, the first MOST_PROBLEMS of them."""
    problems: list[Problem] = []
    try:
        spec = _grader(data, (), problems, KINDS)
    except _Enough:
        spec = None
    return (None if problems else spec), problems


def _meant(word: str, options: Sequence[str]) -> str:
    """The option that a word was meant to be, as the end of a sentence; nothing where none is near."""
    return did_you_mean(word, options, "; did you mean {!r}?")


def _grader(data: object, place: Place, problems: list[Problem], kinds: Mapping[str, _Kind]) -> Spec | None:
    """One grader of one of these kinds. Raises nothing; None where even its kind is not clear."""
    at = _At(data if isinstance(data, dict) else {}, place, problems)
    if not isinstance(data, dict):
        at.note(f"is {_kind(data)}, and must be a grader: an object with a 'type'")
        return None
    if "type" not in data:
        whole = "; keep only what stands under 'grader'" if "grader" in data else ""
        at.note(f"needs 'type', one of {', '.join(kinds)}{whole}")
        return None
    name = data["type"]
    if name == "multi" and "multi" not in kinds:
        at.note("a multi grader cannot stand inside another", "type")
        return None
    if not isinstance(name, str) or name not in kinds:
        at.note(f"{clipped(str(name))} is not one of {', '.join(kinds)}{_meant(str(name), list(kinds))}", "type")
        return None
    kind = kinds[name]
    known = ("type", "name", *kind.required, *kind.optional)
    for key in data:
        if key not in known:
            at.note(f"a {name} grader has no {clipped(key)}; it has {', '.join(known)}{_meant(key, known)}", key)
    for key in kind.required:
        if key not in data:
            at.note(f"a {name} grader needs {key!r}")
    if data.get("name") is not None:
        at.text("name")
    return kind.read(at)


def _string_check(at: _At) -> Spec:
    operation = "ne" if at.data.get("operation") == "neq" else at.choice("operation", OPERATIONS)
    return StringCheck(at.template("input"), at.template("reference"), operation)


def _text_similarity(at: _At) -> Spec:
    if at.data.get("evaluation_metric") == "cosine":
        at.note(
            "cosine compares embeddings, which OpenAI has for evals only, not for training, and outdo has not; "
            "take rouge_l or fuzzy_match, or a score_model grader for likeness in meaning",
            "evaluation_metric",
        )
        metric = "cosine"
    else:
        metric = at.choice("evaluation_metric", list(METRICS))
    return TextSimilarity(at.template("input"), at.template("reference"), metric, at.number("pass_threshold", 1.0))


def _python(at: _At) -> Spec:
    source = at.text("source")
    if isinstance(at.data.get("source"), str) and (problem := _source_problem(source)):
        at.note(problem, "source")
    return PythonGrader(source, at.number("pass_threshold", 1.0))


def _score_model(at: _At) -> Spec:
    bounds = _bounds(at)
    threshold = at.number("pass_threshold", bounds[1])
    return ScoreModel(at.text("model"), _messages(at), bounds, _sampling(at), threshold)


def _label_model(at: _At) -> Spec:
    labels, passing = at.texts("labels"), at.texts("passing_labels")
    if len(set(labels)) < len(labels):
        at.note("names a label twice", "labels")
    known = set(labels)
    for index, label in enumerate(passing):
        if label not in known:
            at.note(f"{clipped(label)} is not one of the labels{_meant(label, labels)}", "passing_labels", index)
    return LabelModel(at.text("model"), _messages(at), labels, frozenset(passing))


def _multi(at: _At) -> Spec:
    graders: dict[str, Any] = {}
    given = at.data.get("graders")
    if isinstance(given, dict) and given:
        for key, data in given.items():
            if not formula.can_be_named(key):
                at.note("a formula cannot name this: use letters, digits and _, no digit first", "graders", key)
            graders[key] = _grader(data, (*at.place, "graders", key), at.problems, SINGLES)
    elif "graders" in at.data:
        at.note('must be an object of graders by name: {"accuracy": {…}}', "graders")
    text = at.text("calculate_output")
    combined = Formula(text, frozenset(), lambda values: 0.0)
    if graders and isinstance(at.data.get("calculate_output"), str):
        try:
            combined = formula.parse(text, graders)
        except formula.FormulaError as error:
            at.note(str(error), "calculate_output")
    return Multi(graders, combined, at.number("pass_threshold", 1.0))


@dataclass(frozen=True)
class _Kind:
    """The keys of one type of grader, beside `type` and `name`, and what reads them."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[_At], Spec]


SINGLES = {
    "string_check": _Kind(("input", "reference", "operation"), (), _string_check),
    "text_similarity": _Kind(("input", "reference", "evaluation_metric"), ("pass_threshold",), _text_similarity),
    "python": _Kind(("source",), ("image_tag", "pass_threshold"), _python),
    "score_model": _Kind(("model", "input"), ("range", "sampling_params", "pass_threshold"), _score_model),
    "label_model": _Kind(("model", "input", "labels", "passing_labels"), (), _label_model),
}
KINDS = {**SINGLES, "multi": _Kind(("graders", "calculate_output"), ("pass_threshold",), _multi)}


def _bounds(at: _At) -> tuple[float, float]:
    value = at.data.get("range")
    if value is None:
        return 0.0, 1.0
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_finite, value)) or value[0] >= value[1]:
        at.note("must be two finite numbers, the smaller first", "range")
        return 0.0, 1.0
    return float(value[0]), float(value[1])


def _sampling(at: _At) -> dict[str, Any]:
    given = at.data.get("sampling_params")
    if given is None:
        return {}
    if not isinstance(given, dict):
        at.note(f"is {_kind(given)}, and must be an object", "sampling_params")
        return {}
    for key, value in given.items():
        if key not in SAMPLING:
            at.note(f"is not one of {', '.join(SAMPLING)}{_meant(key, list(SAMPLING))}", "sampling_params", key)
        elif value is not None and not (isinstance(value, str) if key == "reasoning_effort" else is_finite(value)):
            wanted = "a text" if key == "reasoning_effort" else "a number"
            at.note(f"is {_kind(value)}, and must be {wanted}", "sampling_params", key)
    return {SAMPLING[key]: value for key, value in given.items() if key in SAMPLING and value is not None}


def _messages(at: _At) -> tuple[tuple[str, Template], ...]:
    given = at.data.get("input")
    if not isinstance(given, list) or not given:
        if "input" in at.data:
            at.note('must be a list of messages: [{"role": "user", "content": "…"}]', "input")
        return ()
    return tuple(
        _message(one, _At(one if isinstance(one, dict) else {}, (*at.place, "input", i), at.problems))
        for i, one in enumerate(given)
    )


def _message(given: object, at: _At) -> tuple[str, Template]:
    if not isinstance(given, dict):
        at.note(f"is {_kind(given)}, and must be a message")
        return "", Template(())
    for key in given:
        if key not in ("role", "content", "type"):
            at.note(f"a message has no {clipped(key)}; it has role and content{_meant(key, ('role', 'content'))}", key)
    for key in ("role", "content"):
        if key not in given:
            at.note(f"a message needs {key!r}")
    if given.get("type") not in (None, "message"):
        at.note("must be 'message'", "type")
    return at.choice("role", ROLES), _content(given.get("content"), at)


def _content(given: object, at: _At) -> Template:
    """A text, or texts as parts ({"type": "input_text", "text": …}), which are joined by line ends."""
    parts: list[str] = []
    for part in given if isinstance(given, list) else [given]:
        text = (
            part.get("text")
            if isinstance(part, dict) and part.get("type") in ("input_text", "output_text", "text")
            else part
        )
        if isinstance(text, str):
            parts.append(text)
        elif "content" in at.data:
            at.note("must be a text: images and audio are not supported", "content")
    try:
        return template.parse("\n".join(parts))
    except template.TemplateError as error:
        at.note(str(error), "content")
        return Template(())


def _source_problem(source: str) -> str:
    """Why a source cannot be a python grader, or nothing. It is parsed, never run."""
    size = len(source.encode("utf-8", "replace"))
    if size >= LARGEST_SOURCE:
        return f"is {size} bytes long, and must be under {LARGEST_SOURCE}"
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source).body
    except SyntaxError as error:
        return f"is no Python: {error.msg} (its line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"is no Python: {error or 'nested too deeply'}"
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "grade"]
    if not found:
        return "defines no function grade(sample, item) at its top level"
    spec = found[-1].args
    positional = len(spec.posonlyargs) + len(spec.args)
    needed = positional - len(spec.defaults)
    lone = [arg for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None]
    if needed > 2 or lone or (positional < 2 and spec.vararg is None):
        return f"line {found[-1].lineno}: grade must take two values, (sample, item); it takes {positional}"
    return ""


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
