"""Texts with holes: `{{ item.x }}` and `{{ sample.output_json.a[0]['b'] }}`, as OpenAI's graders write them.

A hole holds one path and nothing else: no expressions, no filters. Holes are filled once. What they bring in is never
looked at again, so an answer that contains `{{ item.answer }}` comes through as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outdo.errors import did_you_mean

SAMPLE = ("output_text", "output_json", "output_tools", "choices")  # what `sample` has
_NAMESPACE = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"""\.([\w-]+)|\[(-?\d{1,9})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_SHOWN = 60  # characters of somebody's text that a reason repeats


class TemplateError(ValueError):
    """The template itself cannot be. Says at which column."""


class MissingItem(ValueError):
    """The row has not what a hole asks for: the data's fault, so nobody can judge the answer."""


class MissingSample(ValueError):
    """The answer has not what a hole asks for: the model's fault, so the answer is wrong."""


@dataclass(frozen=True)
class Path:
    """What one hole asks for: a namespace, and keys and indices into it."""

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
    def asks_sample(self) -> bool:
        return any(isinstance(part, Path) and part.namespace == "sample" for part in self.parts)


def parse(text: str) -> Template:
    """Reads a template. Raises TemplateError with the column where it cannot be one, or asks what no row can have."""
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
    """The text with its holes filled: strings as they are, everything else as JSON.

    Raises MissingItem or MissingSample, naming what is not there.
    """
    spaces = {"item": item, "sample": sample}
    return "".join(part if isinstance(part, str) else _filled(part, spaces[part.namespace]) for part in template.parts)


def clipped(text: str) -> str:
    """Somebody's text, short and on one line, for a reason."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _path(text: str, start: int, end: int) -> Path:
    """The path that stands in text[start:end], spaces around it aside."""
    inside = text[start:end]
    at = start + len(inside) - len(inside.lstrip())
    end = start + len(inside.rstrip())
    if at >= end:
        raise TemplateError(f"column {start + 1}: nothing stands between {{{{ and }}}}")
    name = _NAMESPACE.match(text, at, end)
    if name is None or name.group() not in ("item", "sample"):
        shown = clipped(name.group() if name else text[at:end])
        raise TemplateError(f"column {at + 1}: {shown} is not a namespace; there are item and sample")
    steps: list[str | int] = []
    first = at = name.end()
    while at < end:
        step = _STEP.match(text, at, end)
        if step is None:
            raise TemplateError(
                f"column {at + 1}: {clipped(text[at:end])} is no path; write .name, [0] or ['name'] (no expressions)"
            )
        key, index, single, double = step.groups()
        steps.append(int(index) if index is not None else next(k for k in (key, single, double) if k is not None))
        at = step.end()
    path = Path(name.group(), tuple(steps))
    _possible(path, first + 1)
    return path


def _possible(path: Path, column: int) -> None:
    """Refuses what no row and no answer can have."""
    if not path.steps:
        raise TemplateError(f"column {column}: name a variable, as in {{{{ {path.namespace}.{_example(path)} }}}}")
    first = path.steps[0]
    if isinstance(first, int):
        raise TemplateError(f"column {column}: {path.namespace} is no list; name a variable first")
    if path.namespace == "item":
        return
    if first not in SAMPLE:
        meant = did_you_mean(first, SAMPLE, "; did you mean {!r}?")
        raise TemplateError(f"column {column}: sample has no {first!r}, it has {', '.join(SAMPLE)}{meant}")
    if first == "output_text" and len(path.steps) > 1:
        raise TemplateError(f"column {column}: sample.output_text is a text; nothing lies inside it")


def _example(path: Path) -> str:
    return "answer" if path.namespace == "item" else "output_text"


def _filled(path: Path, space: Mapping[str, object]) -> str:
    missing = MissingItem if path.namespace == "item" else MissingSample
    value: object = space
    for number, step in enumerate(path.steps):
        try:
            value = _inside(value, step)
        except LookupError:
            if missing is MissingSample and path.steps[: number + 1] == ("output_json",):
                raise missing("the answer is not JSON") from None
            where = Path(path.namespace, path.steps[: number + 1])
            raise missing(f"{where} is not there{_instead(value, number)}") from None
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise missing(f"{path} cannot be written as JSON: {error}") from None


def _inside(value: object, step: str | int) -> object:
    """What lies at a key or an index. Raises LookupError."""
    if isinstance(value, Mapping) and isinstance(step, str):
        return value[step]
    if isinstance(value, (list, tuple)) and isinstance(step, int):
        return value[step]
    raise LookupError(step)


def _instead(value: object, depth: int) -> str:
    """What was found in place of the missing thing."""
    if isinstance(value, Mapping):
        keys = clipped(", ".join(map(str, list(value)[:20])))
        return f"; {'there' if depth else 'it'} has {keys}"
    if isinstance(value, (list, tuple)):
        return f"; the list there holds {len(value)}"
    return f"; in its place is {'nothing' if value is None else 'a ' + type(value).__name__}"
