"""How weights are cut into parts, and samples into shares."""

from __future__ import annotations

import random

import pytest
import torch

from outdo.learn.packing import shares_of
from outdo.parallel.mesh import _buckets, _fill, _part_size
from outdo.types import Sample


@pytest.mark.parametrize("shape", [(7, 3), (8,), (1, 5), (3, 2, 2)])
@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_parts_are_those_of_chunk(shape: tuple[int, ...], shards: int) -> None:
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    rows = torch.full((shards, _part_size(torch.Size(shape), shards)), -1.0)
    _fill(rows, whole)
    chunks = [*whole.chunk(shards), *[whole[:0]] * shards][:shards]
    for row, chunk in zip(rows, chunks, strict=True):
        assert torch.equal(row[: chunk.numel()], chunk.reshape(-1))
        assert not row[chunk.numel() :].any()


def test_every_tensor_is_in_one_bucket() -> None:
    shapes = [torch.Size((n, 4096)) for n in (1, 5000, 3, 20000, 7)]
    buckets = list(_buckets(shapes, 2))
    assert [i for bucket in buckets for i in bucket] == list(range(5))
    assert len(buckets) > 1


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares(size: int) -> None:
    rng = random.Random(size)
    prompts = [(0,) * rng.randint(1, 40) for _ in range(6)]
    rows = [
        Sample(p, (0,) * length, (0.0,) * length, 1.0)
        for p in range(6)
        for length in [rng.randint(1, 60) for _ in range(4)]
    ]
    shares = shares_of(prompts, rows, size)
    assert [row for share in shares for row in share] == rows  # in order, each once
    costs = [sum(len(row.token_ids) for row in share) + sum({r.prompt: len(prompts[r.prompt]) for r in share}.values())
             for share in shares]  # fmt: skip
    assert max(costs) <= sum(costs) / size + 2 * 100  # within an answer and its prompt of the mean


def test_shares_of_few() -> None:
    row = Sample(0, (1, 2), (0.0, 0.0), 1.0)
    assert shares_of([(1,)], [], 2) == [[], []]
    assert sorted(map(len, shares_of([(1,)], [row], 3))) == [0, 0, 1]
