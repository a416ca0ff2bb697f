"""The engine's thread: requests of any parameters side by side, in turns, and what happens where the engine fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outdo.errors import EngineError
from outdo.models.load import Policy
from outdo.rollout.hf import HFEngine
from outdo.rollout.local import LocalEngine
from outdo.rollout.turns import Turn
from outdo.serve import engine_host
from outdo.serve.engine_host import Busy, EngineHost
from outdo.types import Engine, Generation, Request, RequestStream, SampleParams
from support.basics import prompt_of
from support.scripted_engine import ScriptedEngine

SAMPLED, GREEDY, CUT = SampleParams(6), SampleParams(9, 0.0), SampleParams(4, 0.7, top_p=0.8)


async def ask_all(host: EngineHost, *asked: tuple[tuple[int, ...], int, SampleParams]) -> list[Turn]:
    return list(await asyncio.gather(*(host.generate(ids, seed, params) for ids, seed, params in asked)))


@pytest.mark.parametrize("engine_type", [LocalEngine, HFEngine])
def test_same_answers_as_the_engine_alone(policy: Policy, engine_type: type[LocalEngine | HFEngine]) -> None:
    prompts = [policy.renderer.encode(prompt_of(text)) for text in ("1+1", "12+345", "what is 7-2?")]
    asked = [
        (ids, 10 * i + j, params) for i, ids in enumerate(prompts) for j, params in enumerate((SAMPLED, GREEDY, CUT))
    ]
    alone = engine_type(policy)
    expected = []
    for ids, seed, params in asked:
        (one,) = alone.generate([Request("x", ids, (seed,), params, seed)])
        expected.append((one.segments[0].token_ids, one.finishes[0]))
    host = EngineHost(engine_type(policy), policy.context).start()
    turns = asyncio.run(ask_all(host, *asked))
    host.close()
    host.join()
    assert [(turn.segment.token_ids, turn.finish) for turn in turns] == expected
    assert len({turn.id for turn in turns}) == 9 and all(turn.segment.logprobs for turn in turns)


class Streams(ScriptedEngine):
    """Notes each stream: its parameters, and the seeds that it answered. A request takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(lambda request, i: (40,))
        self.seconds, self.streams = seconds, list[tuple[SampleParams, int, list[int]]]()

    def serve(self, stream: RequestStream, n: int = 1) -> Iterator[Generation]:
        seeds: list[int] = []
        self.streams.append((stream.params, stream.max_length, seeds))
        while (requests := stream.take(wait=True)) is not None:
            for request in requests:
                time.sleep(self.seconds)
                seeds.append(request.seed)
                yield from self.generate([request])


def test_sets_take_turns() -> None:
    """One set asks without end; another gets its stream after a moment, and the first continues."""
    engine = Streams(seconds=0.02)
    host = EngineHost(engine, 4096, patience=0.1).start()

    async def busy() -> None:
        for start in range(0, 32, 4):
            await ask_all(host, *(((1,), seed, SAMPLED) for seed in range(start, start + 4)))

    async def both() -> float:
        running = asyncio.ensure_future(busy())
        await asyncio.sleep(0.05)
        start = time.monotonic()
        await host.generate((1,), 1000, GREEDY)
        waited = time.monotonic() - start
        await running
        return waited

    waited = asyncio.run(both())
    host.close()
    kinds = [params.temperature for params, _, _ in engine.streams]
    assert kinds[:3] == [1.0, 0.0, 1.0] and engine.streams[1][2] == [1000]
    assert waited < 0.4, "it waited for its patience and for what had begun, not for all"
    assert sorted(seed for params, _, seeds in engine.streams if params.temperature for seed in seeds) == [*range(32)]


def test_old_requests_of_both_sets_are_answered() -> None:
    """Both have waited for longer than the patience when their streams begin."""
    engine = Streams(seconds=0.03)
    engine.capacity = 2
    host = EngineHost(engine, 4096, patience=0.05).start()
    asked = [((1,), seed, (SAMPLED, GREEDY)[seed % 2]) for seed in range(16)]
    turns = asyncio.run(asyncio.wait_for(ask_all(host, *asked), 20))
    host.close()
    assert len(turns) == 16 and all(seeds for _, _, seeds in engine.streams)
    assert len(engine.streams) > 2


