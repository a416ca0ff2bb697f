"""Log-probabilities of given texts, computed like the learner's, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from outdo.algo.prepare import samples_of
from outdo.learn.memory import MAX_TOKENS
from outdo.learn.packing import micro_batches, pack
from outdo.learn.plain import answer_logprobs
from outdo.models.load import Policy
from outdo.types import Group, Sample

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


@torch.no_grad()
def group_logprobs(
    policy: Policy, groups: Sequence[Group], temperature: float, tokens_at_once: int
) -> list[list[list[float]]]:
    """Of each answer's own tokens, in micro-batches of so many tokens."""
    policy.set_training(False)
    prompts, owned = samples_of(groups)
    parts = micro_batches(prompts, [one.sample for one in owned], tokens_at_once)
    packs = (pack(prompts, part, policy.device) for part in parts)
    rows = chain.from_iterable(answer_logprobs(policy, packed, temperature)[0].tolist() for packed in packs)
    out: list[list[list[float]]] = [[[] for _ in group.trajectories] for group in groups]
    for (sample, g, t), row in zip(owned, rows, strict=True):
        out[g][t] += row[: sample.num_trained]
    return out
