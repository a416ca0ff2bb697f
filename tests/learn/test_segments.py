"""Answers of several segments: tokens of an environment are context, without a gradient and in no denominator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outdo.algo.prepare import prepare, with_advantages
from outdo.learn.learner import LocalLearner
from outdo.learn.packing import pack
from outdo.models import attention
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.runs.reader import read_groups
from outdo.runs.writer import RunWriter
from outdo.training.monitors import logged_tokens
from outdo.types import Batch, Grade, Group, Segment, Trajectory
from support.basics import prompt_of

PROMPT = (5, 6, 7)
LIMIT = 16


def wrote(*ids: int, version: int = 0) -> Segment:
    return Segment(ids, (-1.0,) * len(ids), version)


def told(*ids: int) -> Segment:
    """What an environment answered."""
    return Segment(ids, trained=False)


def group_of(*answers: tuple[Segment, ...]) -> Group:
    trajectories = tuple(Trajectory(segments, f"answer {i}", "stop") for i, segments in enumerate(answers))
    grades = tuple(Grade(float(i % 2), "right" if i % 2 else "wrong") for i in range(len(answers)))
    return Group(prompt_of("a"), PROMPT, trajectories, grades)


TURNS = group_of(
    (wrote(8, 9), told(10, 11, 12), wrote(13)),
    (wrote(14), told(15), wrote(16, 17), told(18, 19)),
)


def batch_of(group: Group) -> Batch:
    return prepare(with_advantages([group]))


def logprobs_by_transformers(policy: Policy, trajectory: Trajectory) -> torch.Tensor:
    """Of the trained tokens, by the model's own forward over the whole text."""
    ids = torch.tensor([[*PROMPT, *trajectory.token_ids]])
    logits = policy.model(input_ids=ids).logits[0].float().log_softmax(-1)
    places = [len(PROMPT) + i for i, trained in enumerate(trajectory.mask) if trained]
    return torch.stack([logits[place - 1, ids[0, place]] for place in places])


def expected_loss(policy: Policy, group: Group, loss_type: str) -> torch.Tensor:
    """On policy the ratio is 1 in value, and its gradient that of the log-probability."""
    advantages = with_advantages([group])[0].advantages
    each = [logprobs_by_transformers(policy, one) for one in group.trajectories]
    terms = [-a * (lp - lp.detach()).exp() for a, lp in zip(advantages, each, strict=True)]
    if loss_type == "dapo":  # over all trained tokens of the batch
        return torch.cat(terms).sum() / sum(map(len, terms))
    if loss_type == "grpo":  # by the mean of each answer's trained tokens
        return torch.stack([term.mean() for term in terms]).mean()
    return torch.cat(terms).sum() / (len(terms) * LIMIT)  # dr_grpo: by a constant


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("plain", [False, True])
def test_gradient_is_of_the_models_own_tokens(policy: Policy, loss_type: str, plain: bool) -> None:
    policy.model.set_attn_implementation("sdpa")
    recipe = Recipe(loss_type=loss_type, max_completion_length=LIMIT, num_generations=2, kl_limit=None)
    expected_loss(policy, TURNS, loss_type).backward()
    wanted = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    if not plain:
        policy.model.set_attn_implementation(attention.NAME)
    policy = replace(policy, plain=plain)
    learner, batch = LocalLearner(policy, recipe), batch_of(TURNS)
    packed = pack(batch.prompt_ids, batch.samples, policy.device)
    totals = {"num_sequences": 2, "num_tokens": batch.num_tokens}
    loss, _ = learner._loss(packed, on_policy=True, totals=totals)
    loss.backward()
    assert batch.num_tokens == 6, "3 and 3, of 6 and 6"
    for name, p in policy.model.named_parameters():
        if name in wanted:
            assert torch.allclose(p.grad, wanted[name], atol=1e-6), name


def test_environment_tokens_change_nothing_but_the_context(policy: Policy) -> None:
    """Tokens after the last of the model's own are seen by nobody: they change no number at all."""
    recipe = Recipe(max_completion_length=LIMIT, num_generations=2, kl_limit=None, learning_rate=1e-3)
    stats = []
    for last in ((18, 19), (30,), ()):
        tail = (told(*last),) if last else ()
        group = group_of((wrote(8, 9), told(10), wrote(13)), (wrote(14), told(15), wrote(16, 17), *tail))
        fresh = replace(policy, model=type(policy.model)(policy.model.config))
        fresh.model.load_state_dict(policy.model.state_dict())
        learner = LocalLearner(fresh, recipe)
        stats.append((learner.update(batch_of(group), 0), fresh.model.state_dict()["model.norm.weight"].clone()))
    for other, weights in stats[1:]:
        assert other["loss"] == pytest.approx(stats[0][0]["loss"], abs=1e-6)
        assert other["grad_norm"] == pytest.approx(stats[0][0]["grad_norm"], rel=1e-4)
        assert torch.allclose(weights, stats[0][1], atol=1e-6)


