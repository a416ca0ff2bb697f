"""The tokens of an update that its loss treats apart: those of high entropy, or of high covariance of advantage and
log-probability.

What they are chosen by is measured once, over the samples of all processes, under the policy before the update. That
is a forward pass without gradients, about a third of the update's own cost; where only log-probabilities are needed,
the first update takes the sampler's, which are the policy's. Without such a setting nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from outdo.algo import choose
from outdo.algo.losses import LOSSES, Settings
from outdo.recipe.schema import Recipe
from outdo.types import Sample

Measure = Callable[[], tuple[Tensor, Tensor]]  # log-probabilities and entropies of all tokens


def chooses_tokens(recipe: Recipe) -> bool:
    return recipe.top_entropy_quantile < 1.0 or LOSSES[recipe.loss_type].choose is not None


def with_choice(recipe: Recipe, samples: list[Sample], measure: Measure, on_policy: bool, seed: int) -> list[Sample]:
    """The samples of an update, with the tokens that its loss treats apart. All processes get the same."""
    if not samples or not chooses_tokens(recipe):
        return samples
    variant, settings = LOSSES[recipe.loss_type], Settings.of(recipe)
    if variant.choose is None:
        chosen_M = choose.top_entropy(measure()[1], settings.top_entropy_quantile)
    else:
        sampler_M = _flat([sample.logprobs for sample in samples])
        counts = torch.tensor([sample.num_trained for sample in samples])
        advantages_M = torch.tensor([sample.advantage for sample in samples]).repeat_interleave(counts)
        tokens = choose.Tokens(advantages_M, sampler_M if on_policy else measure()[0], sampler_M)
        chosen_M = variant.choose(tokens, settings, seed % 2**63)
    flags = chosen_M.tolist()
    ends = accumulate(sample.num_trained for sample in samples)
    return [
        replace(sample, chosen=tuple(flags[end - sample.num_trained : end]))
        for sample, end in zip(samples, ends, strict=True)
    ]


def _flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.float32))
