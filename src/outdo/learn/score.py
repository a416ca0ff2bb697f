"""Log-likelihoods of context texts, computed like the learner's log-probabilities, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outdo.learn.memory import MAX_TOKENS
from outdo.learn.packing import micro_batches, pack
from outdo.learn.plain import answer_logprobs
from outdo.models.load import Policy
from outdo.types import Sample

Text = tuple[tuple[int, ...], tuple[int, ...]]  # the context, and what is scored; neither is empty


@torch.no_grad()
def log_likelihoods(
    policy: Policy, texts: Sequence[Text], progress: Callable[[int], None] = lambda count: None
) -> list[float]:
    """The sum of log p over each text's scored tokens, at temperature 1. `progress` gets how many were just scored."""
    policy.set_training(False)
    sums: list[float] = []
    contexts = [context for context, _ in texts]
    samples = [Sample(i, scored, (0.0,) * len(scored), 0.0) for i, (_, scored) in enumerate(texts)]
    for part in micro_batches(contexts, samples, MAX_TOKENS["cpu"]):
        packed = pack(contexts, part, policy.device)
        sums += answer_logprobs(policy, packed, temperature=1.0)[0].double().sum(-1).tolist()
        progress(len(part))
    return sums
