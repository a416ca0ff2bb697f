"""The command line: parse, call, print.

Exit status: 0 done, 1 failed, 2 bad input, 3 halted by a guard, 130 and 143 told to stop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.errors import OutdoError, RecipeError, TaskError
from outdo.host import share_cores

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Trains language models with GRPO on rewards that a program can check.

\b
  outdo train                                   the default: a tiny model learns arithmetic, about two minutes
  outdo train recipes/arithmetic.yaml seed=1    a recipe, with keys set over it
  outdo train --dry-run num_generations=16      what a run would do and take
  outdo train dataset_name=my.jsonl reward_funcs=rewards.py:score model_name_or_path=./model
  outdo eval runs/NAME/model --task arithmetic  how good a saved model is
  outdo tasks                                   what there is to train on
  outdo graders                                 what there is to grade with
  outdo grade --reward gsm8k answers.jsonl      grade answers without training
  outdo audit arithmetic                        whether a reward is fit to train on
""",
)


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
    path, pairs = _split(words or [])
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

        for line in describe(recipe):
            out.print(line, markup=False, soft_wrap=True)
        return
    from outdo import api
    from outdo.track.console import make_reporter, summary

    try:
        if resume:
            result = api.train(resume=resume, force=force, reporter=make_reporter(out), **keys)
        else:
            result = api.train(recipe, force=force, reporter=make_reporter(out))
    except KeyboardInterrupt as error:
        print("outdo: told to stop; what was done is kept", file=sys.stderr)
        raise typer.Exit(128 + getattr(error, "number", 2)) from None
    if result.after:
        out.print()
        out.print(summary(result.before, result.after))
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    out.print(f"numbers   {result.folder / 'metrics.jsonl'}", markup=False, soft_wrap=True)
    args = "".join(f" --task-arg {key}={value}" for key, value in recipe.task_args.items())
    out.print(f"next      outdo eval {result.model} --task {recipe.dataset_name}{args}", markup=False, soft_wrap=True)
    out.print(f"          outdo plot {result.folder}", markup=False, soft_wrap=True)


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder or hub name.")],
    task: Annotated[str, typer.Option(help="A task's name, a .jsonl file, or file.py:function.")] = "arithmetic",
    split: Annotated[str, typer.Option(help="test, ood or train.")] = "test",
    size: Annotated[int, typer.Option("--size", "-n", min=1, help="Problems.")] = 200,
    samples: Annotated[int, typer.Option(min=0, help="Sampled answers to each, for pass@k; 0: greedy only.")] = 10,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the samples.")] = 1.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Tokens.")] = 256,
    reward: Annotated[str | None, typer.Option(help="Judge by this reward instead of the task's own.")] = None,
    task_arg: Annotated[list[str] | None, typer.Option("--task-arg", help="key=value for the task.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
) -> None:
    """Measure a saved model on held-out problems.

    \b
      outdo eval runs/NAME/model --task arithmetic
      outdo eval runs/NAME/model --task arithmetic --split ood --samples 0
      outdo eval ./model --task problems.jsonl --reward numeric -n 500
    """
    from outdo import api
    from outdo.config import parse_overrides
    from outdo.track.console import interval

    found = api.evaluate(
        model,
        task,
        split,
        size=size,
        samples=samples,
        temperature=temperature,
        max_completion_length=max_completion_length,
        task_args=parse_overrides(task_arg or []),
        reward=reward,
        device=device,
        seed=seed,
    )
    out = Console(highlight=False)
    out.print(f"{task} {split}, {found.n} problems", markup=False)
    out.print(f"success   {interval(found)}  (greedy, 95% interval)", markup=False)
    for k, value in found.pass_at.items():
        out.print(f"pass@{k:<4} {value:.3f}  ({samples} samples at temperature {temperature:g})", markup=False)
    if found.broken:
        out.print(f"broken    {found.broken} answers could not be judged and are left out", markup=False)


@app.command("grade")
def grade_file(
    file: Annotated[
        str, typer.Argument(help="JSON Lines with `completion` and the reward's columns; -: standard input.")
    ],
    reward: Annotated[str, typer.Option(help="Names, file.py:function or grader.json; several with commas.")] = "",
    weights: Annotated[str, typer.Option(help="One for each reward, with commas.")] = "",
    gate: Annotated[str, typer.Option(help="A reward: the others pay only where it is right.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: standard output.")] = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds for one answer.")] = 10.0,
    max_completion_length: Annotated[int, typer.Option(min=0, help="Tokens, for overlong and cosine.")] = 0,
    tokenizer: Annotated[str | None, typer.Option(help="A folder or hub name, for rewards that count tokens.")] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Only check a grader.json.")] = False,
) -> None:
    """Grade answers without training: a grade a line on standard output, a summary on standard error.

    \b
      outdo grade --reward gsm8k answers.jsonl
      outdo grade --reward numeric,format --weights 1.0,0.1 answers.jsonl --out grades.jsonl
      outdo grade --reward grader.json answers.jsonl
      outdo grade --validate grader.json
    """
    from outdo.grade import command

    if validate:
        command.validate(file)
        return
    names = [name.strip() for name in reward.split(",") if name.strip()]
    encode = None
    if tokenizer:
        from outdo.models.load import load_encoder

        encode = load_encoder(tokenizer)
    options = command.Options(names, weights, gate, timeout, max_completion_length, encode)
    raise typer.Exit(command.grade_file(file, out, options))


@app.command()
def graders() -> None:
    """The built-in graders: what each pays, needs and refuses."""
    from outdo.grade.registry import GRADERS

    console = Console(highlight=False)
    for name, grader in GRADERS.items():
        console.print(name, style="bold", markup=False)
        console.print(f"  pays      {grader.pays}", markup=False, soft_wrap=True)
        console.print(f"  needs     {', '.join(grader.needs) or 'nothing but the answer'}", markup=False)
        if grader.refuses:
            console.print(f"  refuses   {grader.refuses}", markup=False, soft_wrap=True)
    console.print(
        "\nAlso: path/to/file.py:function, package.module:function, or a grader.json (OpenAI's)", markup=False
    )


@app.command()
def audit(
    task: Annotated[str | None, typer.Argument(help="A task: its own rewards are tried on its prompts.")] = None,
    reward: Annotated[str, typer.Option(help="Instead of the task's own; several with commas.")] = "",
    data: Annotated[str | None, typer.Option(help="JSON Lines of prompts to try the reward on.")] = None,
    size: Annotated[int, typer.Option("--size", "-n", min=1, help="Prompts.")] = 20,
    task_arg: Annotated[list[str] | None, typer.Option("--task-arg", help="key=value for the task.")] = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds for one answer.")] = 10.0,
) -> None:
    """Say whether a reward is fit to train on: gold, exploits, steadiness, speed. Exit status 0 only where it is.

    \b
      outdo audit arithmetic
      outdo audit --reward math
      outdo audit --reward rewards.py:score --data problems.jsonl
    """
    from outdo.config import parse_overrides
    from outdo.grade import command

    raise typer.Exit(command.audit(task or data, reward, size, parse_overrides(task_arg or []), timeout))


@app.command()
def tasks() -> None:
    """What there is to train on, with an example and its rewards."""
    import inspect

    from outdo.tasks.task import TASKS

    out = Console(highlight=False)
    for name, task in TASKS.items():
        try:
            example = next(task.prompts("train", 0))
            asks = f"{example.text}   (answer: {example.answer})"
        except TaskError as error:  # one that needs a folder
            asks = str(error)
        args = [str(p) for p in list(inspect.signature(task.function).parameters.values())[2:]]
        out.print(f"{name}", style="bold", markup=False)
        out.print(f"  asks      {asks}", markup=False)
        out.print(f"  rewards   {', '.join(task.rewards)}", markup=False)
        out.print(f"  splits    {', '.join(task.splits)}", markup=False)
        out.print(f"  task_args {', '.join(args)}", markup=False)
    out.print("\nreasoning_gym/NAME, the generators of reasoning-gym (pip install 'outdo[gym]'):", markup=False)
    out.print(f"  {', '.join(_generators()) or 'not installed'}", markup=False)
    out.print(
        "\nAlso: a .jsonl file with `prompt` and `answer` on each line, or your own: path/to/file.py:function",
        markup=False,
    )


def _generators() -> list[str]:
    from outdo.tasks.gym import generators

    try:
        return sorted(generators())
    except TaskError:
        return []


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="PNG or SVG; default: curves.png in the run.")] = None,
) -> None:
    """Draw a run's curves."""
    from outdo.track.plot import plot_run

    path = plot_run(run, out or run / "curves.png")
    print(path)


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """The recipe, if the first word is one, and the key=value pairs."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words


def main() -> None:
    """The `outdo` command. Bad input and failures are told in a sentence; a traceback needs OUTDO_DEBUG=1."""
    share_cores()
    debug = bool(os.environ.get("OUTDO_DEBUG"))
    try:
        app()
    except SystemExit as end:
        if end.code in (130, 143):  # told to stop: threads that still grade are not waited for
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
    except OutdoError as error:
        if debug:
            raise
        print(f"outdo: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        print(
            f"outdo: failed: {type(error).__name__}: {error}\n"
            "This is not an error that outdo foresaw; OUTDO_DEBUG=1 shows where it happened",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
