"""The learner: a batch in, new weights out.

Micro-batches carry the denominators of the whole update, so their size changes no gradient. While the weights are
still those that sampled the batch, the old log-probabilities are the new ones, detached: no second forward. After
that they are the sampler's own. Groups without spread are skipped where nothing but the advantage could teach.
"""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outdo.algo.clip import truncated_weights
from outdo.algo.divergence import adapt_beta, k3_kl
from outdo.algo.losses import LOSSES, grpo_loss
from outdo.config import Recipe
from outdo.errors import NumericsError
from outdo.learn.logprobs import token_logprobs
from outdo.learn.optim import adamw, rate_at, set_rate
from outdo.learn.packing import Packed, forward, pack, unpack
from outdo.models.load import Policy
from outdo.seeds import seed_of
from outdo.types import Batch, Group, Row

MOST_SKIPPED = 3  # updates in a row with a gradient that is no number, before the run halts


class LocalLearner:
    """Trains `policy` in place. Keeps a frozen copy of its first weights only where beta asks for a KL term."""

    def __init__(self, policy: Policy, recipe: Recipe) -> None:
        self.policy, self.recipe, self.beta = policy, recipe, recipe.beta
        self.version = 0  # steps trained
        self.skipped = 0  # updates in a row that were not applied
        self.rate_scale = 1.0  # what a guard has made of the learning rate
        betas = (recipe.adam_beta1, recipe.adam_beta2)
        self.optimizer = adamw(policy.model, recipe.learning_rate, recipe.weight_decay, betas)
        self.reference: Policy | None = None
        if recipe.beta > 0:
            frozen = copy.deepcopy(policy.model).eval().requires_grad_(False)
            self.reference = replace(policy, model=frozen)

    def weights(self) -> Mapping[str, Any]:
        return self.policy.model.state_dict()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint holds beside the weights: tensors (copies), and plain values."""
        tensors = {
            f"{index}.{name}": value.detach().to("cpu", copy=True)
            for index, param in enumerate(self._trained())
            for name, value in self.optimizer.state[param].items()
        }
        plain = {"version": self.version, "skipped": self.skipped, "rate_scale": self.rate_scale}
        return tensors, {**plain, "beta": self.beta, "first_beta": self.recipe.beta}

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Goes on from there. The weights and the reference are the caller's business."""
        params = self._trained()
        for key, value in tensors.items():
            index, _, name = key.partition(".")
            own = value.to(self.policy.device, copy=True)  # "step" too: the optimizer is fused
            self.optimizer.state[params[int(index)]][name] = own
        self.version, self.skipped = int(plain["version"]), int(plain["skipped"])
        self.rate_scale = float(plain["rate_scale"])
        if plain["first_beta"] == self.recipe.beta:  # else the recipe was changed, and its word is the newer
            self.beta = float(plain["beta"])

    def _trained(self) -> list[torch.nn.Parameter]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One pass or more over the batch (`num_iterations`). Returns means over tokens and updates."""
        recipe = self.recipe
        sums: dict[str, float] = defaultdict(float)
        rate = rate_at(step, recipe.max_steps, recipe.learning_rate, recipe.lr_scheduler_type, recipe.warmup_steps)
        rate *= self.rate_scale
        set_rate(self.optimizer, rate)
        on_policy = batch.version == self.version
        for epoch in range(recipe.num_iterations):
            torch.manual_seed(seed_of("dropout", recipe.seed, step, epoch) % 2**63)  # for models that have any
            for rows in self._updates(batch, seed_of(recipe.seed, step, epoch)):
                self._one_update(batch, rows, on_policy, sums)
                on_policy = False
        self.version = step + 1
        stats = {key: sums[key] / max(sums["tokens"], 1) for key in ("clipfrac", "kl", "ratio_mean", "entropy")}
        if self.reference is None:
            del stats["kl"]  # not measured is not 0
        if sums["fresh_tokens"]:
            stats["mismatch_kl"] = sums["mismatch"] / sums["fresh_tokens"]
        stats["loss"] = sums["loss"] / max(sums["updates"], 1)
        stats["grad_norm"] = sums["grad_norm"] / max(sums["applied"], 1)
        stats |= {"lr": rate, "beta": self.beta, "skipped_updates": sums["updates"] - sums["applied"]}
        if recipe.kl_target is not None:
            self.beta = adapt_beta(self.beta, stats["kl"], recipe.kl_target)
        return stats

    @torch.no_grad()
    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        """beta x KL(policy | reference) of each answer, for a recipe that takes it off the reward; else None."""
        if not self.recipe.kl_in_reward:
            return None
        prompts = [group.prompt_ids for group in groups]
        rows = [Row(p, c.token_ids, c.logprobs, 0.0) for p, group in enumerate(groups) for c in group.completions]
        flat: list[float] = []
        for part in self._micro_batches(rows):
            packed = pack(prompts, part, self.policy.pad_id, self.policy.device)
            ref_BT, _ = self._logprobs(self.reference, packed)
            kl_B = ((packed.sampler_logprobs_BT - ref_BT) * packed.mask_BT).sum(-1)
            flat += (self.beta * kl_B).tolist()
        sizes = iter(flat)
        return [[next(sizes) for _ in group.completions] for group in groups]

    def _updates(self, batch: Batch, seed: int) -> list[list[Row]]:
        """The batch's rows, dealt into this pass's updates: whole groups, in random order where there are several."""
        count = self.recipe.updates_per_step
        if count == 1:
            return [list(batch.rows)]
        order = list(range(len(batch.prompt_ids)))
        random.Random(seed).shuffle(order)
        place = {prompt: i * count // len(order) for i, prompt in enumerate(order)}
        dealt: list[list[Row]] = [[] for _ in range(count)]
        for row in batch.rows:
            dealt[place[row.prompt]].append(row)
        return [rows for rows in dealt if rows]

    def _one_update(self, batch: Batch, rows: list[Row], on_policy: bool, sums: dict[str, float]) -> None:
        recipe = self.recipe
        num_sequences, num_tokens = len(rows), sum(len(row.token_ids) for row in rows)
        if LOSSES[recipe.loss_type].tokens_of == "step":
            num_tokens = max(1, batch.num_tokens // recipe.updates_per_step)
        sound = all(math.isfinite(row.advantage + sum(row.logprobs)) for row in rows)  # the sampler's numbers too
        if not (self.reference or recipe.entropy_coef):
            rows = [row for row in rows if row.advantage]  # the rest has no gradient; the denominators stay
        self.policy.model.train()
        total = 0.0
        for part in self._micro_batches(rows):
            packed = pack(batch.prompt_ids, part, self.policy.pad_id, self.policy.device)
            loss = self._loss(packed, on_policy, num_sequences, num_tokens, sums)
            loss.backward()
            total += float(loss.detach())
        sums["updates"] += 1
        sums["loss"] += total
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), recipe.max_grad_norm))
        if sound and math.isfinite(norm) and math.isfinite(total):
            self.optimizer.step()
            self.skipped = 0
            sums["applied"] += 1
            sums["grad_norm"] += norm
        else:
            self.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.skipped >= MOST_SKIPPED:
            raise NumericsError(
                f"{self.skipped} updates in a row had a loss, gradient or log-probability that is no number, and were "
                f"not applied: lower learning_rate (now {recipe.learning_rate:g}) or max_grad_norm (now {recipe.max_grad_norm:g})"
            )

    def _loss(
        self, packed: Packed, on_policy: bool, num_sequences: int, num_tokens: int, sums: dict[str, float]
    ) -> Tensor:
        recipe = self.recipe
        logprobs_BT, entropy_BT = self._logprobs(self.policy, packed)
        ref_BT = None
        if self.reference:
            with torch.no_grad():
                ref_BT, _ = self._logprobs(self.reference, packed)
        sampler_BT, tokens = packed.sampler_logprobs_BT, int(packed.mask_BT.sum())
        weights_BT = None
        if on_policy:
            mismatch = (k3_kl(sampler_BT, logprobs_BT.detach()) * packed.mask_BT).sum()
            sums["mismatch"] += float(mismatch)
            sums["fresh_tokens"] += tokens
            if recipe.importance_sampling_cap is not None:
                weights_BT = truncated_weights(logprobs_BT, sampler_BT, recipe.importance_sampling_cap)
        loss, stats = grpo_loss(
            logprobs_BT,
            logprobs_BT.detach() if on_policy else sampler_BT,
            packed.advantages_B,
            packed.mask_BT,
            ref_logprobs_BT=ref_BT,
            epsilon=recipe.epsilon,
            epsilon_high=recipe.epsilon_high,
            beta=0.0 if recipe.kl_in_reward else self.beta,
            loss_type=recipe.loss_type,
            max_completion_length=recipe.max_completion_length,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
            kl_estimator=recipe.kl_estimator,
            weights_BT=weights_BT,
            entropy_BT=entropy_BT,
            entropy_coef=recipe.entropy_coef,
        )
        stats["entropy"] = (entropy_BT.detach() * packed.mask_BT).sum() / max(tokens, 1)
        for key, value in stats.items():
            sums[key] += float(value) * tokens
        sums["tokens"] += tokens
        return loss

    def _logprobs(self, policy: Policy | None, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the answers' tokens, [B, T]."""
        assert policy is not None
        targets_M = packed.targets_BT[packed.mask_BT]
        chosen_M, entropy_M = token_logprobs(forward(policy, packed), policy.head, targets_M, self.recipe.temperature)
        return unpack(chosen_M, packed), unpack(entropy_M, packed)

    def _micro_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        size = self.recipe.per_device_train_batch_size
        return [rows[start : start + size] for start in range(0, len(rows), size)]
