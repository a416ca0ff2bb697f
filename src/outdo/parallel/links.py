"""How long collectives take: a ring model, in a node first and then between nodes.

Of `count` bytes that all processes have in the end, each sends (n - 1) / n in an all-gather or a reduce-scatter, and
twice as much in an all-reduce. Between nodes each GPU talks to the GPUs of its own number in the other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from outdo.parallel.clusters import Cluster, Gpu

REACHED = 0.8  # of a link's stated rate, by NCCL with large messages
LATENCY_IN_NODE = 5e-6  # seconds of one hop of a ring
LATENCY_BETWEEN_NODES = 20e-6


@dataclass(frozen=True)
class Group:
    """Processes that exchange tensors, `per_node` of them on each of the nodes."""

    nodes: int
    per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.per_node

    @property
    def share(self) -> float:
        """Of the bytes of an all-gather or reduce-scatter, what each process sends."""
        return (self.size - 1) / self.size


def shard_group(cluster: Cluster, shards: int) -> Group:
    """Neighbours that hold one copy of what is sharded: in one node as far as they fit."""
    per_node = min(shards, cluster.per_node)
    return Group(-(-shards // per_node), per_node)


def replica_group(cluster: Cluster, shards: int) -> Group:
    """Processes that hold the same shard."""
    replicas = cluster.size // shards
    per_node = max(1, cluster.per_node // shards)
    return Group(-(-replicas // per_node), per_node)


def gather_seconds(count: float, group: Group, gpu: Gpu) -> float:
    """Of an all-gather of `count` bytes in all, or of a reduce-scatter."""
    inside, between = group.per_node, group.nodes
    seconds = (inside - 1) * (count / inside / (gpu.link * 1e9 * REACHED) + LATENCY_IN_NODE)
    slice_bytes = count / inside / between  # of one GPU for each node
    return seconds + (between - 1) * (slice_bytes / (gpu.network * 1e9 * REACHED) + LATENCY_BETWEEN_NODES)


def reduce_seconds(count: float, group: Group, gpu: Gpu) -> float:
    """Of an all-reduce of `count` bytes: a reduce-scatter and an all-gather."""
    return 2 * gather_seconds(count, group, gpu)
