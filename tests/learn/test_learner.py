"""The learner: packing and micro-batches change no gradient, and an update does what the maths says."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from outdo.algo.losses import LOSSES, grpo_loss
from outdo.algo.prepare import prepare, with_advantages
from outdo.errors import NumericsError
from outdo.learn.learner import LocalLearner
from outdo.learn.logprobs import token_logprobs
from outdo.learn.packing import forward, pack, unpack
from outdo.learn.reference import FrozenCopy
from outdo.learn.update import tokens_of
from outdo.models.load import Policy, load_policy
from outdo.types import Batch, Sample, SampleParams
from support.basics import group_of, prompt_of
from support.batches import assert_same, batch, gradients_after, groups, recipe
from support.samplers import local_sampler


def plain_loss(policy: Policy, **keys: object) -> torch.Tensor:
    """The same loss from one unpadded forward of each answer by transformers' own attention."""
    b = batch()
    width = max(len(row.token_ids) for row in b.samples)
    logprobs_BT = torch.zeros(len(b.samples), width)
    mask_BT = torch.zeros(len(b.samples), width)
    policy.model.set_attn_implementation("eager")
    for i, row in enumerate(b.samples):
        ids = torch.tensor([[*b.prompt_ids[row.prompt], *row.token_ids]])
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(b.prompt_ids[row.prompt]) - 1 : -1]
        n = len(row.token_ids)
        chosen = logits.log_softmax(-1).gather(-1, torch.tensor(row.token_ids)[:, None])[:, 0]
        logprobs_BT = torch.index_put(logprobs_BT, (torch.tensor([i] * n), torch.arange(n)), chosen)
        mask_BT[i, :n] = 1
    policy.model.set_attn_implementation("outdo")
    advantages_B = torch.tensor([row.advantage for row in b.samples])
    return grpo_loss(logprobs_BT, logprobs_BT.detach(), advantages_B, mask_BT, max_completion_length=8, **keys)[0]


def keys_of(loss_type: str) -> dict[str, object]:
    """The loss, and what it cannot do without. Of few tokens, a share of some must be chosen."""
    level = {} if "token" in LOSSES[loss_type].levels else {"importance_sampling_level": "sequence"}
    share = {"clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05}, "kl_cov": {"kl_cov_ratio": 0.3}}
    return {"loss_type": loss_type, **level, **share.get(loss_type, {})}


CHOOSING = [name for name, loss in LOSSES.items() if loss.choose]


@pytest.mark.parametrize("loss_type", sorted(set(LOSSES) - set(CHOOSING)))
def test_packed_gradients_equal_those_of_plain_forwards(policy: Policy, loss_type: str) -> None:
    keys = keys_of(loss_type)
    ours = gradients_after(policy, keys)
    policy.model.zero_grad()
    sampler_BT = None
    if loss_type == "dppo":  # its ratio is to the sampler
        sampler_BT = pack(batch().prompt_ids, batch().samples, policy.device).sampler_logprobs_BT
    plain_loss(policy, **keys, sampler_logprobs_BT=sampler_BT).backward()
    assert_same(ours, [p.grad for p in policy.model.parameters()])  # type: ignore[misc]


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_micro_batches_leave_gradients_unchanged(policy: Policy, loss_type: str) -> None:
    keys: dict[str, object] = {**keys_of(loss_type), "beta": 0.1, "entropy_coef": 0.01}
    whole = gradients_after(policy, keys)
    assert max(float(g.abs().max()) for g in whole) > 1e-4
    for tokens in (1, 20, 40):
        assert_same(whole, gradients_after(policy, {**keys, "tokens_per_micro_batch": tokens}))


MASKS = {
    "entropy": {"top_entropy_quantile": 0.3, "entropy_coef": 0.01},
    "staleness": {"off_policy_mask_threshold": 0.01, "epsilon": 5.0},
    "unbiased KL": {"beta": 0.1, "use_bias_correction_kl": True},
    "clip_cov": keys_of("clip_cov"),
    "kl_cov": keys_of("kl_cov"),
}


@pytest.mark.parametrize("keys", MASKS.values(), ids=MASKS)
def test_micro_batches_of_later_updates(policy: Policy, keys: dict[str, object]) -> None:
    """Away from the policy that sampled: what is chosen by, is measured over the update, and then carried. It changes
    the gradient."""
    gradients = []
    own = {key: value for key, value in keys.items() if key in ("beta", "epsilon", "entropy_coef")}
    for more in (keys | {"tokens_per_micro_batch": 1}, keys | {"tokens_per_micro_batch": 20}, keys, own):
        learner = LocalLearner(policy, recipe(max_grad_norm=1e9, **more))
        learner.version = 1  # the batch is of version 0
        if isinstance(learner.reference, FrozenCopy):
            learner.reference.policy = load_policy("tiny", device="cpu", seed=4)
        caught: list[torch.Tensor] = []
        weights = learner.masters.weights
        learner.optimizer.step = lambda *a, c=caught, w=weights: c.extend(one.grad.clone() for one in w)  # type: ignore
        learner.update(batch(), 1)
        gradients.append(caught)
    one, twenty, whole, plain = gradients
    assert_same(whole, one)
    assert_same(whole, twenty)
    assert max(float((a - b).abs().max()) for a, b in zip(whole, plain, strict=True)) > 1e-5


def test_the_tokens_of_highest_entropy_are_those_of_the_update(policy: Policy) -> None:
    learner, b = LocalLearner(policy, recipe(top_entropy_quantile=0.25, tokens_per_micro_batch=10)), batch()
    seen: list[Sample] = []
    learner._gradient = lambda ids, rows, *a: seen.extend(rows) or torch.ones(2)  # type: ignore
    learner.update(b, 0)
    packed = pack(b.prompt_ids, b.samples, policy.device)
    entropies = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)[1].detach().numpy()
    flags = np.array([flag for sample in seen for flag in sample.chosen])
    # First tokens of one prompt have the same entropy: those at the quantile are all kept.
    assert 6 <= flags.sum() <= 8 and len(flags) == 22
    assert entropies[flags].min() > entropies[~flags].max()


