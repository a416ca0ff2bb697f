"""`outdo grade`, `graders` and `audit`: rewards without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.app import app


@app.command("grade")
def grade_file(
    file: Annotated[
        str, typer.Argument(help="JSON Lines with `completion` and the reward's columns; - reads standard input.")
    ],
    reward: Annotated[str, typer.Option(help="Names, file.py:function or grader.json, separated by commas.")] = "",
    weights: Annotated[str, typer.Option(help="One for each reward, separated by commas.")] = "",
    gate: Annotated[str, typer.Option(help="A reward; the others count only where it is right.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds per answer.")] = 10.0,
    max_completion_length: Annotated[int, typer.Option(min=0, help="In tokens, for overlong and cosine.")] = 0,
    tokenizer: Annotated[str | None, typer.Option(help="A folder or hub name, for rewards that count tokens.")] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Only validate a grader.json.")] = False,
) -> None:
    """Grade answers without training: one grade per line on standard output, a summary on standard error.

    \b
      outdo grade --reward gsm8k answers.jsonl
      outdo grade --reward numeric,format --weights 1.0,0.1 answers.jsonl --out grades.jsonl
      outdo grade --reward grader.json answers.jsonl
      outdo grade --validate grader.json
    """
    from outdo.rewards import command

    if validate:
        command.validate(file)
        return
    names = [name.strip() for name in reward.split(",") if name.strip()]
    encode = None
    if tokenizer:
        from outdo.models.load import load_encoder

        encode = load_encoder(tokenizer)
    options = command.Options(names, weights, gate, timeout, max_completion_length, encode)
    raise typer.Exit(command.grade_file(file, out, options, force))


@app.command()
def graders() -> None:
    """List the built-in graders: what each pays, needs and rejects."""
    from outdo.rewards.registry import GRADERS

    console = Console(highlight=False)
    for name, grader in GRADERS.items():
        console.print(name, style="bold", markup=False)
        console.print(f"  pays      {grader.pays}", markup=False, soft_wrap=True)
        console.print(f"  needs     {', '.join(grader.needs) or 'only the answer'}", markup=False)
        if grader.rejects:
            console.print(f"  rejects   {grader.rejects}", markup=False, soft_wrap=True)
    console.print(
        "\nYour own: file.py:function, package.module:function, or a grader.json in OpenAI's format", markup=False
    )


@app.command()
def audit(
    task: Annotated[str | None, typer.Argument(help="A task, for its prompts and rewards.")] = None,
    reward: Annotated[str, typer.Option(help="Instead of the task's own, separated by commas.")] = "",
    data: Annotated[str | None, typer.Option(help="JSON Lines of prompts to test the reward on.")] = None,
    size: Annotated[int, typer.Option("--size", "-n", min=1, help="Number of prompts.")] = 20,
    task_arg: Annotated[list[str] | None, typer.Option("--task-arg", help="key=value for the task.")] = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds per answer.")] = 10.0,
) -> None:
    """Test whether a reward is fit to train on: gold answers, exploits, determinism, speed. Exit status 0 if it is.

    \b
      outdo audit arithmetic
      outdo audit --reward math
      outdo audit --reward rewards.py:score --data problems.jsonl
    """
    from outdo.recipe.parse import parse_overrides
    from outdo.rewards import command

    raise typer.Exit(command.audit(task or data, reward, size, parse_overrides(task_arg or []), timeout))
