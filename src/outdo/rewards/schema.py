"""Parses JSON strictly, and validates it against a JSON Schema (draft 2020-12) in bounded time.

Schemas come with the data and values from the model: neither is trusted. Sizes are bounded and nothing is fetched. A
schema that cannot be checked for plain values (null, {}, [], "", 0) is bad for every answer; one that only this value
makes slow or endless is not satisfied by it. `format` is checked (`outdo.rewards.formats`); an unknown one is an
annotation, as in the draft. Not covered: a `$schema` below the root, and `unevaluatedProperties` together with
`patternProperties`.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from outdo.rewards.ecma import pattern_size
from outdo.rewards.formats import FORMATS

MAX_CHARS = 100_000  # of a JSON text
MAX_DEPTH = 50  # levels below the outermost value
MAX_VALUES = 5_000  # in one JSON text, containers included
MAX_DIGITS = 300  # of an integer: what a double can hold
MAX_PATTERN_CHARS = 500  # of a regular expression in a schema
MAX_PATTERN_SIZE = 20_000  # of the same, with its repeats unrolled
CPU_SECONDS = 0.5  # for one value against one schema
PLAIN_VALUES: tuple[Any, ...] = (None, {}, [], "", 0)  # a schema that fails on one of these fails on every answer

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)  # in this thread's CPU time
_COUNTED = re.compile(r"\{([0-9]{1,9}),?([0-9]{1,9})?\}")
_DOLLAR = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", re.DOTALL)
_NOT_ECMA = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?![:=!<])")


class BadSchema(ValueError):
    """A schema that is invalid, has external references, or cannot be checked in bounded time for a plain value."""


class _Unbounded(Exception):
    """A value that cannot be checked in bounded time."""


def read_json(text: str) -> Any:
    """The single JSON value of a text; 1.0 becomes 1. Raises ValueError.

    Refused: a second value, NaN and infinities (also written 1e999), duplicate keys in an object, an integer of more
    than 300 digits, and texts that are too long, too deep or hold too many values.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} characters of JSON, more than {MAX_CHARS}")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH}") from None
    level, depth, total = [value], 0, 1
    while level := [child for parent in level for child in children(parent)]:
        depth, total = depth + 1, total + len(level)
        if depth > MAX_DEPTH or total > MAX_VALUES:
            raise ValueError(f"JSON nested deeper than {MAX_DEPTH}, or of more than {MAX_VALUES} values")
    return value


def canonical(value: Any) -> str:
    """A text that is the same for two values of `read_json` exactly where JSON has them equal: 1 is 1.0, not true."""
    return json.dumps(value, sort_keys=True)


def refuse_bad_schema(schema: object) -> None:
    """Raises BadSchema."""
    validator = _validator(_as_text(schema))
    if isinstance(validator, str):
        raise BadSchema(validator)


def violation(value: Any, schema: object) -> str | None:
    """Where a value of `read_json` violates a schema, or None. The schema may be JSON text. Raises BadSchema.

    A value that makes the check too slow, or nests deeper than it can follow, violates the schema.
    """
    validator = _validator(_as_text(schema))
    if isinstance(validator, str):
        raise BadSchema(validator)
    try:
        return _violation(value, validator)
    except _Unbounded as error:
        return str(error)


