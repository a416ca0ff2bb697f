"""The loop itself: scripted answers, a learner of one number, updates computed by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import BrokenGraders, NumericsError, RecipeError
from outdo.models.load import Policy
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import find_rewards
from outdo.rollout.groups import Sampler
from outdo.rollout.source import SyncSource
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.task import Task
from outdo.training.loop import run_loop
from outdo.types import Batch, Group, Prompt, Rollouts, WeightSource
from support.basics import group_of, prompt_of
from support.fakes import NumberLearner, ScriptedSampler
from support.scripted_engine import ScriptedEngine


@dataclass
class Recorded:
    """Events of a loop; `stop_after` ends it."""

    stop_after: int = 10**9
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[Sequence[Group]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def step(self, step: int, metrics: dict[str, Any], groups: Sequence[Group]) -> None:
        self.rows.append({"step": step, **metrics})
        self.groups.append(groups)

    def step_end(self, done: int) -> bool:
        self.done.append(done)
        return done < self.stop_after

    def step_failed(self, step: int, groups: Sequence[Group]) -> None:
        self.failed.append(step)


def recipe_of(**keys: Any) -> Recipe:
    small = {"num_generations": 2, "per_device_train_batch_size": 4, "max_steps": 3, "max_completion_length": 4}
    return load_recipe(None, {**small, "sft_steps": 0, **keys})


def task() -> Task:
    def prompts(split: str, seed: int) -> Iterator[Prompt]:
        yield from (Prompt(f"p{i:03d}", ({"role": "user", "content": f"{i}"},), str(i)) for i in range(100))

    return Task("counting", prompts, ("exact",), splits=("train",))


def pays_sevens(completions: list[str], **columns: object) -> list[float]:
    return [float(text.split().count("7")) for text in completions]


def source_of(recipe: Recipe, sampler: Any, reward: Any = pays_sevens) -> SyncSource:
    rewards = find_rewards(["paid"], [], "paid", 4, {"paid": reward})
    return SyncSource(recipe, Curriculum(task(), recipe), sampler, rewards)


def test_update_by_hand() -> None:
    # Each group: one answer of two tokens that is paid 1, one of a single token that is paid 0. Advantages are +1, -1.
    recipe, learner, events = recipe_of(), NumberLearner(), Recorded()
    sampler = ScriptedSampler(lambda prompt, version: [(7, 3), (4,)])
    run_loop(recipe, source_of(recipe, sampler), learner, events)
    by_hand = (1.0 * 2 - 1.0 * 1) / 3  # each step: two groups, (2 + 2 - 1 - 1) / (3 + 3)
    assert learner.weight == pytest.approx(3 * by_hand, rel=1e-3)
    assert [row["step"] for row in events.rows] == [0, 1, 2] and events.done == [1, 2, 3]
    assert events.rows[0]["reward_mean"] == 0.5 and events.rows[0]["informative"] == 1.0
    assert events.rows[0]["tokens"] == 6 and events.rows[0]["loss"] == pytest.approx(-by_hand, rel=1e-3)
    assert all(one.advantages == pytest.approx((1.0, -1.0), abs=1e-3) for one in events.groups[0])


def test_each_reward_by_itself_in_the_loop() -> None:
    """Two rewards that disagree: one pays 1 for a seven, the other 100 for none, with a weight of 0.5."""

    def pays_others(completions: list[str], **columns: object) -> list[float]:
        return [0.0 if "7" in text.split() else 100.0 for text in completions]

    recipe, events = recipe_of(multi_objective_aggregation="normalize_then_sum", max_steps=1), Recorded()
    rewards = find_rewards(["paid", "other"], [1.0, 0.5], "paid", 4, {"paid": pays_sevens, "other": pays_others})
    sampler = ScriptedSampler(lambda prompt, version: [(7, 3), (4,)])
    for weights_of, expected in ((rewards.weights_of, 1.0), (None, -1.0)):  # 1 - 0.5 is above 0, 1 - 50 is below
        source = SyncSource(recipe, Curriculum(task(), recipe), sampler, rewards)
        run_loop(recipe, source, NumberLearner(), events, weights_of=weights_of)
        assert events.groups[-1][0].advantages == pytest.approx((expected, -expected), abs=1e-3)


def test_rewards_that_the_estimator_cannot_use() -> None:
    recipe = recipe_of(advantage_estimator="maxrl")
    sampler = ScriptedSampler(lambda prompt, version: [(7,), (4,)])

    def negative(completions: list[str], **columns: object) -> list[float]:
        return [-1.0 for _ in completions]

    with pytest.raises(RecipeError, match="maxrl"):
        run_loop(recipe, source_of(recipe, sampler, negative), NumberLearner(), Recorded())


def test_every_step_samples_from_the_weights_before_it() -> None:
    recipe, learner = recipe_of(), NumberLearner()
    sampler = ScriptedSampler(lambda prompt, version: [(7,) * (version + 1), (4,)])
    run_loop(recipe, source_of(recipe, sampler), learner, Recorded())
    assert [version for _, _, version in sampler.calls] == [0, 1, 2]
    assert [batch.version for batch in learner.batches] == [0, 1, 2]
    assert [max(len(sample.token_ids) for sample in batch.samples) for batch in learner.batches] == [1, 2, 3]
    assert len({seed for _, seed, _ in sampler.calls}) == 3, "each step has a seed of its own"


def test_start_and_early_end() -> None:
    recipe, events = recipe_of(max_steps=9), Recorded(stop_after=6)
    sampler = ScriptedSampler(lambda prompt, version: [(7,), (4,)])
    run_loop(recipe, source_of(recipe, sampler), NumberLearner(), events, start=4)
    assert [row["step"] for row in events.rows] == [4, 5] and events.done == [5, 6]


def test_groups_without_spread_are_replaced_within_the_budget() -> None:
    recipe = recipe_of(dynamic_sampling=True, max_resample=2.0, max_steps=1)
    dead = {"p000", "p001", "p002"}
    sampler = ScriptedSampler(lambda prompt, version: [(4,), (4,)] if prompt.id in dead else [(7,), (4,)])
    events = Recorded()
    run_loop(recipe, source_of(recipe, sampler), NumberLearner(), events)
    (groups,) = events.groups
    assert len(groups) == 2 and all(group.has_spread for group in groups)
    never = ScriptedSampler(lambda prompt, version: [(4,), (4,)])
    events = Recorded()
    run_loop(recipe, source_of(recipe, never), NumberLearner(), events)
    assert sum(len(ids) for ids, _, _ in never.calls) == 2 + 4, "a step of 2, and twice as many again"
    assert len(events.groups[0]) == 2 and events.rows[0]["informative"] == 0.0


def test_a_failed_update_is_reported_and_ends_the_loop() -> None:
    class Failing(NumberLearner):
        def update(self, batch: Batch, step: int) -> dict[str, float]:
            if step == 1:
                raise NumericsError("NaN")
            return super().update(batch, step)

    recipe, events = recipe_of(), Recorded()
    with pytest.raises(NumericsError):
        run_loop(recipe, source_of(recipe, ScriptedSampler(lambda *_: [(7,), (4,)])), Failing(), events)
    assert events.failed == [1] and len(events.rows) == 1


def test_broken_graders_halt() -> None:
    def broken(completions: list[str], **columns: object) -> list[None]:
        return [None] * len(completions)

    recipe = recipe_of()
    with pytest.raises(BrokenGraders):
        sampler = ScriptedSampler(lambda *_: [(7,), (4,)])
        run_loop(recipe, source_of(recipe, sampler, broken), NumberLearner(), Recorded())


def test_rollouts_of_an_interrupted_step_are_not_sampled_again(tmp_path: Path) -> None:
    recipe = recipe_of()
    first = ScriptedSampler(lambda *_: [(7, 3), (4,)])
    source = source_of(recipe, first)
    source.next(0)
    source.pending_writer("rollouts.jsonl")(tmp_path)
    state = source.state()
    again = ScriptedSampler(lambda *_: pytest.fail("sampled again"))
    resumed = source_of(recipe, again)
    resumed.load_state(state)
    resumed.read_pending(tmp_path / "rollouts.jsonl")
    assert resumed.next(0).groups == source_of(recipe, first).next(0).groups
    assert resumed.max_staleness == 0


def test_with_a_scripted_engine(policy: Policy) -> None:
    """Through the real renderer: the answer's text is graded, its tokens are trained on as they were sampled."""
    recipe, learner, events = recipe_of(max_steps=2), NumberLearner(), Recorded()
    seven, eight = (policy.renderer.encode_texts([text])[0] for text in ("7", "8"))
    engine = ScriptedEngine(lambda request, i: (*((seven, eight)[i]), policy.eos_ids[0])[: 2 - i])
    run_loop(recipe, source_of(recipe, Sampler(engine, policy.renderer)), learner, events)
    by_hand = (1.0 * 2 - 1.0 * 1) / 3  # "7" and its end are paid, "8" alone is not
    assert learner.weight == pytest.approx(2 * by_hand, rel=1e-3)
    assert engine.updates == [1, 2] and [row["reward_mean"] for row in events.rows] == [0.5, 0.5]
    assert learner.batches[0].samples[0].token_ids == (*seven, policy.eos_ids[0])


def test_with_another_source() -> None:
    """The loop takes its groups from any source, and hands the weights back after each step."""

    class Fixed:
        max_staleness = 0

        def __init__(self) -> None:
            self.published: list[int] = []

        def next(self, step: int) -> Rollouts:
            group = group_of(prompt_of("a"), (1, 2), [(5, 6), (7,)], [1.0, 0.0])
            return Rollouts([group], [group], {"rollout": 0.25})

        def publish(self, learner: WeightSource, version: int) -> None:
            self.published.append(version)

        def state(self) -> dict[str, Any]:
            return {}

        def load_state(self, state: Any) -> None: ...

    source, learner, events = Fixed(), NumberLearner(), Recorded()
    run_loop(recipe_of(max_steps=2), source, learner, events)
    assert source.published == [1, 2] and learner.weight == pytest.approx(2 / 3, rel=1e-3)
    assert events.rows[0]["time/rollout"] == 0.25
