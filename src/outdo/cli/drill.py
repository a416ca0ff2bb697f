"""`outdo drill`: runs that fail on purpose, to test the doctor."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from outdo.cli.app import app
from outdo.cli.train import exit_on_signal
from outdo.host import one_thread
from outdo.untrusted.terminal import PrintableConsole

if TYPE_CHECKING:
    from outdo.drills.perform import Performed


@app.command()
def drill(
    names: Annotated[list[str] | None, Argument(metavar="[NAME … | all]", help="Default: list them.")] = None,
    seed: Annotated[list[int] | None, Option(min=0, help="Of the warm-up and of every run; may be repeated.")] = None,
    jobs: Annotated[int, Option("--jobs", "-j", min=1, help="Drills at once, each with one core.")] = 1,
    out: Annotated[Path, Option("--out", "-o", help="Parent of the folders drill-NAME.")] = Path("runs"),
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Make a small run fail on purpose, and check that the doctor names the failure and that one change fixes it.

    Each takes about a minute of one core. Exit status 0 if all pass, 1 if one does not.

    \b
      outdo drill
      outdo drill kl-blowup
      outdo drill all --jobs 2
      outdo drill sparse overfit --seed 0 --seed 1 --seed 2
    """
    one_thread()  # else results would depend on the number of cores
    from outdo.drills.registry import DRILLS, find_drills

    console = PrintableConsole(stderr=as_json)
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
        for each in perform(chosen, out, list(dict.fromkeys(seed or [0])), notify, jobs):
            results.append(each)
            _show(each, console)
    if as_json:
        print(json.dumps([each.row() for each in results], indent=2, default=str))
    elif len(results) > 1:
        _summary(results, console)
    raise Exit(0 if all(each.outcome.passed for each in results) else 1)


def _show(done: Performed, console: PrintableConsole) -> None:
    for check in done.outcome.checks:
        console.print(
            f"  [{'green' if check.held else 'bold red'}]{'ok' if check.held else 'NO'}[/]  ", end="", markup=True
        )
        console.print(check.line, markup=False, soft_wrap=True)
    style, word = ("bold green", "PASS") if done.outcome.passed else ("bold red", "FAIL")
    where = done.outcome.picture or done.folder
    console.print(f"[{style}]{word}[/]  ", end="", markup=True)
    console.print(f"{done.drill.name}  seed {done.seed}  {done.seconds:.0f} s  {where}", markup=False, soft_wrap=True)


def _summary(results: list[Performed], console: PrintableConsole) -> None:
    """A line for each drill; with several seeds, a cell for each. Held-out success is that of the last split."""
    seeds = sorted({each.seed for each in results})
    console.print(f"\n{'held-out success':<18}" + "".join(f"{f'seed {seed}':<26}" for seed in seeds), soft_wrap=True)
    for name in dict.fromkeys(each.drill.name for each in results):
        cells = {each.seed: _cell(each) for each in results if each.drill.name == name}
        line = f"{name:<18}" + "".join(f"{cells.get(seed, '–'):<26}" for seed in seeds)
        console.print(line.rstrip(), markup=False, soft_wrap=True)
    passed = sum(each.outcome.passed for each in results)
    cpu = sum(each.cpu_seconds for each in results) / 60
    console.print(f"{passed} of {len(results)} drills pass, in {cpu:.1f} minutes of one core")


def _cell(done: Performed) -> str:
    word = "PASS" if done.outcome.passed else "FAIL"
    points = list(done.outcome.facts.get("held_out", {}).values())[-1:]
    if not points or None in points[0].values():
        return f"{word} {done.cpu_seconds:.0f} s"
    failing, fixed = points[0]["failing"], points[0]["fixed"]
    return f"{word} {failing:.2f} → {fixed:.2f}, {done.cpu_seconds:.0f} s"
