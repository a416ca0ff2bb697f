"""`outdo train`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from outdo.cli.app import app
from outdo.errors import RecipeError

if TYPE_CHECKING:
    from outdo.config import Recipe
    from outdo.launch import Result


@app.command()
def train(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    look: Annotated[bool, typer.Option("--preflight", help="With --dry-run: load the model and try it too.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run, by its own recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on though something changed; or begin again.")] = False,
    dash: Annotated[bool, typer.Option("--dash", help="Show it in a browser as it goes; see outdo dash.")] = False,
) -> None:
    """Train a model on rewards, by GRPO. Without a recipe: a tiny model from scratch on arithmetic.

    Every key, with its default, is in docs/recipes.md; a recipe is a YAML file of them.

    \b
      outdo train
      outdo train recipes/arithmetic.yaml max_steps=300 learning_rate=1e-4
      outdo train --dry-run num_generations=16
      outdo train --resume runs/NAME
    """
    path, pairs = split_words(words or [])
    from outdo.config import load_recipe, parse_overrides
    from outdo.run import read_run

    if look and not dry_run:
        raise RecipeError("--preflight goes with --dry-run; a run looks first by itself")
    out = Console(highlight=False)
    keys: dict[str, Any] = {}
    if resume and path:
        raise RecipeError(f"--resume goes on by the run's own recipe: leave {path} out, or set keys over it")
    if resume:
        keys = parse_overrides(pairs)
        recipe = load_recipe(None, keys, base_of=read_run(resume)["recipe"])
    else:
        recipe = load_recipe(path, pairs, lambda line: out.print(line, markup=False, soft_wrap=True))
    if dry_run:
        from outdo.dry_run import plan_of

        for line in plan_of(recipe):
            out.print(line, markup=False, soft_wrap=True)
        if look:
            from outdo.preflight import preflight
            from outdo.track.console import PlainLines

            preflight(recipe, PlainLines(out))
        return
    from outdo import api
    from outdo.track.console import make_reporter

    with told_to_stop(), _dashboard(dash, resume or recipe.output_dir, out):
        if resume:
            result = api.train(resume=resume, force=force, reporter=make_reporter(out), **keys)
        else:
            result = api.train(recipe, force=force, reporter=make_reporter(out))
    _tell(result, recipe, out)


def _tell(result: Result, recipe: Recipe, out: Console) -> None:
    """What came of it, where it is, and what to do next."""
    from outdo.track.console import by_stage, print_whole, summary

    if result.stages:
        out.print()
        print_whole(out, by_stage(result.before, result.stages))
    elif result.after:
        out.print()
        print_whole(out, summary(result.before, result.after))
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    numbers = result.folder if result.stages else result.folder / "metrics.jsonl"
    out.print(f"numbers   {numbers}", markup=False, soft_wrap=True)
    following = _eval_words(recipe, result.model, [found.split for found in result.after])
    if not result.stages:
        following.append(shlex.join(["outdo", "plot", str(result.folder)]))
    for number, words in enumerate(following):
        out.print(f"{'next' if not number else '':<10}{words}", markup=False, soft_wrap=True)
    page = result.folder / "report.html"
    if page.exists():
        out.print(f"report    {page}", markup=False, soft_wrap=True)


def _dashboard(wanted: bool, folder: Path | str | None, out: Console) -> AbstractContextManager[None]:
    """A server beside the run, as long as it goes on, that shows the runs it is among."""
    if not wanted:
        return nullcontext()
    from outdo.dash.serve import beside

    run = Path(folder) if folder else Path("runs") / "new"
    root = run.parent if run.resolve().parent.name == "runs" else run
    return beside(root, lambda line: out.print(line, markup=False, soft_wrap=True))


def _eval_words(recipe: Recipe, model: Path, splits: Sequence[str]) -> list[str]:
    """The commands that measure the model again, as the run did: one, for a mixture as many as it takes to tell its
    tasks apart, and none of what has nothing held out. `splits` are those that the run looked at."""
    from outdo.tasks.mixture import Entry
    from outdo.tasks.task import TASKS

    if not recipe.dataset_mixture:
        return [_eval_command(model, recipe, [recipe.model_dump()], splits)] if splits else []
    entries = [Entry(**entry).model_dump() for entry in recipe.dataset_mixture]
    names = [entry["dataset_name"] for entry in entries]
    alike: list[dict[str, Any]] = []  # that one command can ask
    commands: list[str] = []
    for entry, name in zip(entries, names, strict=True):
        entry["reward_funcs"] = entry["reward_funcs"] or recipe.reward_funcs
        own = [kind for kind, _, part in (split.partition("/") for split in splits) if part == (entry["name"] or name)]
        if name in TASKS and names.count(name) == 1 and "test" in own and not entry["system_prompt"]:
            alike.append(entry)
        elif own:
            commands.append(_eval_command(model, recipe, [entry], own))
    return [_eval_command(model, recipe, alike, ["test"]), *commands] if alike else commands


def _eval_command(model: Path, recipe: Recipe, asked: list[dict[str, Any]], splits: Sequence[str]) -> str:
    """One command for tasks by the keys that a recipe has for them."""
    from outdo.tasks.sources import SOURCE_KEYS, Source

    words = ["outdo", "eval", str(model), "--task", ",".join(keys["dataset_name"] for keys in asked)]
    usual = Source("")
    for keys in asked:
        prefix = f"{keys['dataset_name']}." if len(asked) > 1 else ""
        given = {**keys["task_args"], **{f"columns.{ours}": theirs for ours, theirs in keys["columns"].items()}}
        for key, field in SOURCE_KEYS.items():
            if key != "columns" and keys[key] != getattr(usual, field):
                given[key] = keys[key]
        if judge := _judge(keys["dataset_name"], keys["reward_funcs"]):
            words += ["--reward", judge]
        for key, value in given.items():
            words += ["--task-arg", f"{prefix}{key}={_typed(value)}"]
    return shlex.join([*words, *_manner(recipe, asked[0]["system_prompt"], splits)])


def _judge(task: str, rewards: list[str]) -> str | None:
    """The reward that decided success, where it is not the task's own."""
    from outdo import plugins
    from outdo.errors import TaskError
    from outdo.grade.registry import GRADERS
    from outdo.tasks import gsm8k
    from outdo.tasks.sources import is_source
    from outdo.tasks.task import TASKS

    if not rewards or task in (*TASKS, gsm8k.HUB) or task.startswith("reasoning_gym/"):
        return None
    if not is_source(task) and plugins.find(task, TASKS, "outdo.tasks", TaskError).rewards:
        return None
    judges = [name for name in rewards if name not in GRADERS or GRADERS[name].judges]
    return (judges or rewards)[0]


def _manner(recipe: Recipe, own_prompt: str | None, splits: Sequence[str]) -> list[str]:
    """How the run asked, where `outdo eval` would ask otherwise by itself."""
    from outdo.evaluating import Settings

    usual, words = Settings(), list[str]()
    if "test" not in splits:
        words += ["--split", ",".join(splits)]
    if prompt := own_prompt or recipe.system_prompt:
        words += ["--system-prompt", prompt]
    if recipe.max_completion_length != usual.max_completion_length:
        words += ["--max-completion-length", str(recipe.max_completion_length)]
    if recipe.temperature != usual.temperature:
        words += ["--temperature", f"{recipe.temperature:g}"]
    return [*words, *(word for text in recipe.stop for word in ("--stop", text))]


def _typed(value: Any) -> str:
    """A value as it is typed, so that it is read as what it is."""
    text = str(value)
    try:
        same = yaml.safe_load(text) == value
    except yaml.YAMLError:
        same = isinstance(value, str)  # what is no YAML is read as the text that it is
    return text if same else json.dumps(value, default=str)


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
