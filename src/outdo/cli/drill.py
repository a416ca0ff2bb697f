"""`outdo drill`: runs that fail on purpose, to test the doctor."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument, Exit, Option

from outdo.cli.app import app
from outdo.cli.train import exit_on_signal
from outdo.parallel.host import one_thread

if TYPE_CHECKING:
    from outdo.drills.perform import Performed


@app.command()
def drill(
    names: Annotated[list[str] | None, Argument(metavar="[NAME … | all]", help="Default: list them.")] = None,
    seed: Annotated[int, Option(min=0, help="Of the warm-up and of every run.")] = 0,
    out: Annotated[Path, Option("--out", "-o", help="Parent of the folders drill-NAME.")] = Path("runs"),
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Make a small run fail on purpose, and check that the doctor names the failure and that one change fixes it.

    Each takes about a minute of one core. Exit status 0 if all pass, 1 if one does not.

    \b
      outdo drill
      outdo drill kl-blowup
      outdo drill all --seed 1
    """
    one_thread()  # else results would depend on the number of cores
    from outdo.drills.registry import DRILLS, find_drills

    console = Console(highlight=False, stderr=as_json)
    notify = partial(console.print, markup=False, soft_wrap=True)
    if not names:
        if as_json:
            print(json.dumps({name: drill.shows for name, drill in DRILLS.items()}, indent=2))
            return
        for name, drill in DRILLS.items():
            notify(f"{name:<18}{drill.shows}")
        return
    chosen = find_drills(names)
    from outdo.drills.perform import perform

    results: list[Performed] = []
    with exit_on_signal():
        for each in perform(chosen, out, seed, notify):
            results.append(each)
            _show(each, console)
    if as_json:
        print(json.dumps([each.row() for each in results], indent=2, default=str))
    elif len(results) > 1:
        _summary(results, console)
    raise Exit(0 if all(each.outcome.passed for each in results) else 1)


def _show(done: Performed, console: Console) -> None:
    for check in done.outcome.checks:
        console.print(f"  [{'green' if check.held else 'bold red'}]{'ok' if check.held else 'NO'}[/]  ", end="")
        console.print(check.line, markup=False, soft_wrap=True)
    style, word = ("bold green", "PASS") if done.outcome.passed else ("bold red", "FAIL")
    where = done.outcome.picture or done.folder
    console.print(f"[{style}]{word}[/]  ", end="")
    console.print(f"{done.drill.name}  {done.seconds:.0f} s  {where}", markup=False, soft_wrap=True)


def _summary(results: list[Performed], console: Console) -> None:
    console.print()
    for each in results:
        word = "PASS" if each.outcome.passed else "FAIL"
        line = f"{word}  {each.drill.name:<18}{each.seconds:5.0f} s {each.cpu_seconds:5.0f} s of CPU"
        console.print(line, markup=False, soft_wrap=True)
    passed = sum(each.outcome.passed for each in results)
    minutes = sum(each.seconds for each in results) / 60
    console.print(f"{passed} of {len(results)} drills pass, in {minutes:.1f} minutes")
