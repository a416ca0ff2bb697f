"""Clusters on paper: kinds of GPUs with what their makers state, and a cluster's name, such as 2x8xH100."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from outdo.errors import RecipeError, did_you_mean

NODE = 8  # GPUs of a node where a name does not give it
_NAME = re.compile(r"(?:(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x)?(?P<kind>[a-z].*)", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU. Rates are one way, by the data sheet: `links.py` and `learn/traffic.py` have what is reached."""

    name: str
    memory: float  # GB of 10^9 bytes as advertised: about 6% less than torch sees, which CUDA and NCCL take
    tflops: float  # TFLOP/s of dense bfloat16
    bandwidth: float  # GB/s of its memory
    link: float  # GB/s to the others of its node: NVLink, or PCIe where there is none
    network: float  # GB/s to other nodes, for each GPU
    host: float  # GB/s to the memory of its host
    pattern: str  # that the device's own name matches


# The first pattern that matches decides: PCIe cards before those with NVLink.
_TABLE = (
    Gpu("A100-80GB-PCIe", 80, 312, 1935, 32, 25, 25, r"A100.*80GB PCIe|A100-PCIE-80GB"),
    Gpu("A100-40GB-PCIe", 40, 312, 1555, 32, 25, 25, r"A100-PCIE-40GB|A100.*40GB PCIe"),
    Gpu("A100-80GB", 80, 312, 2039, 300, 25, 25, r"A100.*80GB"),
    Gpu("A100-40GB", 40, 312, 1555, 300, 25, 25, r"A100.*40GB"),
    Gpu("A800-80GB", 80, 312, 2039, 200, 25, 25, r"A800"),
    Gpu("H100-PCIe", 80, 756, 2000, 64, 50, 50, r"H100 PCIe"),
    Gpu("H100", 80, 989, 3350, 450, 50, 50, r"H100"),
    Gpu("H800", 80, 989, 3350, 200, 50, 50, r"H800"),
    Gpu("H200", 141, 989, 4800, 450, 50, 50, r"H200"),
    Gpu("H20", 96, 148, 4000, 450, 50, 50, r"H20\b"),
    Gpu("B200", 180, 2250, 7700, 900, 50, 50, r"B200"),
    Gpu("L40S", 48, 362, 864, 32, 12.5, 25, r"L40S"),
    Gpu("L4", 24, 121, 300, 32, 12.5, 25, r"L4\b"),
    Gpu("A10G", 24, 70, 600, 32, 12.5, 25, r"A10G"),
    Gpu("A10", 24, 125, 600, 32, 12.5, 25, r"A10\b"),
    Gpu("A6000", 48, 155, 768, 32, 12.5, 25, r"RTX A6000"),
    Gpu("RTX5090", 32, 209, 1792, 64, 12.5, 50, r"RTX 5090"),
    Gpu("RTX4090", 24, 165, 1008, 32, 12.5, 25, r"RTX 4090"),
    Gpu("RTX3090", 24, 71, 936, 32, 12.5, 25, r"RTX 3090"),
)
GPUS = {gpu.name: gpu for gpu in _TABLE}


@dataclass(frozen=True)
class Cluster:
    """Nodes of the same number of GPUs, one process for each. `gpu` is None where the kind is not known: on a CPU, or
    a GPU that is not in the table; `memory` is what one process may use of its device, None where that is unknown."""

    nodes: int
    per_node: int
    gpu: Gpu | None
    memory: int | None
    device: str = "cuda"  # its type: cuda, cpu

    @property
    def size(self) -> int:
        return self.nodes * self.per_node

    def describe(self) -> str:
        many = f"{self.nodes} nodes x {self.per_node}" if self.nodes > 1 else str(self.per_node)
        if self.gpu is None:
            return f"{many} processes on {self.device}"
        network = f", {self.gpu.network:g} GB/s between nodes" if self.nodes > 1 else ""
        link = f", {self.gpu.link:g} GB/s between them" if self.per_node > 1 else ""
        return f"{many} x {self.gpu.name} of {self.gpu.memory:g} GB{link}{network}"


def parse_cluster(name: str) -> Cluster:
    """The cluster of a name: 8xH100 is one node, 2x8xH100 two; more than 8 GPUs without nodes are nodes of 8. Raises
    RecipeError for another form or an unknown kind."""
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise RecipeError(f"parallel.pretend={name}: expected NODESxGPUSxKIND or GPUSxKIND, such as 2x8xH100 or 8xH200")
    kinds = {kind.lower(): gpu for kind, gpu in GPUS.items()}
    gpu = kinds.get(match["kind"].lower())
    if gpu is None:
        near = did_you_mean(match["kind"].upper(), GPUS)
        raise RecipeError(f"parallel.pretend={name}: unknown kind {match['kind']!r}{near}; known are {', '.join(GPUS)}")
    nodes, gpus = int(match["nodes"] or 1), int(match["gpus"] or 1)
    if match["nodes"] is None and gpus > NODE:
        if gpus % NODE:
            raise RecipeError(f"parallel.pretend={name}: {gpus} are no nodes of {NODE}: write NODESxGPUSx{gpu.name}")
        nodes, gpus = gpus // NODE, NODE
    if not nodes or not gpus:
        raise RecipeError(f"parallel.pretend={name}: a cluster has at least one GPU")
    return Cluster(nodes, gpus, gpu, int(gpu.memory * 1e9))


def launched_cluster(
    environment: Mapping[str, str], device: str, device_name: str = "", memory: int | None = None
) -> Cluster:
    """The cluster of this launch, by the variables of torchrun and `accelerate launch`; one process without them.

    `device` is the type of each process's device, `device_name` what the driver calls it, and `memory` its free bytes,
    which processes on a CPU share."""
    size = _count(environment, "WORLD_SIZE")
    per_node = min(size, _count(environment, "LOCAL_WORLD_SIZE", size))
    nodes = size // per_node if size % per_node == 0 else 1
    gpu = next((one for one in _TABLE if re.search(one.pattern, device_name)), None) if device == "cuda" else None
    if device == "cpu" and memory is not None:
        memory //= per_node
    return Cluster(nodes, size // nodes, gpu, memory, device)


def _count(environment: Mapping[str, str], name: str, default: int = 1) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default
