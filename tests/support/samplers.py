"""Samplers over each engine, and policies whose answers end at tokens of choice."""

from __future__ import annotations

from dataclasses import replace

from outdo.models.load import Policy
from outdo.rollout.groups import Sampler
from outdo.rollout.hf import HFEngine
from outdo.rollout.local import LocalEngine


def local_sampler(policy: Policy, rows: int | None = None, memory: int | None = None) -> Sampler:
    return Sampler(LocalEngine(policy, rows, memory), policy.renderer)


def hf_sampler(policy: Policy) -> Sampler:
    return Sampler(HFEngine(policy), policy.renderer)


def ending_with(policy: Policy, *eos_ids: int) -> Policy:
    """Several ending tokens make the answers of a random model end early, and at different lengths."""
    return replace(policy, renderer=replace(policy.renderer, eos_ids=eos_ids))
