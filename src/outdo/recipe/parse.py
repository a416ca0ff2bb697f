"""Parses a YAML recipe file and `key=value` arguments into plain values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from outdo.errors import RecipeError
from outdo.untrusted.parse import MAX_YAML_BYTES, parse_yaml, read_bounded


def read_yaml(path: Path) -> dict[str, Any]:
    """A recipe file's keys and values. Raises RecipeError, which names the file and the line."""
    try:
        data = parse_yaml(read_bounded(path, MAX_YAML_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe; `outdo train` without one runs the default") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: a folder, not a recipe; a model is model_name_or_path={path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise RecipeError(f"{path}{line}: invalid YAML: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:  # a limit
        raise RecipeError(f"{path}: not a recipe that can be read: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise RecipeError(f"{path}: a recipe consists of `key: value` lines, this is a {type(data).__name__}")
    return data


def parse_value(text: str) -> Any:
    """The value of a command-line argument: YAML's reading of it, but plain text stays as it was typed.

    YAML would cut text at a #, fold its lines and take what precedes a colon for a key.
    """
    bare = text.strip()
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    except ValueError as error:
        if bare[:1] in ("[", "{") or bare.lstrip("+-").isdigit():
            raise RecipeError(f"{bare[:20]}…: {error}") from None
        return text
    if isinstance(value, dict | list):
        is_yaml = bare[0] + bare[-1] in ("{}", "[]")
    elif isinstance(value, str):
        is_yaml = bare[0] in "\"'" and bare[-1] == bare[0]
    else:
        is_yaml = "#" not in bare and isinstance(value, int | float | None)
    return value if is_yaml else text


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` arguments as a mapping; `task_args.digits=3` sets a key inside `task_args`."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise RecipeError(f"{pair!r}: expected key=value, such as num_generations=8")
        value = parse_value(text)
        outer, dot, inner = key.partition(".")
        if dot:
            nested = out.setdefault(outer, {})
            if not isinstance(nested, dict):
                raise RecipeError(f"{pair!r}: {outer} was already given as {nested!r}")
            nested[inner] = value
        else:
            out[key] = value
    return out
