"""What turns and a slow tool cost: `python -m bench.episodes`.

Answers of `--turns` turns on a model of random weights, with the local engine. Between two turns an environment adds a
few tokens, at once or after `--sleep` seconds, as a tool does that waits for a server. Turns have random lengths, and
all answers the same number of tokens in all. Beside them, in the same run, answers of one turn with as many tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
import time

import torch

from bench import machine
from bench import work as w
from bench.ours_step import policy_of
from outdo.models.load import Policy
from outdo.rollout.local import LocalEngine
from outdo.rollout.turns import TurnQueue
from outdo.types import Request, SampleParams

ADDED = 12  # tokens of the environment between two turns


def main() -> None:
    args = _arguments()
    work = w.Work(
        args.prompts, args.group, args.prompt_tokens, args.new_tokens, steps=1, shape=args.shape, device=args.device
    )
    print(machine.line(machine.facts()))
    print(
        f"{work.shape} on {work.device}: {work.answers} answers of {args.turns} turns, {args.new_tokens} tokens in all"
    )
    policy = policy_of(work)
    print(f"\n{'':34} {'rows':>6} {'seconds':>9} {'tokens/s':>10}")
    for rows in args.rows or [work.answers]:
        engine = LocalEngine(policy, rows)
        whole = _best(lambda engine=engine: _one_turn(engine, policy, work))
        _print("one turn", rows, whole, work)
        at_once = _best(lambda engine=engine: _turns(engine, policy, work, args.turns, 0.0))
        _print(f"{args.turns} turns", rows, at_once, work)
        slow = _best(lambda engine=engine: _turns(engine, policy, work, args.turns, args.sleep))
        _print(f"{args.turns} turns, {args.sleep:g} s between two", rows, slow, work)
        print(f"{'':34} {'':6} the wait costs {1 - at_once / slow:.1%} of the throughput")


def _best(run, times: int = 3) -> float:  # type: ignore[no-untyped-def]
    """Of `times` after one that captures and compiles."""
    seconds = []
    for _ in range(times + 1):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _one_turn(engine: LocalEngine, policy: Policy, work: w.Work) -> None:
    params = SampleParams(work.new_tokens)
    requests = [
        Request(str(p), _prompt(p, work), tuple(range(p * work.group, (p + 1) * work.group)), params)
        for p in range(work.prompts)
    ]
    tokens = sum(len(s.token_ids) for generation in engine.generate(requests) for s in generation.segments)
    assert tokens == work.completion_tokens, tokens


def _turns(engine: LocalEngine, policy: Policy, work: w.Work, turns: int, sleep: float) -> None:
    longest = work.prompt_tokens + work.new_tokens + ADDED * turns
    queue = TurnQueue(SampleParams(work.new_tokens), longest, capacity=work.answers)

    async def answer(index: int) -> int:
        rng = random.Random(index)
        ids, before, written = _prompt(index // work.group, work), "", 0
        cuts = sorted(rng.sample(range(8, work.new_tokens - 8), turns - 1))
        for number, length in enumerate(b - a for a, b in zip([0, *cuts], [*cuts, work.new_tokens], strict=True)):
            turn = await queue.ask(ids, index * turns + number, limit=length, follows=before, keep=number < turns - 1)
            written += len(turn.segment.token_ids)
            if number < turns - 1:
                await asyncio.sleep(sleep)
                ids, before = (*ids, *turn.segment.token_ids, *range(20, 20 + ADDED)), turn.id
        return written

    async def all_of_them() -> None:
        try:
            tokens = sum(await asyncio.gather(*map(answer, range(work.answers))))
            assert tokens == work.completion_tokens, tokens
        finally:
            queue.close()

    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    thread.start()
    for generation in engine.serve(queue):
        queue.deliver(generation)
    thread.join()


def _prompt(index: int, work: w.Work) -> tuple[int, ...]:
    rng = random.Random(f"prompt {index}")
    return tuple(rng.randrange(20, 100) for _ in range(work.prompt_tokens))


def _print(what: str, rows: int, seconds: float, work: w.Work) -> None:
    print(f"{what:34} {rows:6} {seconds:9.3f} {work.completion_tokens / seconds:10,.0f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.5, help="seconds between two turns")
    parser.add_argument("--rows", type=int, nargs="*", help="answers decoded side by side; default: all")
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
