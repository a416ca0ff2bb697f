"""`outdo doctor`: diagnoses a run, another trainer's curves, or this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from outdo.cli.app import app
from outdo.errors import RecipeError
from outdo.untrusted.terminal import PrintableConsole

STYLES = {"ok": "green", "missing": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    target: Annotated[Path | None, Argument(metavar="RUN|FILE", help="A run's folder or name, metrics, or -.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the findings as JSON.")] = False,
    system: Annotated[bool, Option("--system", help="Check this machine instead.")] = False,
    treat: Annotated[
        bool, Option("--treat", help="Apply the change, resume from before the onset, and test it.")
    ] = False,
    steps: Annotated[int | None, Option(min=5, help="Steps with the change; default: as expected.")] = None,
    trust: Annotated[bool, Option("--trust", help="With --treat: run code that the run names.")] = False,
    into: Annotated[Path | None, Option("--out", help="Folder of the treated run; default: beside the run.")] = None,
) -> None:
    """Diagnose a run from its curves and answers: the evidence, one change, and the signal that should respond.

    A file may be another trainer's: CSV, JSON or JSON Lines under outdo's names, TRL's or verl's, or console output; -
    is standard input; the folder of a TRL run works too. Exit status 0 if the run could be diagnosed, healthy or not.
    With --treat: 0 if the expected signal responded to the change, 1 if not.

    \b
      outdo doctor runs/NAME
      outdo doctor runs/NAME --json
      outdo doctor runs/NAME --treat
      outdo doctor trainer_state.json
      python train.py | outdo doctor -
      outdo doctor --system
    """
    if system == (target is not None) or (system and treat):
        raise RecipeError("outdo doctor takes a run's folder or a file of metrics, or --system alone")
    if not treat and (steps or into or trust):
        raise RecipeError("--steps, --out and --trust need --treat")
    out = PrintableConsole()
    if target is None:
        return _system(out, as_json)
    if treat:
        raise Exit(0 if _treated(target, PrintableConsole(stderr=as_json), as_json, steps, into, trust) else 1)
    from outdo.cli.viewed import print_notes
    from outdo.doctor.read import read_history
    from outdo.doctor.rules import diagnose
    from outdo.doctor.show import show
    from outdo.runs.find import try_find_run, try_find_viewable
    from outdo.runs.reader import describe_skipped

    is_text = target.is_file() and target.suffix != ".wandb" and not target.name.startswith("events.")
    found = try_find_run(target) if is_text or str(target) == "-" else try_find_viewable(target)
    history = read_history(found or target)
    print_notes(found or target)
    findings = diagnose(history)
    if history.skipped:
        print(describe_skipped(history.skipped), file=sys.stderr)
    ignored = f"ignored columns, which no rule reads: {', '.join(history.ignored)}" if history.ignored else ""
    if as_json:
        if ignored:
            print(ignored, file=sys.stderr)
        print(json.dumps([finding.row() for finding in findings], indent=2))
        return
    out.print(f"{target}: {len(history)} steps", markup=False, soft_wrap=True)
    if ignored:
        out.print(ignored, markup=False, soft_wrap=True, style="dim")
    show(findings, out)


def _treated(
    run: Path, out: PrintableConsole, as_json: bool, steps: int | None, into: Path | None, trust: bool
) -> bool:
    """Whether the expected signal responded."""
    from outdo.cli.train import exit_on_signal
    from outdo.runs.find import find_run
    from outdo.training.console import PlainLines
    from outdo.training.treat import treat

    with exit_on_signal():
        done = treat(find_run(run), PlainLines(out), steps, into, trust=trust)
    if as_json:
        print(json.dumps(done.row(), indent=2))
        return done.answered
    out.print(f"\n{done.finding.code}, treated for {done.steps} steps", style="bold", markup=False)
    out.print(f"  change    {done.finding.change.pair() if done.finding.change else ''}", markup=False, soft_wrap=True)
    out.print(f"  {done.signal}: {done.failing:.4g} untreated → {done.treated:.4g} treated", markup=False)
    out.print(f"  responded {'yes' if done.answered else 'no'}", markup=False)
    out.print(f"  doctor    {done.now}", markup=False, soft_wrap=True)
    return done.answered


def _system(out: PrintableConsole, as_json: bool) -> None:
    from outdo.doctor.system import check_system

    checks = check_system()
    if as_json:
        print(json.dumps([check.row() for check in checks], indent=2))
        return
    for check in checks:
        out.print(f"[{STYLES[check.status]}]{check.status:<8}[/]{check.name:<14}", end="", markup=True)
        out.print(check.detail, markup=False, soft_wrap=True)
        if check.fix:
            out.print(f"{'':<22}{check.fix}", markup=False, soft_wrap=True)
