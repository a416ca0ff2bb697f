"""The trained weights. Their optimizer is in `optimizers.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outdo.models.load import Policy
from outdo.models.lora import Adapter
from outdo.models.quantized import LiveAdapter


class Masters:
    """The weights in float32: the model's own, or copies of them where it computes in less.

    Small updates are lost in bfloat16, whose values are 0.4% apart. Gradients of micro-batches are summed here too, so
    that one that fails midway leaves nothing behind:

        begin()                        # an update: no gradient yet
        collect() or drop()            # after each backward: keep its gradients, or forget them
        norm = finish(max_grad_norm)   # the optimizer may step
        publish()                      # after it has: the model gets the new weights
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.own = [name for name, _ in named], [p for _, p in named]
        self.weights = [p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in self.own]
        self.copies = [i for i, (p, w) in enumerate(zip(self.own, self.weights, strict=True)) if p is not w]
        self.sums: list[Tensor | None] = []

    def begin(self) -> None:
        self.sums = []

    def collect(self) -> None:
        """Adds the gradients of the last backward to the sums."""
        gradients = self._gradients()
        self.drop()
        self.sums = _added(self.sums, gradients)

    def _gradients(self) -> list[Tensor | None]:
        return [p.grad for p in self.own]

    def drop(self) -> None:
        for p in self.own:
            p.grad = None

    def finish(self, max_norm: float) -> Tensor:
        """Gives each weight its gradient, clipped. Returns the norm of all before that."""
        for weight, total in zip(self.weights, self.sums or [None] * len(self.weights), strict=True):
            weight.grad = total
        self.sums = []
        return torch.nn.utils.clip_grad_norm_(self.weights, max_norm)

    def is_finite(self) -> bool:
        """Whether all weights are."""
        return all(bool(weight.isfinite().all()) for weight in self.weights)

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the weights into the model."""
        if self.copies:
            torch._foreach_copy_([self.own[i] for i in self.copies], [self.weights[i] for i in self.copies])


class AdapterMasters(Masters):
    """The factors of an adapter, instead of the weights that it adapts. Those get the merged sum after each step."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.names, self.own, self.weights = adapter.keys, adapter.pairs, adapter.pairs
        self.copies = []  # a checkpoint's weights are the factors already
        self.sums = []

    def drop(self) -> None:
        self.adapter.drop()

    def publish(self) -> None:
        self.adapter.publish()


def masters_of(policy: Policy) -> Masters:
    adapter = policy.adapter
    return AdapterMasters(adapter) if adapter and not isinstance(adapter, LiveAdapter) else Masters(policy.model)


def _added(sums: list[Tensor | None], gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Adds gradients to sums in float32; None means no gradient."""
    if not sums:
        return [None if g is None else g.float() for g in gradients]
    both = [(s, g) for s, g in zip(sums, gradients, strict=True) if s is not None and g is not None]
    if both:
        torch._foreach_add_([s for s, _ in both], [g for _, g in both])
    return [s if s is not None or g is None else g.float() for s, g in zip(sums, gradients, strict=True)]
