"""Rows are refilled, paused where pages are short, preempted, stopped by a text: answers stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outdo.errors import ModelError
from outdo.learn.learner import LocalLearner
from outdo.models import cache as cache_module
from outdo.models.cache import PagedCache
from outdo.models.load import Policy
from outdo.models.renderer import Renderer
from outdo.models.tiny import tiny_tokenizer
from outdo.recipe.load import load_recipe
from outdo.rollout import local as local_module
from outdo.rollout.groups import Sampler
from outdo.rollout.local import LocalEngine
from outdo.rollout.scheduler import BatchScheduler
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.types import Batch, Generation, Group, Sample, SampleParams, Trajectory
from support.basics import prompt_of
from support.samplers import ending_with, local_sampler

PROMPTS = [prompt_of(text) for text in ("1+1", "12+345", "what is 7-2?", "9", "1234567890+1")]
ENDS = tuple(range(40, 46))  # several ending tokens, so that a random model's answers end early, and at odd times


PAGE = 8  # small, so that short answers cross many edges


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "PAGE", PAGE)
    monkeypatch.setattr(local_module, "PAGE", PAGE)


@pytest.fixture
def ending() -> Policy:
    """A policy of two thin layers: these tests are about many steps."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(5)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        **shape, num_key_value_heads=2, vocab_size=len(tokenizer), max_position_embeddings=256, initializer_range=0.2
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("outdo")
    return Policy(model, Renderer(tokenizer, ENDS, 0, 256), torch.device("cpu"))


def paged(policy: Policy, rows: int = 24, pages: int | None = None, late: bool = True) -> Sampler:
    """With the GPU's cache and its late polls, in plain torch; `pages` bounds its memory."""
    memory = None if pages is None else pages * PAGE * policy.cache_bytes
    engine = LocalEngine(policy, rows, memory)
    engine.paged, engine.graphed, engine.late = True, False, late
    return Sampler(engine, policy.renderer)


def cache_of(sampler: Sampler) -> PagedCache | None:
    assert isinstance(sampler.engine, LocalEngine)
    return sampler.engine._cache


def answers(groups: list[Group]) -> dict[tuple[str, int], Trajectory]:
    assert len({g.prompt.id for g in groups}) == len(groups)
    return {(g.prompt.id, i): c for g in groups for i, c in enumerate(g.trajectories)}


def assert_same(ours: list[Group], theirs: list[Group]) -> None:
    mine, others = answers(ours), answers(theirs)
    assert mine.keys() == others.keys()
    for key, one in mine.items():
        other = others[key]
        assert (one.token_ids, one.text, one.finish) == (other.token_ids, other.text, other.finish), key
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5, rtol=1e-5)


def all_at_once(policy: Policy, params: SampleParams, n: int = 4, seed: int = 3) -> list[Group]:
    groups = list(local_sampler(policy).sample(PROMPTS, n, params, seed))
    lengths = {len(c.token_ids) for g in groups for c in g.trajectories}
    assert len(lengths) > 3, "the test needs answers of many lengths"
    return groups


@pytest.mark.parametrize("kind", ["slots", "pages"])
@pytest.mark.parametrize("rows", [4, 8, 11])
def test_refilled_rows(ending: Policy, kind: str, rows: int) -> None:
    params = SampleParams(40)
    sampler = local_sampler(ending, rows) if kind == "slots" else paged(ending, rows)
    assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(ending, params))


def test_pages_equal_slots(ending: Policy) -> None:
    """Also over the edge of a page, in prompt and answer."""
    params, long = SampleParams(40), prompt_of("7" * (2 * PAGE + 3))
    sampler = paged(ending)
    assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(ending, params))
    assert isinstance(cache_of(sampler), PagedCache)
    slots = local_sampler(ending)
    for seed in (0, 1):  # a cache that is used again, then one that must grow
        assert_same(list(sampler.sample([long], 6, params, seed)), list(slots.sample([long], 6, params, seed)))
    more = SampleParams(60)
    assert_same(list(sampler.sample([long], 9, more, 2)), list(slots.sample([long], 9, more, 2)))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("spare", [0, 2, 7])
