"""`outdo sweep`, and `outdo compare` for any runs."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.cli.train import exit_on_signal, split_words
from outdo.errors import RecipeError, RunError
from outdo.runs.outputs import refuse_folder

if TYPE_CHECKING:
    from outdo.sweeps.drive import Drive
    from outdo.sweeps.grid import Sweep


@app.command()
def sweep(
    words: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE.yaml] [key=a,b,c …]")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Its folder; default: runs/sweep-NAME.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Cells that run at once; they share the cores.")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="Run this setting or cell alone; may be given again.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the result as a page, with its picture beside it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json instead of the table.")] = False,
) -> None:
    """Train every combination of the listed values, and say which to take.

    The same command again goes on where it was stopped. A list in brackets is one value.

    \b
      outdo sweep num_generations=4,8,16 beta=0,0.05,0.2 seed=0,1,2
      outdo sweep recipes/arithmetic.yaml reward_funcs=numeric,[numeric,format] --parallel 2
      outdo sweep recipes/ablation_variants.yaml --report docs/results/variants.md
    """
    from outdo.cli.child import start
    from outdo.sweeps.drive import open_folder, run_cells
    from outdo.sweeps.grid import read_sweep

    path, pairs = split_words(words or [])
    console = Console(highlight=False, stderr=as_json)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    if report:
        refuse_folder(report, "--report")
    found = read_sweep(path, pairs, say)
    _refuse_unknown(found, only or [])
    folder = out or Path("runs") / f"sweep-{Path(path).stem if path else 'default'}-{found.fingerprint}"
    if dry_run:
        for cell in found.cells:
            say(f"cell-{cell.name}  {cell.setting}")
        say(f"{len(found.cells)} cells, to be made in {folder}")
        return
    drive = open_folder(found, folder, start)
    say(f"{len(found.cells)} cells in {folder}")
    with exit_on_signal(f"the same command goes on with {folder}"):
        run_cells(drive, parallel, say, only or [])
    _say_passed([line for lines in drive.passed.values() for line in lines])
    if report:
        _write_page(drive, report, shlex.join(["outdo", *sys.argv[1:]]))
    if as_json:
        print((folder / "sweep.json").read_text(encoding="utf-8"), end="")
    else:
        _show(drive, console)
    if failed := [name for name, row in drive.rows.items() if row["status"] == "failed"]:
        raise RunError(
            f"{len(failed)} of {len(drive.rows)} cells failed, {failed[0]} the first; their logs are beside them"
        )


def _say_passed(passed: list[str]) -> None:
    from outdo.runs.reader import describe_skipped

    if passed:
        print(describe_skipped(passed), file=sys.stderr)


def _refuse_unknown(found: Sweep, only: list[str]) -> None:
    """What would fail in every cell, or choose none, is said before the first starts."""
    from outdo.rewards.choose import rewards_of
    from outdo.sweeps.report import FURTHER
    from outdo.tasks.mixture import task_of

    known = {name for cell in found.cells for name in (cell.name, cell.setting)}
    for name in only:
        if name not in known:
            settings = ", ".join(dict.fromkeys(cell.setting for cell in found.cells))
            raise RecipeError(f"--only {name}: there is no such setting; there are {settings}")
    for name in found.columns:
        if name not in FURTHER:
            raise RecipeError(f"sweep: columns: {name!r} is none of {', '.join(FURTHER)}")
    seen = set()
    for cell in found.cells:
        keys = (
            "dataset_name",
            "task_args",
            "columns",
            "dataset_mixture",
            "reward_funcs",
            "reward_weights",
            "reward_gate",
        )
        told = json.dumps([cell.definition[key] for key in keys], sort_keys=True)
        if told not in seen:
            seen.add(told)
            try:
                rewards_of(cell.recipe, task_of(cell.recipe), {})
            except (RecipeError, ValueError) as error:
                raise RecipeError(f"cell {cell.name}: {error}") from None


def _show(drive: Drive, console: Console) -> None:
    from outdo.sweeps.analysis import settings_of
    from outdo.sweeps.choice import choose
    from outdo.sweeps.report import heat_map, notes, table

    settings, varied = settings_of(list(drive.rows.values())), drive.sweep.varied
    console.print()
    console.print(table(settings, console.width, drive.sweep.columns))
    if len(varied) == 2 and all(set(varied) == s.keys.keys() for s in settings):
        console.print(f"\nsuccess by {varied[0]} (down) and {varied[1]}", markup=False)
        console.print(heat_map(settings, varied))
    for line in notes(settings):
        console.print(line, markup=False, soft_wrap=True)
    choice = choose(settings, drive.sweep.default)
    console.print(f"\n{'take  ' if choice.name else ''}{choice.why}", markup=False)
    console.print(f"\nrows      {drive.folder / 'sweep.json'}", markup=False, soft_wrap=True)
    if picture := _picture(drive, drive.folder / "sweep.png"):
        console.print(f"picture   {picture}", markup=False, soft_wrap=True)


def _picture(drive: Drive, path: Path) -> Path | None:
    """None where matplotlib is not there: the table says the same."""
    from outdo.sweeps.analysis import settings_of
    from outdo.sweeps.draw import draw

    settings = settings_of(list(drive.rows.values()))
    if not any(s.success is not None for s in settings):
        return None
    try:
        return draw(settings, drive.sweep.varied, drive.sweep.title, path)
    except RunError:
        return None


def _write_page(drive: Drive, path: Path, command: str) -> None:
    from outdo.runs.files import disk_errors
    from outdo.sweeps.analysis import settings_of
    from outdo.sweeps.choice import choose
    from outdo.sweeps.report import page

    settings = settings_of(list(drive.rows.values()))
    ended = [row for row in drive.rows.values() if row["status"] in ("done", "halted")]
    recipes = [cell.recipe for cell in drive.sweep.cells]
    lengths, sizes = _listed(r.max_steps for r in recipes), _listed(r.answers_per_step for r in recipes)
    each = f"{lengths} steps each, {sizes} answers a step"
    facts = {
        "made by": f"`{command}`",
        "cells": f"{len(ended)} of {len(drive.rows)} ended; {each}",
        "success": "of greedy answers to held-out problems, mean over seeds; `gain` is against the model before GRPO",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
    }
    with disk_errors(path, "name another place with --report"):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = _picture(drive, path.with_suffix(".png"))
        text = page(
            *(drive.sweep.title, drive.sweep.about, settings, choose(settings, drive.sweep.default), facts),
            picture.name if picture else None,
            drive.sweep.columns,
            drive.sweep.default,
        )
        path.write_text(text, encoding="utf-8")


def _listed(values: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(values))))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the first is what the others are compared with.")],
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON.")] = False,
) -> None:
    """Show runs side by side: the keys in which they differ, what each came to, and whether that is more than noise.

    \b
      outdo compare runs/ONE runs/TWO
    """
    from outdo.sweeps import compare as side

    if len(runs) < 2:
        raise RecipeError("there is one run, and nothing to compare it with: name two or more")
    passed: list[str] = []
    found = side.read(runs, passed)
    _say_passed(passed)
    if as_json:
        print(json.dumps(side.as_json(found), indent=2))
        return
    console = Console(highlight=False)
    for part in side.tables(found, console.width):
        console.print(part)
    for line in side.words(found):
        console.print(line, markup=False, soft_wrap=True)
