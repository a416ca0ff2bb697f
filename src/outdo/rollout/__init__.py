"""Engines and what stands before them: prompts in, groups of answers out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outdo.models.load import Policy
    from outdo.recipe.schema import Recipe
    from outdo.types import Sampler

SLOW = "{}: outdo's own attention does not give its logits; using transformers' generate, which is slow"


def make_sampler(
    policy: Policy,
    recipe: Recipe | None = None,
    learns: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Sampler:
    """The sampler that the recipe asks for and the policy can have. Where it `learns`, memory is left for that."""
    from outdo.learn.memory import cache_budget
    from outdo.rollout.hf import HFSampler
    from outdo.rollout.local import LocalSampler

    wanted = recipe.sampler if recipe else "local"
    if policy.plain and wanted != "hf":
        notify(SLOW.format(type(policy.model).__name__))
    if policy.plain or wanted == "hf":
        return HFSampler(policy)
    return LocalSampler(policy, recipe.rollout_rows if recipe else None, cache_budget(policy, recipe, learns))