def test_few_pages_pause_and_preempt(ending: Policy, monkeypatch: pytest.MonkeyPatch, spare: int, late: bool) -> None:
    few = ending_with(ending, 40)  # answers that are longer than the sampler expects
    params = SampleParams(60)
    seen = {"refused": 0, "begun": 0}
    grow, place = PagedCache.grow, PagedCache.place

    def watched_grow(self: PagedCache, rows: list[int], tokens: int) -> list[int]:
        refused = grow(self, rows, tokens)
        seen["refused"] += len(refused)
        return refused

    def watched_place(self: PagedCache, prompt: int, rows: list[int]) -> None:
        seen["begun"] += 1
        place(self, prompt, rows)

    monkeypatch.setattr(PagedCache, "grow", watched_grow)
    monkeypatch.setattr(PagedCache, "place", watched_place)
    sampler = paged(few, rows=20, pages=least_pages(few, 4, 60) + spare, late=late)
    assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(few, params))
    assert seen["refused"] > 0 and seen["begun"] > len(PROMPTS), seen
    cache = cache_of(sampler)
    assert cache and sorted(cache.free) == list(range(1, cache.num_pages)) and not cache.sharers


def test_preempted_request_ignores_old_polls(ending: Policy) -> None:
    """It restarts at once, before the host has seen the polls of its first attempt."""
    one, params = ending_with(ending, 40), SampleParams(20)
    sampler = paged(one, rows=20, pages=least_pages(one, 3, 20) + 3)
    whole = list(local_sampler(one).sample(PROMPTS, 3, params, 32))
    assert_same(list(sampler.sample(PROMPTS, 3, params, 32)), whole)