def _violation(value: Any, validator: Any) -> str | None:
    """Raises _Unbounded."""
    token = _DEADLINE.set(time.thread_time() + CPU_SECONDS)
    try:
        error = next(validator.iter_errors(value), None)
    except _Unbounded:
        raise
    except RecursionError:
        raise _Unbounded("the schema is recursive without end, or nested too deep") from None
    except Exception as cause:  # the value is valid JSON: a reference points to something that is not a schema
        raise _Unbounded(f"the schema cannot be applied: {type(cause).__name__}: {str(cause)[:120]!r}") from None
    finally:
        _DEADLINE.reset(token)
    if error is None:
        return None
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"at ${place[:80]}: {error.message[:120]}"


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads(object_pairs_hook=…), in linear time. Raises ValueError for a key that is given twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate key in an object")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _decimal(text: str) -> int | float:
    """The exact integer where the text is one: 1e23 is not the float next to it."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    if not number.is_integer() or len(text) > MAX_DIGITS:
        return number
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else number


_DECODER = json.JSONDecoder(
    object_pairs_hook=unique_object, parse_int=_integer, parse_float=_decimal, parse_constant=_decimal
)


def children(value: Any) -> list[Any]:
    """The values directly in a list or an object."""
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _as_text(schema: object) -> str:
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, (dict, bool)):
        raise BadSchema(f"a schema must be an object, true or false, not a {type(schema).__name__}")
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSchema(f"the schema is not JSON: {error}") from None


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """A validator, or the message why there is none: both are cached."""
    try:
        schema = read_json(text)
        if isinstance(schema, dict):
            # `$schema` would select another validator class than ours.
            schema.pop("$schema", None)
            _check_schema(schema)
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))  # patterns are checked above
    except (SchemaError, regex.error) as error:
        return f"not a schema of draft 2020-12: {str(error).splitlines()[0][:120]}"
    except (ValueError, RecursionError, OverflowError) as error:
        return f"cannot parse the schema: {str(error)[:120]}"
    validator = _BOUNDED(schema, registry=Registry())
    try:
        for value in PLAIN_VALUES:
            _violation(value, validator)
    except _Unbounded as error:
        return str(error)
    return validator


def _check_schema(schema: dict[str, Any]) -> None:
    """Raises for errors that would otherwise show only where an answer reaches them: bad references and patterns."""
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    keywords: set[str] = set()
    level: list[Any] = [schema]
    while level:
        for node in level:
            if not isinstance(node, dict):
                continue
            keywords |= node.keys() & {"patternProperties", "unevaluatedProperties"}
            patterns = node.get("patternProperties")
            for pattern in [node.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]:
                if isinstance(pattern, str):
                    _compiled(pattern)
            for reference in (node.get("$ref"), node.get("$dynamicRef")):
                if isinstance(reference, str):
                    _resolve(resolver, reference)
            if isinstance(node.get("$schema"), str):
                raise ValueError("`$schema` below the root")
        level = [child for node in level for child in children(node)]
    if len(keywords) > 1:
        raise ValueError("unevaluatedProperties together with patternProperties")


def _resolve(resolver: Any, reference: str) -> None:
    try:
        resolver.lookup(reference)
    except Unresolvable:
        raise ValueError(f"unresolvable reference {reference[:80]!r}") from None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    """A pattern with ECMA's meaning: `$` is the end of the text, and `\\d` and `\\w` are ASCII."""
    if (
        len(pattern) > MAX_PATTERN_CHARS
        or _NOT_ECMA.search(pattern)
        or (_COUNTED.search(pattern) and _is_large(pattern))
    ):
        raise ValueError(f"the pattern {pattern[:40]!r} is too long, or not valid in ECMAScript")
    return regex.compile(_DOLLAR.sub(lambda match: match[1] or r"\Z", pattern), regex.ASCII)


def _is_large(pattern: str) -> bool:
    """Whether compiling a pattern may take long, or gigabytes."""
    try:
        return pattern_size(pattern) > MAX_PATTERN_SIZE
    except ValueError:  # another dialect: by its repeats alone
        return (
            math.prod(max(int(number or 0) for number in one) for one in _COUNTED.findall(pattern)) > MAX_PATTERN_SIZE
        )


def _matches(pattern: str, text: str) -> bool:
    remaining = _DEADLINE.get() - time.thread_time()
    try:
        return _compiled(pattern).search(text, timeout=max(remaining, 0.001)) is not None
    except TimeoutError:
        raise _Unbounded(f"the schema's pattern {pattern[:40]!r} takes too long") from None


Errors = Iterator[ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Any]  # (validator, the keyword's value, instance, schema) -> errors


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance[:80]!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Errors:
    for key, value in instance.items() if isinstance(instance, dict) else ():
        for pattern, subschema in patterns.items():
            if _matches(pattern, key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items() if isinstance(instance, dict) else ():
        if key in properties or any(_matches(pattern, key) for pattern in patterns):
            continue
        if subschema is False:
            yield ValidationError(f"the property {key[:80]!r} is not allowed")
        else:
            yield from validator.descend(value, subschema, path=key)


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Errors:
    # jsonschema compares objects pair by pair, in quadratic time.
    if unique and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("duplicate items")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Errors:
    check = FORMATS.get(name) if isinstance(name, str) else None
    if check and isinstance(instance, str) and not check(instance):
        yield ValidationError(f"{instance[:80]!r} is not a {name}")


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Errors:
    # By the decimals as they are written: in floats, 0.07 is no multiple of 0.01.
    if validator.is_type(instance, "number") and (Fraction(repr(instance)) / Fraction(repr(step))).denominator != 1:
        yield ValidationError(f"{instance} is not a multiple of {step}")


def _timed(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if time.thread_time() > _DEADLINE.get():
            raise _Unbounded(f"the schema takes more than {CPU_SECONDS} seconds to check")
        return keyword(validator, value, instance, schema)

    return check


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "format": _format,
    "multipleOf": _multiple_of,
}
_TYPES = Draft202012Validator.TYPE_CHECKER.redefine(  # `read_json` makes every whole number an int
    "integer", lambda checker, value: isinstance(value, int) and not isinstance(value, bool)
)
_BOUNDED: Any = extend(
    Draft202012Validator,
    {name: _timed(check) for name, check in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
    type_checker=_TYPES,
)
