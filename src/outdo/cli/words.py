"""The words of a command: a recipe, and keys as `key=value`, or as options, as TRL's commands take them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from typer import Context

from outdo.errors import RecipeError, did_you_mean

ANY_KEY = {"ignore_unknown_options": True}  # of a command: options that it does not have are keys, in its words
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")


def as_words(command: Context, words: Sequence[str] | None, config: str | None = None) -> list[str]:
    """The recipe first, and keys that are written as options as `key=value`. Raises RecipeError for a misspelled option
    of the command."""
    options = [name for parameter in command.command.params for name in parameter.opts if name.startswith("--")]
    out = list(_as_pairs(list(words or ()), options))
    recipes = [word for word in out if "=" not in word]
    if config:
        recipes.insert(0, config)
    if len(recipes) > 1:
        raise RecipeError(
            f"{recipes[1]!r}: expected key=value, such as num_generations=8; the recipe is {recipes[0]} already"
        )
    return [*recipes, *(word for word in out if "=" in word)]


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe, if the first word is one, and the key=value pairs."""
    if words and "=" not in words[0]:
        return words[0], list(words[1:])
    return None, list(words)


def _as_pairs(words: list[str], options: Sequence[str]) -> Iterator[str]:
    while words:
        word = words.pop(0)
        option = _OPTION.fullmatch(word)
        if option is None:
            yield word
            continue
        key = option[1].replace("-", "_")
        _refuse_misspelled(option[1], key, options)
        kind = _kind(key)
        if option[2] is not None:
            yield f"{key}={option[2]}"
        elif kind is bool and not (words and words[0].lower() in _BOOLEANS):
            yield f"{key}=true"
        elif kind is None and key.startswith("no_") and _kind(key[3:]) is bool:  # as transformers' parser has them
            yield f"{key[3:]}=false"
        else:
            yield f"{key}={_values(words, many=kind is list, ours=kind is not None) or 'true'}"


def _values(words: list[str], many: bool, ours: bool) -> str:
    """Takes the values that follow an option off the words: one, or as many as there are for a list. A key that is not
    ours may be a switch, which has none."""
    from outdo.recipe.parse import parse_value

    taken: list[str] = []
    while words and not _OPTION.fullmatch(words[0]) and (many or not taken):
        if (taken or not ours) and re.fullmatch(r"[\w.]+=.*|.+\.ya?ml", words[0], re.DOTALL):
            break  # a key, or the recipe
        taken.append(words.pop(0))
    return json.dumps([parse_value(text) for text in taken]) if len(taken) > 1 else "".join(taken)


def _kind(key: str) -> Any:
    """What a key holds: bool, list or another type; None where it is not one of ours."""
    from outdo.recipe.foreign import SYNONYMS
    from outdo.recipe.schema import Recipe

    outer = key.partition(".")[0]
    field = Recipe.model_fields.get(SYNONYMS.get(outer, outer))
    if field is None or outer != key:
        return None if field is None else Any
    kind = field.annotation
    return list if get_origin(kind) is list or any(get_origin(one) is list for one in get_args(kind)) else kind


def _refuse_misspelled(text: str, key: str, options: Sequence[str]) -> None:
    from outdo.recipe.foreign import is_foreign

    is_known = _kind(key) is not None or is_foreign({key: None}, {})
    near = did_you_mean(text.replace("_", "-"), [name[2:] for name in options], "--{}")
    if near and not is_known:
        raise RecipeError(f"--{text}: no such option or key; did you mean {near}?")
