"""How the processes are arranged, and the two exchanges that sharding is made of.

Each of `replicas` copies of the optimizer is spread over `shards` processes: a process holds a part of every weight,
along its first dimension, as FSDP2 and torch.chunk cut it. Legend: S shards, n elements of one part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from outdo.errors import RecipeError
from outdo.parallel.world import World

BUCKET = 2**24  # elements of one exchange: large enough for the link, small beside the model
SHARDS, REPLICAS = "shards", "replicas"
# torch 2.13 renamed the two.
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Mesh:
    """The processes in two dimensions: `replicas` x `shards`."""

    world: World
    torch_mesh: DeviceMesh
    disk_mesh: DeviceMesh  # the same processes, for tensors on the CPU

    @classmethod
    def of(cls, world: World, device: torch.device, replicas: int = 1) -> Mesh:
        """Raises RecipeError where the replicas do not divide the processes."""
        if (device.type, replicas) not in world.meshes:
            world.meshes[device.type, replicas] = cls._made(world, device, replicas)
        return world.meshes[device.type, replicas]

    @classmethod
    def _made(cls, world: World, device: torch.device, replicas: int) -> Mesh:
        if world.size % replicas:
            raise RecipeError(f"parallel.replicas={replicas} does not divide the {world.size} processes")
        if not dist.is_initialized():  # one process: FSDP2 wants a group all the same
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        shape = replicas, world.size // replicas
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=(REPLICAS, SHARDS))
        is_cpu = device.type == "cpu"
        return cls(world, mesh, mesh if is_cpu else init_device_mesh("cpu", shape, mesh_dim_names=(REPLICAS, SHARDS)))

    @property
    def shards(self) -> int:
        return self.torch_mesh.size(1)

    @property
    def replicas(self) -> int:
        return self.torch_mesh.size(0)

    @property
    def place(self) -> int:
        """Which of the parts this process holds."""
        return self.torch_mesh.get_local_rank(SHARDS)

    def part(self, whole: Tensor) -> Tensor:
        """This process's part of a tensor, as a view; it may be empty."""
        length = math.ceil(whole.shape[0] / self.shards)
        start = min(self.place * length, whole.shape[0])
        return whole[start : min(start + length, whole.shape[0])]

    def part_shape(self, shape: torch.Size) -> torch.Size:
        """Of this process's part."""
        return self.part(torch.empty(shape, device="meta")).shape

    def as_dtensor(self, part: Tensor, shape: torch.Size) -> DTensor:
        """A part on the CPU as that of the tensor of that shape, for a distributed checkpoint."""
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        placements = (Replicate(), Shard(0))
        return DTensor.from_local(part, self.disk_mesh, placements, run_check=False, shape=shape, stride=stride)

    def empty_dtensor(self, shape: torch.Size, dtype: torch.dtype) -> DTensor:
        """For a distributed checkpoint to be read into."""
        return self.as_dtensor(torch.empty(self.part_shape(shape), dtype=dtype), shape)

    def reduce_scatter(self, wholes: Sequence[Tensor | None], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """The sums over the shards of one replica, of each this process's part, in float32. None counts as zeros."""
        parts: list[Tensor] = []
        for places in _buckets(shapes, self.shards):
            lengths = [_part_size(shapes[i], self.shards) for i in places]
            sent = self._empty(self.shards * sum(lengths)).view(self.shards, -1)
            for i, columns in zip(places, sent.split(lengths, dim=1), strict=True):
                _fill(columns, wholes[i])
            mine = self._empty(sum(lengths))
            with self.world.collective():
                _scatter(mine, sent.view(-1), group=self._group(SHARDS))
            for i, flat in zip(places, mine.split(lengths), strict=True):
                own = self.part_shape(shapes[i])
                parts.append(flat[: math.prod(own)].view(own))
        return parts

    def all_gather(self, parts: Sequence[Tensor], wholes: Sequence[Tensor]) -> None:
        """Writes the parts of all processes into the tensors that they are of, in those tensors' type."""
        shapes = [whole.shape for whole in wholes]
        for places in _buckets(shapes, self.shards):
            lengths = [_part_size(shapes[i], self.shards) for i in places]
            dtypes = {wholes[i].dtype for i in places}
            dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
            mine = torch.zeros(sum(lengths), dtype=dtype, device=wholes[places[0]].device)
            for i, flat in zip(places, mine.split(lengths), strict=True):
                flat[: parts[i].numel()].copy_(parts[i].reshape(-1))
            received = mine.new_empty(self.shards * len(mine))
            with self.world.collective():
                _gather(received, mine, group=self._group(SHARDS))
            for i, columns in zip(places, received.view(self.shards, -1).split(lengths, dim=1), strict=True):
                wholes[i].copy_(columns.reshape(-1)[: wholes[i].numel()].view(shapes[i]))

    def sum_over_replicas(self, parts: Sequence[Tensor]) -> None:
        """The sums of what all replicas have of the same parts, in place."""
        if self.replicas > 1:
            for part in parts:
                with self.world.collective():
                    dist.all_reduce(part, group=self._group(REPLICAS))

    def _group(self, name: str) -> Any:
        return self.torch_mesh.get_group(name)

    def _empty(self, size: int) -> Tensor:
        device = "cpu" if self.torch_mesh.device_type == "cpu" else torch.device("cuda", torch.cuda.current_device())
        return torch.empty(size, dtype=torch.float32, device=device)


def _part_size(shape: torch.Size, shards: int) -> int:
    """Elements of the largest part, to which the others are padded."""
    return math.ceil(shape[0] / shards) * math.prod(shape[1:])


def _buckets(shapes: Sequence[torch.Size], shards: int) -> Iterator[list[int]]:
    """Which tensors are exchanged together."""
    bucket: list[int] = []
    size = 0
    for i, shape in enumerate(shapes):
        size += shards * _part_size(shape, shards)
        bucket.append(i)
        if size >= BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _fill(columns_Sn: Tensor, whole: Tensor | None) -> None:
    """Each part of a tensor into its row, padded with zeros."""
    if whole is None:
        columns_Sn.zero_()
        return
    flat, length = whole.reshape(-1), columns_Sn.shape[1]
    for row, start in zip(columns_Sn, range(0, len(columns_Sn) * length, length), strict=True):
        part = flat[start : start + length]
        row[: len(part)].copy_(part)
        row[len(part) :].zero_()
