"""The trained weights of several processes: replicas, or a part of each weight in every process.

    none    every process has all masters; gradients are summed over the processes once an update
    grads   masters, gradients and optimizer are sharded; each process computes with all weights (ZeRO-2)
    full    the weights that are computed with are sharded too, and gathered layer by layer (FSDP2, ZeRO-3)

Whatever the sharding, `policy` has all weights, in the type that it computes in: that is what samples.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from outdo.errors import RecipeError
from outdo.learn.optim import Masters
from outdo.learn.optimizers import OPTIMIZERS
from outdo.learn.streamed import masters_of
from outdo.models.load import Policy
from outdo.parallel.mesh import BUCKET, SHARDS, Mesh
from outdo.parallel.world import World, get_world
from outdo.recipe.schema import Recipe

T = TypeVar("T")


def shared_masters(policy: Policy, recipe: Recipe) -> Masters:
    """By the recipe's `parallel_sharding`. An adapter is trained on replicas: it is small."""
    world = get_world()
    sharding = "none" if policy.adapter else recipe.parallel_sharding
    if sharding == "full" or (sharding == "grads" and world.is_shared):
        _refuse_whole_weights(recipe, sharding)
        mesh = Mesh.of(world, policy.device, recipe.parallel_replicas)
        on_host = recipe.parallel_offload != "none"
        if sharding == "full":
            return FullyShardedMasters(policy, mesh, on_host)
        return ShardedMasters(policy.model, mesh, on_host)
    masters = masters_of(policy, recipe)
    if world.is_shared:
        masters.reduce = lambda sums: sum_over_processes(world, sums, masters.own)
    return masters


