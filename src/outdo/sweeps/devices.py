"""Which GPU each cell of a sweep gets: those that are visible, shared out evenly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shutil import which

from outdo.recipe.schema import Recipe

LIST_SECONDS = 30.0  # that the driver may take to list its GPUs


@dataclass(frozen=True)
class Share:
    """What one child gets of this machine."""

    threads: int
    gpu: str = ""  # as CUDA_VISIBLE_DEVICES has it; empty: what this process sees

    @property
    def variables(self) -> dict[str, str]:
        """Of its environment."""
        return {"OMP_NUM_THREADS": str(self.threads)} | ({"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {})


@dataclass
class GpuPool:
    """Hands out GPUs, the one with the fewest cells first, in their order."""

    gpus: Sequence[str]
    cells: dict[str, int] = field(default_factory=dict)  # that have each

    def take(self) -> str:
        """A GPU for one cell; empty where there is none."""
        if not self.gpus:
            return ""
        gpu = min(self.gpus, key=lambda one: self.cells.get(one, 0))
        self.cells[gpu] = self.cells.get(gpu, 0) + 1
        return gpu

    def give_back(self, gpu: str) -> None:
        if gpu:
            self.cells[gpu] -= 1


def visible_gpus(environment: Mapping[str, str] | None = None, listed: Sequence[str] | None = None) -> list[str]:
    """The GPUs that this process sees, by number or name. `listed`: those of the machine; None asks the driver. CUDA is
    not started: a process that has started it cannot be forked."""
    given = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(_driver_list() if listed is None else listed)
    gpus: list[str] = []
    for name in (one.strip() for one in given.split(",")):
        if not name or name == "-1":  # CUDA reads up to the first that is not there
            break
        gpus.append(name)
    return gpus


def _driver_list() -> list[str]:
    """The numbers of the machine's GPUs."""
    if which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal()] if not done.returncode else []
    )


def takes_gpu(recipe: Recipe) -> bool:
    """Whether a cell is to get a GPU of the pool: not where its recipe names one, or the CPU."""
    return recipe.device in ("auto", "cuda")


def default_jobs(recipes: Sequence[Recipe], gpus: Sequence[str]) -> int:
    """Cells at once: as many as GPUs; one without."""
    return max(1, len(gpus)) if any(map(takes_gpu, recipes)) else 1
