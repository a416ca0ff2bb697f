"""`outdo push`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from outdo.cli.app import app
from outdo.cli.keys import name_model


@app.command()
def push(
    model: Annotated[str, Argument(help="A run, a checkpoint, a model folder or an adapter.")],
    repo: Annotated[str, Argument(help="NAME, or OWNER/NAME; made where there is none.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, Option(help="The branch to upload to.")] = None,
) -> None:
    """Upload a model to the Hugging Face hub, with the token in HF_TOKEN or of `hf auth login`.

    \b
      outdo push runs/NAME me/my-model
      outdo push runs/NAME me/my-model --private --revision v2
    """
    from outdo.models.hub import push_model

    print(push_model(name_model(model), repo, private=private or None, revision=revision))
