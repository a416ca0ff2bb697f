"""`outdo sft`: supervised fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.cli.train import exit_on_signal, split_words
from outdo.errors import RecipeError


@app.command()
def sft(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Resume this run with its own recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume although something changed, or restart.")] = False,
) -> None:
    """Supervised fine-tuning (SFT) on demonstrations: a task's own, or data with completions.

    Keys may omit the prefix sft_: epochs=3 is sft_epochs=3, learning_rate=1e-4 is sft_learning_rate=1e-4.

    \b
      outdo sft
      outdo sft model_name_or_path=./model dataset_name=shown.jsonl epochs=3 learning_rate=1e-4
      outdo sft recipes/arithmetic.yaml steps=200
      outdo sft --resume runs/NAME
    """
    from outdo import api
    from outdo.recipe.load import load_recipe
    from outdo.recipe.parse import parse_overrides
    from outdo.runs.layout import row_path
    from outdo.training.console import make_reporter, print_whole, summary
    from outdo.training.stages import prefixed
    from outdo.training.supervised import held_out_losses

    path, pairs = split_words(words or [])
    if resume and path:
        raise RecipeError(f"--resume uses the run's own recipe: leave {path} out; keys may override it")
    out = Console(highlight=False)
    reporter = make_reporter(out)
    keys: dict[str, Any] = prefixed("sft", parse_overrides(pairs))
    with exit_on_signal():
        if resume:
            result = api.sft(resume=resume, force=force, reporter=reporter, **keys)
        else:
            result = api.sft(load_recipe(path, keys, reporter.note), force=force, reporter=reporter)
    out.print()
    if result.after:
        print_whole(out, summary(result.before, result.after))
    if losses := held_out_losses(result.folder):
        first, last = losses[min(losses)], losses[max(losses)]
        out.print(f"held-out loss  {first:.4f} → {last:.4f}", markup=False)
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    out.print(f"numbers   {row_path(result.folder, 'sft')}", markup=False, soft_wrap=True)
