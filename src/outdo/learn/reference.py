"""The reference of the KL term: the policy as it was when GRPO started."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from outdo.models.load import Policy
from outdo.models.lora import Adapter


def reference_of(policy: Policy) -> FrozenCopy | AdapterReference:
    """Inside the context `activated`, the policy has the reference's weights."""
    return AdapterReference(policy, policy.adapter) if policy.adapter else FrozenCopy(policy)


class FrozenCopy:
    """A second model with frozen weights."""

    def __init__(self, policy: Policy) -> None:
        self.policy = replace(policy, model=copy.deepcopy(policy.model).eval().requires_grad_(False))

    @contextmanager
    def activated(self) -> Iterator[Policy]:
        yield self.policy

    def state_dict(self) -> Mapping[str, Tensor]:
        return self.policy.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.policy.model.load_state_dict(state)


class AdapterReference:
    """The same model with its initial adapter: switched off, unless a warm-up has trained it.

    Switched off it takes no memory, since the weights without it are kept anyway; otherwise a copy of the adapted ones.
    """

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        self.policy, self.adapter = policy, adapter
        self.load_state_dict(adapter.state_dict())

    @contextmanager
    def activated(self) -> Iterator[Policy]:
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
        """Sets the reference's factors. The adapter itself does not change."""
        self.factors = {key: value.to("cpu", copy=True) for key, value in state.items()}
        self.weights = self.adapter.weights_of(self.factors)
