"""Engines: token ids in, sampled token ids out (`outdo.types.Engine`). `make_sampler` chooses one for a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

SLOW = "{}: outdo's own attention does not give its logits; using transformers' generate, which is slow"
OnTokens = Callable[[list[int]], None]  # is called with an answer's tokens so far

if TYPE_CHECKING:
    from outdo.models.load import Policy
    from outdo.recipe.schema import Recipe
    from outdo.rollout.play import Play
    from outdo.types import Engine
    from outdo.types import Sampler as AnySampler


def _local(policy: Policy, rows: int | None, memory: int | None, watch: OnTokens | None) -> Engine:
    from outdo.rollout.local import LocalEngine

    return LocalEngine(policy, rows, memory, watch)


def _fp8(policy: Policy, rows: int | None, memory: int | None, watch: OnTokens | None) -> Engine:
    from outdo.rollout.local import LocalEngine

    return LocalEngine(policy, rows, memory, watch, rounds=True)


def _hf(policy: Policy, rows: int | None, memory: int | None, watch: OnTokens | None) -> Engine:
    from outdo.rollout.hf import HFEngine

    return HFEngine(policy, watch)


ENGINES: dict[str, Callable[[Policy, int | None, int | None, OnTokens | None], Engine]] = {
    "local": _local,
    "fp8": _fp8,
    "hf": _hf,
}


def make_sampler(
    policy: Policy,
    recipe: Recipe | None = None,
    learns: bool = True,
    notify: Callable[[str], None] | None = None,
    *,
    rows: int | None = None,
    watch: OnTokens | None = None,
    play: Play | None = None,
) -> AnySampler:
    """The engine that the recipe names, or the fastest that gives the policy's logits. Where a learner runs beside it
    (`learns`), memory is reserved for that. With `play`, answers have several turns."""
    from outdo.learn.memory import cache_budget
    from outdo.rollout.groups import Sampler

    name = recipe.sampler if recipe else "local"
    if policy.plain and name != "hf":
        name = "hf"
        if notify:
            notify(SLOW.format(type(policy.model).__name__))
    if recipe:
        rows = recipe.rollout_rows
    unbounded = name == "hf" or (recipe is None and rows is not None)  # a few rows need no budget
    memory = None if unbounded else cache_budget(policy, recipe, learns)
    engine = ENGINES[name](policy, rows, memory, watch)
    return play.sampler(engine, policy.renderer) if play else Sampler(engine, policy.renderer)
