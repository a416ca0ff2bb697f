"""`outdo sft`: supervised training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.cli.train import exit_on_signal, make_context


@app.command()
def sft(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=value …]")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Resume this run with its own recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume although something changed, or restart.")] = False,
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

    out = Console(highlight=False)
    context = make_context(words, "sft", resume, force, out, kind="sft")
    with exit_on_signal():
        result = launch(context)
    out.print()
    if result.after:
        print_whole(out, summary(result.before, result.after))
    if losses := held_out_losses(result.folder):
        first, last = losses[min(losses)], losses[max(losses)]
        out.print(f"held-out loss  {first:.4f} → {last:.4f}", markup=False)
    out.print(f"\nmodel     {result.model}", markup=False, soft_wrap=True)
    out.print(f"numbers   {row_path(result.folder, 'sft')}", markup=False, soft_wrap=True)
