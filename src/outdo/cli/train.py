"""`outdo train`, and `outdo plot` to see what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.errors import RecipeError


@app.command()
def train(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run, by its own recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on although something that matters has changed.")] = False,
) -> None:
    """Train a model. Without a recipe: a tiny model from scratch on arithmetic.

    \b
      outdo train
      outdo train recipes/arithmetic.yaml max_steps=300 learning_rate=1e-4
      outdo train --dry-run num_generations=16
      outdo train --resume runs/NAME
    """
    path, pairs = split_words(words or [])
    from outdo.config import load_recipe, parse_overrides
    from outdo.run import read_run

    out = Console(highlight=False)
    keys: dict[str, Any] = {}
    if resume and path:
        raise RecipeError(f"--resume goes on by the run's own recipe: leave {path} out, or set keys over it")
    if resume:
        keys = parse_overrides(pairs)
        recipe = load_recipe(None, keys, base_of=read_run(resume)["recipe"])
    else:
        recipe = load_recipe(path, pairs, lambda line: out.print(line, markup=False))
    if dry_run:
        from outdo.plan import describe
        from outdo.stages import read_stages
        from outdo.tasks.lengths import in_steps
        from outdo.tasks.mixture import task_of
        from outdo.tasks.overlap import told

        task = task_of(recipe)
        planned = [stage.told() for stage in read_stages(recipe)]
        for line in [*describe(in_steps(recipe, task)), *told(task), *planned]:
            out.print(line, markup=False, soft_wrap=True)
        return
    from outdo import api
    from outdo.track.console import by_stage, make_reporter, summary

    with told_to_stop():
        if resume:
            result = api.train(resume=resume, force=force, reporter=make_reporter(out), **keys)
        else:
            result = api.train(recipe, force=force, reporter=make_reporter(out))
    if result.stages:
        out.print()
        out.print(by_stage(result.before, result.stages))
    elif result.after:
        out.print()
        out.print(summary(result.before, result.after))
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    numbers = result.folder if result.stages else result.folder / "metrics.jsonl"
    out.print(f"numbers   {numbers}", markup=False, soft_wrap=True)
    first = recipe.dataset_mixture[0] if recipe.dataset_mixture else {}
    name, task_args = first.get("dataset_name", recipe.dataset_name), first.get("task_args", recipe.task_args)
    args = "".join(f" --task-arg {key}={value}" for key, value in task_args.items())
    out.print(f"next      outdo eval {result.model} --task {name}{args}", markup=False, soft_wrap=True)
    if not result.stages:
        out.print(f"          outdo plot {result.folder}", markup=False, soft_wrap=True)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="PNG or SVG; default: curves.png in the run.")] = None,
) -> None:
    """Draw a run's curves."""
    from outdo.track.plot import plot_run

    path = plot_run(run, out or run / "curves.png")
    print(path)


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """The recipe, if the first word is one, and the key=value pairs."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words


@contextmanager
def told_to_stop(more: str = "what was done is kept") -> Iterator[None]:
    """A signal ends the command with its own status, and a word."""
    try:
        yield
    except KeyboardInterrupt as error:
        print(f"outdo: told to stop; {more}", file=sys.stderr)
        raise typer.Exit(128 + getattr(error, "number", 2)) from None
