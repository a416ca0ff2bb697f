"""`outdo convert`: a recipe for another trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from outdo.cli.app import app
from outdo.cli.words import ANY_KEY, as_words, split_words


@app.command(context_settings=ANY_KEY)
def convert(
    command: Context,
    words: Annotated[
        list[str] | None,
        Argument(metavar="[RECIPE] [key=value …]", help="A YAML file; none: the default recipe. And keys over it."),
    ] = None,
    to: Annotated[str, Option("--to", help="trl, unsloth, open-r1, verl or rft.")] = "trl",
    out: Annotated[
        Path | None, Option("--out", "-o", help="A folder, or the main file in one; default: TASK-TARGET.")
    ] = None,
    allow_missing: Annotated[
        bool, Option("--allow-missing", help="Convert although something that decides the training is left out.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Overwrite files.")] = False,
) -> None:
    """Write a recipe as a script or a configuration of another trainer, with its data and rewards; it needs no outdo.

    \b
      outdo convert recipes/arithmetic.yaml --to trl --out ./arithmetic-trl
      outdo convert recipes/arithmetic.yaml sft_steps=0 --to rft
      outdo convert dataset_name=problems.jsonl reward_funcs=numeric model_name_or_path=./model --to verl
    """
    from outdo.bridges.convert import convert as convert_recipe
    from outdo.recipe.load import load_recipe

    path, pairs = split_words(as_words(command, words))
    recipe = load_recipe(path, pairs, lambda line: print(line, file=sys.stderr))
    done = convert_recipe(recipe, to, out, str(path or ""), allow_missing=allow_missing, force=force)
    for written in done.paths:
        print(written)
    for title, items in (("not carried over", done.lost), ("differs", done.notes)):
        for item in items:
            print(f"{title}: {item}", file=sys.stderr)