@pytest.mark.parametrize("late", [False, True])
def test_single_row_ends(ending: Policy, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Its pages reach past its end: it must not be preempted before the host has seen that it is done."""
    place, begun = PagedCache.place, 0

    def watched(self: PagedCache, prompt: int, rows: list[int]) -> None:
        nonlocal begun
        begun += 1
        assert begun <= len(PROMPTS) * 12, "it restarts without end"
        place(self, prompt, rows)

    monkeypatch.setattr(PagedCache, "place", watched)
    endless = ending_with(ending, 9999)
    for limit in range(4, 16):
        groups = list(paged(endless, rows=1, late=late).sample(PROMPTS, 1, SampleParams(limit), 0))
        assert [len(c.token_ids) for g in groups for c in g.trajectories] == [limit] * len(PROMPTS)


def test_preempted_request_forgets_stop_texts(ending: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second attempt would end at once, at the length of the first."""
    endless = ending_with(ending, 9999)
    free = [c for g in local_sampler(endless).sample(PROMPTS, 4, SampleParams(60), 3) for c in g.trajectories]
    stops = tuple(text for c in free[:4] if (text := endless.renderer.decode(c.token_ids[25:28])))
    preempt, generations, forgotten = BatchScheduler._preempt, BatchScheduler._generations, []

    def watched(self: BatchScheduler, request: int) -> None:
        forgotten.extend(answer for answer in self.stops if answer // self.n == request)
        preempt(self, request)

    def written(self: BatchScheduler, finished: list[int]) -> list[Generation]:
        for answer in (p * self.n + i for p in finished for i in range(self.n)):
            assert int(self.state.lengths_A[self.slots[answer]]) >= self.stops.get(answer, 0)
        return generations(self, finished)

    monkeypatch.setattr(BatchScheduler, "_preempt", watched)
    monkeypatch.setattr(BatchScheduler, "_generations", written)
    params = SampleParams(60, stop=stops)
    for spare in range(12):
        sampler = paged(endless, rows=20, pages=least_pages(endless, 4, 60) + spare)
        assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(endless, params))
    assert forgotten


def least_pages(policy: Policy, n: int, new_tokens: int) -> int:
    longest = max(len(policy.renderer.encode(prompt)) for prompt in PROMPTS) + new_tokens
    return (n + 1) * (2 + longest // PAGE) + 1


def test_memory_below_one_group_is_refused(ending: Policy) -> None:
    least = least_pages(ending, 4, 40)
    with pytest.raises(ModelError, match=r"cannot hold one group of 4 answers of .. tokens.*num_generations"):
        list(paged(ending, pages=least - 1).sample(PROMPTS, 4, SampleParams(40), 0))
    sampler = paged(ending, pages=least)
    assert len(list(sampler.sample(PROMPTS, 4, SampleParams(40), 0))) == len(PROMPTS)
    with pytest.raises(ModelError, match="one group of 5 answers"):  # and not only in the first call
        list(sampler.sample(PROMPTS, 5, SampleParams(40), 0))


def test_cache_grows_for_a_larger_group(ending: Policy) -> None:
    sampler, params = paged(ending, rows=4), SampleParams(60)
    list(sampler.sample(PROMPTS[:2], 2, params, 0))
    assert_same(list(sampler.sample(PROMPTS, 9, params, 1)), list(local_sampler(ending).sample(PROMPTS, 9, params, 1)))


@pytest.mark.parametrize("kind", ["slots", "pages"])
def test_closed_call_leaves_nothing(ending: Policy, kind: str) -> None:
    params = SampleParams(40)
    sampler = local_sampler(ending, 8) if kind == "slots" else paged(ending, 8)
    half = sampler.sample(PROMPTS, 4, params, 8)
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(ending, params))
    assert_same(list(sampler.sample(PROMPTS, 4, params, 3)), all_at_once(ending, params))


def test_update_refreshes_weights(ending: Policy) -> None:
    params = SampleParams(20)
    for sampler in (local_sampler(ending), paged(ending)):
        list(sampler.sample(PROMPTS, 4, params, 3))
        with torch.no_grad():
            for parameter in ending.model.parameters():
                parameter.mul_(1.1)
        sampler.update(LocalLearner(ending, load_recipe()), version=1)
        assert_same(
            list(sampler.sample(PROMPTS, 4, params, 3)), list(local_sampler(ending).sample(PROMPTS, 4, params, 3))
        )


def first_end(policy: Policy, ids: tuple[int, ...], stop: tuple[str, ...]) -> int | None:
    """How many tokens complete the first stop text, counted by hand; None: it never comes."""
    for i in range(1, len(ids) + 1):
        if any(text in policy.renderer.decode(ids[:i]) for text in stop):
            return i
    return None


@pytest.mark.parametrize("kind", ["slots", "pages"])
@pytest.mark.parametrize("length", [1, 2])
def test_stop_text_ends_at_its_last_token(ending: Policy, kind: str, length: int) -> None:
    free = list(local_sampler(ending).sample(PROMPTS, 4, SampleParams(40), 3))
    # Texts of one token and of two, that do come: from the middle of the longest answers.
    longest = sorted((c.token_ids for g in free for c in g.trajectories), key=len)[-3:]
    stop = tuple(text for ids in longest if (text := ending.renderer.decode(ids[9 : 9 + length])))
    sampler = local_sampler(ending, 8) if kind == "slots" else paged(ending, 8)
    stopped = answers(list(sampler.sample(PROMPTS, 4, SampleParams(40, stop=stop), 3)))
    cut = 0
    for key, whole in answers(free).items():
        end, found = first_end(ending, whole.token_ids, stop), stopped[key]
        if end is None:  # siblings are not disturbed
            assert (found.token_ids, found.text, found.finish) == (whole.token_ids, whole.text, whole.finish)
        else:
            cut += end < len(whole.token_ids)
            assert found.token_ids == whole.token_ids[:end] and found.finish == "stop"
            assert any(text in found.text for text in stop)
        assert len(found.logprobs) == len(found.token_ids)
        expected = torch.tensor(whole.logprobs[: len(found.logprobs)])
        torch.testing.assert_close(torch.tensor(found.logprobs), expected, atol=1e-5, rtol=1e-5)
    assert 3 <= cut < 20, "some are cut and some are not"


def test_no_prompts_no_tokens(ending: Policy) -> None:
    assert list(local_sampler(ending).sample([], 4, SampleParams(8), 0)) == []
    with pytest.raises(ValueError, match="max_completion_length=0: it must be 1 or more"):
        SampleParams(0)


def restricted_logprobs(policy: Policy, group: Group, answer: Trajectory, temperature: float) -> torch.Tensor:
    """By a plain forward, over the tokens that were left to choose from."""
    ids = torch.tensor([[*group.prompt_ids, *answer.token_ids]])
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(group.prompt_ids) - 1 : -1] / temperature
    policy.model.set_attn_implementation("outdo")
    found = [
        logits[t, list(kept)].log_softmax(-1)[kept.index(token)]
        for t, (token, kept) in enumerate(zip(answer.token_ids, answer.support, strict=True))
    ]
    return torch.stack(found)


