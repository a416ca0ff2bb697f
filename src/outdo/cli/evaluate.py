"""`outdo eval`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.app import app


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
