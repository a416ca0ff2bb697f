"""Log-likelihoods of context texts, computed like the learner's log-probabilities, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from outdo.learn.memory import MAX_TOKENS
from outdo.learn.packing import pack
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
    for part in _micro_batches(texts, MAX_TOKENS["cpu"]):
        samples = [Sample(i, scored, (0.0,) * len(scored), 0.0) for i, (_, scored) in enumerate(part)]
        packed = pack([context for context, _ in part], samples, policy.device)
        sums += answer_logprobs(policy, packed, temperature=1.0)[0].double().sum(-1).tolist()
        progress(len(part))
    return sums


def _micro_batches(texts: Sequence[Text], max_tokens: int) -> Iterator[list[Text]]:
    """Consecutive texts of at most `max_tokens` together; a longer one alone."""
    part: list[Text] = []
    tokens = 0
    for context, scored in texts:
        size = len(context) + len(scored)
        if part and tokens + size > max_tokens:
            yield part
            part, tokens = [], 0
        part.append((context, scored))
        tokens += size
    if part:
        yield part
