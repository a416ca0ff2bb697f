"""A whole GRPO step of a model that fills a GPU, by the way it is trained: `python -m bench.large_step`.

Each way runs in a process of its own: seconds of sampling and update, tokens/s, peak memory of the GPU. The work is the
same for all, in bfloat16, with the steps of a run (`bench.ours_step`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers import venv
from bench.work import SHAPES, Work

WAYS: dict[str, dict[str, Any]] = {
    "lora": {},
    "masters": {},
    "masters-8bit": {"optim": "adamw_8bit"},
    "masters-torchao-8bit": {"optim": "adamw_torch_8bit"},
    "masters-bf16": {"optim": "adamw_bf16"},
    "rounding": {"stochastic_rounding": True},
    "rounding-8bit": {"stochastic_rounding": True, "optim": "adamw_8bit"},
    "rounding-bf16": {"stochastic_rounding": True, "optim": "adamw_bf16"},
    "offload": {"parallel_offload": "optimizer"},
    "offload-bf16": {"parallel_offload": "optimizer", "optim": "adamw_bf16"},
    "offload-rounding-bf16": {"parallel_offload": "optimizer", "optim": "adamw_bf16", "stochastic_rounding": True},
}


def main() -> None:
    args = _arguments()
    print(machine.line(machine.facts()))
    print(
        f"{args.shape} on {args.device}: {args.prompts} x {args.group} answers, {args.prompt_tokens} + "
        f"{args.new_tokens} tokens; the best of {args.steps} steps, the first not counted",
        flush=True,
    )
    for way in args.ways:
        keys = WAYS[way] | ({"gradient_checkpointing": True} if args.recompute else {})
        keys |= {"tokens_per_micro_batch": args.tokens} if args.tokens else {}
        rank = args.lora_r if way == "lora" else 0
        sizes = (args.prompts, args.group, args.prompt_tokens, args.new_tokens, args.prompts * args.group, args.steps)
        work = Work(*sizes, args.threads, args.shape, args.device, rank, keys)
        print(_line(way, work, _measure(work, args.timeout)), flush=True)


def _measure(work: Work, timeout: float) -> dict[str, Any] | str:
    """The report, or the end of what the process printed before it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "bench.ours_step", json.dumps(vars(work)), str(path)]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command, cwd=venv.ROOT, env=env, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return f"more than {timeout:.0f} s"
        return json.loads(path.read_text()) if not done.returncode else (done.stdout + done.stderr)[-1500:]


def _line(way: str, work: Work, report: dict[str, Any] | str) -> str:
    if isinstance(report, str):
        return f"{way:22} failed: {report}"
    best = min(report["steps"][1:], key=lambda step: step["seconds"])
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in best["parts"].items())
    peak = f"peak {report['peak_bytes'] / 2**30:.1f} GiB, " if report["peak_bytes"] else ""
    rate = work.completion_tokens / best["seconds"]
    all_steps = " ".join(f"{step['seconds']:.2f}" for step in report["steps"])
    micro = f"{report['tokens_at_once']:,} tokens at once"
    return f"{way:22} {best['seconds']:6.2f} s ({parts}), {rate:,.0f} tokens/s, {peak}{micro}; steps {all_steps}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.large_step", description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="+", choices=WAYS, metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--lora-r", type=int, default=16)
    parser.add_argument("--tokens", type=int, help="in one forward and backward (default: what the memory allows)")
    parser.add_argument("--recompute", action="store_true", help="gradient_checkpointing")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine.num_cores())
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each way")
    return parser.parse_args()


if __name__ == "__main__":
    main()
