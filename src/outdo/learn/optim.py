"""The trained weights and the gradients of an update. Their optimizer is in `optimizers.py`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from outdo.learn.optimizers import step_if_finite
from outdo.models.load import Policy
from outdo.models.lora import Adapter

T = TypeVar("T")
Reduce = Callable[[list[Tensor | None]], list[Tensor | None]]  # sums of one process to those of all


class Masters:
    """The weights in float32: the model's own, or copies of them where it computes in less.

    Small updates are lost in bfloat16, whose values are 0.4% apart. Gradients of micro-batches are summed here too, so
    that one that fails midway leaves nothing behind:

        begin()                        # an update: no gradient yet
        collect() or drop()            # after each backward: keep its gradients, or forget them
        norm = finish(max_grad_norm)   # the optimizer may step
        apply(optimizer)               # it does, and the model gets the new weights
    """

    folds = False  # whether a backward adds to the sums as it goes, so that one that fails spoils them
    num_updates = 0  # applied
    reduce: Reduce = staticmethod(lambda sums: sums)

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.own = [name for name, _ in named], [p for _, p in named]
        self.weights = [self._master(p) for p in self.own]
        self.copies = [i for i, p in enumerate(self.own) if p.dtype != self.weights[i].dtype]
        self.sums: list[Tensor | None] = []

    def _master(self, p: nn.Parameter) -> nn.Parameter:
        return p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())

    @property
    def is_in_step(self) -> bool:
        """Whether every process must run as many micro-batches as the others."""
        return False

    def forward(self, policy: Policy, compute: Callable[[Policy], T]) -> T:
        """What `compute` makes of the weights that are trained, with gradients; `policy` has the same."""
        return compute(policy)

    def shapes(self) -> list[torch.Size]:
        """Of the whole weights, whatever part of them is here."""
        return [weight.shape for weight in self.weights]

    def part(self, whole: Tensor) -> Tensor:
        """What is here of a tensor with the shape of a weight."""
        return whole

    def begin(self) -> None:
        self.sums = []

    def cancel(self) -> None:
        """Forgets the update's gradients."""
        self.drop()
        self.sums = []

    def announce(self, is_last: bool) -> None:
        """A micro-batch of the update comes next, which may be the last."""

    def collect(self) -> None:
        """Adds the gradients of the last backward to the sums."""
        gradients = [p.grad for p in self.own]
        self.drop()
        self.sums = _added(self.sums, gradients)

    def drop(self) -> None:
        for p in self.own:
            p.grad = None

    def finish(self, max_norm: float) -> Tensor:
        """Gives each weight its gradient, clipped. Returns the norm of all before that."""
        sums, self.sums = self.reduce(self.sums or [None] * len(self.weights)), []
        for i, weight in enumerate(self.weights):
            total, sums[i] = sums[i], None
            weight.grad = None if total is None else total.to(weight.dtype)
        return torch.nn.utils.clip_grad_norm_(self.weights, max_norm)

    def apply(self, optimizer: torch.optim.Optimizer, is_finite: Tensor | None = None) -> None:
        """A step of the optimizer, skipped where the loss or gradient is not finite (None: they are known to be); and
        the new weights for the model."""
        self.num_updates += 1
        if is_finite is None:
            optimizer.step()
        else:
            step_if_finite(optimizer, is_finite)
        self.publish()

    def is_finite(self) -> bool:
        """Whether all weights are."""
        return all(bool(weight.isfinite().all()) for weight in self.weights)

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the weights into the model."""
        if self.copies:
            torch._foreach_copy_([self.own[i] for i in self.copies], [self.weights[i] for i in self.copies])

    def stow(self, optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> None:
        """Moves a weight's optimizer state to where it is kept, after a checkpoint's was restored."""


class FoldedMasters(Masters):
    """Adds each gradient to its sum as soon as a backward has computed it, and frees it: those of the whole model never
    exist beside their sums. The first micro-batch's are kept in their own type until a second one adds to them."""

    folds = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.is_open = False  # between `begin` and `finish`; another learner may train the same model later
        me = weakref.ref(self)
        for i, p in enumerate(self.own):
            p.register_post_accumulate_grad_hook(lambda p, i=i: _fold(me(), i, p))

    def begin(self) -> None:
        self.sums, self.is_open = [None] * len(self.own), True

    def collect(self) -> None:
        """The backward has added them already."""

    def cancel(self) -> None:
        super().cancel()
        self.is_open = False

    def finish(self, max_norm: float) -> Tensor:
        self.is_open = False
        return super().finish(max_norm)


@torch.no_grad()
def _fold(masters: FoldedMasters | None, i: int, p: Tensor) -> None:
    if masters is None or not masters.is_open or p.grad is None:
        return
    gradient, p.grad = p.grad, None
    total = masters.sums[i]
    masters.sums[i] = gradient if total is None else total.float().add_(gradient)


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


def _added(sums: list[Tensor | None], gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Adds gradients to sums in float32; None means no gradient."""
    if not sums:
        return [None if g is None else g.float() for g in gradients]
    both = [(s, g) for s, g in zip(sums, gradients, strict=True) if s is not None and g is not None]
    if both:
        torch._foreach_add_([s for s, _ in both], [g for _, g in both])
    return [s if s is not None or g is None else g.float() for s, g in zip(sums, gradients, strict=True)]
