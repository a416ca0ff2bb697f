"""The learner: a batch in, new weights out.

Micro-batches carry the denominators of the whole update, so their size changes no gradient. While the weights are
still those that sampled the batch, the old log-probabilities are the new ones, detached: no second forward. After
that they are the sampler's own. Groups without spread are skipped where nothing but the advantage could teach.
"""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outdo.algo.clip import masked_weights, truncated_weights
from outdo.algo.divergence import adapt_beta, k3_kl
from outdo.algo.losses import LOSSES, grpo_loss
from outdo.config import Recipe
from outdo.errors import ModelError, NumericsError
from outdo.learn import memory
from outdo.learn.logprobs import token_logprobs
from outdo.learn.optim import Masters, adamw, rate_at, set_rate
from outdo.learn.packing import Packed, forward, pack, unpack
from outdo.learn.plain import plain_logprobs
from outdo.models.load import Policy
from outdo.seeds import seed_of
from outdo.types import Batch, Group, Row

MOST_SKIPPED = 3  # updates in a row with a gradient that is no number, before the run halts
ROUNDING = 1e-3  # mismatch_kl up to which sampler and learner differ by rounding alone
CAP = 2.0  # of the importance ratio, where the recipe names none

Stats = dict[str, Tensor | float]


class LocalLearner:
    """Trains `policy` in place. Keeps a frozen copy of its first weights only where beta asks for a KL term."""

    def __init__(self, policy: Policy, recipe: Recipe) -> None:
        self.policy, self.recipe, self.beta = policy, recipe, recipe.beta
        self.version = 0  # steps trained
        self.skipped = 0  # updates in a row that were not applied
        self.rate_scale = 1.0  # what a guard has made of the learning rate
        self.mismatch = 0.0  # the last mismatch_kl
        self.tokens_at_once = memory.tokens_at_once(policy, recipe)
        self.say: Callable[[str], None] = lambda line: None
        self.masters = Masters(policy.model)
        betas = (recipe.adam_beta1, recipe.adam_beta2)
        self.optimizer = adamw(self.masters.weights, recipe.learning_rate, recipe.weight_decay, betas)
        if recipe.gradient_checkpointing and not policy.stack:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
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
        for index in self.masters.copies:
            tensors[f"master.{index}"] = self.masters.weights[index].detach().to("cpu", copy=True)
        plain = {"version": self.version, "skipped": self.skipped, "rate_scale": self.rate_scale}
        plain |= {"mismatch": self.mismatch, "tokens_at_once": self.tokens_at_once}
        return tensors, {**plain, "beta": self.beta, "first_beta": self.recipe.beta}

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Goes on from there. The weights and the reference are the caller's business."""
        params = self._trained()
        for key, value in tensors.items():
            index, _, name = key.partition(".")
            if index == "master":
                self.masters.weights[int(name)].data.copy_(value)
                continue
            own = value.to(self.policy.device, copy=True)  # "step" too: the optimizer is fused
            self.optimizer.state[params[int(index)]][name] = own
        self.version, self.skipped = int(plain["version"]), int(plain["skipped"])
        self.rate_scale, self.mismatch = float(plain["rate_scale"]), float(plain["mismatch"])
        self.tokens_at_once = min(self.tokens_at_once, int(plain["tokens_at_once"]))
        if plain["first_beta"] == self.recipe.beta:  # else the recipe was changed, and its word is the newer
            self.beta = float(plain["beta"])

    def _trained(self) -> list[torch.nn.Parameter]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One pass or more over the batch (`num_iterations`). Returns means over tokens and updates."""
        recipe = self.recipe
        sums = Sums()
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
        found = sums.read()
        stats = {key: found[key] / max(found["tokens"], 1) for key in ("clipfrac", "kl", "ratio_mean", "entropy")}
        if self.reference is None:
            del stats["kl"]  # not measured is not 0
        if found["fresh_tokens"]:
            self.mismatch = stats["mismatch_kl"] = found["mismatch"] / found["fresh_tokens"]
            stats["mismatch_ratio_std"] = math.sqrt(found["mismatch_square"] / found["fresh_tokens"])
        stats["loss"] = found["loss"] / max(found["updates"], 1)
        stats["grad_norm"] = found["grad_norm"] / max(found["applied"], 1)
        stats |= {"lr": rate, "beta": self.beta, "skipped_updates": found["updates"] - found["applied"]}
        if recipe.kl_target is not None:
            self.beta = adapt_beta(self.beta, stats["kl"], recipe.kl_target)
        return stats

    @torch.no_grad()
    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        """beta x KL(policy | reference) of each answer, for a recipe that takes it off the reward; else None."""
        if not self.recipe.kl_in_reward:
            return None
        prompts = [group.prompt_ids for group in groups]
        rows = [
            Row(p, c.token_ids, c.logprobs, 0.0, c.support) for p, group in enumerate(groups) for c in group.completions
        ]
        flat: list[float] = []
        for part in self._micro_batches(prompts, rows):
            packed = pack(prompts, part, self.policy.device)
            ref_BT, _ = self._logprobs(self.reference, packed)
            kl_B = ((packed.sampler_logprobs_BT - ref_BT) * packed.mask_BT).sum(-1)
            flat += (self.beta * kl_B).tolist()
        sizes = iter(flat)
        return [[next(sizes) for _ in group.completions] for group in groups]

    def rehearse(self) -> None:
        """The longest micro-batch that can come, forward and backward, before the first step: if it does not fit, it
        is better known now, and a smaller one is chosen. On a GPU only."""
        if self.policy.device.type != "cuda":
            return
        length = self.recipe.max_completion_length
        rows = [Row(0, (self.policy.pad_id,) * length, (0.0,) * length, 1.0)] * max(1, self.tokens_at_once // length)
        batch = Batch(((self.policy.pad_id,) * 16,), tuple(rows), version=0)
        torch.cuda.reset_peak_memory_stats(self.policy.device)
        for _ in self._trained_on(batch, rows, True, {"num_sequences": len(rows), "num_tokens": len(rows) * length}):
            self.masters.drop()
        peak = torch.cuda.max_memory_allocated(self.policy.device)
        self.say(memory.in_words(self.policy, self.recipe, self.tokens_at_once, peak))

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

    def _one_update(self, batch: Batch, rows: list[Row], on_policy: bool, sums: Sums) -> None:
        recipe = self.recipe
        num_tokens = sum(len(row.token_ids) for row in rows)
        if LOSSES[recipe.loss_type].tokens_of == "step":
            num_tokens = max(1, batch.num_tokens // recipe.updates_per_step)
        totals = {"num_sequences": len(rows), "num_tokens": num_tokens}
        sound = all(math.isfinite(row.advantage + sum(row.logprobs)) for row in rows)  # the sampler's numbers too
        if not (self.reference or recipe.entropy_coef):
            rows = [row for row in rows if row.advantage]  # the rest has no gradient; the denominators stay
        self.policy.model.train()
        loss = torch.zeros((), device=self.policy.device)
        gradients: list[Tensor | None] = []
        for part, of_part in self._trained_on(batch, rows, on_policy, totals):
            gradients = self.masters.collect(gradients)
            loss += part
            sums.add(of_part)
        self.masters.set_gradients(gradients or [None] * len(self.masters.weights))
        norm_and_loss = torch.stack([clip_grad_norm(self.masters.weights, recipe.max_grad_norm, loss.device), loss])
        norm, total = norm_and_loss.tolist()
        sums.add({"updates": 1.0, "loss": total})
        if sound and math.isfinite(norm) and math.isfinite(total):
            self.optimizer.step()
            self.masters.publish()
            self.skipped = 0
            sums.add({"applied": 1.0, "grad_norm": norm})
        else:
            self.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.skipped >= MOST_SKIPPED:
            raise NumericsError(
                f"{self.skipped} updates in a row had a loss, gradient or log-probability that is no number, and were "
                f"not applied: lower learning_rate (now {recipe.learning_rate:g}) or max_grad_norm (now "
                f"{recipe.max_grad_norm:g})"
            )

    def _trained_on(
        self, batch: Batch, rows: list[Row], on_policy: bool, totals: dict[str, int]
    ) -> Iterator[tuple[Tensor, Stats]]:
        """Forward and backward of micro-batches, each leaving its gradients on the model: the loss and its sums.

        One that does not fit the memory is cut in two and done again; what it had left behind is dropped. Raises
        ModelError where one answer alone does not fit.
        """
        parts = deque(self._micro_batches(batch.prompt_ids, rows))
        while parts:
            part = parts.popleft()
            try:
                packed = pack(batch.prompt_ids, part, self.policy.device)
                loss, stats = self._loss(packed, on_policy, totals)
                loss.backward()
            except torch.OutOfMemoryError:
                failed = True
            else:
                failed = False
            if failed:  # out of the handler, whose traceback would keep the tensors
                packed = loss = stats = None  # type: ignore[assignment]
                self.masters.drop()
                memory.give_back(self.policy.device)
                if len(part) == 1:
                    raise ModelError(memory.too_long(tokens_of(part, batch.prompt_ids), self.recipe))
                self._take_less(part, batch.prompt_ids)
                middle = len(part) // 2
                parts.extendleft([part[middle:], part[:middle]])
            else:
                yield loss.detach(), stats

    def _take_less(self, part: Sequence[Row], prompt_ids: Sequence[Sequence[int]]) -> None:
        less = max(1, tokens_of(part, prompt_ids) // 2)
        if less < self.tokens_at_once:
            self.tokens_at_once = less
            self.say(f"  out of memory: micro-batches of {less:,} tokens from here, with the same gradients")

    def _loss(self, packed: Packed, on_policy: bool, totals: dict[str, int]) -> tuple[Tensor, Stats]:
        """The loss of a micro-batch, and sums over its tokens."""
        recipe = self.recipe
        logprobs_BT, entropy_BT = self._logprobs(self.policy, packed)
        ref_BT = None
        if self.reference:
            with torch.no_grad():
                ref_BT, _ = self._logprobs(self.reference, packed)
        sampler_BT, tokens = packed.sampler_logprobs_BT, len(packed.targets_M)
        weights_BT = None
        sums: Stats = {"tokens": tokens}
        if on_policy:
            now_BT = logprobs_BT.detach()
            off_BT = ((now_BT - sampler_BT).exp() - 1.0) * packed.mask_BT
            sums["mismatch"] = (k3_kl(sampler_BT, now_BT) * packed.mask_BT).sum()
            sums["mismatch_square"] = off_BT.square().sum()
            sums["fresh_tokens"] = tokens
            if correct := self._correction():
                weights_BT = correct(logprobs_BT, sampler_BT, recipe.importance_sampling_cap or CAP)
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
            **totals,
            kl_estimator=recipe.kl_estimator,
            weights_BT=weights_BT,
            entropy_BT=entropy_BT,
            entropy_coef=recipe.entropy_coef,
        )
        sums["entropy"] = (entropy_BT.detach() * packed.mask_BT).sum()
        return loss, sums | {key: value * tokens for key, value in stats.items()}

    def _correction(self) -> Callable[[Tensor, Tensor, float], Tensor] | None:
        """How to weigh tokens whose sampler was not the learner: not at all while they differ by rounding alone."""
        how = self.recipe.importance_sampling
        if how == "auto":
            asked = self.recipe.importance_sampling_cap is not None
            return truncated_weights if asked or self.mismatch > ROUNDING else None
        return {"truncate": truncated_weights, "mask": masked_weights, "never": None}[how]

    def _logprobs(self, policy: Policy | None, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the answers' tokens, [B, T]."""
        assert policy is not None
        if policy.plain:
            chosen_M, entropy_M = plain_logprobs(policy, packed, self.recipe.temperature)
            return unpack(chosen_M, packed), unpack(entropy_M, packed)
        recompute = self.recipe.gradient_checkpointing and torch.is_grad_enabled()
        chosen_M, entropy_M = token_logprobs(
            forward(policy, packed, recompute),
            policy.head,
            packed.targets_M,
            self.recipe.temperature,
            packed.support_MK,
            policy.cap,
        )
        return unpack(chosen_M, packed), unpack(entropy_M, packed)

    def _micro_batches(self, prompt_ids: Sequence[Sequence[int]], rows: Sequence[Row]) -> list[list[Row]]:
        """As many rows as make up the tokens that fit; a prompt counts once for its rows."""
        parts: list[list[Row]] = []
        room = 0
        for row in rows:
            shares = bool(parts) and parts[-1][-1].prompt == row.prompt
            cost = len(row.token_ids) + (0 if shares else len(prompt_ids[row.prompt]))
            if not parts or cost > room:
                parts.append([])
                room, cost = self.tokens_at_once, len(row.token_ids) + len(prompt_ids[row.prompt])
            parts[-1].append(row)
            room -= cost
        return parts


class Sums:
    """Running sums that stay on the device until they are read, all at once."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor | float] = defaultdict(float)

    def add(self, values: Stats) -> None:
        for key, value in values.items():
            self.values[key] = self.values[key] + value

    def read(self) -> dict[str, float]:
        there = {key: value for key, value in self.values.items() if isinstance(value, Tensor)}
        read = torch.stack([value.double() for value in there.values()]).tolist() if there else []
        here = {key: value for key, value in self.values.items() if not isinstance(value, Tensor)}
        return defaultdict(float, here | dict(zip(there, read, strict=True)))


def tokens_of(rows: Sequence[Row], prompt_ids: Sequence[Sequence[int]]) -> int:
    return sum(len(row.token_ids) for row in rows) + sum(len(prompt_ids[p]) for p in {row.prompt for row in rows})


def clip_grad_norm(weights: Sequence[torch.nn.Parameter], most: float, device: torch.device) -> Tensor:
    """Clips, and returns the norm before; 0 where there is no gradient at all."""
    return torch.nn.utils.clip_grad_norm_(weights, most).to(device)