def test_one_segment_is_packed_as_before(policy: Policy) -> None:
    single = group_of((wrote(8, 9, 10),), (wrote(14, 15),))
    packed = pack(batch_of(single).prompt_ids, batch_of(single).samples, policy.device)
    assert packed.trained_A is None and packed.mask_BT.tolist() == [[True] * 3, [True, True, False]]
    assert packed.targets_M.tolist() == [8, 9, 10, 14, 15]


def test_version_is_that_of_the_oldest_segment() -> None:
    trajectory = Trajectory((wrote(1, version=4), told(2), wrote(3, version=3)), "", "stop")
    assert trajectory.version == 3 and trajectory.num_tokens == 2 and trajectory.mask == (True, False, True)


def test_segments_are_logged(policy: Policy, tmp_path: Path) -> None:
    class Run:
        learner = LocalLearner(policy, Recipe(max_completion_length=LIMIT, num_generations=2))

    Run.policy = policy
    (group,) = with_advantages([TURNS])
    tokens = logged_tokens(Run(), [group])
    run = RunWriter.create(tmp_path / "run", {}, {})
    run.record_step(0, {"reward_mean": 0.5}, [group], tokens)
    run.close()
    (row,) = read_groups(tmp_path / "run")
    first = row["completions"][0]
    assert first["num_tokens"] == 3 and first["segments"] == [[True, 2], [False, 3], [True, 1]]
    assert [token[1] is None for token in first["tokens"]] == [False, False, True, True, True, False]


def test_rollouts_are_stored_with_their_segments(tmp_path: Path) -> None:
    write_rounds(tmp_path / "rollouts.jsonl", [[TURNS]])
    ((group,),) = read_rounds(tmp_path / "rollouts.jsonl")
    assert group.trajectories == TURNS.trajectories


def branched() -> tuple[Group, Group]:
    """An answer whose second turn has a prompt of its own, and the same two texts as two answers of two prompts."""
    again = replace(wrote(16, 17), prompt_ids=(5, 6, 7, 14, 20))
    split = group_of((wrote(8, 9),), (wrote(14), told(15), again))
    return split, replace(split, trajectories=(split.trajectories[0], Trajectory((wrote(14), told(15)), "", "stop")))


def test_a_branch_is_trained_on_with_its_own_prompt(policy: Policy) -> None:
    split, first_only = branched()
    batch = batch_of(split)
    assert batch.prompt_ids == (PROMPT, (5, 6, 7, 14, 20)) and batch.group_of == (0, 0)
    assert [(one.prompt, one.token_ids, one.num_trained) for one in batch.samples] == [
        (0, (8, 9), 2),
        (0, (14, 15), 1),
        (1, (16, 17), 2),
    ]
    assert batch.samples[1].advantage == batch.samples[2].advantage > 0 > batch.samples[0].advantage
    learner = LocalLearner(policy, Recipe())
    rows = learner.logprobs([split])[0]
    alone = learner.logprobs(
        [group_of((wrote(8, 9),), (wrote(14),)), replace(group_of((wrote(16, 17),)), prompt_ids=(5, 6, 7, 14, 20))]
    )
    assert rows[1] == pytest.approx([*alone[0][1], *alone[1][0]], abs=1e-5)
    assert learner.logprobs([first_only])[0][1] == pytest.approx(rows[1][:1], abs=1e-5)


def test_branches_of_a_group_stay_in_its_update(policy: Policy) -> None:
    split, _ = branched()
    groups = [split, replace(TURNS, prompt=prompt_of("b"))] * 2
    batch = prepare(with_advantages(groups))
    assert batch.num_groups == 4
    learner = LocalLearner(policy, Recipe(generation_batch_size=8, per_device_train_batch_size=2, num_generations=2))
    for samples in learner._updates(batch, seed=3):
        assert len({batch.group_of[sample.prompt] for sample in samples}) == 1


def test_an_answer_without_a_token_is_left_out(policy: Policy) -> None:
    empty = Trajectory((Segment((), ()),), "", "stop")
    group = replace(
        TURNS, trajectories=(TURNS.trajectories[0], empty), grades=(Grade(1.0, "right"), Grade(None, "broken"))
    )
    assert len(prepare(with_advantages([group])).samples) == 1
    assert LocalLearner(policy, Recipe()).logprobs([group])[0][1] == []
