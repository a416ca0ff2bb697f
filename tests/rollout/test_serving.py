"""Requests that come while others run: later turns start from what is cached, and are the same as from scratch."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from outdo.models import cache as cache_module
from outdo.models import resume
from outdo.models.cache import PagedCache
from outdo.models.load import Policy
from outdo.rollout import local as local_module
from outdo.rollout.hf import HFEngine
from outdo.rollout.local import LocalEngine
from outdo.rollout.turns import Turn, TurnQueue
from outdo.seeds import seed_of
from outdo.types import Engine, Request, SampleParams, Segment
from support.basics import prompt_of
from support.samplers import ending_with
from support.scripted_engine import ScriptedEngine

PAGE = 8  # small, so that short answers cross many edges
ENDS = tuple(range(40, 52))
TEXTS = ("1+1", "12+345", "1+1", "what is 7-2?", "9", "1234567890+1")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "PAGE", PAGE)
    monkeypatch.setattr(local_module, "PAGE", PAGE)


@dataclass
class Played:
    """One conversation: each turn's prompt, seed and answer."""

    turns: list[tuple[tuple[int, ...], int, Turn]]


def engine_of(kind: str, policy: Policy, rows: int = 16, pages: int | None = None) -> Engine:
    if kind == "hf":
        return HFEngine(policy)
    engine = LocalEngine(policy, rows, None if pages is None else pages * PAGE * policy.cache_bytes)
    if kind != "slots":
        engine.paged, engine.graphed, engine.late = True, False, kind == "late"
    return engine


def play(policy: Policy, engine: Engine, params: SampleParams, answers: int = 3, turns: int = 4) -> list[Played]:
    """Conversations of several turns; between two of them the environment adds up to eleven tokens, or none."""
    queue = TurnQueue(params, 200, capacity=answers * len(TEXTS))

    async def converse(index: int, text: str, answer: int) -> Played:
        rng, ids, played, before = random.Random(f"{index} {answer}"), policy.renderer.encode(prompt_of(text)), [], ""
        for number in range(turns):
            seed = seed_of(index, answer, number)
            turn = await queue.generate(ids, seed, follows=before, keep=True)
            played.append((ids, seed, turn))
            added = [rng.randrange(1, 39) for _ in range(rng.randrange(12))]
            ids, before = (*ids, *turn.segment.token_ids, *added), turn.id
            await asyncio.sleep(rng.random() / 100)
        queue.drop(before)
        return Played(played)

    async def all_of_them() -> list[Played]:
        try:
            pairs = [(i, text, answer) for i, text in enumerate(TEXTS) for answer in range(answers)]
            return await asyncio.gather(*(converse(*pair) for pair in pairs))
        finally:
            queue.close()

    return in_another_thread(all_of_them, engine, queue)


def in_another_thread(main, engine: Engine, queue: TurnQueue):  # type: ignore[no-untyped-def]
    out = []
    thread = threading.Thread(target=lambda: out.append(asyncio.run(main())))
    thread.start()
    for generation in engine.serve(queue):
        queue.deliver(generation)
    thread.join(30)
    return out[0]


def from_scratch(policy: Policy, params: SampleParams, played: list[Played]) -> Iterator[tuple[Segment, Segment]]:
    """Each turn, and the same request alone with all of its prompt."""
    requests = [
        Request(f"{i} {k}", ids, (seed,), params)
        for i, one in enumerate(played)
        for k, (ids, seed, _) in enumerate(one.turns)
    ]
    alone = {one.request.id: one.segments[0] for one in LocalEngine(policy).generate(requests)}
    for i, one in enumerate(played):
        for k, (_, _, turn) in enumerate(one.turns):
            yield turn.segment, alone[f"{i} {k}"]


@pytest.mark.parametrize(
    ("kind", "rows", "pages"),
    [
        ("slots", 16, None),
        ("slots", 3, None),
        ("paged", 16, None),
        ("late", 5, None),
        ("late", 16, 70),
        ("paged", 3, 60),
    ],
)
def test_turns_equal_those_from_scratch(policy: Policy, kind: str, rows: int, pages: int | None) -> None:
    """In every layout: with rows for all or few, and with so few pages that parked turns are dropped."""
    ending = ending_with(policy, *ENDS)
    params = SampleParams(20)
    played = play(ending, engine_of(kind, ending, rows, pages), params)
    assert sum(len(one.turns) for one in played) == 3 * 4 * len(TEXTS)
    for ours, alone in from_scratch(ending, params, played):
        assert ours.token_ids == alone.token_ids
        torch.testing.assert_close(ours.logprobs, alone.logprobs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["slots", "late"])
