"""The policy as it was when GRPO began: what KL is measured from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from outdo.models.load import Policy
from outdo.models.lora import Adapter


class Reference(Protocol):
    def as_it_was(self) -> AbstractContextManager[Policy]:
        """The policy with its first weights, for as long as the context lasts."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> object: ...


def reference_of(policy: Policy) -> Reference:
    return AdapterBefore(policy, policy.adapter) if policy.adapter else FrozenCopy(policy)


class FrozenCopy:
    """A second model."""

    def __init__(self, policy: Policy) -> None:
        self.policy = replace(policy, model=copy.deepcopy(policy.model).eval().requires_grad_(False))

    @contextmanager
    def as_it_was(self) -> Iterator[Policy]:
        yield self.policy

    def state_dict(self) -> Mapping[str, Tensor]:
        return self.policy.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.policy.model.load_state_dict(state)


class AdapterBefore:
    """The same model with its adapter as it was: switched off, unless a warm-up had moved it already.

    Switched off it costs no memory at all, as the weights without it are there; else a copy of the adapted ones.
    """

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        self.policy, self.adapter = policy, adapter
        self.load_state_dict(adapter.state_dict())

    @contextmanager
    def as_it_was(self) -> Iterator[Policy]:
        model, training = self.policy.model, self.policy.model.training
        with self.adapter.instead(self.weights):
            model.eval()
            try:
                yield self.policy
            finally:
                model.train(training)

    def state_dict(self) -> Mapping[str, Tensor]:
        return self.factors

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The factors as they were. The adapter itself is left as it is."""
        self.factors = {key: value.to("cpu", copy=True) for key, value in state.items()}
        self.weights = self.adapter.weights_of(self.factors)
