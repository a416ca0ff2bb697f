"""`outdo harvest`: right answers of a model's own, as demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.cli.train import report_interrupt
from outdo.errors import RecipeError
from outdo.runs.outputs import refuse_file


@app.command()
def harvest(
    model: Annotated[str, typer.Argument(help="A model's folder or name, or a run's folder.")],
    task: Annotated[str, typer.Option(help="A task's name, a .jsonl file, or file.py:function.")] = "arithmetic",
    samples: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 8,
    size: Annotated[int, typer.Option("--size", "-n", min=0, help="Prompts; 0: all, where they have an end.")] = 1000,
    keep: Annotated[int, typer.Option(min=1, help="Of a prompt's distinct right answers, at most.")] = 4,
    teacher: Annotated[bool, typer.Option("--teacher", help="The task's own demonstrations beside them.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON Lines.")] = Path("demonstrations.jsonl"),
    temperature: Annotated[float, typer.Option(min=0.01)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0)] = 1.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Tokens; an answer cut there is not kept.")] = 256,
    split: Annotated[str, typer.Option(help="Of the task.")] = "train",
    reward: Annotated[str | None, typer.Option(help="Judge by this reward instead of the task's own.")] = None,
    task_arg: Annotated[list[str] | None, typer.Option("--task-arg", help="key=value for the task.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Put before every prompt.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
) -> None:
    """Sample many answers and keep the distinct ones that are right, to be imitated: rejection sampling.

    Stopped and started again with the same words, it goes on.

    \b
      outdo harvest runs/NAME --task arithmetic --task-arg ops=+ --samples 16 --out right.jsonl
      outdo sft model_name_or_path=./model sft_dataset_name=right.jsonl epochs=2
    """
    from outdo.recipe.load import load_recipe
    from outdo.recipe.parse import parse_overrides
    from outdo.training.console import make_reporter
    from outdo.training.context import make_context
    from outdo.training.harvest import harvest_to

    refuse_file(out, over=True)  # one of another harvest, or of none, is refused where it is opened
    keys: dict[str, Any] = {
        "model_name_or_path": model,
        "dataset_name": task,
        "task_args": parse_overrides(task_arg or []),
        "harvest": {"samples": samples, "size": size, "keep": keep, "teacher": teacher},
        **{"temperature": temperature, "top_p": top_p, "max_completion_length": max_completion_length},
        **{"reward_funcs": [reward] if reward else [], "system_prompt": system_prompt},
        **{"dtype": dtype, "device": device, "seed": seed},
    }
    reporter = make_reporter(Console(highlight=False))
    context = make_context(load_recipe(None, base_of=keys), kind="harvest", reporter=reporter)
    if not size and not context.task.finite:
        raise RecipeError(f"--size 0: task {task} makes problems without end: give a number")
    with report_interrupt("the same command resumes"):
        harvest_to(context, out, split)
