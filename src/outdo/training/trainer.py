"""GRPO for those who own their loop: sample as you like, hand over a batch, get an update. Thin over `outdo.algo`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outdo.algo.advantage import Rewards, group_advantages
from outdo.algo.losses import grpo_loss
from outdo.errors import did_you_mean
from outdo.training.own_batch import OwnBatch, call_reward, like_log_probs, read_batch

Advantages = Tensor | Sequence[float] | tuple[Tensor, dict[str, float]]
# Other common names of the arguments.
NAMES = {
    **dict.fromkeys(("clip_eps", "clip_epsilon", "clip_ratio", "epsilon", "eps"), "clip_range"),
    **dict.fromkeys(("beta", "kl_beta", "kl_weight", "kl_penalty"), "kl_coef"),
    **dict.fromkeys(("num_generations", "num_samples", "num_answers"), "group_size"),
    **dict.fromkeys(("reward_func", "reward_funcs", "reward_function"), "reward_fn"),
    **dict.fromkeys(("reference_model", "reference"), "ref_model"),
    **{"learning_rate": "lr", "processing_class": "tokenizer", "max_norm": "max_grad_norm"},
}
WHOLE_RUN = ("args", "train_dataset", "eval_dataset", "peft_config", "callbacks")  # of TRL's class of this name


class GRPOTrainer:
    """Takes any module that maps `input_ids` and `attention_mask` to logits (or to an output that has `.logits`).

    reward_fn: `reward_fn(completions, **columns)` or `reward_fn(inputs, outputs)`, for batches that bring no rewards.
    optimizer: or only its rate, `lr`, for AdamW.
    ref_model: the reference of the KL. Without one, where kl_coef is above 0, a frozen copy of the model as it is now.
    tokenizer: for batches of texts.
    """

    def __init__(
        self,
        model: nn.Module,
        reward_fn: Callable[..., Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        group_size: int = 4,
        kl_coef: float = 0.0,
        clip_range: float = 0.2,
        gradient_accumulation_steps: int = 1,
        max_grad_norm: float = 1.0,
        *,
        ref_model: nn.Module | None = None,
        lr: float | None = None,
        tokenizer: Any = None,
        **other_names: Any,
    ) -> None:
        if other_names:
            own = {"reward_fn": reward_fn, "optimizer": optimizer, "group_size": group_size, "kl_coef": kl_coef}
            own |= {"clip_range": clip_range, "gradient_accumulation_steps": gradient_accumulation_steps}
            own |= {"max_grad_norm": max_grad_norm, "ref_model": ref_model, "lr": lr, "tokenizer": tokenizer}
            GRPOTrainer.__init__(self, model, **{**own, **_our_names(other_names)})
            return
        if group_size < 2:
            raise ValueError(f"group_size={group_size}: an answer needs at least one sibling, so use 2 or more")
        if gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps={gradient_accumulation_steps}: use 1 or more")
        if (optimizer is None) == (lr is None):
            raise ValueError("give an optimizer, or lr for AdamW: one of the two")
        self.model, self.reward_fn, self.tokenizer = model, reward_fn, tokenizer
        self.optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=lr or 0.0, weight_decay=0.0)
        self.group_size, self.kl_coef, self.clip_range = group_size, kl_coef, clip_range
        self.gradient_accumulation_steps, self.max_grad_norm = gradient_accumulation_steps, max_grad_norm
        if ref_model is model:
            raise ValueError("ref_model is the model itself, whose KL is always 0: pass a copy, or leave it out")
        reference = copy.deepcopy(model) if ref_model is None and kl_coef > 0 else ref_model
        self.reference = None if reference is None else reference.eval().requires_grad_(False)
        self.steps = 0  # calls of train_step

    def compute_advantages(self, rewards: Rewards, group_size: int | None = None) -> tuple[Tensor, dict[str, float]]:
        """Each answer against its siblings; neighbours in groups of `group_size`. None: could not be judged."""
        size = group_size or self.group_size
        rewards = rewards if isinstance(rewards, (Tensor, list, tuple)) else torch.as_tensor(rewards)
        if isinstance(rewards, Tensor):
            rewards = rewards.flatten()
        advantages = group_advantages(rewards, size)
        values = rewards.tolist() if isinstance(rewards, Tensor) else list(rewards)
        groups = [values[i : i + size] for i in range(0, len(values), size)]
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
        advantages: Advantages,
        mask: Tensor | None = None,
        ref_log_probs: Tensor | None = None,
    ) -> Tensor:
        """The clipped loss of [B, T] token log-probabilities, or of [B], one for each answer. Advantages are [B],
        [B, 1], a list, or what `compute_advantages` returned. Without `ref_log_probs` it is the policy's term alone;
        `train_step` always adds the KL that `kl_coef` asks for."""
        return self._loss(log_probs, old_log_probs, advantages, mask, ref_log_probs)[0]

    def train_step(self, batch: Mapping[str, Any], step: int | None = None) -> dict[str, float]:
        """Adds this batch's gradient; every `gradient_accumulation_steps`-th call updates the weights.

        batch, one of:
        - `input_ids` [B, N] (prompt and answer) and `completion_mask` [B, N] (1 on the answer's tokens);
        - `inputs` and `outputs`, as token ids, or as texts where the trainer has a tokenizer;
        - `log_probs` of the answers as the model computes them, with their gradient: [B, T] and a `mask`, or [B].
        And `rewards`, `advantages`, or what `reward_fn` needs. Optional: `attention_mask`; `old_log_probs`, or
        `log_probs` without a gradient, where the weights have moved since sampling; `ref_log_probs`. Steps count from
        0, by the calls where no `step` is given.
        """
        step = self.steps if step is None else step
        self.steps = step + 1
        read = read_batch(batch, self.group_size, self.tokenizer)
        advantages, stats = self._advantages(batch, read)
        log_probs, reference = self._both_log_probs(read)
        old = log_probs.detach() if read.old_log_probs is None else read.old_log_probs.to(log_probs.device)
        mask = read.mask_BT
        if log_probs.ndim == 2 and log_probs.shape[1] > 1 and old.numel() == read.size:  # one number for each answer
            keep = torch.ones_like(log_probs) if mask is None else mask
            log_probs, old, mask = (log_probs * keep).sum(1), old.flatten(), None
            reference = None if reference is None else (reference * keep).sum(1)
        elif mask is not None and log_probs.numel() == read.size < mask.numel():
            mask = None  # of tokens, and the batch has their sum
        loss, happened = self._loss(log_probs, old, advantages, mask, reference)
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

    def _advantages(self, batch: Mapping[str, Any], read: OwnBatch) -> tuple[Tensor, dict[str, float]]:
        if batch.get("advantages") is not None:
            return _one_a_row(batch["advantages"], read.size), {}
        if batch.get("rewards") is not None:
            return self.compute_advantages(batch["rewards"])
        if self.reward_fn is None:
            raise ValueError("the batch brings no `rewards`, and the trainer was given no reward_fn")
        return self.compute_advantages(call_reward(self.reward_fn, batch, read))

    def _both_log_probs(self, read: OwnBatch) -> tuple[Tensor, Tensor | None]:
        """Of the model and of the reference."""
        reference = read.ref_log_probs
        if read.log_probs is not None:
            if reference is None and self.reference is not None:
                with torch.no_grad():
                    reference = like_log_probs(read, self.group_size, partial(self._log_probs, self.reference))
            if reference is None and self.kl_coef > 0:
                raise ValueError(
                    f"kl_coef={self.kl_coef:g} and the batch has log_probs: it needs ref_log_probs too, or inputs and "
                    "outputs as token ids"
                )
            return read.log_probs, reference
        assert read.input_ids_BN is not None
        tokens = read.input_ids_BN, read.attention_mask_BN
        if reference is None and self.reference is not None:
            with torch.no_grad():
                reference = self._log_probs(self.reference, *tokens)
        return self._log_probs(self.model, *tokens), reference

    def _loss(
        self, log_probs: Tensor, old: Tensor, advantages: Advantages, mask: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        advantages_B = _one_a_row(advantages, len(log_probs)).to(log_probs.device)
        if log_probs.ndim == 1:
            log_probs, old = log_probs[:, None], old[:, None]
            mask = None if mask is None else mask[:, None]
            reference = None if reference is None else reference[:, None]
        mask = torch.ones_like(log_probs) if mask is None else mask
        beta, clip = self.kl_coef if reference is not None else 0.0, self.clip_range
        return grpo_loss(log_probs, old, advantages_B, mask, ref_logprobs_BT=reference, epsilon=clip, beta=beta)

    def _log_probs(self, model: nn.Module, ids: Tensor, attention: Tensor | None) -> Tensor:
        """Of every token given those before it, [B, N - 1]."""
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids) if attention is None else attention)
        logits = out if isinstance(out, Tensor) else out.logits
        return logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def _one_a_row(advantages: Advantages, size: int) -> Tensor:
    """As [B], from a list, from [B, 1], or from the pair that `compute_advantages` returns."""
    if isinstance(advantages, tuple) and len(advantages) == 2 and isinstance(advantages[1], Mapping):
        advantages = advantages[0]
    tensor = torch.as_tensor(advantages)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    if tensor.numel() != size:
        raise ValueError(f"advantages have the shape {list(tensor.shape)}, and there are {size} answers: one for each")
    return tensor.reshape(size)


def _our_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under their names here. Raises TypeError for one that has none."""
    for key in given:
        if key in WHOLE_RUN:
            raise TypeError(
                f"GRPOTrainer takes no {key!r}: it is for a loop of your own. A whole run is "
                "outdo.train(model=…, train_dataset=…, reward_funcs=…)"
            )
        if key not in NAMES:
            raise TypeError(f"GRPOTrainer takes no {key!r}{did_you_mean(key, [*NAMES, *NAMES.values()])}")
    return {NAMES[key]: value for key, value in given.items()}
