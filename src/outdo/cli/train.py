"""`outdo train`, and `outdo sft`: supervised training alone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from outdo.cli.app import app
from outdo.cli.words import ANY_KEY, as_words, split_words
from outdo.errors import RecipeError
from outdo.untrusted.terminal import PrintableConsole

if TYPE_CHECKING:
    from outdo.training.context import Kind, Result, RunContext


@app.command(context_settings=ANY_KEY)
def train(
    command: Context,
    words: Annotated[list[str] | None, Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    config: Annotated[
        str | None, Option("--config", metavar="RECIPE.yaml", help="The recipe, as TRL's option.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan and exit.")] = False,
    check: Annotated[bool, Option("--preflight", help="With --dry-run: also load the model and try it.")] = False,
    resume: Annotated[
        str | None, Option("--resume", metavar="RUN", help="Resume this run with its own recipe.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Resume although something changed, or restart.")] = False,
    trust: Annotated[bool, Option("--trust", help="Resume another user's run: run the code that it names.")] = False,
    dash: Annotated[bool, Option("--dash", help="Show the run in a browser; see outdo dash.")] = False,
) -> None:
    """Train a model on rewards, by GRPO. Without a recipe: a tiny model from scratch on arithmetic.

    Every key, with its default, is in docs/recipes.md; a recipe is a YAML file of them. A key may also be written as
    an option: --learning_rate 1e-5.

    \b
      outdo train
      outdo train recipes/arithmetic.yaml max_steps=300 learning_rate=1e-4
      outdo train --dry-run num_generations=16
      outdo train --config recipe.yaml --learning_rate 1e-5 --reward_funcs numeric format
      outdo train --resume runs/NAME
    """
    if check and not dry_run:
        raise RecipeError("--preflight needs --dry-run; a run tries the model first by itself")
    out = PrintableConsole()
    context = make_context(as_words(command, words, config), None, resume, force, out, trust)
    if dry_run:
        from outdo.training.dry_run import describe_run, preflight

        out.print("\n".join(describe_run(context)), markup=False, soft_wrap=True)
        if check:
            preflight(context)
        return
    from outdo.training.elsewhere import is_elsewhere
    from outdo.training.launch import launch

    with exit_on_signal(), _dashboard(dash, context.resume or context.recipe.output_dir, out):
        result = launch(context)
    if not is_elsewhere(context.recipe):  # else the run has printed it there
        _report(result, out)


@app.command(context_settings=ANY_KEY)
def sft(
    command: Context,
    words: Annotated[list[str] | None, Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    config: Annotated[
        str | None, Option("--config", metavar="RECIPE.yaml", help="The recipe, as TRL's option.")
    ] = None,
    resume: Annotated[
        str | None, Option("--resume", metavar="RUN", help="Resume this run with its own recipe.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Resume although something changed, or restart.")] = False,
    trust: Annotated[bool, Option("--trust", help="Resume another user's run: run the code that it names.")] = False,
) -> None:
    """Supervised fine-tuning (SFT) on demonstrations: a task's own, or data with completions.

    A key may leave its sft_ out: epochs=3 is sft_epochs=3, learning_rate=1e-4 is sft_learning_rate=1e-4.

    \b
      outdo sft
      outdo sft model_name_or_path=./model dataset_name=shown.jsonl epochs=3 learning_rate=1e-4
      outdo sft recipes/arithmetic.yaml steps=200
      outdo sft --resume runs/NAME
    """
    from outdo.runs.layout import row_path
    from outdo.runs.reader import held_out_losses
    from outdo.training.console import print_whole, summary
    from outdo.training.launch import launch

    out = PrintableConsole()
    context = make_context(as_words(command, words, config), "sft", resume, force, out, trust)
    with exit_on_signal():
        result = launch(context)
    out.print()
    if result.after:
        print_whole(out, summary(result.before, result.after))
    if losses := held_out_losses(result.folder):
        first, last = losses[min(losses)], losses[max(losses)]
        out.print(f"held-out loss  {first:.4f} → {last:.4f}", markup=False)
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    _print_load(result, out)
    out.print(f"numbers   {row_path(result.folder, 'sft')}", markup=False, soft_wrap=True)


def make_context(
    words: list[str] | None,
    kind: Kind | None,
    resume: str | None,
    force: bool,
    out: PrintableConsole,
    trust: bool,
) -> RunContext:
    """What the words of a command ask for: the recipe, if the first is one, and key=value pairs over it."""
    from outdo.recipe.parse import parse_overrides
    from outdo.runs.find import find_run
    from outdo.training import context
    from outdo.training.console import make_reporter
    from outdo.training.stages import prefixed

    path, pairs = split_words(words or [])
    if resume and path:
        raise RecipeError(f"--resume uses the run's own recipe: leave {path} out, or give keys")
    keys = parse_overrides(pairs)
    keys = prefixed("sft", keys) if kind == "sft" else keys
    folder = find_run(resume) if resume else None
    if trust and not resume:
        raise RecipeError("--trust needs --resume: what you name yourself is run anyway")
    given: dict[str, Any] = {"resume": folder, "force": force, "trust": trust}
    given |= {"reporter": make_reporter(out), "where": "command line"}
    return context.make_context(path, kind=kind, **given, overrides=keys)


def _report(result: Result, out: PrintableConsole) -> None:
    """The result, where it is, and what to do next."""
    from outdo.cli.eval_command import eval_commands
    from outdo.report.cost import describe_cost, read_cost
    from outdo.report.held_out import find_changes
    from outdo.runs.layout import report_path, row_path
    from outdo.training.console import print_whole, stages_table, summary

    if result.stages or result.after:
        out.print()
        print_whole(out, stages_table(result.stages) if result.stages else summary(result.before, result.after))
    folders = [result.folder / stage.name for stage in result.stages] or [result.folder]
    for index, one in enumerate(find_changes(folders, result.folder)):
        line = f"{'' if index else 'answers':<10}{one.split}: {one.describe()}"
        out.print(line if index else f"\n{line}", markup=False, soft_wrap=True)
    best = f" (the best: {result.best.describe()})" if result.best else ""
    out.print(f"\nmodel     {result.model}{best}", markup=False, soft_wrap=True)
    _print_load(result, out)
    out.print(f"cost      {describe_cost(read_cost(result.folder))}", markup=False, soft_wrap=True)
    files = (row_path(result.folder, "grpo"), row_path(result.folder, "sft"))
    numbers = result.folder if result.stages else next(filter(Path.exists, files), files[0])
    out.print(f"numbers   {numbers}", markup=False, soft_wrap=True)
    evaluated = next((stage for stage in reversed(result.stages) if stage.after), result)
    commands = eval_commands(evaluated.recipe, result.model, [evaluation.split for evaluation in evaluated.after])
    if not result.stages:
        commands.append(shlex.join(["outdo", "plot", str(result.folder)]))
    for index, command in enumerate(commands):
        out.print(f"{'' if index else 'next':<10}{command}", markup=False, soft_wrap=True)
    if (page := report_path(result.folder)).exists():
        out.print(f"report    {page}", markup=False, soft_wrap=True)


def _print_load(result: Result, out: PrintableConsole) -> None:
    """How transformers loads it: by the run's folder, which has links to the model's files."""
    folder = result.folder if (result.folder / "config.json").exists() else result.model
    out.print(f'load      AutoModelForCausalLM.from_pretrained("{folder}")', markup=False, soft_wrap=True)


def _dashboard(wanted: bool, folder: Path | str | None, out: PrintableConsole) -> AbstractContextManager[None]:
    """A server beside the run that shows the runs it is among."""
    if not wanted:
        return nullcontext()
    from outdo.dash.serve import serve_beside

    run = Path(folder) if folder else Path("runs") / "new"
    root = run.parent if run.resolve().parent.name == "runs" else run
    return serve_beside(root, partial(out.print, markup=False, soft_wrap=True))


@contextmanager
def exit_on_signal(more: str = "finished work is saved") -> Iterator[None]:
    """A signal ends the command with its own status, and a line."""
    try:
        yield
    except KeyboardInterrupt as error:
        print(f"outdo: interrupted; {more}", file=sys.stderr)
        raise Exit(128 + getattr(error, "number", 2)) from None
