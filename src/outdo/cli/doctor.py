"""`outdo doctor`: what is wrong with a run, with another trainer's curves, or with this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.errors import RecipeError

MARKS = {"ok": "green", "missing": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    target: Annotated[Path | None, typer.Argument(metavar="RUN|FILE", help="A run's folder, or metrics.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A list of findings.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Look at this machine instead.")] = False,
    treat: Annotated[
        bool, typer.Option("--treat", help="Make the change, run on from before it began, and see.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=5, help="To run on for; default: as many as are expected.")] = None,
    into: Annotated[
        Path | None, typer.Option("--out", help="The treated run's folder; default: beside the run.")
    ] = None,
) -> None:
    """Name what is wrong with a run, from its curves and answers: evidence, one change, and what should answer.

    A file may be another trainer's: CSV, JSON or JSON Lines under outdo's names, TRL's or verl's, or what it printed;
    so may the folder of a TRL run. Exit status 0 where it could be diagnosed, ill or not. With --treat: 0 where the
    expected signal answered to the change, 1 where not.

    \b
      outdo doctor runs/NAME
      outdo doctor runs/NAME --json
      outdo doctor runs/NAME --treat
      outdo doctor trainer_state.json
      outdo doctor --system
    """
    if system == (target is not None) or (system and treat):
        raise RecipeError("outdo doctor takes a run's folder or a file of metrics, or --system alone")
    if not treat and (steps or into):
        raise RecipeError("--steps and --out are for a treatment: they go with --treat")
    out = Console(highlight=False)
    if target is None:
        _system(out, as_json)
        return
    if treat:
        raise typer.Exit(0 if _treated(target, Console(highlight=False, stderr=as_json), as_json, steps, into) else 1)
    from outdo.doctor.read import read_history
    from outdo.doctor.rules import diagnose
    from outdo.doctor.show import show
    from outdo.runs.reader import describe_skipped

    history = read_history(target)
    findings = diagnose(history)
    if history.passed:
        print(describe_skipped(history.passed), file=sys.stderr)
    if as_json:
        print(json.dumps([finding.row() for finding in findings], indent=2))
        return
    out.print(f"{target}: {len(history)} steps", markup=False, soft_wrap=True)
    show(findings, out)


def _treated(run: Path, out: Console, as_json: bool, steps: int | None, into: Path | None) -> bool:
    """Whether the expected signal answered."""
    from outdo.cli.train import exit_on_signal
    from outdo.training.treating import treat

    with exit_on_signal():
        done = treat(run, out, steps, into)
    if as_json:
        print(json.dumps(done.row(), indent=2))
        return done.answered
    out.print(f"\n{done.finding.code}, treated for {done.steps} steps", style="bold", markup=False)
    out.print(f"  change    {done.finding.change.pair() if done.finding.change else ''}", markup=False, soft_wrap=True)
    out.print(f"  {done.signal}: {done.ill:.4g} where it was ill → {done.treated:.4g} treated", markup=False)
    out.print(f"  answered  {'yes' if done.answered else 'no'}", markup=False)
    out.print(f"  doctor    {done.now}", markup=False, soft_wrap=True)
    return done.answered


def _system(out: Console, as_json: bool) -> None:
    from outdo.doctor.system import check_system

    checks = check_system()
    if as_json:
        print(json.dumps([check.row() for check in checks], indent=2))
        return
    for check in checks:
        out.print(f"[{MARKS[check.worth]}]{check.worth:<8}[/]{check.name:<14}", end="")
        out.print(check.found, markup=False, soft_wrap=True)
        if check.do:
            out.print(f"{'':<22}{check.do}", markup=False, soft_wrap=True)
