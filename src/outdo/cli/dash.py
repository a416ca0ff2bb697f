"""`outdo dash`: runs in a browser."""

from __future__ import annotations

import os
import re
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from outdo.cli.app import app
from outdo.errors import RecipeError

TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,256}")  # as it stands in an address and in a cookie


@app.command()
def dash(
    runs: Annotated[Path, typer.Argument(metavar="[RUNS]", help="A folder of runs, or one run.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The next free one where it is taken; 0: any.")] = 8787,
    host: Annotated[str, typer.Option(help="Another than this machine alone gets a token.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help="Ask for this token; default: a random one where needed.")] = None,
    look: Annotated[bool | None, typer.Option("--open/--no-open", help="Open a browser; default: on a screen.")] = None,
    descriptor: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Look at runs in a browser, live: curves, answers, findings, sweeps. Nothing is written.

    \b
      outdo dash
      outdo dash runs/NAME
      outdo dash --host 0.0.0.0
    """
    from outdo.dash.serve import bind, goes_with, inherited, require, serve

    require()
    if token is not None and not TOKEN.fullmatch(token):
        raise RecipeError("--token: give letters, digits and - . _ ~, eight or more, or leave it out")
    if parent is not None:
        goes_with(parent)
    elif not runs.is_dir():
        raise RecipeError(f"{runs} is no folder: name one that runs are in, or train first (outdo train)")
    bound = bind(host, port, token) if descriptor is None else inherited(descriptor)
    if descriptor is None and port not in (0, bound.port):
        print(f"port {port} is taken", file=sys.stderr)
    print(f"outdo dash: {runs} at {bound.address}  (Ctrl-C ends it)", flush=True)
    if _has_window() if look is None else look:
        webbrowser.open(bound.address)
    serve(runs, bound)


def _has_window() -> bool:
    """Whether a browser would be seen: a terminal on a machine with a screen."""
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
