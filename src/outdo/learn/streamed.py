"""Weights that the optimizer updates a few at a time: without float32 copies of the model, or with the copies and the
optimizer's state in the host's memory.

Between updates `weights` are what is kept: the float32 masters, on the GPU or in pinned host memory, or with stochastic
rounding the model's own bfloat16 weights. During a step those of one chunk are in float32 on the device. Any optimizer
that treats weights without a gradient as not there can be used. While it works on a chunk, the next one is copied from
the host on a stream of its own, and the one before is copied back on another.

Not covered: optimizers that page their state themselves are not offloaded, their masters are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outdo.learn.bf16 import store_rounded
from outdo.learn.memory import CHUNK_OF_WEIGHTS, offloads
from outdo.learn.offload import HostMemory, StateTensor
from outdo.learn.optim import AdapterMasters, FoldedMasters, Masters
from outdo.learn.optimizers import package_of, step_if_finite
from outdo.models.load import Policy
from outdo.models.quantized import LiveAdapter
from outdo.recipe.schema import Recipe


class StreamedMasters(FoldedMasters):
    """See the top of the file. `rounding` is the seed of stochastic rounding; None: float32 masters are kept."""

    def __init__(self, model: nn.Module, device: torch.device, rounding: int | None, offloads: bool) -> None:
        self.device, self.rounding = device, rounding
        self.host = HostMemory(device) if offloads else None
        super().__init__(model)
        if rounding is not None:
            self.copies = []
        self.chunks = _chunks([p.numel() for p in self.own])
        self.clip = torch.ones((), device=device)

    def _master(self, p: nn.Parameter) -> nn.Parameter:
        if p.dtype == torch.float32:
            return p
        if self.rounding is not None:
            return nn.Parameter(p.data)  # the same memory
        wide = p.detach().float()
        return nn.Parameter(self.host.copy_of(wide) if self.host else wide)

    @torch.no_grad()
    def finish(self, max_norm: float) -> Tensor:
        """The norm of the gradients, which stay in the sums until the step."""
        self.is_open = False
        self.sums = self.reduce(self.sums)
        norms = torch._foreach_norm([g for g in self.sums if g is not None], 2.0, dtype=torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(list(norms))) if norms else torch.zeros(())
        self.clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return norm

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer, is_finite: Tensor | None = None) -> None:
        decides_itself = bool(optimizer.defaults.get("fused"))
        if is_finite is not None and not decides_itself and not bool(is_finite):
            return
        self.num_updates += 1
        chunks = [[i for i in chunk if self.sums[i] is not None] for chunk in self.chunks]

        def step(chunk: list[int]) -> None:
            self._step(chunk, optimizer, is_finite if decides_itself else None)

        if self.host:
            self.host.stream(chunks, lambda i: self._tensors(optimizer, i), step)
        else:
            for chunk in chunks:
                step(chunk)
        self.sums = []

    def _step(self, chunk: list[int], optimizer: torch.optim.Optimizer, is_finite: Tensor | None) -> None:
        for i in chunk:
            weight, gradient, self.sums[i] = self.weights[i], self.sums[i], None
            assert gradient is not None
            weight.data = weight.data.float()
            weight.grad = gradient.float().mul_(self.clip)
            del gradient
        if is_finite is None:
            optimizer.step()
        else:
            step_if_finite(optimizer, is_finite)
        for i in chunk:
            weight, p = self.weights[i], self.own[i]
            weight.grad = None
            if weight is p:
                continue
            if self.rounding is None:
                p.copy_(weight)
            else:
                store_rounded(p.data, weight.data, self.rounding, self.num_updates, i)
                weight.data = p.data

    def publish(self) -> None:
        """The step has done it."""

    def is_finite(self) -> bool:
        """Of the model's own weights, since the masters may be in the host's memory."""
        return all(bool(p.isfinite().all()) for p in self.own)

    def stow(self, optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> None:
        if self.host:
            index = next(i for i, one in enumerate(self.weights) if one is weight)
            keeps_steps_on_host = package_of(optimizer) == "torchao"
            self.host.stow(self._tensors(optimizer, index), scalars_too=not keeps_steps_on_host)

    def _tensors(self, optimizer: torch.optim.Optimizer, i: int) -> Iterator[StateTensor]:
        """What is kept for one weight: its master, and the tensors of its optimizer state."""
        weight = self.weights[i]
        if weight is not self.own[i] and self.rounding is None:
            yield StateTensor((i, "master", ""), weight, "data")
        state = optimizer.state.get(weight, {})
        for slot, value in state.items():
            if hasattr(value, "__tensor_flatten__"):
                yield from (StateTensor((i, slot, part), value, part) for part in value.__tensor_flatten__()[0])
            elif isinstance(value, Tensor) and not getattr(value, "is_paged", False):
                yield StateTensor((i, slot, ""), state, slot)


def masters_of(policy: Policy, recipe: Recipe) -> Masters:
    """Of a process that trains alone, or on a replica: whole."""
    if policy.adapter:
        is_live = isinstance(policy.adapter, LiveAdapter)
        return Masters(policy.model) if is_live else AdapterMasters(policy.adapter)
    is_offloaded = offloads(recipe) and policy.device.type == "cuda"
    if is_offloaded or recipe.stochastic_rounding:
        rounding = recipe.seed if recipe.stochastic_rounding else None
        return StreamedMasters(policy.model, policy.device, rounding, is_offloaded)
    return FoldedMasters(policy.model)


def _chunks(sizes: list[int]) -> list[list[int]]:
    """Consecutive weights of at most CHUNK_OF_WEIGHTS elements in all, a larger one alone."""
    chunks: list[list[int]] = []
    room = 0
    for i, size in enumerate(sizes):
        if not chunks or size > room:
            chunks.append([])
            room = CHUNK_OF_WEIGHTS
        chunks[-1].append(i)
        room -= size
    return chunks