def test_nothing_is_chosen_unless_set(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe())
    learner._measured_tokens = lambda *a: pytest.fail("measured")  # type: ignore
    seen: list[Sample] = []
    learner._gradient = lambda ids, rows, *a: seen.extend(rows) or torch.ones(2)  # type: ignore
    learner.update(batch(), 0)
    assert seen and not any(sample.chosen for sample in seen)
    assert pack(batch().prompt_ids, seen, policy.device).chosen_BT is None


def test_a_penalty_reaches_answers_without_an_advantage(policy: Policy) -> None:
    """KL-Cov may choose tokens of answers whose advantage is 0."""
    rows = tuple(replace(row, advantage=0.0 if i % 2 else row.advantage) for i, row in enumerate(batch().samples))
    trained: list[int] = []
    for keys in ({"loss_type": "kl_cov"}, {}):
        learner = LocalLearner(policy, recipe(**keys))
        learner._gradient = lambda ids, rows, *a: trained.append(len(rows)) or torch.ones(2)  # type: ignore
        learner.update(replace(batch(), samples=rows), 0)
    assert trained == [8, 4]


@pytest.mark.parametrize(("tokens", "sizes"), [(1, [1] * 8), (10, [2, 1, 1, 1, 1, 1, 1]), (20, [4, 4]), (10**6, [8])])
def test_micro_batch_sizes(policy: Policy, tokens: int, sizes: list[int]) -> None:
    learner, b = LocalLearner(policy, recipe(tokens_per_micro_batch=tokens)), batch()
    parts = learner._micro_batches(b.prompt_ids, b.samples)
    assert [len(part) for part in parts] == sizes
    assert [row for part in parts for row in part] == list(b.samples)
    assert all(len(part) == 1 or tokens_of(part, b.prompt_ids) <= tokens for part in parts)


def test_gradient_checkpointing_changes_no_gradient(policy: Policy) -> None:
    keys: dict[str, object] = {"beta": 0.1, "entropy_coef": 0.01}
    assert_same(gradients_after(policy, keys), gradients_after(policy, {**keys, "gradient_checkpointing": True}))


def test_groups_without_spread_are_skipped_and_change_no_gradient(policy: Policy) -> None:
    dead = group_of(prompt_of("dead"), (2, 50, 3), [[7, 8, 4], [9, 4], [10, 4], [4]], [1.0] * 4)
    learner = LocalLearner(policy, recipe(per_device_train_batch_size=12, max_grad_norm=1e9))
    packed_rows: list[int] = []
    original = learner._micro_batches
    learner._micro_batches = lambda ids, rows: packed_rows.append(len(rows)) or original(ids, rows)  # type: ignore
    caught: list[torch.Tensor] = []
    learner.optimizer.step = lambda *a: caught.extend(p.grad.clone() for p in policy.model.parameters())  # type: ignore
    learner.update(prepare(with_advantages([*groups(), dead])), 0)
    assert packed_rows == [8]  # twelve answers, four of them from the dead group; the other group has no zero advantage
    alone = gradients_after(policy, {})
    assert_same(caught, [g * 8 / 12 for g in alone])  # the denominator still counts the dead