def test_a_later_turn_reads_only_what_is_new(policy: Policy, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ending, read = ending_with(policy, *ENDS), []
    init = resume.ExtendedRows.__init__

    def watched(self, cache, items) -> None:  # type: ignore[no-untyped-def]
        read.extend((item.start, item.length) for item in items)
        init(self, cache, items)

    monkeypatch.setattr(resume.ExtendedRows, "__init__", watched)
    played = play(ending, engine_of(kind, ending), SampleParams(20))
    assert len(read) == 3 * 3 * len(TEXTS)  # every turn but the first
    assert all(1 <= length - start <= 12 for start, length in read)
    assert max(start for start, _ in read) > 40
    assert len({one.turns[0][0] for one in played}) == len(set(TEXTS))


def test_all_pages_are_free_again(policy: Policy) -> None:
    ending = ending_with(policy, *ENDS)
    engine = engine_of("late", ending)
    assert isinstance(engine, LocalEngine)
    play(ending, engine, SampleParams(20))
    cache = engine._cache
    assert isinstance(cache, PagedCache)
    assert sorted(cache.free) == list(range(1, cache.num_pages)) and not cache.sharers


@pytest.mark.parametrize("kind", ["slots", "late", "hf"])
def test_limits_and_stop_tokens(policy: Policy, kind: str) -> None:
    """A request's own limit cuts its answer at that many tokens, and changes none of them."""
    endless = ending_with(policy, 9999)
    ids = endless.renderer.encode(prompt_of("12+345"))

    def asked(params: SampleParams, *limits: int) -> list[Turn]:
        queue = TurnQueue(params, 200, capacity=4)

        async def main() -> list[Turn]:
            try:
                return await asyncio.gather(*(queue.generate(ids, 7, limit=limit) for limit in limits))
            finally:
                queue.close()

        return in_another_thread(main, engine_of(kind, endless), queue)

    whole, *cut = asked(SampleParams(30, temperature=0.0 if kind == "hf" else 1.0), 0, 1, 7, 30)
    assert [len(turn.segment.token_ids) for turn in cut] == [1, 7, 30] and len(whole.segment.token_ids) == 30
    for turn in cut:
        assert turn.finish == "length"
        assert turn.segment.token_ids == whole.segment.token_ids[: len(turn.segment.token_ids)]
    ends = whole.segment.token_ids[9]
    (stopped,) = asked(SampleParams(30, temperature=0.0 if kind == "hf" else 1.0, stop_ids=(ends,)), 0)
    first = whole.segment.token_ids.index(ends) + 1
    assert stopped.segment.token_ids == whole.segment.token_ids[:first] and stopped.finish == "stop"


@pytest.mark.parametrize("kind", ["slots", "late"])
def test_tokens_are_watched_as_they_come(policy: Policy, kind: str) -> None:
    endless, seen = ending_with(policy, 9999), []
    queue = TurnQueue(SampleParams(30), 200)

    async def main() -> Turn:
        try:
            return await queue.generate(
                endless.renderer.encode(prompt_of("1+1")), 3, watch=lambda ids: seen.append(list(ids))
            )
        finally:
            queue.close()

    turn = in_another_thread(main, engine_of(kind, endless), queue)
    assert len(seen) >= 4
    assert all(turn.segment.token_ids[: len(ids)] == tuple(ids) for ids in seen)


def test_a_stopped_engine_ends_those_who_wait() -> None:
    queue = TurnQueue(SampleParams(4), 20)

    async def main() -> list[object]:
        waiting = asyncio.create_task(queue.generate((1,), 0))
        await asyncio.sleep(0)
        queue.close(RuntimeError("out of memory"))
        return await asyncio.gather(waiting, queue.generate((2,), 0), return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, RuntimeError) and "out of memory" in str(first)
    assert "the engine has stopped" in str(second)
    assert list(ScriptedEngine(lambda request, i: (1,)).serve(queue)) == []
