"""Clusters on paper: names, launches, and how long collectives take."""

from __future__ import annotations

import pytest

from outdo.errors import RecipeError
from outdo.parallel.clusters import GPUS, launched_cluster, parse_cluster
from outdo.parallel.links import Group, gather_seconds, reduce_seconds, replica_group, shard_group


@pytest.mark.parametrize(
    ("name", "nodes", "per_node", "kind"),
    [
        ("8xH100", 1, 8, "H100"),
        ("2x8xH200", 2, 8, "H200"),
        ("64xA100-80GB", 8, 8, "A100-80GB"),
        ("4x4xl40s", 4, 4, "L40S"),
        ("H100", 1, 1, "H100"),
    ],
)
def test_names(name: str, nodes: int, per_node: int, kind: str) -> None:
    cluster = parse_cluster(name)
    assert (cluster.nodes, cluster.per_node, cluster.gpu) == (nodes, per_node, GPUS[kind])
    assert cluster.memory == GPUS[kind].memory * 10**9


@pytest.mark.parametrize(
    ("name", "named"),
    [("8xH1000", "'H100'"), ("8xA100", "'A100-"), ("9xH100", "NODESxGPUSxH100"), ("8", "2x8xH100"), ("0xH100", "one")],
)
def test_refused_names(name: str, named: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_cluster(name)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("device_name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_kind_of_a_device(device_name: str, kind: str) -> None:
    launch = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    cluster = launched_cluster(launch, "cuda", device_name, 70 * 10**9)
    assert (cluster.nodes, cluster.per_node, cluster.gpu) == (2, 8, GPUS[kind])


def test_launch_on_a_cpu_shares_its_memory() -> None:
    cluster = launched_cluster({"WORLD_SIZE": "4"}, "cpu", memory=16_000)
    assert (cluster.nodes, cluster.per_node, cluster.gpu, cluster.memory) == (1, 4, None, 4_000)
    assert launched_cluster({}, "cpu").size == 1


def test_ring_in_one_node() -> None:
    h100 = GPUS["H100"]  # 450 GB/s, of which 0.8 are reached: 360
    assert gather_seconds(360e9, Group(1, 8), h100) == pytest.approx(7 / 8 + 7 * 5e-6)
    assert reduce_seconds(360e9, Group(1, 8), h100) == pytest.approx(2 * (7 / 8 + 7 * 5e-6))
    assert gather_seconds(1e9, Group(1, 1), h100) == 0
    assert Group(1, 8).share == 7 / 8


def test_ring_between_nodes() -> None:
    """Each of 8 GPUs fetches the other node's half of its own eighth over 50 GB/s, of which 40 are reached."""
    seconds = gather_seconds(80e9, Group(2, 8), GPUS["H100"])
    assert seconds == pytest.approx(7 * (10e9 / 360e9 + 5e-6) + 5e9 / 40e9 + 20e-6)


@pytest.mark.parametrize(
    ("shards", "shard_nodes", "replica"),
    [(16, (2, 8), (1, 1)), (8, (1, 8), (2, 1)), (4, (1, 4), (2, 2)), (1, (1, 1), (2, 8))],
)
def test_groups(shards: int, shard_nodes: tuple[int, int], replica: tuple[int, int]) -> None:
    cluster = parse_cluster("2x8xH100")
    assert shard_group(cluster, shards) == Group(*shard_nodes)
    assert replica_group(cluster, shards) == Group(*replica)
