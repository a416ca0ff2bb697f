"""The supervised warm-up: a foothold for GRPO. Loss on the answer's tokens only, through the learner's own packing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from outdo.learn.logprobs import token_logprobs
from outdo.learn.optim import Masters, adamw, rate_at, set_rate
from outdo.learn.packing import forward, pack
from outdo.learn.plain import plain_logprobs
from outdo.models.load import Policy
from outdo.types import Prompt, Row

Example = tuple[Prompt, str]  # a prompt and the answer to imitate


def warm_up(
    policy: Policy,
    examples: Iterator[Example],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    max_length: int,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Imitates `examples` for so many steps, in place. `on_step` sees the step and the loss per token."""
    masters = Masters(policy.model)
    optimizer = adamw(masters.weights, learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
    policy.model.train()
    for step in range(steps):
        batch = [next(examples) for _ in range(batch_size)]
        set_rate(optimizer, rate_at(step, steps, learning_rate, "cosine", warmup=max(1, steps // 20)))
        loss = _imitate(policy, batch, max_length)
        masters.set_gradients(masters.collect([]))
        torch.nn.utils.clip_grad_norm_(masters.weights, 1.0)
        optimizer.step()
        masters.publish()
        optimizer.zero_grad(set_to_none=True)
        on_step(step, loss)


def _imitate(policy: Policy, batch: Sequence[Example], max_length: int) -> float:
    """Adds the gradient of one batch; returns its loss per token."""
    prompts = [policy.encode(prompt) for prompt, _ in batch]
    rows = []
    for i, (_, text) in enumerate(batch):
        ids = (*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.eos_ids[0])[:max_length]
        rows.append(Row(i, tuple(ids), (0.0,) * len(ids), 0.0))
    packed = pack(prompts, rows, policy.device)
    if policy.plain:
        logprobs_M, _ = plain_logprobs(policy, packed, temperature=1.0)
    else:
        logprobs_M, _ = token_logprobs(
            forward(policy, packed), policy.head, packed.targets_M, temperature=1.0, cap=policy.cap
        )
    loss = -logprobs_M.mean()
    loss.backward()
    return float(loss.detach())