def test_sampled_answers_are_on_policy_to_rounding(policy: Policy) -> None:
    prompts = [prompt_of(f"{i}+{i * 7}") for i in range(4)]
    sampled = list(local_sampler(policy).sample(prompts, 4, SampleParams(8, temperature=0.8), 0))
    b = prepare(
        with_advantages(
            [group_of(g.prompt, g.prompt_ids, [c.token_ids for c in g.trajectories], [1, 0, 0, 1]) for g in sampled]
        )
    )
    rows = tuple(
        type(row)(row.prompt, row.token_ids, c.logprobs, row.advantage)
        for row, c in zip(b.samples, [c for g in sampled for c in g.trajectories], strict=True)
    )
    stats = LocalLearner(policy, recipe(per_device_train_batch_size=16, temperature=0.8)).update(
        Batch(b.prompt_ids, rows, 0), 0
    )
    assert stats["mismatch_kl"] < 1e-10
    assert stats["ratio_mean"] == 1.0 and stats["clipfrac"] == 0.0
    assert "kl" not in stats  # no reference, so nothing was measured


def test_a_right_answer_becomes_likelier_and_a_wrong_one_less(policy: Policy) -> None:
    def likelihoods() -> torch.Tensor:
        packed = pack(batch().prompt_ids, batch().samples, policy.device)
        chosen, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
        return unpack(chosen, packed).sum(-1).detach()

    before = likelihoods()
    learner = LocalLearner(policy, recipe())
    for step in range(5):
        learner.update(batch(), step)
    gained = likelihoods() - before
    advantages = torch.tensor([row.advantage for row in batch().samples])
    assert float((gained * advantages).sum()) > 1.0


def test_kl_is_zero_at_the_start_and_grows(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(beta=0.05, learning_rate=3e-3))
    first, second = learner.update(batch(), 0), learner.update(batch(), 1)
    assert first["kl"] == 0.0 and second["kl"] > 1e-4


def test_kl_pulls_back_towards_the_reference(policy: Policy) -> None:
    moved = []
    for beta in (0.001, 5.0):
        fresh = load_policy("tiny", device="cpu", seed=3)
        learner = LocalLearner(fresh, recipe(beta=beta, learning_rate=1e-3))
        moved.append([learner.update(batch(), step)["kl"] for step in range(12)][-1])
    assert moved[1] < moved[0] / 2


def test_later_epochs_use_the_samplers_logprobs(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(num_iterations=3))
    stats = learner.update(batch(), 0)
    assert stats["ratio_mean"] != 1.0 and stats["clipfrac"] > 0


def test_stale_batches_are_off_policy_from_the_start(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe())
    learner.version = 3
    stats = learner.update(batch(), 3)
    assert "mismatch_kl" not in stats and stats["ratio_mean"] != 1.0


def test_several_updates_a_step_see_every_row_once(policy: Policy) -> None:
    keys = {"per_device_train_batch_size": 4, "steps_per_generation": 2}
    learner = LocalLearner(policy, recipe(**keys))
    dealt = learner._updates(batch(), seed=1)
    assert [len(rows) for rows in dealt] == [4, 4]
    assert sorted(row.token_ids for rows in dealt for row in rows) == sorted(row.token_ids for row in batch().samples)
    assert all(len({row.prompt for row in rows}) == 1 for rows in dealt)


def test_updates_smaller_than_a_group(policy: Policy) -> None:
    """Groups are not split. A loss that is divided by the step's tokens must not count updates that were never made."""
    norms = []
    for keys in ({"per_device_train_batch_size": 1, "steps_per_generation": 8}, {"per_device_train_batch_size": 4}):
        asked = recipe(
            **keys, **({} if len(keys) > 1 else {"steps_per_generation": 2}), loss_type="dapo", max_grad_norm=1e6
        )
        assert asked.updates_per_step == 2
        norms.append(LocalLearner(copy.deepcopy(policy), asked).update(batch(), 0)["grad_norm"])
    assert norms[0] == pytest.approx(norms[1])


def test_non_finite_gradient_is_skipped_then_halts(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe())
    before = [p.detach().clone() for p in policy.model.parameters()]
    poison = policy.model.get_input_embeddings().weight
    hook = poison.register_hook(lambda grad: grad * math.nan)
    assert learner.update(batch(), 0)["skipped_updates"] == 1
    learner.update(batch(), 1)
    with pytest.raises(NumericsError, match="3 updates in a row"):
        learner.update(batch(), 2)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    hook.remove()


def test_penalties_are_beta_times_the_answers_kl(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(beta=0.5, kl_in_reward=True))
    packed = pack(batch().prompt_ids, batch().samples, policy.device)
    chosen, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
    expected = ((packed.sampler_logprobs_BT - unpack(chosen, packed)) * packed.mask_BT).sum(-1) * 0.5
    found = learner.penalties(groups())
    assert found is not None
    torch.testing.assert_close(torch.tensor(found).flatten(), expected.detach(), atol=1e-5, rtol=1e-5)
    assert LocalLearner(policy, recipe(beta=0.5)).penalties(groups()) is None


