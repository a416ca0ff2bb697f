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
    run: Annotated[str, Argument(metavar="RUN", help="A run's folder, of any trainer, or its name under runs/.")],
    out: Annotated[Path | None, Option("--out", "-o", help="HTML file; default: in the run's folder.")] = None,
) -> None:
    """Write a run as one page to send: verdict, curves, findings, answers before and after, recipe.

    The page is one file that loads nothing; where matplotlib is installed, the curves are also written beside it as a
    PNG. Every run writes its report when it ends; this command writes it again.

    \b
      outdo report runs/NAME
      outdo report runs/NAME --out for-you.html
    """
    from outdo.cli.viewed import find_viewed
    from outdo.report.plot import plot_runs
    from outdo.report.write import write_report
    from outdo.runs.find import place_beside
    from outdo.runs.foreign.translate import source_of
    from outdo.runs.layout import REPORT

    if out:
        _refuse_others(out)
    (folder,) = find_viewed([run])
    if out is None and source_of(folder) is not None:
        _refuse_others(out := place_beside(folder, REPORT))
    path = write_report(folder, out)
    print(path)
    if not find_spec("matplotlib"):
        print("no PNG beside it: that needs pip install 'outdo[plot]'")
        return
    try:
        print(plot_runs([folder], path.with_suffix(".png"), notify=partial(print, file=sys.stderr)))
    except RunError as error:
        print(f"no PNG beside it: {error}")


def _refuse_others(out: Path) -> None:
    refuse_foreign(out, PAGE)
    refuse_foreign(out.with_suffix(".png"), PICTURES)


@app.command()
def plot(
    runs: Annotated[
        list[str], Argument(metavar="RUN …", help="A run's folder, of any trainer, or its name; several are overlaid.")
    ],
    out: Annotated[Path | None, Option("--out", "-o", help="Picture; default: curves.png in the run.")] = None,
    signals: Annotated[str, Option(help="Signals, comma-separated, such as reward_mean,kl_mean.")] = "",
) -> None:
    """Draw the curves of one or several runs.

    \b
      outdo plot runs/NAME
      outdo plot runs/ONE runs/OTHER --signals success_rate,kl_mean --out both.png
    """
    from outdo.cli.viewed import find_viewed
    from outdo.report.plot import plot_runs
    from outdo.runs.find import place_beside

    if out:
        refuse_foreign(out, PICTURES)
    folders = find_viewed(runs)
    if out is None:
        refuse_foreign(out := place_beside(folders[0], "curves.png"), PICTURES)
    wanted = [name.strip() for name in signals.split(",") if name.strip()]
    print(plot_runs(folders, out, wanted or None, partial(print, file=sys.stderr)))
