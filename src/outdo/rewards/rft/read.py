"""Parses OpenAI's grader JSON strictly, and reports every problem with its place. Python sources are never run."""

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
from outdo.rewards.rft.spec import LabelModel, Multi, Python, ScoreModel, Spec, StringCheck, TextSimilarity, is_finite
from outdo.rewards.rft.template import Template, clipped

Place = tuple[str | int, ...]  # keys and indices from the top of the file

OPERATIONS = ("eq", "ne", "like", "ilike")
ROLES = ("system", "developer", "user", "assistant")
TEXT_PARTS = ("input_text", "output_text", "text")  # of a message's content
MAX_SOURCE_BYTES = 256 * 1024
MAX_PROBLEMS = 20  # reported; then parsing stops
_SAMPLING = ("temperature", "top_p", "seed", "max_completions_tokens", "max_completion_tokens", "reasoning_effort")
SAMPLING = {name: name.replace("completions", "completion") for name in _SAMPLING}  # to the chat endpoint's names


@dataclass(frozen=True)
class Problem:
    """One error in a file."""

    place: Place
    text: str


class _TooManyProblems(Exception):
    """MAX_PROBLEMS were reported."""


@dataclass(frozen=True)
class _At:
    """One object of the file, its place, and the list of problems. A getter that reports one returns a default."""

    data: Mapping[str, Any]
    place: Place
    problems: list[Problem]

    def report(self, text: str, *steps: str | int) -> None:
        self.problems.append(Problem((*self.place, *steps), text))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _TooManyProblems

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if isinstance(value, str):
            return value
        if key in self.data:  # a missing key was reported already
            self.report(f"is {_kind(value)}, and must be a string", key)
        return ""

    def template(self, key: str) -> Template:
        return self.parsed(self.text(key), key)

    def parsed(self, text: str, key: str) -> Template:
        try:
            return template.parse(text)
        except template.TemplateError as error:
            self.report(str(error), key)
            return Template(())

    def choice(self, key: str, options: Sequence[str]) -> str:
        value = self.text(key)
        if value not in options and isinstance(self.data.get(key), str):
            self.report(f"{clipped(value)} is not one of {', '.join(options)}{_meant(value, options)}", key)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.data.get(key)
        if value is None:
            return default
        if not is_finite(value):
            self.report(f"is {_kind(value)}, and must be a finite number", key)
            return default
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return tuple(value)
        if key in self.data:
            self.report("must be a non-empty list of strings", key)
        return ()


def read_spec(data: object) -> tuple[Spec | None, list[Problem]]:
    """The grader in a JSON value, or None; and its first MAX_PROBLEMS problems."""
    problems: list[Problem] = []
    try:
        spec = _grader(data, (), problems, KINDS)
    except _TooManyProblems:
        spec = None
    return (None if problems else spec), problems


def _meant(word: str, options: Sequence[str]) -> str:
    """The nearest option, as the end of a sentence; empty if none is near."""
    return did_you_mean(word, options, "; did you mean {!r}?")


def _grader(data: object, place: Place, problems: list[Problem], kinds: Mapping[str, _Kind]) -> Spec | None:
    """One grader of one of these kinds; None if its kind is unknown."""
    at = _At(data if isinstance(data, dict) else {}, place, problems)
    if not isinstance(data, dict):
        at.report(f"is {_kind(data)}, and must be a grader: an object with a 'type'")
        return None
    if "type" not in data:
        hint = "; the file must contain only the value of 'grader'" if "grader" in data else ""
        at.report(f"needs 'type', one of {', '.join(kinds)}{hint}")
        return None
    name = data["type"]
    if name == "multi" and "multi" not in kinds:
        at.report("a multi grader cannot contain another", "type")
        return None
    if not isinstance(name, str) or name not in kinds:
        at.report(f"{clipped(str(name))} is not one of {', '.join(kinds)}{_meant(str(name), list(kinds))}", "type")
        return None
    kind = kinds[name]
    keys = ("type", "name", *kind.required, *kind.optional)
    for key in data:
        if key not in keys:
            at.report(f"a {name} grader has no {clipped(key)}; it has {', '.join(keys)}{_meant(key, keys)}", key)
    for key in kind.required:
        if key not in data:
            at.report(f"a {name} grader needs {key!r}")
    if data.get("name") is not None:
        at.text("name")
    return kind.read(at)


def _string_check(at: _At) -> Spec:
    operation = "ne" if at.data.get("operation") == "neq" else at.choice("operation", OPERATIONS)
    return StringCheck(at.template("input"), at.template("reference"), operation)


def _text_similarity(at: _At) -> Spec:
    if at.data.get("evaluation_metric") == "cosine":
        at.report(
            "cosine compares embeddings, which OpenAI supports only for evals and outdo does not; use rouge_l or "
            "fuzzy_match, or a score_model grader for similarity of meaning",
            "evaluation_metric",
        )
        metric = "cosine"
    else:
        metric = at.choice("evaluation_metric", list(METRICS))
    return TextSimilarity(at.template("input"), at.template("reference"), metric, at.number("pass_threshold", 1.0))


def _python(at: _At) -> Spec:
    source = at.text("source")
    if isinstance(at.data.get("source"), str) and (problem := _source_problem(source)):
        at.report(problem, "source")
    return Python(source, at.number("pass_threshold", 1.0))


