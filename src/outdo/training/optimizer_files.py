"""The optimizer's state in a checkpoint: one file, or, where it is sharded, one of each process.

Shards are a distributed checkpoint of torch (DCP) in safetensors files, by parameter name: any number of processes
reads them, with any sharding. Nothing in them is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from outdo.errors import RunError, describe
from outdo.learn.sharded import PartMasters
from outdo.learn.update import BaseLearner

OPTIMIZER, SHARDS = "optimizer.safetensors", "optimizer"


class OptimizerWriter:
    """Writes tensors of an optimizer into a folder."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def __call__(self, folder: Path) -> None:
        save_file(self.tensors, folder / OPTIMIZER)

    def cancel(self, error: Exception) -> None:
        """There is no folder to write into."""


class ShardWriter(OptimizerWriter):
    """The same where every process has a part. All call it, each in a thread beside the run; the folder is the first
    process's, and the others wait until it is there."""

    def __init__(self, tensors: Mapping[str, Tensor], masters: PartMasters) -> None:
        shapes = dict(zip(masters.names, masters.shapes(), strict=True))
        self.tensors = {key: _as_shard(masters, one, shapes[key.rpartition(".")[0]]) for key, one in tensors.items()}
        self.world = masters.world.background or masters.world
        self.is_begun = False

    def __call__(self, folder: Path) -> None:
        self.is_begun = True
        self.world.first((folder / SHARDS).mkdir)
        writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
        try:
            save(self.tensors, storage_writer=writer, process_group=self.world.control)
        except CheckpointException as error:  # no Exception, and it shows tracebacks
            failed = {rank: failure[0] for rank, failure in error.failures.items()}
            raise RunError(f"process {min(failed)} cannot write its part: {describe(failed[min(failed)])}") from None

    def cancel(self, error: Exception) -> None:
        def fail() -> None:
            raise error

        if not self.is_begun:
            with suppress(Exception):
                self.world.first(fail)


def optimizer_writer(learner: BaseLearner, tensors: Mapping[str, Tensor]) -> OptimizerWriter:
    masters = learner.masters
    return ShardWriter(tensors, masters) if isinstance(masters, PartMasters) else OptimizerWriter(tensors)


def _as_shard(masters: PartMasters, value: Tensor, shape: torch.Size) -> Tensor:
    is_part = value.ndim > 0 and value.shape == masters.mesh.part_shape(shape)
    return masters.mesh.as_dtensor(value, shape) if is_part else value


def read_optimizer(learner: BaseLearner, folder: Path) -> dict[str, Tensor]:
    """What this process needs of it, by whichever processes it was written."""
    if (folder / OPTIMIZER).is_file():
        return load_file(folder / OPTIMIZER)
    masters = learner.masters
    mesh = masters.mesh if isinstance(masters, PartMasters) else None
    shapes = dict(zip(masters.names, masters.shapes(), strict=True))
    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    tensors: dict[str, Tensor] = {}
    for key, stored in reader.read_metadata().state_dict_metadata.items():
        size, dtype = stored.size, stored.properties.dtype  # type: ignore[union-attr]
        is_part = mesh is not None and size == shapes[key.rpartition(".")[0]]
        tensors[key] = mesh.empty_dtensor(size, dtype) if mesh and is_part else torch.empty(size, dtype=dtype)
    load(tensors, storage_reader=reader, no_dist=True)
    return {key: value.to_local() if isinstance(value, DTensor) else value for key, value in tensors.items()}