CUTS: list[dict[str, float]] = [
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("kind", ["slots", "pages"])
def test_support_travels(ending: Policy, kind: str, cut: dict[str, float]) -> None:
    params = SampleParams(16, temperature=0.8, **cut)  # type: ignore[arg-type]
    sampler = local_sampler(ending, 8) if kind == "slots" else paged(ending, 8)
    sizes = set()
    for group in sampler.sample(PROMPTS, 4, params, 1):
        for answer in group.trajectories:
            sizes |= {len(kept) for kept in answer.support}
            assert all(token in kept for token, kept in zip(answer.token_ids, answer.support, strict=True))
            expected = restricted_logprobs(ending, group, answer, 0.8)
            torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-5, rtol=1e-5)
    assert sizes == {5} if cut == {"top_k": 5} else len(sizes) > 2


def test_learner_sees_the_sampled_distribution(ending: Policy, tmp_path: Path) -> None:
    """Also when the rollouts have been on the disk in between."""
    keys = {"num_generations": 4, "per_device_train_batch_size": 20, "temperature": 0.8, "learning_rate": 1e-4}
    groups = list(local_sampler(ending).sample(PROMPTS, 4, SampleParams(16, 0.8, top_p=0.7), 1))
    write_rounds(tmp_path / "rounds.jsonl", [groups])
    (again,) = read_rounds(tmp_path / "rounds.jsonl")
    assert [g.trajectories for g in again] == [g.trajectories for g in groups]

    def update(ignore: bool) -> dict[str, float]:
        rows = [
            Sample(p, c.token_ids, c.logprobs, (-1.0) ** i, () if ignore else c.support)
            for p, g in enumerate(again)
            for i, c in enumerate(g.trajectories)
        ]
        learner = LocalLearner(ending, load_recipe(None, keys))
        learner.optimizer.step = lambda *a: None  # type: ignore[method-assign]
        return learner.update(Batch(tuple(g.prompt_ids for g in again), tuple(rows), 0), 0)

    right, wrong = update(ignore=False), update(ignore=True)
    assert right["mismatch_kl"] < 1e-8 and right["mismatch_ratio_std"] < 1e-4 and right["ratio_mean"] == 1.0
    assert wrong["mismatch_kl"] > 0.01


def test_first_token_frequencies(ending: Policy) -> None:
    """Chi-square over 4,000 answers, against the plain forward's probabilities; rare tokens are counted together."""
    ids = ending.renderer.encode(PROMPTS[1])
    ending.model.set_attn_implementation("eager")
    with torch.no_grad():
        probs = ending.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double().softmax(-1)
    ending.model.set_attn_implementation("outdo")
    (group,) = local_sampler(ending, 4000).sample(PROMPTS[1:2], 4000, SampleParams(1), 11)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in group.trajectories]), minlength=len(probs)).double()
    expected = probs * 4000
    often = expected >= 5
    found, due = (torch.cat([x[often], x[~often].sum()[None]]) for x in (counts, expected))
    freedom = len(due) - 1
    statistic = float(((found - due).square() / due).sum())
    assert freedom > 20
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # the 99.9% point


def test_ended_row_is_not_released(ending: Policy) -> None:
    """It may have been paused after its end, before the host had seen that."""
    engine = paged(ending, rows=4).engine
    assert isinstance(engine, LocalEngine)
    state, _ = engine.allocate(30, 2, 4, SampleParams(20))
    state.begin([0, 1], [5, 6], [1, 2], [0, 1])
    state.ended_B[0] = True
    state.pause([0, 1])
    assert state.cache.idle_B[:2].tolist() == [True, True]
    state.release([0, 1])
    assert state.cache.idle_B[:2].tolist() == [True, False]
