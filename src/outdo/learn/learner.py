"""The GRPO learner: a batch in, new weights out.

While the weights are still those that sampled the batch, the old log-probabilities are the new ones, detached: no
second forward. After that they are the sampler's own. Answers with advantage 0 are skipped unless a KL or entropy term
gives them a gradient.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outdo.algo.clip import masked_weights, truncated_weights
from outdo.algo.divergence import ESTIMATORS, adapt_beta, k3_kl
from outdo.algo.losses import LOSSES, Settings, grpo_loss
from outdo.algo.prepare import Owned, samples_of
from outdo.algo.schedules import rate_at
from outdo.learn import memory
from outdo.learn.choice import chooses_tokens, with_choice
from outdo.learn.optimizers import set_rate
from outdo.learn.packing import Packed, pack, shares_of
from outdo.learn.reference import reference_of
from outdo.learn.update import BaseLearner, Part, Stats, Sums
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.types import Batch, Group, Sample

ROUNDING = 1e-3  # mismatch_kl up to which sampler and learner differ by rounding alone
MAX_LOG_RATIO = 20.0  # beyond it, its exponential overflows
DEFAULT_CAP = 2.0  # of the importance ratio
# Keys of the recipe that `grpo_loss` takes under the same names.
LOSS_KEYS = ("loss_type", "max_completion_length", "kl_estimator", "entropy_coef", *Settings.__dataclass_fields__)


class LocalLearner(BaseLearner):
    """Trains `policy` in place. Keeps a reference if beta asks for a KL term, or `kl_steps` for measuring KL alone,
    which changes no number of the update."""

    length_key = "max_completion_length"

    def __init__(self, policy: Policy, recipe: Recipe) -> None:
        betas = (recipe.adam_beta1, recipe.adam_beta2)
        super().__init__(policy, recipe, recipe.learning_rate, recipe.weight_decay, betas)
        self.beta = recipe.beta
        self.version = 0  # steps trained
        self.rate_scale = 1.0  # factor on the learning rate, which callbacks change
        self.mismatch = 0.0  # the last mismatch_kl
        self.temperature = recipe.temperature  # at which the step's answers were sampled
        self.has_kl_term = recipe.beta > 0
        self.reference = reference_of(policy) if self.has_kl_term or recipe.kl_steps else None
        self.num_applied = 0  # updates of the step in hand

    @property
    def is_between_steps(self) -> bool:
        return self.num_applied == 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, plain = super().state()
        plain |= {"version": self.version, "skipped": self.skipped, "rate_scale": self.rate_scale}
        plain |= {"mismatch": self.mismatch, "beta": self.beta, "first_beta": self.recipe.beta}
        return tensors, plain

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restores what `state` returned. The caller restores the weights and the reference."""
        super().load_state(tensors, plain)
        self.version, self.skipped = int(plain["version"]), int(plain["skipped"])
        self.rate_scale, self.mismatch = float(plain["rate_scale"]), float(plain["mismatch"])
        if plain["first_beta"] == self.recipe.beta:  # else the recipe was changed and takes precedence
            self.beta = float(plain["beta"])

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One or more passes over the batch (`num_iterations`). Returns means over tokens and updates."""
        recipe = self.recipe
        sums, updates = Sums(), Sums()
        schedule = recipe.lr_scheduler_type, recipe.warmup, recipe.min_lr_rate
        rate = self.rate_scale * rate_at(step, recipe.max_steps, recipe.learning_rate, *schedule)
        self.temperature = recipe.temperature_at(step)
        set_rate(self.optimizer, rate)
        self.num_applied = 0
        measured = self._measured_kl(batch) if self._measures_kl(step) else None
        on_policy = batch.version == self.version
        for epoch in range(recipe.num_iterations):
            torch.manual_seed(seed_of("dropout", recipe.seed, step, epoch) % 2**63)  # for models with dropout
            for index, samples in enumerate(self._updates(batch, seed_of(recipe.seed, step, epoch))):
                seed = seed_of("chosen tokens", recipe.seed, step, epoch, index)
                self._one_update(batch, samples, on_policy, sums, updates, seed)
                on_policy = False
        self.version, self.num_applied = step + 1, 0
        totals = sums.read_all(self.world) | updates.read()
        stats = {key: totals[key] / max(totals["tokens"], 1) for key in ("clipfrac", "kl", "ratio_mean", "entropy")}
        if not self.has_kl_term:
            del stats["kl"]  # not measured, which is not 0
            stats |= {} if measured is None else {"kl": measured}
        if totals["fresh_tokens"]:
            self.mismatch = stats["mismatch_kl"] = totals["mismatch"] / totals["fresh_tokens"]
            stats["mismatch_ratio_std"] = math.sqrt(totals["mismatch_square"] / totals["fresh_tokens"])
        if totals["moved_tokens"]:
            stats["step_kl"] = totals["moved"] / totals["moved_tokens"]
        stats["loss"] = totals["loss"] / max(totals["updates"], 1)
        stats["grad_norm"] = totals["grad_norm"] / max(totals["applied"], 1)
        stats |= {"lr": rate, "beta": self.beta, "skipped_updates": totals["updates"] - totals["applied"]}
        stats["tokens"] = totals["tokens"]
        if recipe.kl_target is not None:
            self.beta = adapt_beta(self.beta, stats["kl"], recipe.kl_target)
        return stats

    @torch.no_grad()
    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        """beta x KL(policy | reference) of each answer, if the recipe subtracts it from the reward; else None."""
        if not self.recipe.kl_in_reward:
            return None
        self.temperature = self.recipe.temperature_at(self.version)
        size = self.world.size
        shares = self.world.gather(lambda: self._penalties(groups[self.world.rank :: size]), "measuring KL")
        return [shares[i % size][i // size] for i in range(len(groups))]

    def _penalties(self, groups: Sequence[Group]) -> list[list[float]]:
        prompts, owned = samples_of(groups)
        flat: list[float] = []
        for packed in self._packed(prompts, owned):
            ref_BT = self._ref_logprobs(packed)
            kl_B = ((packed.sampler_logprobs_BT - ref_BT) * packed.mask_BT).sum(-1)
            flat += (self.beta * kl_B).tolist()
        penalties = [[0.0] * len(group.trajectories) for group in groups]
        for (_, g, t), value in zip(owned, flat, strict=True):
            penalties[g][t] += value
        return penalties

    @torch.no_grad()
    def logprobs(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        """Of each answer's own tokens, under the current weights and temperature."""
        self.policy.set_training(False)
        prompts, owned = samples_of(groups)
        packs = self._packed(prompts, owned)
        parts = (self._logprobs(self.policy, packed, self.temperature)[0].tolist() for packed in packs)
        out: list[list[list[float]]] = [[[] for _ in group.trajectories] for group in groups]
        for (sample, g, t), row in zip(owned, chain.from_iterable(parts), strict=True):
            out[g][t] += row[: sample.num_trained]
        return out

    def scale_rate(self, factor: float) -> None:
        self.rate_scale *= factor

    def scale_beta(self, factor: float) -> None:
        self.beta *= factor

    def _packed(self, prompts: Sequence[Sequence[int]], owned: Sequence[Owned]) -> Iterator[Packed]:
        """The samples in order, in micro-batches that fit the memory."""
        for part in self._micro_batches(prompts, [one.sample for one in owned]):
            yield pack(prompts, part, self.policy.device)

    def check_memory(self) -> None:
        """Runs the largest possible micro-batch, forward and backward, before the first step, and shrinks it if it does
        not fit. On a GPU only."""
        if self.policy.device.type != "cuda":
            return
        length = self.recipe.max_completion_length
        row = Sample(0, (self.policy.pad_id,) * length, (0.0,) * length, 1.0)
        if chooses_tokens(self.recipe):
            row = replace(row, chosen=(True,) * length)
        rows = [row] * max(1, self.tokens_at_once // length)
        batch = Batch(((self.policy.pad_id,) * 16,), tuple(rows), version=0)
        torch.cuda.reset_peak_memory_stats(self.policy.device)
        totals = {"num_sequences": len(rows), "num_tokens": len(rows) * length}
        loss_of = partial(self._loss, on_policy=True, totals=totals)

        def begin() -> list[Part]:
            self.masters.begin()
            return [Part(one) for one in self._micro_batches(batch.prompt_ids, rows)]

        for _ in self._trained_on(batch.prompt_ids, begin, loss_of):
            self.masters.drop()
        self.masters.cancel()
        self.tokens_at_once = min(self.world.gather(lambda: self.tokens_at_once))
        peak = torch.cuda.max_memory_allocated(self.policy.device)
        self.notify(memory.describe_memory(self.policy, self.recipe, self.tokens_at_once, peak))

    def _updates(self, batch: Batch, seed: int) -> list[list[Sample]]:
        """The samples of each update of this pass. Groups stay together; with several updates their order is random."""
        count = self._num_updates(batch)
        if count == 1:
            return [list(batch.samples)]
        group_of = batch.group_of or range(len(batch.prompt_ids))
        order = list(range(batch.num_groups))
        random.Random(seed).shuffle(order)
        update_of = {group: i * count // len(order) for i, group in enumerate(order)}
        updates: list[list[Sample]] = [[] for _ in range(count)]
        for sample in batch.samples:
            updates[update_of[group_of[sample.prompt]]].append(sample)
        return [samples for samples in updates if samples]

    def _num_updates(self, batch: Batch) -> int:
        return max(1, min(self.recipe.updates_per_step, batch.num_groups))

    def _one_update(
        self, batch: Batch, samples: list[Sample], on_policy: bool, sums: Sums, updates: Sums, seed: int
    ) -> None:
        """`sums` are over this process's tokens, `updates` over the updates of all."""
        recipe, variant = self.recipe, LOSSES[self.recipe.loss_type]
        num_tokens: float = sum(sample.num_trained for sample in samples)
        if variant.tokens_of == "step":
            num_tokens = batch.num_tokens / self._num_updates(batch)
        is_finite = all(math.isfinite(sample.advantage + sum(sample.logprobs)) for sample in samples)
        measure = partial(self._measured_tokens, batch.prompt_ids, samples)
        samples = with_choice(recipe, samples, measure, on_policy, seed)
        totals = {"num_sequences": len(samples), "num_tokens": num_tokens}
        totals["num_chosen"] = sum(sum(sample.chosen) for sample in samples)
        if not (self.has_kl_term or recipe.entropy_coef or variant.moves_all):
            # the others have no gradient; the denominators stay
            samples = [sample for sample in samples if sample.advantage]
        loss_of = partial(self._loss, on_policy=on_policy, totals=totals)
        norm, total = self._gradient(batch.prompt_ids, samples, loss_of, sums).tolist()
        updates.add({"updates": 1.0, "loss": total})
        is_finite = is_finite and math.isfinite(norm) and math.isfinite(total)
        if is_finite:
            self.masters.apply(self.optimizer)
            self.num_applied += 1
            updates.add({"applied": 1.0, "grad_norm": norm})
        self.optimizer.zero_grad(set_to_none=True)
        self.masters.cancel()
        remedy = f"learning_rate (now {recipe.learning_rate:g}) or max_grad_norm (now {recipe.max_grad_norm:g})"
        self._count_skipped(is_finite, "loss, gradient or log-probability", remedy)

    def _loss(self, packed: Packed, on_policy: bool, totals: Mapping[str, float]) -> tuple[Tensor, Stats]:
        """The loss of a micro-batch, and statistics summed over its tokens."""
        recipe = self.recipe
        ref_BT = self._ref_logprobs(packed) if self.has_kl_term else None
        logprobs_BT, entropy_BT = self._logprobs(self.policy, packed, self.temperature)
        sampler_BT, tokens = packed.sampler_logprobs_BT, len(packed.targets_M)
        weights_BT = None
        sums: Stats = {"tokens": tokens}
        if on_policy:
            now_BT = logprobs_BT.detach()
            error_BT = ((now_BT - sampler_BT).exp() - 1.0) * packed.mask_BT
            sums["mismatch"] = (k3_kl(sampler_BT, now_BT) * packed.mask_BT).sum()
            sums["mismatch_square"] = error_BT.square().sum()
            sums["fresh_tokens"] = tokens
            if correct := self._correction():
                weights_BT = correct(logprobs_BT, sampler_BT, recipe.importance_sampling_cap or DEFAULT_CAP)
        else:
            log_ratio_BT = (logprobs_BT.detach() - sampler_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            sums["moved"] = (k3_kl(torch.zeros_like(log_ratio_BT), log_ratio_BT) * packed.mask_BT).sum()
            sums["moved_tokens"] = tokens
        settings: dict[str, Any] = {key: getattr(recipe, key) for key in LOSS_KEYS} | dict(totals)
        loss, stats = grpo_loss(
            logprobs_BT,
            logprobs_BT.detach() if on_policy else sampler_BT,
            packed.advantages_B,
            packed.mask_BT,
            ref_logprobs_BT=ref_BT,
            beta=0.0 if recipe.kl_in_reward else self.beta,
            weights_BT=weights_BT,
            sampler_logprobs_BT=sampler_BT,
            chosen_BT=packed.chosen_BT,
            entropy_BT=entropy_BT,
            **settings,
        )
        sums["entropy"] = (entropy_BT.detach() * packed.mask_BT).sum()
        return loss, sums | {key: value * tokens for key, value in stats.items()}

    @torch.no_grad()
    def _measured_tokens(self, prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of all tokens, under the weights as they are now, on the CPU. Each process
        measures its share, and reads it once."""
        self.policy.set_training(False)
        share = shares_of(prompt_ids, samples, self.world.size)[self.world.rank]

        def measure() -> np.ndarray:
            parts, masks = [], []
            for rows in self._micro_batches(prompt_ids, share):
                packed = pack(prompt_ids, rows, self.policy.device)
                parts.append(torch.stack(self._logprobs(self.policy, packed, self.temperature)).float())
                lens_B = np.array([row.num_trained for row in rows])
                masks.append(np.arange(lens_B.max()) < lens_B[:, None])
            read = [part.cpu().numpy()[:, mask] for part, mask in zip(parts, masks, strict=True)]
            return np.concatenate([np.zeros((2, 0), np.float32), *read], 1)

        values = np.concatenate(self.world.gather(measure, "measuring entropy"), 1)
        return torch.from_numpy(values[0]), torch.from_numpy(values[1])

    def _measures_kl(self, step: int) -> bool:
        """Whether KL is measured at this step for its own sake: every `kl_steps` steps, and at the last."""
        every = self.recipe.kl_steps
        if self.has_kl_term or self.reference is None or not every:
            return False
        return (step + 1) % every == 0 or step + 1 == self.recipe.max_steps

    @torch.no_grad()
    def _measured_kl(self, batch: Batch) -> float | None:
        """KL to the reference per token, of the policy that sampled these answers. Draws no random number."""
        total = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        share = shares_of(batch.prompt_ids, batch.samples, self.world.size)[self.world.rank]
        for part in self._micro_batches(batch.prompt_ids, share):
            packed = pack(batch.prompt_ids, part, self.policy.device)
            kl_BT = ESTIMATORS[self.recipe.kl_estimator](packed.sampler_logprobs_BT, self._ref_logprobs(packed))
            total += torch.where(packed.mask_BT.bool(), kl_BT, 0.0).sum()
        total = self.world.all_reduce(total)
        return float(total) / batch.num_tokens if batch.num_tokens else None

    @torch.no_grad()
    def _ref_logprobs(self, packed: Packed) -> Tensor:
        assert self.reference
        with self.reference.activated() as reference:
            return self._logprobs(reference, packed, self.temperature)[0]

    def _correction(self) -> Callable[[Tensor, Tensor, float], Tensor] | None:
        """The importance weights between sampler and learner: none while the two differ by rounding alone."""
        how = self.recipe.importance_sampling
        if how == "auto":
            is_requested = self.recipe.importance_sampling_cap is not None
            return truncated_weights if is_requested or self.mismatch > ROUNDING else None
        return {"truncate": truncated_weights, "mask": masked_weights, "never": None}[how]
