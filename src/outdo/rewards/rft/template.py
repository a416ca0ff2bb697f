"""Templates: texts with placeholders such as `{{ item.x }}` and `{{ sample.output_json.a[0]['b'] }}`.

A placeholder is a path: no expressions, no filters. Placeholders are filled once and their values are never expanded
again, so an answer that contains `{{ item.answer }}` stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outdo.errors import did_you_mean

SAMPLE = ("output_text", "output_json", "output_tools", "choices")  # the keys of `sample`
_NAMESPACE = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"""\.([\w-]+)|\[(-?\d{1,9})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_MAX_QUOTED = 60  # characters of a text quoted in a message


class TemplateError(ValueError):
    """The template is invalid. Names the column."""


class MissingItem(ValueError):
    """The row lacks a value that a placeholder needs: the data's fault, so the answer is broken."""


class MissingSample(ValueError):
    """The answer lacks a value that a placeholder needs: the model's fault, so the answer is wrong."""


@dataclass(frozen=True)
class Path:
    """The path of one placeholder: a namespace, and keys and indices into it."""

    namespace: str  # item or sample
    steps: tuple[str | int, ...]

    def __str__(self) -> str:
        return self.namespace + "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]"
            for step in self.steps
        )


@dataclass(frozen=True)
class Template:
    """Literal texts and paths, in order."""

    parts: tuple[str | Path, ...]

    @property
    def uses_sample(self) -> bool:
        return any(isinstance(part, Path) and part.namespace == "sample" for part in self.parts)

    @property
    def uses_json(self) -> bool:
        return any(isinstance(part, Path) and part.steps[:1] == ("output_json",) for part in self.parts)


def parse(text: str) -> Template:
    """Parses a template. Raises TemplateError with the column if it is invalid, or no row can have the value."""
    parts: list[str | Path] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        end = text.find("}}", start + 2)
        if end < 0:
            raise TemplateError(f"column {start + 1}: this {{{{ is never closed by }}}}")
        parts += [text[at:start], _path(text, start + 2, end)]
        at = end + 2
    parts.append(text[at:])
    return Template(tuple(part for part in parts if part != ""))


def render(template: Template, item: Mapping[str, object], sample: Mapping[str, object]) -> str:
    """The text with placeholders filled, with anything but strings as JSON. Raises MissingItem or MissingSample."""
    spaces = {"item": item, "sample": sample}
    return "".join(part if isinstance(part, str) else _value(part, spaces[part.namespace]) for part in template.parts)


def clipped(text: str) -> str:
    """A text, quoted and shortened to one line, for a message."""
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")


def _path(text: str, start: int, end: int) -> Path:
    """The path in text[start:end], without surrounding spaces."""
    inside = text[start:end]
    at = start + len(inside) - len(inside.lstrip())
    end = start + len(inside.rstrip())
    if at >= end:
        raise TemplateError(f"column {start + 1}: nothing between {{{{ and }}}}")
    name = _NAMESPACE.match(text, at, end)
    if name is None or name.group() not in ("item", "sample"):
        word = clipped(name.group() if name else text[at:end])
        raise TemplateError(f"column {at + 1}: {word} is not a namespace; use item or sample")
    steps: list[str | int] = []
    first = at = name.end()
    while at < end:
        step = _STEP.match(text, at, end)
        if step is None:
            raise TemplateError(
                f"column {at + 1}: {clipped(text[at:end])} is not a path; use .name, [0] or ['name'] (no expressions)"
            )
        key, index, single, double = step.groups()
        steps.append(int(index) if index is not None else next(k for k in (key, single, double) if k is not None))
        at = step.end()
    path = Path(name.group(), tuple(steps))
    _refuse_impossible(path, first + 1)
    return path


def _refuse_impossible(path: Path, column: int) -> None:
    """Refuses a path that no row and no answer can have."""
    if not path.steps:
        example = "item.answer" if path.namespace == "item" else "sample.output_text"
        raise TemplateError(f"column {column}: name a variable, as in {{{{ {example} }}}}")
    first = path.steps[0]
    if isinstance(first, int):
        raise TemplateError(f"column {column}: {path.namespace} is not a list; name a variable first")
    if path.namespace == "item":
        return
    if first not in SAMPLE:
        meant = did_you_mean(first, SAMPLE, "; did you mean {!r}?")
        raise TemplateError(f"column {column}: sample has no {first!r}, it has {', '.join(SAMPLE)}{meant}")
    if first == "output_text" and len(path.steps) > 1:
        raise TemplateError(f"column {column}: sample.output_text is a string and has no keys")


def _value(path: Path, space: Mapping[str, object]) -> str:
    missing = MissingItem if path.namespace == "item" else MissingSample
    value: object = space
    for number, step in enumerate(path.steps):
        try:
            value = _get(value, step)
        except LookupError:
            if missing is MissingSample and number == 0:
                why = {"output_json": "the answer is not JSON", "output_text": "the thinking part is not closed"}
                raise missing(why.get(str(step), f"sample.{step} is missing")) from None
            where = Path(path.namespace, path.steps[: number + 1])
            raise missing(f"{where} is missing{_describe_container(value, number)}") from None
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise missing(f"{path} cannot be written as JSON: {error}") from None


def _get(value: object, step: str | int) -> object:
    """The value at a key or an index. Raises LookupError."""
    if isinstance(value, Mapping) and isinstance(step, str):
        return value[step]
    if isinstance(value, (list, tuple)) and isinstance(step, int):
        return value[step]
    raise LookupError(step)


def _describe_container(value: object, depth: int) -> str:
    """The value in which a key or an index was missing."""
    if isinstance(value, Mapping):
        keys = clipped(", ".join(map(str, list(value)[:20])))
        return f"; {'the object' if depth else 'it'} has {keys}"
    if isinstance(value, (list, tuple)):
        return f"; the list has {len(value)} items"
    return f"; found {'null' if value is None else 'a ' + type(value).__name__} instead of an object or list"