def _refuse_whole_weights(recipe: Recipe, sharding: str) -> None:
    """Raises RecipeError for what needs whole weights."""
    if recipe.stochastic_rounding:
        raise RecipeError(f"parallel.sharding={sharding} shards float32 masters: leave out stochastic_rounding=true")
    if not OPTIMIZERS[recipe.optim].splits:
        whole = [name for name, kind in OPTIMIZERS.items() if kind.splits]
        raise RecipeError(
            f"parallel.sharding={sharding} shards weights, and optim={recipe.optim} needs them whole: take one of "
            f"{', '.join(whole)}, or parallel.sharding=none"
        )


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
        bad = sum(int((~weight.isfinite()).sum()) for weight in self.weights)
        return not bool(self.world.all_reduce(torch.tensor(bad, device=self.own[0].device)))

    def apply(self, optimizer: torch.optim.Optimizer, is_finite: Tensor | None = None) -> None:
        there = self.weights[0].device
        super().apply(optimizer, None if is_finite is None else is_finite.to(there))

    @torch.no_grad()
    def publish(self) -> None:
        self.mesh.all_gather(self.weights, self.own)

    @torch.no_grad()
    def _clip(self, max_norm: float) -> Tensor:
        """Clips the gradients by the norm of all parts; returns that norm."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        device = self.own[0].device
        squares = [torch.linalg.vector_norm(g, dtype=torch.float32).square() for g in gradients]
        own = torch.stack(squares).sum().to(device) if squares else torch.zeros((), device=device)
        norm = (self.world.all_reduce(own) / self.mesh.replicas).sqrt()  # the same bits in all replicas
        if gradients:
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0).to(gradients[0].device))
        return norm


class ShardedMasters(PartMasters):
    """`grads`: the model computes with all its weights, and what updates them is sharded; on the host, if wanted, whose
    cores update it then. Gradients are exchanged, and freed, while the backward computes the next ones."""

    def __init__(self, model: nn.Module, mesh: Mesh, on_host: bool) -> None:
        super().__init__(model, mesh)
        self.kept_on = torch.device("cpu") if on_host else self.own[0].device
        self.weights = [
            nn.Parameter(mesh.part(p.detach()).to(self.kept_on, torch.float32, copy=True)) for p in self.own
        ]
        self.trained = [0.0] * len(self.own)  # which weights got a gradient
        self.is_open = False  # between `begin` and `finish`; another learner may train the same model later
        self.buckets = list(_buckets(range(len(self.own) - 1, -1, -1), self.own))  # in the order of a backward
        self.bucket_of = {i: number for number, bucket in enumerate(self.buckets) for i in bucket}
        self.missing: list[int] = []  # gradients of each bucket that have not come
        self.num_sent = 0  # buckets of this micro-batch
        me = weakref.ref(self)
        for i, p in enumerate(self.own):
            p.register_post_accumulate_grad_hook(lambda p, i=i: _arrived(me(), i))

    def begin(self) -> None:
        self.sums, self.trained, self.is_open = [None] * len(self.own), [0.0] * len(self.own), True

    def cancel(self) -> None:
        super().cancel()
        self.is_open = False

    def announce(self, is_last: bool) -> None:
        self.missing, self.num_sent = [len(bucket) for bucket in self.buckets], 0

    def arrived(self, i: int) -> None:
        """A gradient is computed. Buckets are sent in one order, so that all processes exchange the same one."""
        self.missing[self.bucket_of[i]] -= 1
        while self.num_sent < len(self.buckets) and not self.missing[self.num_sent]:
            self._send()

    def collect(self) -> None:
        """Sends what has no gradient in this process."""
        while self.num_sent < len(self.buckets):
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        bucket, self.num_sent = self.buckets[self.num_sent], self.num_sent + 1
        parts = self.mesh.reduce_scatter([self.own[i].grad for i in bucket], [self.own[i].shape for i in bucket])
        for i, part in zip(bucket, parts, strict=True):
            self.trained[i] += self.own[i].grad is not None
            self.own[i].grad = None
            self.sums[i] = part if (total := self.sums[i]) is None else total.add_(part)

    def finish(self, max_norm: float) -> Tensor:
        trained = self.world.all_reduce(torch.tensor(self.trained, device=self.own[0].device)).tolist()
        self.mesh.sum_over_replicas([total for total in self.sums if total is not None])
        for weight, total, count in zip(self.weights, self.sums, trained, strict=True):
            weight.grad = total.to(self.kept_on) if count and total is not None else None
        self.sums, self.is_open = [], False
        return self._clip(max_norm)


def _arrived(masters: ShardedMasters | None, i: int) -> None:
    if masters is not None and masters.is_open:
        masters.arrived(i)


class FullyShardedMasters(PartMasters):
    """`full`: what is trained is a second model under FSDP2, which holds a part of every weight in float32 and gathers
    a layer's in the policy's type while it computes with it."""

    def __init__(self, policy: Policy, mesh: Mesh, on_host: bool) -> None:
        super().__init__(policy.model, mesh)
        self.policy, self.root = _sharded_copy(policy, mesh, on_host)
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


def _sharded_copy(policy: Policy, mesh: Mesh, on_host: bool) -> tuple[Policy, Any]:
    """The policy with another model, under FSDP2, and its root. No second copy of all weights is made. `on_host`: the
    parts are in the host's memory, whose cores update them."""
    shared: dict[int, Any] = {id(p): p for p in policy.model.parameters()}
    own = replace(policy, model=copy.deepcopy(policy.model, shared))
    precision = MixedPrecisionPolicy(
        param_dtype=policy.model.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    root = _Root(own.model)
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if on_host else OffloadPolicy()
    for module in (*_layers(own), root):
        fully_shard(module, mesh=_torch_mesh(mesh), mp_policy=precision, offload_policy=offload)
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
    return mesh.torch_mesh if mesh.replicas > 1 else mesh.torch_mesh[SHARDS]


def _layers(policy: Policy) -> list[nn.Module]:
    """The decoder's layers: the longest list of modules in the model."""
    lists = [list(module) for module in policy.model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
