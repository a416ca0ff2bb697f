"""The trained weights of several processes: replicas, or a part of each weight in every process.

    none    every process has all masters; gradients are summed over the processes once an update
    grads   masters, gradients and optimizer are sharded; each process computes with all weights (ZeRO-2)
    full    the weights that are computed with are sharded too, and gathered layer by layer (FSDP2, ZeRO-3)

Whatever the sharding, `policy` has all weights, in the type that it computes in: that is what samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from outdo.errors import RecipeError
from outdo.learn.optim import Masters
from outdo.learn.streamed import masters_of
from outdo.models.load import Policy
from outdo.parallel.mesh import BUCKET, Mesh
from outdo.parallel.world import World, get_world
from outdo.recipe.schema import Recipe

T = TypeVar("T")


def shared_masters(policy: Policy, recipe: Recipe) -> Masters:
    """By the recipe's `parallel_sharding`. An adapter is trained on replicas: it is small."""
    world = get_world()
    sharding = "none" if policy.adapter else recipe.parallel_sharding
    if sharding == "full" or (sharding == "grads" and world.is_shared):
        _refuse_streaming(recipe, sharding)
    if sharding == "full":
        return FullyShardedMasters(policy, Mesh.of(world, policy.device, recipe.parallel_replicas))
    if sharding == "grads" and world.is_shared:
        return ShardedMasters(policy.model, Mesh.of(world, policy.device, recipe.parallel_replicas))
    masters = masters_of(policy, recipe)
    if world.is_shared:
        masters.reduce = lambda sums: sum_over_processes(world, sums, masters.own)
    return masters


def _refuse_streaming(recipe: Recipe, sharding: str) -> None:
    """Raises RecipeError for what is written for whole weights alone."""
    for key in ("stochastic_rounding", "parallel_offload"):
        if (value := getattr(recipe, key)) not in (False, "none"):
            now = f"{key}={str(value).lower()}"
            raise RecipeError(f"parallel_sharding={sharding} shards masters and optimizer state: leave out {now}")


