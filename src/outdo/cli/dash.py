"""`outdo dash`: runs in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outdo.cli.app import app
from outdo.errors import RecipeError


@app.command()
def dash(
    runs: Annotated[Path, Argument(metavar="[RUNS]", help="A folder of runs, or one run, also by its name.")] = Path(
        "runs"
    ),
    port: Annotated[int, Option(min=0, max=65535, help="Port; the next free one if it is taken. 0: any.")] = 8787,
    host: Annotated[str, Option(help="Address to listen on; one that is not local gets a token.")] = "127.0.0.1",
    token: Annotated[str | None, Option(help="Require this token; default: a random one where needed.")] = None,
    browse: Annotated[bool | None, Option("--open/--no-open", help="Open a browser; default: auto.")] = None,
    descriptor: Annotated[int | None, Option("--fd", hidden=True)] = None,
    parent: Annotated[int | None, Option("--parent", hidden=True)] = None,
) -> None:
    """Show runs live in a browser: curves, answers, findings, sweeps. Read-only.

    Runs of TRL, verl and prime-rl, and TensorBoard's and W&B's files, are shown beside ours.

    \b
      outdo dash
      outdo dash runs/NAME
      outdo dash --host 0.0.0.0
    """
    from outdo.dash.serve import EXTRA, follow_parent, serve
    from outdo.runs.find import try_find_run
    from outdo.runs.foreign.sources import recognise
    from outdo.web.sockets import bind, check_token, inherit, require

    require(*EXTRA)
    check_token(token)
    if parent is not None:
        follow_parent(parent)
    elif (found := try_find_run(runs)) is not None:
        runs = found
    elif runs.is_file() and recognise(runs.resolve().parent, runs.resolve()):
        runs = runs.parent
    elif not runs.is_dir():
        raise RecipeError(f"{runs} is not a folder: name a folder of runs, or train first (outdo train)")
    bound = bind(host, port, token) if descriptor is None else inherit(descriptor, token)
    if descriptor is None and port not in (0, bound.port):
        print(f"port {port} is taken", file=sys.stderr)
    print(f"outdo dash: {runs} at {bound.address}  (stop with Ctrl-C)", flush=True)
    if _has_display() if browse is None else browse:
        webbrowser.open(bound.address)
    serve(runs, bound)


def _has_display() -> bool:
    """Whether a browser would be seen: a terminal on a machine with a display."""
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
