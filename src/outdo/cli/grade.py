"""`outdo tasks`, `graders`, `grade` and `audit`: tasks and rewards without training."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from outdo.cli.app import app
from outdo.errors import GraderError, TaskError
from outdo.untrusted.terminal import PrintableConsole

_REWARD_ARG = "NAME.ARGUMENT=VALUE, an argument of a reward, as in reward_args."
MAX_EXAMPLE_CHARS = 200
_INPUT = "What your function gets as completions: text, messages, or auto (as the prompts are)."


def _input(given: str) -> Any:
    if given not in ("auto", "text", "messages"):
        raise GraderError(f"--input {given}: use auto, text or messages")
    return given


@app.command("grade")
def grade_file(
    file: Annotated[
        str, Argument(help="JSON Lines with `completion` and the reward's columns; - reads standard input.")
    ],
    reward: Annotated[str, Option(help="Names, file.py:function or grader.json, separated by commas.")] = "",
    weights: Annotated[str, Option(help="One for each reward, separated by commas.")] = "",
    gate: Annotated[str, Option(help="A reward; the others count only where it is right.")] = "",
    pass_threshold: Annotated[
        float | None, Option(help="What the first reward pays a right answer; default: 1, or the grader's own.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Default: standard output.")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
    timeout: Annotated[float, Option(min=0.01, help="Seconds per answer.")] = 10.0,
    max_completion_length: Annotated[int, Option(min=0, help="In tokens, for overlong and cosine.")] = 0,
    tokenizer: Annotated[str | None, Option(help="A folder or hub name, for rewards that count tokens.")] = None,
    reward_arg: Annotated[list[str] | None, Option("--reward-arg", help=_REWARD_ARG)] = None,
    reward_input: Annotated[str, Option("--input", help=_INPUT)] = "auto",
    validate: Annotated[bool, Option("--validate", help="Only validate a grader.json.")] = False,
) -> None:
    """Grade answers without training: one grade per line on standard output, a summary on standard error.

    \b
      outdo grade --reward gsm8k answers.jsonl
      outdo grade --reward numeric,format --weights 1.0,0.1 answers.jsonl --out grades.jsonl
      outdo grade --reward grader.json answers.jsonl
      outdo grade --validate grader.json
    """
    from outdo.recipe.parse import parse_overrides
    from outdo.rewards import command

    if validate:
        command.validate(file)
        return
    names = [name.strip() for name in reward.split(",") if name.strip()]
    encode = None
    if tokenizer:
        from outdo.models.load import load_encoder

        encode = load_encoder(tokenizer)
    given = parse_overrides(reward_arg or []), _input(reward_input)
    options = command.Options(
        names, weights, gate, timeout, max_completion_length, encode, *given, pass_threshold=pass_threshold
    )
    raise Exit(command.grade_file(file, out, options, force))


@app.command()
def graders() -> None:
    """List the built-in graders: what each pays, needs and rejects."""
    from outdo.rewards.registry import GRADERS

    console = PrintableConsole()
    for name, grader in GRADERS.items():
        console.print(name, style="bold")
        console.print(f"  pays      {grader.pays}", soft_wrap=True)
        console.print(f"  needs     {', '.join(grader.needs) or 'only the answer'}")
        if grader.rejects:
            console.print(f"  rejects   {grader.rejects}", soft_wrap=True)
    console.print("\nYour own: file.py:function, package.module:function, or a grader.json in OpenAI's format")


@app.command()
def audit(
    task: Annotated[str | None, Argument(help="A task, for its prompts and rewards.")] = None,
    reward: Annotated[str, Option(help="Instead of the task's own, separated by commas.")] = "",
    data: Annotated[str | None, Option(help="JSON Lines of prompts to test the reward on.")] = None,
    size: Annotated[
        int | None, Option("--size", "-n", min=1, help="Number of prompts; default: 20, or 3 if answers cost calls.")
    ] = None,
    task_arg: Annotated[list[str] | None, Option("--task-arg", help="key=value for the task.")] = None,
    timeout: Annotated[float, Option(min=0.01, help="Seconds per answer.")] = 10.0,
    reward_arg: Annotated[list[str] | None, Option("--reward-arg", help=_REWARD_ARG)] = None,
    reward_input: Annotated[str, Option("--input", help=_INPUT)] = "auto",
) -> None:
    """Test whether a reward is fit to train on: gold answers, exploits, determinism, speed.

    Exit status: 0 if it is, 1 if it is not or cannot be known, 2 if no answer could be judged.

    \b
      outdo audit arithmetic
      outdo audit --reward math
      outdo audit --reward rewards.py:score --data problems.jsonl
    """
    from outdo.envs.audit import audit_task
    from outdo.recipe.parse import parse_overrides
    from outdo.rewards import command

    names = [name.strip() for name in reward.split(",") if name.strip()]
    given = {"args": parse_overrides(reward_arg or []), "input": _input(reward_input)}
    options = command.Options(names, timeout=timeout, **given)
    raise Exit(command.audit(task or data, options, size, parse_overrides(task_arg or []), audit_task))


@app.command()
def tasks() -> None:
    """List the tasks that can be trained on, each with an example and its rewards."""
    from outdo.tasks.gym import generators
    from outdo.tasks.task import TASKS

    out = PrintableConsole()
    for name, task in TASKS.items():
        try:
            example = next(task.prompts("train", 0))
            shown = f"{_shortened(example.text)}   (answer: {_shortened(str(example.answer))})"
        except TaskError as error:  # a task that needs a folder
            shown = str(error)
        args = [_format_parameter(p) for p in list(inspect.signature(task.function).parameters.values())[2:]]
        out.print(name, style="bold")
        out.print(f"  example   {shown}")
        out.print(f"  rewards   {', '.join(task.rewards)}")
        if task.environment:
            out.print(f"  played in the environment {task.environment}")
        out.print(f"  splits    {', '.join(task.splits)}")
        out.print(f"  task_args {', '.join(args)}")
    try:
        gym = sorted(generators())
    except TaskError:
        gym = ["not installed"]
    out.print("\nreasoning_gym/NAME, the generators of reasoning-gym (pip install 'outdo[gym]'):")
    out.print(f"  {', '.join(gym)}")
    out.print(
        "\nAlso: data (a .jsonl file with `prompt` and `answer` on each line, a folder, a hub name), a mixture "
        "(dataset_mixture), or your own function: path/to/file.py:function"
    )


def _shortened(text: str) -> str:
    """On one line."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_EXAMPLE_CHARS else f"{line[:MAX_EXAMPLE_CHARS]}…"


def _format_parameter(parameter: inspect.Parameter) -> str:
    """As in the function's source: digits: int = 2."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else ""
    bare = str(parameter.replace(annotation=inspect.Parameter.empty))
    name, equals, default = bare.partition("=")
    return f"{name}: {kind}" + (f" = {default}" if equals else "") if kind else bare
