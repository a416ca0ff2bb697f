"""`outdo tasks`."""

from __future__ import annotations

import inspect

from rich.console import Console

from outdo.cli.app import app
from outdo.errors import TaskError


@app.command()
def tasks() -> None:
    """List the tasks that can be trained on, each with an example and its rewards."""
    from outdo.tasks.task import TASKS

    out = Console(highlight=False)
    for name, task in TASKS.items():
        try:
            example = next(task.prompts("train", 0))
            shown = f"{example.text}   (answer: {example.answer})"
        except TaskError as error:  # a task that needs a folder
            shown = str(error)
        args = [_format_parameter(p) for p in list(inspect.signature(task.function).parameters.values())[2:]]
        out.print(f"{name}", style="bold", markup=False)
        out.print(f"  example   {shown}", markup=False)
        out.print(f"  rewards   {', '.join(task.rewards)}", markup=False)
        out.print(f"  splits    {', '.join(task.splits)}", markup=False)
        out.print(f"  task_args {', '.join(args)}", markup=False)
    out.print("\nreasoning_gym/NAME, the generators of reasoning-gym (pip install 'outdo[gym]'):", markup=False)
    out.print(f"  {', '.join(_generators()) or 'not installed'}", markup=False)
    out.print(
        "\nAlso: data (a .jsonl file with `prompt` and `answer` on each line, a folder, a hub name), a mixture "
        "(dataset_mixture), or your own function: path/to/file.py:function",
        markup=False,
    )


def _format_parameter(parameter: inspect.Parameter) -> str:
    """As in the function's source: digits: int = 2."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else ""
    bare = str(parameter.replace(annotation=inspect.Parameter.empty))
    name, equals, default = bare.partition("=")
    return f"{name}: {kind}" + (f" = {default}" if equals else "") if kind else bare


def _generators() -> list[str]:
    from outdo.tasks.gym import generators

    try:
        return sorted(generators())
    except TaskError:
        return []