def _score_model(at: _At) -> Spec:
    bounds = _bounds(at)
    threshold = at.number("pass_threshold", bounds[1])
    return ScoreModel(at.text("model"), _messages(at), bounds, _sampling(at), threshold)


def _label_model(at: _At) -> Spec:
    labels, passing = at.texts("labels"), at.texts("passing_labels")
    if len(set(labels)) < len(labels):
        at.report("has a duplicate label", "labels")
    allowed = set(labels)
    for index, label in enumerate(passing):
        if label not in allowed:
            at.report(f"{clipped(label)} is not one of the labels{_meant(label, labels)}", "passing_labels", index)
    return LabelModel(at.text("model"), _messages(at), labels, frozenset(passing))


def _multi(at: _At) -> Spec:
    graders: dict[str, Any] = {}
    given = at.data.get("graders")
    if isinstance(given, dict) and given:
        for key, data in given.items():
            if not formula.can_be_named(key):
                at.report("a formula cannot use this name: use letters, digits and _, no digit first", "graders", key)
            graders[key] = _grader(data, (*at.place, "graders", key), at.problems, SINGLES)
    elif "graders" in at.data:
        at.report('must be an object of graders by name: {"accuracy": {…}}', "graders")
    text = at.text("calculate_output")
    combined = Formula(frozenset(), lambda values: 0.0)
    if graders and isinstance(at.data.get("calculate_output"), str):
        try:
            combined = formula.parse(text, graders)
        except formula.FormulaError as error:
            at.report(str(error), "calculate_output")
    return Multi(graders, combined, at.number("pass_threshold", 1.0))


@dataclass(frozen=True)
class _Kind:
    """The keys of one type of grader, besides `type` and `name`, and the function that reads them."""

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
        at.report("must be two finite numbers, the smaller first", "range")
        return 0.0, 1.0
    return float(value[0]), float(value[1])


def _sampling(at: _At) -> dict[str, Any]:
    given = at.data.get("sampling_params")
    if given is None:
        return {}
    if not isinstance(given, dict):
        at.report(f"is {_kind(given)}, and must be an object", "sampling_params")
        return {}
    for key, value in given.items():
        if key not in SAMPLING:
            at.report(f"is not one of {', '.join(SAMPLING)}{_meant(key, list(SAMPLING))}", "sampling_params", key)
        elif value is not None and not (isinstance(value, str) if key == "reasoning_effort" else is_finite(value)):
            wanted = "a string" if key == "reasoning_effort" else "a number"
            at.report(f"is {_kind(value)}, and must be {wanted}", "sampling_params", key)
    return {SAMPLING[key]: value for key, value in given.items() if key in SAMPLING and value is not None}


def _messages(at: _At) -> tuple[tuple[str, Template], ...]:
    given = at.data.get("input")
    if not isinstance(given, list) or not given:
        if "input" in at.data:
            at.report('must be a list of messages: [{"role": "user", "content": "…"}]', "input")
        return ()
    return tuple(_message(one, (*at.place, "input", i), at.problems) for i, one in enumerate(given))


def _message(given: object, place: Place, problems: list[Problem]) -> tuple[str, Template]:
    at = _At(given if isinstance(given, dict) else {}, place, problems)
    if not isinstance(given, dict):
        at.report(f"is {_kind(given)}, and must be a message")
        return "", Template(())
    for key in given:
        if key not in ("role", "content", "type"):
            meant = _meant(key, ("role", "content"))
            at.report(f"a message has no {clipped(key)}; it has role and content{meant}", key)
    for key in ("role", "content"):
        if key not in given:
            at.report(f"a message needs {key!r}")
    if given.get("type") not in (None, "message"):
        at.report("must be 'message'", "type")
    return at.choice("role", ROLES), _content(given.get("content"), at)


def _content(given: object, at: _At) -> Template:
    """A string, or a list of parts ({"type": "input_text", "text": …}), which are joined by newlines."""
    parts: list[str] = []
    for part in given if isinstance(given, list) else [given]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in TEXT_PARTS else part
        if isinstance(text, str):
            parts.append(text)
        elif "content" in at.data:
            at.report("must be a string: images and audio are not supported", "content")
    return at.parsed("\n".join(parts), "content")


def _source_problem(source: str) -> str:
    """Why a source is not a valid python grader; empty if it is. It is parsed, never run."""
    size = len(source.encode("utf-8", "replace"))
    if size >= MAX_SOURCE_BYTES:
        return f"is {size} bytes long, and must be under {MAX_SOURCE_BYTES}"
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source).body
    except SyntaxError as error:
        return f"is not valid Python: {error.msg} (line {error.lineno} of the source)"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"is not valid Python: {error or 'nested too deeply'}"
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "grade"]
    if not functions:
        return "defines no function grade(sample, item) at its top level"
    spec = functions[-1].args
    positional = len(spec.posonlyargs) + len(spec.args)
    num_required = positional - len(spec.defaults)
    required_keywords = [arg for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None]
    if num_required > 2 or required_keywords or (positional < 2 and spec.vararg is None):
        return f"line {functions[-1].lineno}: grade must take two arguments, (sample, item); it takes {positional}"
    return ""


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
