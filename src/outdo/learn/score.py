"""How likely a model finds given texts: log-probabilities by the learner's engine, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from outdo.learn.logprobs import token_logprobs
from outdo.learn.memory import MAX_TOKENS
from outdo.learn.packing import Packed, forward, pack, unpack
from outdo.learn.plain import plain_logprobs
from outdo.models.load import Policy
from outdo.types import Sample

Text = tuple[tuple[int, ...], tuple[int, ...]]  # what is given, and what is scored; neither is empty


@torch.no_grad()
def log_likelihoods(
    policy: Policy, texts: Sequence[Text], tell: Callable[[int], None] = lambda count: None
) -> list[float]:
    """The sum of log p over each text's scored tokens, at temperature 1. `tell` hears how many texts more are done."""
    policy.set_training(False)
    found: list[float] = []
    for part in _parts(texts, MAX_TOKENS["cpu"]):
        rows = [Sample(i, scored, (0.0,) * len(scored), 0.0) for i, (_, scored) in enumerate(part)]
        packed = pack([given for given, _ in part], rows, policy.device)
        found += unpack(_logprobs(policy, packed), packed).double().sum(-1).tolist()
        tell(len(part))
    return found


def _logprobs(policy: Policy, packed: Packed) -> torch.Tensor:
    if policy.plain:
        return plain_logprobs(policy, packed, temperature=1.0)[0]
    hidden_MD = forward(policy, packed)
    return token_logprobs(hidden_MD, policy.head, packed.targets_M, temperature=1.0, cap=policy.cap)[0]


def _parts(texts: Sequence[Text], most: int) -> Iterator[list[Text]]:
    """Neighbours that together have at most so many tokens; a longer one alone."""
    part: list[Text] = []
    tokens = 0
    for given, scored in texts:
        size = len(given) + len(scored)
        if part and tokens + size > most:
            yield part
            part, tokens = [], 0
        part.append((given, scored))
        tokens += size
    if part:
        yield part
