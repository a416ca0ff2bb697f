"""How a launcher describes its processes: the environment of torchrun, `accelerate launch` and `srun torchrun`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from outdo.errors import RecipeError

PATIENCE = 1.5  # seconds that the first process has to report an error before another one does
LAUNCHERS = "torchrun or accelerate launch"


@dataclass(frozen=True)
class Launch:
    """This process among those of its launch. `local` counts those of one machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def read_launch(environment: Mapping[str, str] | None = None) -> Launch:
    """By RANK, WORLD_SIZE and their local ones; one process where there is no launch. Raises RecipeError."""
    given = os.environ if environment is None else environment
    if not given.get("RANK") or given.get("WORLD_SIZE", "1") == "1":
        return Launch()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    defaults = {"LOCAL_RANK": given["RANK"], "LOCAL_WORLD_SIZE": given.get("WORLD_SIZE", "")}
    try:
        rank, size, local_rank, local_size = (int(given.get(name) or defaults[name]) for name in names)
    except (KeyError, ValueError):
        rank = size = local_rank = local_size = -1
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        said = ", ".join(f"{name}={given[name]}" for name in names if name in given)
        raise RecipeError(f"the environment describes no launch that can be: {said}. torchrun sets these")
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not given.get(name)]:
        raise RecipeError(
            f"RANK={rank} and WORLD_SIZE={size} are set, and {' and '.join(missing)} not: start it with torchrun, as "
            f"torchrun --nproc-per-node {size} -m outdo train …"
        )
    return Launch(rank, size, local_rank, local_size)


def may_speak(launch: Launch) -> bool:
    """Whether this process is the one that reports an error. All may have the same one: the first process is given a
    moment, then one of the others speaks. True where they cannot agree."""
    if launch.size == 1:
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if not launch.is_first:
        time.sleep(PATIENCE)
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    with suppress(Exception):  # a launcher that is gone cannot say who spoke
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*address, is_master=False, timeout=timedelta(seconds=PATIENCE))
        return store.add(f"outdo/spoken/{attempt}", 1) == 1
    return True


def end_with_parent() -> None:
    """Has the kernel send SIGTERM when the launcher dies: one that is killed leaves no process behind. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig, parent = 1, os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:  # it died meanwhile
        os.kill(os.getpid(), signal.SIGTERM)


def resume_command(command: str) -> str:
    """The command with the launcher that this process was started by."""
    launch = read_launch()
    if launch.size == 1:
        return command
    nodes = "" if launch.size == launch.local_size else "… "  # those of a launch on several machines are its own
    return f"torchrun {nodes}--nproc-per-node {launch.local_size} -m {command}"


def refuse_launch(command: str, instead: str) -> None:
    """Raises RecipeError in every process of a launch of several: this command works in one."""
    launch = read_launch()
    if launch.size > 1:
        raise RecipeError(
            f"this is process {launch.rank} of {launch.size} that {LAUNCHERS} started, and outdo {command} works in "
            f"one. {instead}"
        )
