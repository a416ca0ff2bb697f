"""Parses a YAML recipe file and `key=value` arguments into plain values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from outdo.errors import RecipeError


def read_yaml(path: Path) -> dict[str, Any]:
    """A recipe file's keys and values. Raises RecipeError, which names the file and the line."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
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
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise RecipeError(f"{path}: a recipe consists of `key: value` lines, this is a {type(data).__name__}")
    return data


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a duplicate key, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_value(text: str) -> Any:
    """The value of a command-line argument: YAML's reading of it, but plain text stays as it was typed.

    YAML would cut text at a #, fold its lines and take what precedes a colon for a key.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    bare = text.strip()
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
