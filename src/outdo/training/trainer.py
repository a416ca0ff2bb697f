"""GRPO for those who own their loop: sample as you like, hand over a batch, get an update. Thin over `outdo.algo`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from outdo.algo.advantage import Rewards, group_advantages
from outdo.algo.losses import grpo_loss


class GRPOTrainer:
    """Takes any module that maps `input_ids` and `attention_mask` to logits (or to an output that has `.logits`).

    reward_fn: `reward_fn(completions, **columns) -> list[float | None]`, used for batches that bring no rewards.
    kl_coef: above 0, a frozen copy of the model as it is now becomes the reference.
    """

    def __init__(
        self,
        model: nn.Module,
        reward_fn: Callable[..., list[float | None]] | None,
        optimizer: torch.optim.Optimizer,
        group_size: int = 4,
        kl_coef: float = 0.0,
        clip_range: float = 0.2,
        gradient_accumulation_steps: int = 1,
        max_grad_norm: float = 1.0,
    ) -> None:
        if group_size < 2:
            raise ValueError(f"group_size={group_size}: an answer needs at least one sibling, so use 2 or more")
        if gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps={gradient_accumulation_steps}: use 1 or more")
        self.model, self.reward_fn, self.optimizer = model, reward_fn, optimizer
        self.group_size, self.kl_coef, self.clip_range = group_size, kl_coef, clip_range
        self.gradient_accumulation_steps, self.max_grad_norm = gradient_accumulation_steps, max_grad_norm
        self.reference = copy.deepcopy(model).eval().requires_grad_(False) if kl_coef > 0 else None

    def compute_advantages(self, rewards: Rewards) -> tuple[Tensor, dict[str, float]]:
        """Each answer against its siblings; neighbours in groups of `group_size`. None: could not be judged."""
        advantages = group_advantages(rewards, self.group_size)
        values = rewards.flatten().tolist() if isinstance(rewards, Tensor) else list(rewards)
        groups = [values[i : i + self.group_size] for i in range(0, len(values), self.group_size)]
        judged = torch.tensor([value for value in values if value is not None], dtype=torch.float32)
        spread = [len({value for value in group if value is not None}) > 1 for group in groups]
        stats = {
            "reward_mean": float(judged.mean()) if len(judged) else 0.0,
            "reward_std": float(judged.std(correction=0)) if len(judged) else 0.0,
            "informative": sum(spread) / max(len(spread), 1),
        }
        return advantages, stats

    def compute_policy_loss(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        mask: Tensor | None = None,
        ref_log_probs: Tensor | None = None,
    ) -> Tensor:
        """The clipped loss of [B, T] token log-probabilities, or of [B], one for each answer. Without `ref_log_probs`
        it is the policy's term alone; `train_step` always adds the KL that `kl_coef` asks for."""
        return self._loss(log_probs, old_log_probs, advantages, mask, ref_log_probs)[0]

    def train_step(self, batch: Mapping[str, Any], step: int) -> dict[str, float]:
        """Adds this batch's gradient; every `gradient_accumulation_steps`-th call updates the weights.

        batch: `input_ids` [B, N] (prompt and answer), `completion_mask` [B, N] (1 on the answer's tokens), and
        `rewards` or what `reward_fn` needs (`completions` and any columns). Optional: `attention_mask`,
        `old_log_probs` [B, N - 1] where the weights have moved since sampling. Steps count from 0.
        """
        rewards = batch["rewards"] if "rewards" in batch else self._judge(batch)
        advantages, stats = self.compute_advantages(rewards)
        log_probs = self._log_probs(self.model, batch)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = self._log_probs(self.reference, batch)
        old = batch["old_log_probs"] if batch.get("old_log_probs") is not None else log_probs.detach()
        mask = batch["completion_mask"][:, 1:]
        loss, happened = self._loss(log_probs, old, advantages.to(log_probs.device), mask, reference)
        (loss / self.gradient_accumulation_steps).backward()
        stats |= {"loss": float(loss.detach()), **{key: float(value) for key, value in happened.items()}}
        stats["updated"] = float((step + 1) % self.gradient_accumulation_steps == 0)
        if stats["updated"]:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            stats["grad_norm"] = float(norm)
            stats["updated"] = float(norm.isfinite())  # a step by NaN would be the last
            if norm.isfinite():
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return stats

    def _loss(
        self, log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if log_probs.ndim == 1:
            log_probs, old = log_probs[:, None], old[:, None]
            mask = None if mask is None else mask[:, None]
            reference = None if reference is None else reference[:, None]
        mask = torch.ones_like(log_probs) if mask is None else mask
        beta, clip = self.kl_coef if reference is not None else 0.0, self.clip_range
        return grpo_loss(log_probs, old, advantages, mask, ref_logprobs_BT=reference, epsilon=clip, beta=beta)

    def _log_probs(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """Of every token given those before it, [B, N - 1]."""
        ids = batch["input_ids"]
        out = model(input_ids=ids, attention_mask=batch.get("attention_mask", torch.ones_like(ids)))
        logits = out if isinstance(out, Tensor) else out.logits
        return logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]

    def _judge(self, batch: Mapping[str, Any]) -> list[float | None]:
        if self.reward_fn is None:
            raise ValueError("the batch brings no `rewards`, and the trainer was given no reward_fn")
        tensors = ("input_ids", "attention_mask", "completion_mask", "old_log_probs")
        rewards = self.reward_fn(**{key: value for key, value in batch.items() if key not in tensors})
        if len(rewards) != len(batch["input_ids"]):
            raise ValueError(f"reward_fn returned {len(rewards)} values for {len(batch['input_ids'])} answers")
        return rewards
