"""The default run as a newcomer gets it, over several seeds: `python -m bench.default_run`. Exit status 1 where a
figure is outside its bounds.

Each run is `outdo train seed=S` in a process of its own, one after another. Success is that of greedy answers to the
held-out test problems, before and after GRPO, as the run itself wrote it down.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine


@dataclass(frozen=True)
class Bound:
    """What a figure must be: within [low, high], or below `high` where that end is open."""

    low: float = -math.inf
    high: float = math.inf
    open_high: bool = False

    def holds(self, value: float | None) -> bool:
        if value is None or not value >= self.low:
            return False
        return value < self.high if self.open_high else value <= self.high

    def __str__(self) -> str:
        if self.low == -math.inf:
            return f"{'<' if self.open_high else '<='} {self.high:g}"
        return f">= {self.low:g}" if self.high == math.inf else f"{self.low:g} to {self.high:g}"


BOUNDS = {
    "wall_s": Bound(high=180, open_high=True),
    "before": Bound(0.15, 0.6),
    "after": Bound(low=0.90),
    "peak_gb": Bound(high=2, open_high=True),
}


@dataclass(frozen=True)
class Measured:
    """One run. None stands for what it never came to write."""

    seed: int
    exit_status: int
    wall_s: float
    peak_gb: float  # resident memory of the process, in 10^9 bytes
    before: float | None = None
    after: float | None = None
    pass1_before: float | None = None
    pass1_after: float | None = None
    kl_last: float | None = None
    entropy_last: float | None = None

    def outside(self) -> list[str]:
        """The figures that break their bounds, and the exit status of a run that failed."""
        names = [name for name, bound in BOUNDS.items() if not bound.holds(getattr(self, name))]
        return names if self.exit_status == 0 else ["exit_status", *names]


def main(argv: list[str] | None = None) -> None:
    args = _arguments().parse_args(argv)
    found = machine.facts()
    print(machine.line(found) + "\n", flush=True)
    runs: list[Measured] = []
    evals: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in args.seeds:
            folder = (args.keep or Path(scratch)) / f"seed-{seed}"
            runs.append(run_seed(seed, folder, args.override))
            evals[seed] = _rows(folder / "evals.jsonl")
            print(f"seed {seed}: {runs[-1].wall_s:.0f} s, exit status {runs[-1].exit_status}", flush=True)
    print("\n" + "\n".join([*table(runs), "", *verdicts(runs)]))
    if args.json:
        rows = [{**asdict(run), "outside": run.outside(), "evals": evals[run.seed]} for run in runs]
        bounds = {name: str(bound) for name, bound in BOUNDS.items()}
        report = {"machine": found, "override": args.override, "bounds": bounds, "runs": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if any(run.outside() for run in runs) else 0)


def run_seed(seed: int, folder: Path, override: list[str]) -> Measured:
    """One run to its end. Its output is shown only where it failed."""
    command = [sys.executable, "-m", "outdo", "train", f"seed={seed}", f"output_dir={folder}", *override]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)  # this child's own peak, where getrusage gives that of all so far
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            print(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')[-2000:]}", file=sys.stderr)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    test = [row for row in _rows(folder / "evals.jsonl") if row["split"] == "test"]
    first = test[0] if test and test[0]["step"] == 0 else {}
    last = test[-1] if test and test[-1]["step"] > 0 else {}
    metrics = _rows(folder / "metrics.jsonl")[-1:] or [{}]
    return Measured(
        seed,
        child.returncode,
        wall,
        peak,
        first.get("success_rate"),
        last.get("success_rate"),
        first.get("pass@1"),
        last.get("pass@1"),
        metrics[0].get("kl_mean"),
        metrics[0].get("entropy_mean"),
    )


def table(runs: list[Measured]) -> list[str]:
    """A row a seed; a star stands by every figure outside its bounds."""
    columns = {
        "wall s": ("wall_s", ".0f"),
        "peak GB": ("peak_gb", ".2f"),
        "before": ("before", ".3f"),
        "after": ("after", ".3f"),
        "pass@1 before": ("pass1_before", ".3f"),
        "pass@1 after": ("pass1_after", ".3f"),
        "last KL": ("kl_last", ".4f"),
        "last entropy": ("entropy_last", ".3f"),
    }
    lines = ["seed " + "".join(f"{title:>15}" for title in columns)]
    for run in runs:
        outside = run.outside()
        cells = []
        for name, form in columns.values():
            value = getattr(run, name)
            cells.append(("-" if value is None else format(value, form)) + ("*" if name in outside else " "))
        lines.append(f"{run.seed:<5}" + "".join(f"{cell:>15}" for cell in cells))
    return lines


def verdicts(runs: list[Measured]) -> list[str]:
    """For each bound whether every seed keeps it."""
    lines = []
    for name, bound in BOUNDS.items():
        broken = [run.seed for run in runs if name in run.outside()]
        said = f"outside for seed {', '.join(map(str, broken))}" if broken else "within"
        lines.append(f"{name:8} {bound!s:>12}   {said}")
    failed = [run.seed for run in runs if run.exit_status]
    return lines + ([f"runs that failed: seed {', '.join(map(str, failed))}"] if failed else [])


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.default_run", description="The default run, measured.")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="a recipe key, for trying out"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


if __name__ == "__main__":
    main()
