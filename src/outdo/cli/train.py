"""`outdo train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.errors import RecipeError

if TYPE_CHECKING:
    from outdo.recipe.schema import Recipe
    from outdo.training.launch import Result


@app.command()
def train(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")] = False,
    check: Annotated[bool, typer.Option("--preflight", help="With --dry-run: also load the model and try it.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Resume this run with its own recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume although something changed, or restart.")] = False,
    dash: Annotated[bool, typer.Option("--dash", help="Show the run in a browser; see outdo dash.")] = False,
) -> None:
    """Train a model on rewards with GRPO. Without a recipe: a tiny model from scratch on arithmetic.

    A recipe is a YAML file of keys; docs/recipes.md lists them with their defaults.

    \b
      outdo train
      outdo train recipes/arithmetic.yaml max_steps=300 learning_rate=1e-4
      outdo train --dry-run num_generations=16
      outdo train --resume runs/NAME
    """
    path, pairs = split_words(words or [])
    from outdo.recipe.load import load_recipe
    from outdo.recipe.parse import parse_overrides
    from outdo.runs.manifest import read_manifest

    if check and not dry_run:
        raise RecipeError("--preflight needs --dry-run; a run does the preflight checks itself")
    out = Console(highlight=False)
    keys: dict[str, Any] = {}
    if resume and path:
        raise RecipeError(f"--resume uses the run's own recipe: leave {path} out; keys may override it")
    if resume:
        keys = parse_overrides(pairs)
        recipe = load_recipe(None, keys, base_of=read_manifest(resume).recipe)
    else:
        recipe = load_recipe(path, pairs, lambda line: out.print(line, markup=False, soft_wrap=True))
    if dry_run:
        from outdo.training.dry_run import plan_of

        for line in plan_of(recipe):
            out.print(line, markup=False, soft_wrap=True)
        if check:
            from outdo.training.console import PlainLines
            from outdo.training.preflight import preflight

            preflight(recipe, PlainLines(out))
        return
    from outdo import api
    from outdo.training.console import make_reporter

    with exit_on_signal(), _dashboard(dash, resume or recipe.output_dir, out):
        if resume:
            result = api.train(resume=resume, force=force, reporter=make_reporter(out), **keys)
        else:
            result = api.train(recipe, force=force, reporter=make_reporter(out))
    _print_result(result, recipe, out)


def _print_result(result: Result, recipe: Recipe, out: Console) -> None:
    """What the run achieved, where it is, and what to do next."""
    from outdo.cli.eval_command import eval_commands
    from outdo.evals.stages import read_stage, stages_table
    from outdo.runs.layout import report_path, row_path
    from outdo.training.console import print_whole, summary

    splits = [evaluation.split for evaluation in result.after]
    if result.stages:
        stages = [read_stage(result.folder / name) for name, _ in result.stages]
        recipe, splits = next(((s.recipe, list(s.after)) for s in reversed(stages) if s.after), (recipe, splits))
        out.print()
        print_whole(out, stages_table(stages))
    elif result.after:
        out.print()
        print_whole(out, summary(result.before, result.after))
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    files = [row_path(result.folder, kind) for kind in ("grpo", "sft")]  # a supervised run has the second alone
    numbers = result.folder if result.stages else next(filter(Path.exists, files), files[0])
    out.print(f"numbers   {numbers}", markup=False, soft_wrap=True)
    commands = eval_commands(recipe, result.model, splits)
    if not result.stages:
        commands.append(shlex.join(["outdo", "plot", str(result.folder)]))
    for number, command in enumerate(commands):
        out.print(f"{'next' if not number else '':<10}{command}", markup=False, soft_wrap=True)
    page = report_path(result.folder)
    if page.exists():
        out.print(f"report    {page}", markup=False, soft_wrap=True)


def _dashboard(requested: bool, folder: Path | str | None, out: Console) -> AbstractContextManager[None]:
    """Serves the dashboard of the run's parent folder while the run lasts."""
    if not requested:
        return nullcontext()
    from outdo.dash.serve import beside

    run = Path(folder) if folder else Path("runs") / "new"
    root = run.parent if run.resolve().parent.name == "runs" else run
    return beside(root, lambda line: out.print(line, markup=False, soft_wrap=True))


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """The recipe's path, if the first word is one, and the key=value pairs."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words


@contextmanager
def exit_on_signal(hint: str = "finished work is saved") -> Iterator[None]:
    """Ends the command on Ctrl-C or SIGTERM with that signal's exit status and a message."""
    try:
        yield
    except KeyboardInterrupt as error:
        print(f"outdo: stopped; {hint}", file=sys.stderr)
        raise typer.Exit(128 + getattr(error, "number", 2)) from None
