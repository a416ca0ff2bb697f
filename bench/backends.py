"""One recipe by several trainers, from the same warm-up: `python -m bench.backends RECIPE.yaml [key=value …]`.

The warm-up is done once, by outdo. Every trainer then runs the same recipe from that model, one after the other, each
in a process of its own. Seconds of a step, its parts, memory and held-out success are those of the run folders; the
picture has their curves over each other.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench import machine

WAYS: dict[str, list[str]] = {
    "outdo": [],
    "TRL": ["backend=trl"],
    "TRL with vLLM": ["backend=trl", "backend_args.use_vllm=true", "backend_args.vllm_mode=colocate"],
    "Unsloth": ["backend=unsloth"],
    "Unsloth with fast_inference": ["backend=unsloth", "backend_args.fast_inference=true"],
}
HEAD = "| trainer | a step | sampling | update | tokens/s | peak memory | held-out success | pass@1 |"


def main() -> None:
    args = _arguments()
    facts = machine.line(machine.facts())
    print(facts, flush=True)
    start = args.out / "start"
    _run("outdo", ["sft", str(args.recipe), *args.keys, f"output_dir={start}"], start)
    done: dict[str, Path] = {}
    for way in args.ways:
        folder = args.out / way.lower().replace(" ", "-")
        keys = [*args.keys, f"model_name_or_path={start / 'model'}", "sft_epochs=0", "sft_steps=0", *WAYS[way]]
        if python := dict(pair.split("=", 1) for pair in args.python).get(way):
            keys.append(f"backend_python={python}")
        if _run(way, ["train", str(args.recipe), *keys, f"output_dir={folder}"], folder):
            done[way] = folder
    lines = [HEAD, "| --- " * 8 + "|", *(_row(way, folder) for way, folder in done.items())]
    print("\n".join(lines))
    if args.report:
        _report(args, facts, lines, done)


def _run(name: str, words: list[str], folder: Path) -> bool:
    """Whether the run is done. One that is there already is not repeated, one that was stopped is resumed."""
    manifest = folder / "run.json"
    status = json.loads(manifest.read_text())["status"] if manifest.is_file() else ""
    if status == "done":
        return True
    words = [words[0], "--resume", str(folder)] if status else words
    print(f"{name}: outdo {shlex.join(words)}", flush=True)
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-m", "outdo", *words], check=False, env=env).returncode == 0


def _row(way: str, folder: Path) -> str:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]  # the first warms up
    evals = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    first, last = evals[0], next(row for row in reversed(evals) if row["split"] == evals[0]["split"])
    of = {key: median(row[key] for row in rows) for key in ("time/step", "time/rollout", "time/update", "tokens_per_s")}
    cells = [
        way,
        f"{of['time/step']:.2f} s",
        f"{of['time/rollout']:.2f} s",
        f"{of['time/update']:.2f} s",
        f"{of['tokens_per_s']:,.0f}",
        f"{max(row['memory'] for row in rows) / 2**30:.1f} GiB",
        f"{first['success_rate']:.1%} → {last['success_rate']:.1%} [{last['low']:.1%}, {last['high']:.1%}]",
        f"{first['pass@1']:.1%} → {last['pass@1']:.1%}" if "pass@1" in first else "–",
    ]
    return f"| {' | '.join(cells)} |"


def _report(args: argparse.Namespace, facts: str, lines: list[str], done: dict[str, Path]) -> None:
    picture = args.report.with_suffix(".png")
    subprocess.run([sys.executable, "-m", "outdo", "plot", *map(str, done.values()), "--out", picture], check=True)
    command = shlex.join(["python", "-m", "bench.backends", str(args.recipe), *args.keys])
    text = ["# The same recipe by several trainers", "", f"`{command}`, on {facts}.", "", *lines, ""]
    text += ["A step is the median of all but the first; memory is the process's peak.", ""]
    args.report.write_text("\n".join([*text, f"![curves of all]({picture.name})", ""]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.backends", description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["outdo", "TRL"])
    parser.add_argument("--python", nargs="*", default=[], metavar="WAY=PATH", help="environments of trainers")
    parser.add_argument("--out", type=Path, default=Path("runs/backends"))
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="write the table and the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
