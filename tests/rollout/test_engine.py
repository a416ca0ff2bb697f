"""The engine seam: every engine satisfies the protocol, and `Sampler` turns what it writes into groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from outdo.models.load import Policy
from outdo.recipe.load import load_recipe
from outdo.rollout import ENGINES, make_sampler
from outdo.rollout.groups import Sampler
from outdo.rollout.hf import HFEngine
from outdo.rollout.local import LocalEngine
from outdo.seeds import seed_of
from outdo.types import Engine, Generation, Request, SampleParams
from support.basics import prompt_of
from support.samplers import local_sampler
from support.scripted_engine import ScriptedEngine

PROMPTS = [prompt_of(text) for text in ("1+1", "12+345", "what is 7-2?")]
PARAMS = SampleParams(8)


class Source:
    def weights(self) -> dict[str, float]:
        return {}


def requests_of(policy: Policy, *shapes: tuple[SampleParams, int]) -> list[Request]:
    """One for each prompt, with these parameters and numbers of seeds in turn."""
    encoded = policy.renderer.encode_all(PROMPTS)
    return [
        Request(prompt.id, ids, tuple(seed_of(3, prompt.id, i) for i in range(n)), params)
        for prompt, ids, (params, n) in zip(PROMPTS, encoded, shapes, strict=True)
    ]


def answers(generations: Iterator[Generation]) -> dict[str, list[tuple[int, ...]]]:
    return {g.request.id: [segment.token_ids for segment in g.segments] for g in generations}


def test_engines_satisfy_the_protocol(policy: Policy) -> None:
    engines: list[Engine] = [LocalEngine(policy, rows=6), HFEngine(policy), ScriptedEngine(lambda request, i: (i,))]
    for engine in engines:
        assert isinstance(engine, Engine) and engine.capacity >= 1
        engine.update(Source(), version=4)
        (generation,) = engine.generate(requests_of(policy, (PARAMS, 2), (PARAMS, 2), (PARAMS, 2))[:1])
        assert len(generation.segments) == len(generation.finishes) == 2
        assert {segment.version for segment in generation.segments} == {4}
        assert list(engine.generate([])) == []
    assert engines[0].capacity == 6


def test_requests_may_differ(policy: Policy) -> None:
    """Other parameters and numbers of seeds in one call give what each gives alone."""
    engine = LocalEngine(policy)
    mixed = requests_of(policy, (PARAMS, 2), (SampleParams(5, 0.0), 1), (PARAMS, 3))
    together = answers(engine.generate(mixed))
    assert {key: len(ids) for key, ids in together.items()} == {"1+1": 2, "12+345": 1, "what is 7-2?": 3}
    for request in mixed:
        assert together[request.id] == answers(engine.generate([request]))[request.id]


@pytest.mark.parametrize("rows", [2, 64])
def test_abort_drops_what_is_running(policy: Policy, rows: int) -> None:
    engine = LocalEngine(policy, rows)
    requests = requests_of(policy, (PARAMS, 2), (PARAMS, 2), (SampleParams(4), 2))
    running = engine.generate(requests)
    first = next(running)
    engine.abort()
    assert len(list(running)) < 2  # finished ones may still come
    assert answers(engine.generate(requests))[first.request.id] == [s.token_ids for s in first.segments]


def test_groups_of_a_scripted_engine(policy: Policy) -> None:
    renderer = policy.renderer
    (right,), (wrong,) = renderer.encode_texts(["2", "3"])
    end = renderer.eos_ids[0]
    engine = ScriptedEngine({renderer.encode(p): [(right, end), (wrong,) * 9] for p in PROMPTS})
    groups = list(Sampler(engine, renderer).sample([*PROMPTS, PROMPTS[0]], 2, PARAMS, 7))
    assert [g.prompt.id for g in groups] == [p.id for p in [*PROMPTS, PROMPTS[0]]]  # also of a prompt drawn twice
    for group in groups:
        assert [(c.text, c.finish) for c in group.trajectories] == [("2", "stop"), ("3" * 8, "length")]
        assert group.prompt_ids == renderer.encode(group.prompt)
    request = engine.requests[1]
    assert request.seeds == (seed_of(7, "12+345", 0), seed_of(7, "12+345", 1)) and request.seed == seed_of(7, "12+345")


def test_make_sampler(policy: Policy) -> None:
    assert set(ENGINES) == {"local", "fp8", "hf"}
    ours, direct = make_sampler(policy), local_sampler(policy)
    texts = [{g.prompt.id: g.trajectories for g in s.sample(PROMPTS, 2, PARAMS, 1)} for s in (ours, direct)]
    assert isinstance(ours, Sampler) and isinstance(ours.engine, LocalEngine) and texts[0] == texts[1]
    notes: list[str] = []
    plain = make_sampler(replace(policy, plain=True), load_recipe(), notify=notes.append)
    assert isinstance(plain.engine, HFEngine) and len(notes) == 1 and "LlamaForCausalLM" in notes[0]
    chosen = make_sampler(policy, load_recipe(None, {"sampler": "hf"}), notify=notes.append)
    assert isinstance(chosen.engine, HFEngine) and len(notes) == 1
