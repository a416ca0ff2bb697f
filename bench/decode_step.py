"""One decode step of sampling, by kernel: `python -m bench.decode_step`.

Rows of random keys and values in the middle of their answers, on a model of random weights; the step is replayed as in
a rollout. Unlike `bench.rollout --profile` it needs none, so long answers take no longer to measure than short ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
from itertools import pairwise

import torch

from bench import machine
from bench import work as w
from bench.ours_step import policy_of
from bench.profiling import format_profile
from outdo.rollout.local import LocalEngine
from outdo.types import SampleParams

REPLAYS, PROFILED = 24, 6


def main() -> None:
    args = _arguments()
    print(machine.line(machine.facts()))
    policy = policy_of(w.Work(shape=args.shape, device=args.device))
    for rows in args.rows:
        step = _Step(LocalEngine(policy, rows, rounds=args.fp8), rows, args.group, args.prompt_tokens, args.own_tokens)
        times = step.times()
        median = statistics.median(times)
        print(
            f"{args.shape}: {rows} rows of {args.prompt_tokens} + {args.own_tokens} tokens: {median:.3f} ms per step "
            f"({min(times):.3f} to {max(times):.3f}), {rows / median * 1e3:,.0f} tokens/s"
        )
        if args.profile:
            print(step.profile(), flush=True)


class _Step:
    def __init__(self, engine: LocalEngine, rows: int, group: int, prompt: int, own: int) -> None:
        self.engine, self.rows = engine, rows
        room = own + REPLAYS + PROFILED + 8
        self.state, self.graphs = engine.allocate(prompt + room, group, rows, SampleParams(room))
        cache, all_rows, rng = self.state.cache, list(range(rows)), random.Random(0)
        groups = [(prompt, all_rows[at : at + group]) for at in range(0, rows, group)]
        for length, siblings in groups:
            cache.place(length, siblings)
        cache.reading(groups)
        cache.grow(all_rows, room)
        tokens = [rng.randrange(2, engine.policy.head.weight.shape[0]) for _ in all_rows]
        self.state.begin(all_rows, tokens, [rng.getrandbits(60) for _ in all_rows], all_rows)
        cache.own_B.fill_(own)
        cache.upload()
        engine._refresh()
        self.run()
        for pages in getattr(cache, "pages", ()):
            pages.normal_()
        self.run()

    @torch.no_grad()
    def run(self) -> None:
        self.engine.step(self.state, self.graphs, self.rows)

    def times(self) -> list[float]:
        """Milliseconds of each."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
        for event in events[:-1]:
            event.record()
            self.run()
        events[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(events)]

    def profile(self) -> str:
        kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as measured:
            for _ in range(PROFILED):
                self.run()
            torch.cuda.synchronize()
        return f"{PROFILED} steps: {format_profile(measured)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.decode_step", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=w.SHAPES, default="qwen2.5-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="*", default=[256])
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--own-tokens", type=int, default=128, help="that each row has written")
    parser.add_argument("--fp8", action="store_true", help="products in 8 bits, as with sampler=fp8")
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
