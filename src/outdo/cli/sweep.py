"""`outdo sweep`, and `outdo compare` for any runs."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from outdo.cli.app import OptionalCount, app
from outdo.cli.train import exit_on_signal
from outdo.cli.words import ANY_KEY, as_words, split_words
from outdo.errors import RecipeError, RunError
from outdo.parallel.launch import refuse_launch
from outdo.runs.outputs import refuse_folder
from outdo.untrusted.terminal import PrintableConsole

if TYPE_CHECKING:
    from outdo.sweeps.drive import Drive
    from outdo.sweeps.grid import Cell, Sweep


@app.command(context_settings=ANY_KEY)
def sweep(
    command: Context,
    words: Annotated[list[str] | None, Argument(metavar="[RECIPE.yaml] [key=a,b,c …]")] = None,
    config: Annotated[
        str | None, Option("--config", metavar="RECIPE.yaml", help="The recipe, as TRL's option.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder; default: runs/sweep-NAME.")] = None,
    jobs: Annotated[
        int | None,
        Option("--jobs", "-j", "--parallel", min=1, help="Cells at once; default: one on each GPU, or one at a time."),
    ] = None,
    only: Annotated[list[str] | None, Option(help="Run only this setting or cell; repeatable.")] = None,
    report: Annotated[Path | None, Option(help="Write the result as Markdown, with a picture.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="List the cells and stop.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print sweep.json instead of the table.")] = False,
) -> None:
    """Train every combination of the listed values, and report which to pick.

    The same command resumes a sweep that was stopped. A list in brackets is one value.

    \b
      outdo sweep num_generations=4,8,16 beta=0,0.05,0.2 seed=0,1,2
      outdo sweep recipes/arithmetic.yaml reward_funcs=numeric,[numeric,format] --jobs 2
      outdo sweep recipes/ablation_variants.yaml --report docs/results/variants.md
    """
    from outdo.cli.child import start
    from outdo.sweeps.drive import open_folder, run_cells
    from outdo.sweeps.grid import read_sweep

    refuse_launch(
        "sweep", "Start it without a launcher: each of its cells gets a GPU, and --jobs sets how many run at once"
    )
    path, pairs = split_words(as_words(command, words, config))
    console = PrintableConsole(stderr=as_json)
    notify = partial(console.print, markup=False, soft_wrap=True)
    if report:
        refuse_folder(report, "--report")
    sweep = read_sweep(path, pairs, notify)
    _refuse_unknown(sweep, only or [])
    folder = out or Path("runs") / f"sweep-{Path(path).stem if path else 'default'}-{sweep.fingerprint}"
    if dry_run:
        for cell in sweep.cells:
            notify(f"cell-{cell.name}  {cell.setting}")
        notify(f"{len(sweep.cells)} cells, to run in {folder}")
        return
    drive = open_folder(sweep, folder, start)
    notify(f"{len(sweep.cells)} cells in {folder}")
    with exit_on_signal(f"the same command resumes {folder}"):
        run_cells(drive, jobs, notify, only or [])
    _report_skipped([line for lines in drive.skipped.values() for line in lines])
    if report:
        _write_page(drive, report, shlex.join(["outdo", *sys.argv[1:]]))
    if as_json:
        print(json.dumps(drive.summary(), indent=1))
    else:
        _show(drive, console)
    if failed := [name for name, row in drive.rows.items() if row["status"] == "failed"]:
        raise RunError(f"{len(failed)} of {len(drive.rows)} cells failed; see {folder}/cell-{failed[0]}.log")


def _report_skipped(skipped: list[str]) -> None:
    from outdo.runs.reader import describe_skipped

    if skipped:
        print(describe_skipped(skipped), file=sys.stderr)


def _refuse_unknown(sweep: Sweep, only: list[str]) -> None:
    """Refuses what would fail in every cell, or select none, before the first starts."""
    from outdo.rewards.choose import rewards_of
    from outdo.sweeps.report import EXTRA_COLUMNS
    from outdo.tasks.mixture import task_of

    names = {name for cell in sweep.cells for name in (cell.name, cell.setting)}
    for name in only:
        if name not in names:
            settings = ", ".join(dict.fromkeys(cell.setting for cell in sweep.cells))
            raise RecipeError(f"--only {name}: no such setting; the settings are {settings}")
    for name in sweep.columns:
        if name not in EXTRA_COLUMNS:
            raise RecipeError(f"sweep: columns: {name!r} is not one of {', '.join(EXTRA_COLUMNS)}")
    keys = ("dataset_name", "task_args", "columns", "dataset_mixture", "reward_funcs", "reward_weights", "reward_gate")
    distinct: dict[str, Cell] = {}
    for cell in sweep.cells:
        distinct.setdefault(json.dumps([cell.definition[key] for key in keys], sort_keys=True), cell)
    for cell in distinct.values():
        try:
            rewards_of(cell.recipe, task_of(cell.recipe), {})
        except (RecipeError, ValueError) as error:
            raise RecipeError(f"cell {cell.name}: {error}") from None


def _show(drive: Drive, console: PrintableConsole) -> None:
    from outdo.sweeps.grid import SWEEP_FILE
    from outdo.sweeps.report import heat_map, notes, table

    settings, varied, choice = drive.settings, drive.sweep.varied, drive.choice
    console.print()
    console.print(table(settings, console.width, drive.sweep.columns))
    if len(varied) == 2 and all(set(varied) == s.keys.keys() for s in settings):
        console.print(f"\n{settings[0].metric} by {varied[0]} (down) and {varied[1]}", markup=False)
        console.print(heat_map(settings, varied))
    for line in notes(settings):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"\n{'pick  ' if choice.name else ''}{choice.why}", markup=False)
    console.print(f"\nrows      {drive.folder / SWEEP_FILE}", markup=False, soft_wrap=True)
    if picture := _picture(drive, drive.folder / "sweep.png"):
        console.print(f"picture   {picture}", markup=False, soft_wrap=True)


def _picture(drive: Drive, path: Path) -> Path | None:
    """None where matplotlib is not installed or nothing is evaluated: the table has the same numbers."""
    from outdo.sweeps.draw import draw

    with suppress(RunError):
        if any(s.value is not None for s in drive.settings):
            return draw(drive.settings, drive.sweep.varied, drive.sweep.title, path)
    return None


def _write_page(drive: Drive, path: Path, command: str) -> None:
    from outdo.runs.files import disk_errors, write_atomic
    from outdo.sweeps.report import page

    ended = [row for row in drive.rows.values() if row["status"] in ("done", "halted")]
    recipes = [cell.recipe for cell in drive.sweep.cells]
    lengths, sizes = _listed(r.max_steps for r in recipes), _listed(r.answers_per_step for r in recipes)
    each = f"{lengths} steps each, {sizes} answers per step"
    facts = {
        "command": f"`{command}`",
        "cells": f"{len(ended)} of {len(drive.rows)} ended; {each}",
        "success": "of greedy answers to held-out problems, mean over seeds; `gain` is over the model before GRPO",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
    }
    with disk_errors(path, "choose another path with --report"):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = _picture(drive, path.with_suffix(".png"))
        text = page(drive.sweep, drive.settings, drive.choice, facts, picture.name if picture else None)
        write_atomic(path, text)


def _listed(values: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(values))))


@app.command(cls=OptionalCount)
def compare(
    runs: Annotated[
        list[Path], Argument(help="Runs of any trainer, by folder or name; the others are compared with the first.")
    ],
    answers: Annotated[
        int | None,
        Option("--answers", metavar="[N]", min=0, help="Print N answers gained and lost; 5 if N is left out."),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Compare runs: the keys in which they differ, the result of each, and whether the difference is more than noise.

    --answers prints held-out answers side by side; of one run, before and after training.

    \b
      outdo compare runs/ONE runs/TWO
      outdo compare runs/ONE runs/TWO --answers
      outdo compare runs/ONE --answers 10
    """
    from outdo.cli.viewed import print_notes
    from outdo.doctor.compare import describe_sides
    from outdo.runs.find import try_find_viewable
    from outdo.sweeps import answers as answer_changes
    from outdo.sweeps import compare as compared

    if len(runs) < 2 and answers is None:
        raise RecipeError("one run has nothing to compare with: name two or more, or add --answers")
    runs = [try_find_viewable(run) or run for run in runs]
    for run in runs:
        print_notes(run)
    skipped: list[str] = []
    sides = compared.read(runs, skipped)
    _report_skipped(skipped)
    changes, missing = answer_changes.all_changes(runs)
    if as_json:
        print(
            json.dumps(compared.as_json(sides) | {"answers": answer_changes.as_json(changes, answers or 0)}, indent=2)
        )
        return
    console = PrintableConsole()
    for part in compared.tables(sides, console.width) if len(sides) > 1 else ():
        console.print(part)
    for line in describe_sides(sides):
        console.print(line, markup=False, soft_wrap=True)
    for line in [line for one in changes for line in answer_changes.lines(one, answers or 0)]:
        console.print(line, markup=False, soft_wrap=True)
    for line in missing if answers is not None else ():
        console.print(line, markup=False, soft_wrap=True)
