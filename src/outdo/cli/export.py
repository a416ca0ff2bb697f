"""`outdo export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outdo.cli.app import app
from outdo.cli.keys import name_model


@app.command()
def export(
    model: Annotated[str, Argument(help="A run, a checkpoint, a model folder, an adapter, a .gguf, a hub name.")],
    out: Annotated[Path, Option("--out", "-o", help="A new folder.")],
    gguf: Annotated[Path | None, Option(help="Also write a GGUF file, with llama.cpp's converter.")] = None,
    dtype: Annotated[str, Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Write any model as one Hugging Face folder, with its adapter merged.

    \b
      outdo export runs/NAME --out ./model
      outdo export runs/NAME/checkpoints/step-000040 --out ./model --dtype bfloat16
      outdo export runs/NAME --out ./model --gguf model.gguf
    """
    from outdo.models.export import export_model

    for path in export_model(name_model(model), out, gguf, dtype):
        print(path)