def test_logprobs_of_groups(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(learning_rate=3e-3))
    before = learner.logprobs(groups())
    learner.update(batch(), 0)
    packed = pack(batch().prompt_ids, batch().samples, policy.device)
    now, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
    expected_BT = unpack(now, packed).tolist()
    after = learner.logprobs(groups())
    flat = [logprobs for group in after for logprobs in group]
    for row, logprobs, expected_T in zip(batch().samples, flat, expected_BT, strict=True):
        assert logprobs == pytest.approx(expected_T[: len(row.token_ids)], rel=1e-5)
    assert sum(after[0][0]) > sum(before[0][0]) + 0.01  # the right answer became likelier


def test_step_kl_of_later_updates(policy: Policy) -> None:
    once = LocalLearner(policy, recipe())
    assert "step_kl" not in once.update(batch(), 0)
    now = torch.tensor([value for group in once.logprobs(groups()) for answer in group for value in answer])
    sampled = torch.tensor([value for group in groups() for one in group.trajectories for value in one.logprobs])
    ratios = (now - sampled).exp()
    twice = LocalLearner(load_policy("tiny", device="cpu", seed=3), recipe(num_iterations=2))
    expected = float((ratios - 1 - ratios.log()).mean())
    assert expected > 0.1 and twice.update(batch(), 0)["step_kl"] == pytest.approx(expected, rel=1e-4)


def test_the_adaptive_coefficient_follows_its_target(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(beta=0.1, kl_target=1e-6, learning_rate=3e-3))
    betas = [learner.update(batch(), step)["beta"] for step in range(3)]
    assert betas[0] == 0.1 and betas[1] < 0.1 < betas[2] / betas[1] * 0.1


def test_a_prompt_with_one_answer_is_one_text(policy: Policy) -> None:
    prompts = [(5, 6, 7), (8,), (9, 10, 4, 5)]
    rows = [Sample(2, (3, 4, 5), (0.0,) * 3, 0.0), Sample(0, (7,), (0.0,), 0.0), Sample(1, (4, 3), (0.0,) * 2, 0.0)]
    lone = pack(prompts, rows, policy.device)
    assert lone.layout.answer_lens == [] and lone.layout.prompt_lens == [6, 3, 2]
    shared = [pack(prompts, [row, row], policy.device) for row in rows]
    parts = [forward(policy, pair)[: len(row.token_ids)] for pair, row in zip(shared, rows, strict=True)]
    torch.testing.assert_close(forward(policy, lone), torch.cat(parts), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"num_iterations": 2, "tokens_per_micro_batch": 20}])
def test_measuring_kl_changes_no_number(keys: dict[str, object]) -> None:
    """Weights and the generator's state are bit-equal with and without; KL is there at the measured steps alone."""
    ends = {}
    for every in (0, 1, 2):
        policy = load_policy("tiny", device="cpu", seed=3)
        learner = LocalLearner(policy, recipe(kl_steps=every, learning_rate=1e-3, max_steps=5, **keys))
        torch.manual_seed(7)
        stats = [learner.update(batch(), step) for step in range(5)]
        assert [step for step, one in enumerate(stats) if "kl" in one] == {0: [], 1: [0, 1, 2, 3, 4], 2: [1, 3, 4]}[
            every
        ]
        for one in stats:
            one.pop("kl", None)
        ends[every] = (torch.get_rng_state().tolist(), stats, dict(policy.model.state_dict()))
    for every in (1, 2):
        assert ends[every][:2] == ends[0][:2]
        assert all(torch.equal(value, ends[0][2][name]) for name, value in ends[every][2].items())


def test_measured_kl_is_that_of_the_loss() -> None:
    """The same answers give the same KL whether beta trains on it or `kl_steps` measures it."""
    measured = []
    for keys in ({"kl_steps": 1}, {"beta": 1e-9}):
        learner = LocalLearner(load_policy("tiny", device="cpu", seed=3), recipe(learning_rate=1e-3, **keys))
        learner.update(batch(), 0)
        logprobs = chain.from_iterable(learner.logprobs(groups()))  # as a sampler with these weights gives them
        rows = tuple(replace(row, logprobs=tuple(next(logprobs))) for row in batch().samples)
        measured.append(learner.update(replace(batch(), samples=rows), 1)["kl"])
    assert measured[0] > 1e-4 and measured[0] == pytest.approx(measured[1], rel=1e-3)
