"""Keys of a recipe beside a command's options: `outdo eval MODEL --samples 8 top_p=0.9`."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

from outdo.errors import RecipeError

if TYPE_CHECKING:
    from outdo.recipe.schema import Recipe


def split_models(words: Sequence[str], most: int | None = None) -> tuple[list[str], list[str]]:
    """Models, and key=value words. A path that contains `=` is a model where it exists and does not start with a key.
    Raises RecipeError where no model is named, or more than `most`."""
    from outdo.recipe.schema import Recipe

    models: list[str] = []
    pairs: list[str] = []
    for word in words:
        key, equals, _ = word.partition("=")
        is_ours = key.partition(".")[0] in Recipe.model_fields
        is_key = is_ours or (re.fullmatch(r"[\w.]+", key) and not Path(word).exists())
        (pairs if equals and is_key else models).append(word)
    models = [name_model(word) for word in models]
    if not models:
        raise RecipeError("name a model: a folder, a hub name, or a run")
    if most and len(models) > most:
        raise RecipeError(f"expected one model, and key=value words: {', '.join(models)}")
    return models, pairs


def name_model(word: str) -> str:
    """The model, or the run of that name in runs/. A prefix of one is no name here: `gpt2` is a model on the hub."""
    if "/" in word or word in ("tiny", "smollm2") or word.endswith(".gguf") or Path(word).exists():
        return word
    from outdo.runs.find import run_names, try_find_run

    found = try_find_run(word) if word in run_names() else None
    return word if found is None else str(found)


def given_options(context: Context) -> dict[str, Any]:
    """The options that the user gave, by parameter name; not the defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name: context.params[name] for name, source in sources.items() if source and source.name != "DEFAULT"}


def refuse_both(keys: Mapping[str, Any], options: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raises RecipeError where a key and an option set the same thing. `names` has the key of each option."""
    for option in options:
        if names.get(option) in keys:
            raise RecipeError(f"--{option.replace('_', '-')} and {names[option]}= set the same thing: give one of them")


def read_keys(keys: Mapping[str, Any], used: Collection[str]) -> tuple[Recipe, set[str]]:
    """A recipe of these keys, and their canonical names. Raises RecipeError for one that is unknown or not `used`."""
    from outdo.recipe.load import load_recipe

    recipe = load_recipe(None, keys, lambda line: print(line, file=sys.stderr), base_of={})
    given = {key for key in recipe.model_fields_set if getattr(recipe, key) != {}}
    if unused := sorted(given - set(used)):
        raise RecipeError(f"{unused[0]}= has no effect here; the keys used are {', '.join(sorted(used))}")
    return recipe, given
