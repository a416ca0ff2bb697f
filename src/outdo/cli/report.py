"""`outdo report`: a run as one page to send; `outdo plot`: its curves as a picture."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outdo.cli.app import app
from outdo.errors import RunError
from outdo.runs.outputs import refuse_foreign

PAGE = {
    ".html": (b'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"/><meta http-equiv="Content-Security',)
}
PICTURES = {".png": (b"\x89PNG",), ".svg": (b"<?xml", b"<svg"), ".pdf": (b"%PDF",)}


@app.command()
def report(
    run: Annotated[str, Argument(metavar="RUN", help="A run's folder, or its name under runs/.")],
    out: Annotated[Path | None, Option("--out", "-o", help="HTML file; default: in the run's folder.")] = None,
) -> None:
    """Write a run as one page to send: verdict, curves, findings, answers before and after, recipe.

    The page is one file that loads nothing; where matplotlib is installed, the curves are also written beside it as a
    PNG. Every run writes its report when it ends; this command writes it again.

    \b
      outdo report runs/NAME
      outdo report runs/NAME --out for-you.html
    """
    from outdo.report.plot import find_run, plot_runs
    from outdo.report.write import write_report

    if out:
        refuse_foreign(out, PAGE)
        refuse_foreign(out.with_suffix(".png"), PICTURES)
    folder = find_run(run)
    path = write_report(folder, out)
    print(path)
    if not find_spec("matplotlib"):
        print("no PNG beside it: that needs pip install 'outdo[plot]'")
        return
    try:
        print(plot_runs([folder], path.with_suffix(".png"), notify=partial(print, file=sys.stderr)))
    except RunError as error:
        print(f"no PNG beside it: {error}")


@app.command()
def plot(
    runs: Annotated[list[str], Argument(metavar="RUN …", help="A run's folder or name; several are overlaid.")],
    out: Annotated[Path | None, Option("--out", "-o", help="Picture; default: curves.png in the run.")] = None,
    signals: Annotated[str, Option(help="Signals, comma-separated, such as reward_mean,kl_mean.")] = "",
) -> None:
    """Draw the curves of one or several runs.

    \b
      outdo plot runs/NAME
      outdo plot runs/ONE runs/OTHER --signals success_rate,kl_mean --out both.png
    """
    from outdo.report.plot import find_run, plot_runs

    if out:
        refuse_foreign(out, PICTURES)
    folders = [find_run(run) for run in runs]
    wanted = [name.strip() for name in signals.split(",") if name.strip()]
    print(plot_runs(folders, out or folders[0] / "curves.png", wanted or None, partial(print, file=sys.stderr)))
