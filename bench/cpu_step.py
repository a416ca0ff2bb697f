"""Our GRPO step beside TRL's, in one run on one machine: `python -m bench.cpu_step`.

The two take turns, each time in a process of its own, so that a machine that slows down slows both. Every step checks
that it did the work that was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.peers import venv
from bench.work import SHAPES, Work
from outdo.host import share_cores


def main(argv: list[str] | None = None, **defaults: Any) -> None:
    parser = _arguments()
    parser.set_defaults(**defaults)
    args = parser.parse_args(argv)
    work = _work(args)
    share_cores()  # as the command line does; both sides inherit it
    found = machine.facts()
    sides = {
        "outdo": [sys.executable, "-m", "bench.ours_step"],
        "TRL": [str(args.trl_python or venv.python_with("trl[peft]")), "-m", "bench.peers.trl_step"],
    }
    adapter = f", LoRA of rank {work.lora_r}" if work.lora_r else ""
    print(machine.line(found))
    print(
        f"{work.shape} on {work.device}{adapter}: {work.prompts} prompts x {work.group} answers, "
        f"{work.prompt_tokens} + {work.new_tokens} tokens, "
        f"{work.threads} threads, {args.rounds} rounds of {work.steps} steps, the first of each not counted\n",
        flush=True,
    )
    reports: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for number in range(1, args.rounds + 1):
        for side, command in sides.items():
            extra = [json.dumps(dict(map(_pair, args.trl_set)))] if side == "TRL" else []
            report = _measure(command, work, extra)
            reports[side].append(report)
            print(
                f"round {number}  {side:6} median step {median(_column(_counted([report]), 'seconds')):.3f} s",
                flush=True,
            )
    result = summary(reports)
    print("\n" + "\n".join(table(result, work)))
    if args.json:
        everything = {
            "machine": found,
            "work": vars(work),
            "trl_set": args.trl_set,
            "summary": result,
            "rounds": reports,
        }
        args.json.write_text(json.dumps(everything, indent=2) + "\n")


def summary(reports: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Best and median over the counted steps of all rounds, and how many times longer TRL's are."""
    out: dict[str, Any] = {}
    for side, of_side in reports.items():
        steps = _counted(of_side)
        seconds, cpu_seconds = _column(steps, "seconds"), _column(steps, "cpu_seconds")
        parts = [step["parts"] for step in steps]
        out[side] = {
            "versions": of_side[0]["versions"],
            "steps": len(steps),
            "best": min(seconds),
            "median": median(seconds),
            "cpu_best": min(cpu_seconds),
            "cpu_median": median(cpu_seconds),
            "parts_median": {name: median(part[name] for part in parts) for name in parts[0]},
        }
    kinds = ("best", "median", "cpu_best", "cpu_median")
    out["ratio"] = {kind: out["TRL"][kind] / out["outdo"][kind] for kind in kinds}
    return out


def table(result: dict[str, Any], work: Work) -> list[str]:
    lines = [f"{'':6} {'best step':>11} {'median step':>12} {'median CPU time':>16} {'tokens/s':>9}   versions"]
    for side in ("outdo", "TRL"):
        row = result[side]
        rate = work.completion_tokens / row["median"]
        packages = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
        times = f"{row['best']:9.3f} s {row['median']:10.3f} s {row['cpu_median']:14.3f} s"
        lines.append(f"{side:6} {times} {rate:9,.0f}   {packages}")
    ratio = result["ratio"]
    lines.append(f"{'ratio':6} {ratio['best']:10.2f}x {ratio['median']:11.2f}x {ratio['cpu_median']:15.2f}x")
    for side in ("outdo", "TRL"):
        parts = result[side]["parts_median"]
        rest = result[side]["median"] - sum(parts.values())
        told = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())
        lines.append(f"{side}'s median step: {told}, the rest {max(rest, 0.0):.3f} s")
    lines.append(f"each step of both: {work.completion_tokens} completion tokens, counted")
    return lines


def _measure(command: list[str], work: Work, extra: list[str]) -> dict[str, Any]:
    """One process's report. What it printed is shown only where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        words = [*command, json.dumps(vars(work)), str(path), *extra]
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            words, cwd=venv.ROOT, env={**os.environ, **quiet}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        return json.loads(path.read_text())


def _counted(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [step for report in reports for step in report["steps"][1:]]


def _column(steps: list[dict[str, Any]], name: str) -> list[float]:
    return [step[name] for step in steps]


def _work(args: argparse.Namespace) -> Work:
    micro = args.micro_batch or min(64, args.prompts * args.group)
    sizes = (args.prompts, args.group, args.prompt_tokens, args.new_tokens, micro, args.steps, args.threads)
    work = Work(*sizes, args.shape, args.device, args.lora_r)
    if work.answers % micro:
        raise SystemExit(f"--micro-batch {micro} does not divide the {work.answers} answers of a step")
    if work.steps < 2:
        raise SystemExit("--steps must be 2 or more: the first is not counted")
    return work


def _pair(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_step", description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=16, help="a step (default 16)")
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt (default 8)")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=16, help="of every answer")
    parser.add_argument(
        "--micro-batch", type=int, help="answers in one forward and backward, on both sides (default 64)"
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of the model (default tiny)")
    parser.add_argument("--lora-r", type=int, default=0, help="train an adapter of this rank (default: all weights)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8, help="in one process, the first not counted (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side, taking turns (default 3)")
    parser.add_argument("--threads", type=int, default=machine.num_cores(), help="of torch (default: all cores)")
    parser.add_argument("--trl-python", type=Path, help="a Python that has TRL, instead of making one under .bench/")
    parser.add_argument("--trl-set", metavar="KEY=VALUE", action="append", default=[], help="a field of GRPOConfig")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


if __name__ == "__main__":
    main()
