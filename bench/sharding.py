"""An update by each way to shard, in one process or in those of a launch, side by side: `python -m bench.sharding`, or
`torchrun --nproc-per-node 2 -m bench.sharding`. Seconds of the best update, of its exchanges, peak memory, and how far
the weights are from those of the first way after the same updates of the same random work.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench import machine
from bench import work as w
from bench.ours_step import policy_of
from outdo.learn.learner import LocalLearner
from outdo.parallel.world import World, join
from outdo.recipe.schema import Recipe
from outdo.types import Batch, Sample


def main() -> None:
    args = _arguments()
    world = join(600, args.device)
    work = w.Work(args.prompts, args.group, args.prompt_tokens, args.new_tokens, shape=args.shape, device=args.device)
    if world.is_first:
        threads = f"{world.size} processes of {torch.get_num_threads()} threads"
        print(f"{machine.line(machine.facts())}; {threads}; {work.answers} answers, {args.shape}")
    reference: list[Tensor] = []
    for sharding in args.shardings:
        seconds, exchanged, loss, weights = _updates(work, sharding, args.steps, args.tokens, world)
        reference = reference or weights
        distance = max(float((a.float() - b.float()).abs().max()) for a, b in zip(weights, reference, strict=True))
        peak = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if work.device == "cuda" else ""
        if world.is_first:
            print(
                f"{sharding:<6} {seconds:.3f} s an update, {exchanged:.3f} s of it exchanging{peak}, loss {loss:.6f}, "
                f"weights within {distance:.1e} of {args.shardings[0]}",
                flush=True,
            )


def _updates(
    work: w.Work, sharding: str, steps: int, tokens: int | None, world: World
) -> tuple[float, float, float, list[Tensor]]:
    batch, recipe = _batch(work), _recipe(work, sharding, tokens)
    policy = policy_of(work)
    learner = LocalLearner(policy, recipe)
    best, exchanged, loss = float("inf"), 0.0, 0.0
    for step in range(steps):
        if step == 1 and work.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with _exchanges(world) as spent:
            start = w.clocks()
            stats = learner.update(Batch(batch.prompt_ids, batch.samples, step), step)
            seconds = w.since(start)[0]
        if step and seconds < best:
            best, exchanged = seconds, sum(spent)
        loss = stats["loss"]
    weights = [p.detach().to("cpu", copy=True) for p in policy.model.parameters()]
    del learner, policy
    gc.collect()
    if work.device == "cuda":
        torch.cuda.empty_cache()
    return best, exchanged, loss, weights


@contextmanager
def _exchanges(world: World) -> Iterator[list[float]]:
    """Seconds in this process's collectives, waiting for the others included; FSDP2's own are not seen."""
    spent: list[float] = []
    inner = world.collective

    @contextmanager
    def timed() -> Iterator[None]:
        start = time.perf_counter()
        with inner():
            yield
        spent.append(time.perf_counter() - start)

    world.collective = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        world.collective = inner  # type: ignore[method-assign]


def _batch(work: w.Work) -> Batch:
    rng, words = random.Random(0), w.SHAPES[work.shape]["vocab_size"]

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, words) for _ in range(count))

    prompts = tuple(ids(work.prompt_tokens) for _ in range(work.prompts))
    logprobs = (-10.0,) * work.new_tokens
    rows = (
        Sample(i // work.group, ids(work.new_tokens), logprobs, rng.choice((-1.0, 1.0))) for i in range(work.answers)
    )
    return Batch(prompts, tuple(rows), 0)


def _recipe(work: w.Work, sharding: str, tokens: int | None) -> Recipe:
    return Recipe(
        max_completion_length=work.new_tokens,
        max_steps=100,
        num_generations=work.group,
        per_device_train_batch_size=work.answers,
        tokens_per_micro_batch=tokens,
        parallel_sharding=sharding,
        learning_rate=1e-4,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sharding", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=w.SHAPES, default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, help="in one forward and backward")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--shardings", nargs="+", default=["none", "grads", "full"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
