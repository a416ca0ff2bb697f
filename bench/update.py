"""The learner's update alone: `python -m bench.update`. Tokens a second, peak memory, and with `--profile` the kernels.

Two workloads: `--prompts 128 --group 8` is a GRPO step's (a prompt is computed once for its group; tokens are counted
as computed), `--group 1` is plain sequences.
"""

from __future__ import annotations

import argparse
import random

import torch

from bench import machine
from bench import work as w
from bench.ours_step import policy_of
from bench.profiling import format_profile
from outdo.learn.learner import LocalLearner
from outdo.recipe.schema import Recipe
from outdo.types import Batch, Sample


def main() -> None:
    args = _arguments()
    sizes = (args.prompts, args.group, args.prompt_tokens, args.new_tokens)
    work = w.Work(*sizes, shape=args.shape, device=args.device, lora_r=args.lora_r)
    print(machine.line(machine.facts()))
    rng, words = random.Random(0), w.SHAPES[work.shape]["vocab_size"]

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, words) for _ in range(count))

    prompts = tuple(ids(work.prompt_tokens) for _ in range(work.prompts))
    logprobs = (-10.0,) * work.new_tokens
    rows = tuple(
        Sample(i // work.group, ids(work.new_tokens), logprobs, rng.choice((-1.0, 1.0))) for i in range(work.answers)
    )
    recipe = Recipe(
        max_completion_length=work.new_tokens,
        max_steps=100,
        num_generations=max(work.group, 2),
        per_device_train_batch_size=work.answers * (2 if work.group == 1 else 1),
        tokens_per_micro_batch=args.tokens,
        gradient_checkpointing=args.recompute,
        use_peft=bool(args.lora_r),
    )
    learner = LocalLearner(policy_of(work), recipe)
    cuda = work.device == "cuda"
    times = []
    for step in range(args.steps):
        if cuda and step == 1:
            torch.cuda.reset_peak_memory_stats()
        start = w.clocks()
        learner.update(Batch(prompts, rows, step), step)
        times.append(w.since(start)[0])
    tokens = work.prompts * work.prompt_tokens + work.answers * (work.new_tokens - 1)
    best = min(times[1:])
    peak = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if cuda else ""
    counted = work.answers * (work.prompt_tokens + work.new_tokens)
    print(
        f"update of {work.answers} answers in groups of {work.group}, {work.prompt_tokens} + {work.new_tokens}: "
        f"{best:.3f} s, {tokens / best:,.0f} tokens/s computed, {counted / best:,.0f} "
        f"counting prompts for each answer{peak}, {learner.tokens_at_once:,} tokens at once"
    )
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            learner.update(Batch(prompts, rows, args.steps), args.steps)
            torch.cuda.synchronize()
        print(format_profile(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.update", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=w.SHAPES, default="smollm2-135m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--lora-r", type=int, default=0, help="train an adapter of this rank (default: all weights)")
    parser.add_argument("--tokens", type=int, help="in one forward and backward")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