def sum_over_processes(world: World, sums: Sequence[Tensor | None], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """The sums of all processes. One that no process has stays None, so that its weight is not updated."""
    trained = _trained_anywhere(world, sums, weights[0].device)
    out: list[Tensor | None] = [None] * len(sums)
    for places in _buckets([i for i, is_trained in enumerate(trained) if is_trained], weights):
        lengths = [weights[i].numel() for i in places]
        flat = torch.zeros(sum(lengths), device=weights[places[0]].device)
        for i, part in zip(places, flat.split(lengths), strict=True):
            if (own := sums[i]) is not None:
                part.copy_(own.reshape(-1))
        world.all_reduce(flat)
        for i, part in zip(places, flat.split(lengths), strict=True):
            own, total = sums[i], part.view(weights[i].shape)
            out[i] = own.copy_(total) if own is not None and own.dtype == torch.float32 else total
    return out


def _trained_anywhere(world: World, gradients: Sequence[Tensor | None], device: torch.device) -> list[bool]:
    """For each weight, whether any process has a gradient of it."""
    has = torch.tensor([float(one is not None) for one in gradients], device=device)
    return [count > 0 for count in world.all_reduce(has).tolist()]


def _buckets(places: Sequence[int], weights: Sequence[Tensor]) -> Iterator[list[int]]:
    bucket: list[int] = []
    for i in places:
        bucket.append(i)
        if sum(weights[j].numel() for j in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


class PartMasters(Masters):
    """Float32 masters of which each process has a part; the model of the policy gets all of them."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.mesh, self.world = mesh, mesh.world
        self.names, self.own = [name for name, _ in named], [p for _, p in named]
        self.copies = [i for i, p in enumerate(self.own) if p.dtype != torch.float32]
        self.weights: list[nn.Parameter] = []

    @property
    def is_in_step(self) -> bool:
        return True

    def shapes(self) -> list[torch.Size]:
        return [p.shape for p in self.own]

    def part(self, whole: Tensor) -> Tensor:
        return self.mesh.part(whole)

    def is_finite(self) -> bool:
        bad = sum((~weight.isfinite()).sum() for weight in self.weights)
        return not bool(self.world.all_reduce(torch.as_tensor(bad, device=self.own[0].device)))

    @torch.no_grad()
    def publish(self) -> None:
        self.mesh.all_gather(self.weights, self.own)

    @torch.no_grad()
    def _clip(self, max_norm: float) -> Tensor:
        """Clips the gradients by the norm of all parts; returns that norm."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        device = self.own[0].device
        squares = [torch.linalg.vector_norm(g, dtype=torch.float32).square() for g in gradients]
        norm = self.mesh.sum_over_shards(
            torch.stack(squares).sum() if squares else torch.zeros((), device=device)
        ).sqrt()
        if gradients:
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


class ShardedMasters(PartMasters):
    """`grads`: the model computes with all its weights, and what updates them is sharded."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        super().__init__(model, mesh)
        self.weights = [nn.Parameter(mesh.part(p.detach()).float().clone()) for p in self.own]
        self.trained = torch.zeros(len(self.own), device=self.own[0].device)  # which weights got a gradient

    def begin(self) -> None:
        self.sums = [None] * len(self.own)
        self.trained.zero_()

    def collect(self) -> None:
        """Sums the gradients over the processes: each keeps its part."""
        gradients = [p.grad for p in self.own]
        self.trained += self.trained.new_tensor([float(g is not None) for g in gradients])
        parts = self.mesh.reduce_scatter(gradients, self.shapes())
        self.drop()
        for i, part in enumerate(parts):
            self.sums[i] = part if (total := self.sums[i]) is None else total.add_(part)

    def finish(self, max_norm: float) -> Tensor:
        trained = self.world.all_reduce(self.trained).tolist()
        self.mesh.sum_over_replicas([total for total in self.sums if total is not None])
        for weight, total, count in zip(self.weights, self.sums, trained, strict=True):
            weight.grad = total if count else None
        self.sums = []
        return self._clip(max_norm)


class FullyShardedMasters(PartMasters):
    """`full`: what is trained is a second model under FSDP2, which holds a part of every weight in float32 and gathers
    a layer's in the policy's type while it computes with it."""

    def __init__(self, policy: Policy, mesh: Mesh) -> None:
        super().__init__(policy.model, mesh)
        self.policy, self.root = _sharded_copy(policy, mesh)
        sharded = dict(self.policy.model.named_parameters())
        self.parameters = [sharded[name] for name in self.names]
        self.weights = [nn.Parameter(_local(p.detach())) for p in self.parameters]

    def forward(self, policy: Policy, compute: Callable[[Policy], T]) -> T:
        self.policy.set_training(policy.model.training)
        return self.root(compute, self.policy)

    def begin(self) -> None:
        self.drop()

    def announce(self, is_last: bool) -> None:
        """Replicas add up their sums with the last micro-batch alone."""
        if self.mesh.replicas > 1:
            self.root.set_requires_all_reduce(is_last)

    def collect(self) -> None:
        """FSDP2 has reduced the gradients and added them to those of before."""

    def drop(self) -> None:
        for p in self.parameters:
            p.grad = None

    def finish(self, max_norm: float) -> Tensor:
        for weight, p in zip(self.weights, self.parameters, strict=True):
            weight.grad = None if p.grad is None else _local(p.grad)
        return self._clip(max_norm)

    def publish(self) -> None:
        super().publish()
        self.drop()


class _Root(nn.Module):
    """Computes anything with the model while FSDP2 holds its outer weights together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[Policy], Any], policy: Policy) -> Any:
        return compute(policy)


def _sharded_copy(policy: Policy, mesh: Mesh) -> tuple[Policy, Any]:
    """The policy with another model, under FSDP2, and its root. No second copy of all weights is made."""
    shared: dict[int, Any] = {id(p): p for p in policy.model.parameters()}
    own = replace(policy, model=copy.deepcopy(policy.model, shared))
    precision = MixedPrecisionPolicy(
        param_dtype=policy.model.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    root = _Root(own.model)
    for module in (*_layers(own), root):
        fully_shard(module, mesh=_torch_mesh(mesh), mp_policy=precision)
    if own.stack:
        own.stack.compute_by_modules()
    root.float()  # the parts: they are the masters
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sums, not means: denominators are of the whole update
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    return own, root


def _torch_mesh(mesh: Mesh) -> Any:
    """One dimension where there are no replicas: then no second reduction is needed."""
    return mesh.torch_mesh if mesh.replicas > 1 else mesh.torch_mesh["shards"]


def _layers(policy: Policy) -> list[nn.Module]:
    """The decoder's layers: the longest list of modules in the model."""
    lists = [list(module) for module in policy.model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
