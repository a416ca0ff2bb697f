"""Sampling alone, ours and the peers': `python -m bench.rollout`.

Groups of answers with their log-probabilities, as training needs them, on a model of random weights. Answers have a
fixed length, or with `--ragged` 16 to 512 tokens, 129 on average. Peers: transformers' `generate` in this process, and
vLLM in a separate one where it is installed. `--scan` and `--scan-tokens` measure several sizes, `--profile` breaks a
decode step down by kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench import machine
from bench import work as w
from bench.ours_step import policy_of
from bench.profiling import format_profile
from outdo.models.load import Policy
from outdo.rollout.groups import Sampler
from outdo.rollout.local import LocalEngine
from outdo.types import Prompt, SampleParams


def main() -> None:
    args = _arguments()
    work = w.Work(
        args.prompts, args.group, args.prompt_tokens, args.new_tokens, steps=1, shape=args.shape, device=args.device
    )
    print(machine.line(machine.facts()))
    print(f"{work.shape} on {work.device}, groups of {work.group}, {work.prompt_tokens} + {work.new_tokens} tokens")
    policy = policy_of(work)
    rows: list[dict[str, Any]] = []
    sizes = [replace(work, prompts=prompts) for prompts in args.scan]
    sizes += [replace(work, new_tokens=tokens) for tokens in args.scan_tokens]
    sizes = sizes or [work]
    for one in sizes:
        rows.append(_row("outdo", one, ours(policy, one, args.rows or one.answers)))
        if args.fp8:
            rows.append(_row("outdo, fp8", one, ours(policy, one, args.rows or one.answers, rounds=True)))
        if "transformers" in args.peers:
            rows.append(_row("transformers", one, generate(policy, one)))
    if args.ragged:
        rows.append(ragged(policy, work))
    if "vllm" in args.peers and find_spec("vllm"):
        policy.model.to("cpu")
        torch.cuda.empty_cache()
        rows += [_row("vLLM", one, seconds) for one, seconds in zip(sizes, _aside(sizes), strict=True)]
    if args.profile:
        profile(policy_of(work), work)
    print(f"\n{'':14} {'rows':>6} {'tokens':>9} {'seconds':>9} {'tokens/s':>10}")
    for row in rows:
        print(f"{row['who']:14} {row['rows']:6} {row['tokens']:9,} {row['seconds']:9.3f} {row['rate']:10,.0f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine.facts(), "work": vars(work), "rows": rows}, indent=2))


def ours(policy: Policy, work: w.Work, rows: int, rounds: bool = False) -> float:
    """Best of three, after one that captures and compiles."""
    sampler = Sampler(LocalEngine(policy, rows, rounds=rounds), policy.renderer)
    times, tokens = _timed(sampler, work, turns=4)
    assert tokens == work.completion_tokens, tokens
    return min(times[1:])


def ragged(policy: Policy, work: w.Work) -> dict[str, Any]:
    """1,024 answers of 16 to 512 tokens. Their lengths are drawn beforehand."""
    rng = random.Random(0)
    work = replace(work, prompts=1024 // work.group, new_tokens=512)
    wanted = [min(512, 16 + int(rng.expovariate(1 / 116))) for _ in range(work.answers)]
    times, tokens = _timed(Sampler(_Ragged(policy, work.answers, wanted), policy.renderer), work, turns=4)
    assert tokens == sum(wanted), (tokens, sum(wanted))
    best = min(times[1:])
    return {"who": "outdo, ragged", "rows": work.answers, "tokens": tokens, "seconds": best, "rate": tokens / best}


def _timed(sampler: Sampler, work: w.Work, turns: int) -> tuple[list[float], int]:
    """Seconds of each turn, and the tokens of the last."""
    times, prompts = [], _prompts(work)
    for turn in range(turns):
        start = w.clocks()
        groups = list(sampler.sample(prompts, work.group, SampleParams(work.new_tokens), turn))
        times.append(w.since(start)[0])
    return times, sum(len(c.token_ids) for g in groups for c in g.trajectories)


def _prompts(work: w.Work) -> list[Prompt]:
    return [Prompt(f"{i:04d}", ({"role": "user", "content": text},)) for i, text in enumerate(w.prompt_texts(work))]


class _Ragged(LocalEngine):
    """Ends each answer at the length that was drawn for it, where the model's own ending token would."""

    def __init__(self, policy: Policy, rows: int, wanted: list[int]) -> None:
        super().__init__(policy, rows)
        self.wanted = torch.tensor([*wanted, 10**6], dtype=torch.int32, device=policy.device)

    def step(self, state: Any, graphs: Any, rows: int) -> None:
        def once() -> None:
            state.step(rows, self.layers)
            # own_B has just been advanced for live rows: it is the number of tokens written
            ends = state.cache.own_B[:rows] >= self.wanted[state.answer_B[:rows]]
            state.ended_B[:rows] |= ends
            state.cache.idle_B[:rows] |= ends

        if graphs:
            graphs.run(rows, once)
        else:
            once()


def generate(policy: Policy, work: w.Work) -> float:
    """transformers' own, with the log-probabilities from its logits."""
    ids = torch.tensor([policy.renderer.tokenizer(t)["input_ids"] for t in w.prompt_texts(work)], device=policy.device)
    ids = ids.repeat_interleave(work.group, dim=0)
    policy.model.set_attn_implementation("sdpa")
    policy.model.eval()
    times = []
    for _ in range(2):
        start = w.clocks()
        with torch.no_grad():
            policy.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=work.new_tokens,
                min_new_tokens=work.new_tokens, pad_token_id=w.END,
            )  # fmt: skip
        times.append(w.since(start)[0])
    policy.model.set_attn_implementation("outdo")
    return min(times)


def profile(policy: Policy, work: w.Work) -> None:
    """Where the device's time goes in 32 decode steps, by kernel."""
    sampler, params = Sampler(LocalEngine(policy, work.answers), policy.renderer), SampleParams(work.new_tokens)
    prompts = _prompts(work)
    list(sampler.sample(prompts, work.group, params, 0))
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as measured:
        start = time.perf_counter()
        list(sampler.sample(prompts, work.group, params, 1))
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    print(f"\n{work.new_tokens} steps in {wall:.3f} s under the profiler; {format_profile(measured)}")


def _row(who: str, work: w.Work, seconds: float) -> dict[str, Any]:
    tokens = work.completion_tokens
    print(f"{who}: {work.answers} rows, {tokens / seconds:,.0f} tokens/s", flush=True)
    return {"who": who, "rows": work.answers, "tokens": tokens, "seconds": seconds, "rate": tokens / seconds}


def _aside(sizes: Sequence[w.Work]) -> list[float]:
    """Seconds of each, by vLLM in a separate process."""
    command = [sys.executable, "-m", "bench.peers.vllm_rollout", *(json.dumps(vars(one)) for one in sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rollout", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=w.SHAPES, default="smollm2-135m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, help="decoded side by side (default: all)")
    parser.add_argument("--peers", nargs="*", choices=("transformers", "vllm"), default=[])
    parser.add_argument("--fp8", action="store_true", help="measure sampler=fp8 too")
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--scan", type=int, nargs="*", default=[], help="prompts: one measurement each")
    parser.add_argument("--scan-tokens", type=int, nargs="*", default=[], help="new tokens: one measurement each")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