def test_stream_sizes() -> None:
    engine = Streams()
    host = EngineHost(engine, 3000, patience=0.05).start()

    async def one_after_the_other() -> None:
        for length, limit in ((10, 5), (10, 200), (400, 300), (10, 5), (2000, 900)):
            await host.generate((1,) * length, 0, SampleParams(limit))

    asyncio.run(one_after_the_other())
    host.close()
    sizes = [(params.max_completion_length, length) for params, length, _ in engine.streams]
    assert sizes == [(256, 512), (512, 1024), (1024, 3000)], "a longer request gets a longer stream"
    limits = [(request.limit, request.params.max_completion_length) for request in engine.requests]
    assert limits == [(5, 256), (200, 256), (300, 512), (5, 512), (900, 1024)]


class Failing(ScriptedEngine):
    """Fails at its first stream's start, then in the middle of one, then works."""

    def __init__(self) -> None:
        super().__init__(lambda request, i: (40,))
        self.count = 0

    def serve(self, stream: RequestStream, n: int = 1) -> Iterator[Generation]:
        self.count += 1
        if self.count == 1:
            raise MemoryError("no memory")
        requests = stream.take(wait=True) or ()
        if self.count == 2:
            raise ValueError("what is this")
        yield from self.generate(requests)


def test_failures_reach_those_who_wait() -> None:
    host = EngineHost(Failing(), 512).start()
    for part in ("out of memory", "ValueError: what is this"):
        with pytest.raises(EngineError, match=part):
            asyncio.run(host.generate((1,), 0, SAMPLED))
    assert asyncio.run(host.generate((1,), 0, SAMPLED)).segment.token_ids == (40,)
    host.close()
    with pytest.raises(EngineError, match="stopped"):
        asyncio.run(host.generate((1,), 0, SAMPLED))


def test_close_ends_what_waits_and_cancelled_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Streams(seconds=0.3)
    host = EngineHost(engine, 512).start()

    async def talk() -> list[object]:
        tasks = [asyncio.ensure_future(host.generate((1,), seed, SAMPLED)) for seed in range(3)]
        await asyncio.sleep(0.1)  # all are in flight
        tasks += [asyncio.ensure_future(host.generate((1,), seed, GREEDY)) for seed in range(10, 13)]
        await asyncio.sleep(0.01)
        tasks[3].cancel()
        await asyncio.gather(*tasks[:3])
        await tasks[4]
        host.close()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    results = asyncio.run(talk())
    host.join()
    assert isinstance(results[3], asyncio.CancelledError) and 10 not in engine.streams[1][2]
    assert isinstance(results[4], Turn) and isinstance(results[5], EngineError)
    monkeypatch.setattr(engine_host, "MAX_WAITING", 1)
    other = EngineHost(engine, 512)  # not started

    async def too_many() -> None:
        first = asyncio.ensure_future(other.generate((1,), 0, SAMPLED))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await other.generate((1,), 1, SAMPLED)
        first.cancel()

    asyncio.run(too_many())


def test_watch_and_followed_turns(policy: Policy) -> None:
    """A later turn that begins with an earlier one gives what it gives alone."""
    prompt = policy.renderer.encode(prompt_of("1+1"))
    seen: list[list[int]] = []
    engine: Engine = LocalEngine(policy, rows=4)
    host = EngineHost(engine, policy.context).start()

    async def talk() -> tuple[Turn, Turn]:
        first = await host.generate(prompt, 3, replace(SAMPLED, max_completion_length=20), keep=True, watch=seen.append)
        later = (*prompt, *first.segment.token_ids, *prompt)
        return first, await host.generate(later, 4, GREEDY, follows=first.id)

    first, second = asyncio.run(talk())
    host.close()
    host.join()
    assert len(seen) > 1 and all(list(first.segment.token_ids)[: len(ids)] == ids[:20] for ids in seen)
    later = (*prompt, *first.segment.token_ids, *prompt)
    (alone,) = LocalEngine(policy).generate([Request("x", later, (4,), GREEDY, 4)])
    assert second.segment.token_ids == alone.segments[0].token_ids
