"""The processes that train together. Each runs the same program on its share; the first one writes and talks.

    world = join(timeout)            # what the launcher started; without one, a world of one process
    parts = world.gather(work)       # every process does its part and gets all parts, by rank
    value = world.first(work)        # the first process does it, all get the result

What is raised in one process by `gather` or `first` is raised in all of them, so that none waits for one that has
failed. A process that is gone, or that hangs for longer than the timeout, ends the others with `ProcessLost`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from outdo.errors import Halted, OutdoError, RecipeError, RunError, describe
from outdo.parallel.launch import Launch, end_with_parent, read_launch
from outdo.parallel.lost import Peers, find_lost, machine
from outdo.parallel.watch import Watch

T = TypeVar("T")
SHARED = (OutdoError, KeyboardInterrupt, MemoryError, torch.OutOfMemoryError)  # raised in all processes as they are


class ProcessFailed(RunError):
    """Another process raised an error that is not ours."""


class ProcessLost(RunError):
    """Another process is gone, or does not answer."""


def set_common(error: BaseException) -> BaseException:
    """Marks an error that all processes have, and raise at the same place."""
    error.is_common = True  # type: ignore[attr-defined]
    return error


def is_common(error: BaseException) -> bool:
    return getattr(error, "is_common", False)


@dataclass(frozen=True)
class _Done:
    value: bytes  # pickled, so that what cannot be is an error of the process that has it


@dataclass(frozen=True)
class _Raised:
    rank: int
    error: BaseException


@dataclass
class World:
    """`device` is that of this process, `control` the group that exchanges Python objects."""

    launch: Launch = field(default_factory=Launch)
    control: Any = None
    peers: Peers | None = None
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext  # where a signal may end a part at once
    background: World | None = None  # the same processes for a thread beside the run: it writes checkpoints
    watch: Watch | None = None
    is_first_alone: bool = False  # inside `first`, where the others only wait
    num_runs: int = 0  # begun
    meshes: dict[Any, Any] = field(default_factory=dict)  # of `Mesh.of`: process groups are made once

    @property
    def rank(self) -> int:
        return self.launch.rank

    @property
    def size(self) -> int:
        return self.launch.size

    @property
    def is_first(self) -> bool:
        return self.launch.is_first

    @property
    def is_shared(self) -> bool:
        return self.size > 1

    def gather(self, work: Callable[[], T], phase: str = "", *, may_stop: bool = False) -> list[T]:
        """The results of all processes, by rank. `phase` says what it is doing, should it never come out of it. With
        `may_stop`, a signal that asks for the end is raised here, in all."""
        if not self.is_shared:
            return [work()]
        self.refuse_alone()
        outcome, own = self._attempt(work, phase, self.interruptible if may_stop else nullcontext)
        return [pickle.loads(each.value) for each in self._raise_first(self._exchanged(outcome), own)]

    def first(self, work: Callable[[], T], phase: str = "") -> T:
        """The result of the first process, in all."""
        if not self.is_shared:
            return work()
        self.refuse_alone()
        outcomes: list[Any] = [None]
        own: BaseException | None = None
        if self.is_first:
            self.is_first_alone = True
            try:
                outcomes[0], own = self._attempt(work, phase)
            finally:
                self.is_first_alone = False
        elif self.peers:
            self.peers.count_exchange()
        with self.collective():
            dist.broadcast_object_list(outcomes, src=0, group=self.control)
        (done,) = self._raise_first(outcomes, own)
        return pickle.loads(done.value)

    def in_turn(self, work: Callable[[], T], phase: str = "") -> T:
        """Each process's own result. The first one works alone, then the others at once: they find what it left, as
        a download."""
        outcomes: list[T] = []
        for is_turn in (self.is_first, not self.is_first):
            self.gather(lambda mine=is_turn: outcomes.append(work()) if mine else None, phase)  # type: ignore[misc]
        return outcomes[0]

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """The sum over all processes, in place. Every process gets the same bits."""
        if self.is_shared:
            self.refuse_alone()
            with self.collective():
                dist.all_reduce(tensor, op)
        return tensor

    def add(self, name: str, count: int) -> int:
        """The sum of what all processes have added under that name, at once and without waiting for each other."""
        assert self.peers
        with self.collective():
            return int(self.peers.store.add(f"outdo/{name}", count))

    def begin(self) -> None:
        """A run begins: the others are watched until it is left."""
        if self.peers:
            self.num_runs += 1
            self.watch = Watch(self.peers, self.num_runs)
            self.watch.start()

    def leave(self, error: BaseException | None = None) -> None:
        """This process's run is over. The others stay until the first one has written everything: a launcher would
        kill it soon after one of them has ended. An error that not all have is no reason to wait, and no way to leave:
        the others may be waiting for this one."""
        if not self.peers:
            return
        if self.watch:
            self.watch.stop()
        if error is None or is_common(error):
            self.peers.note("left", str(self.num_runs))
            if not self.is_first:
                self.peers.wait_for_first(self.num_runs)

    def refuse_alone(self, what: str = "this") -> None:
        """Raises RunError inside `first`: the others would not take part."""
        if self.is_first_alone:
            raise RunError(
                f"{what} needs all {self.size} processes, and callbacks run in the first one alone: set eval_steps or "
                "save_steps, or a callback with everywhere = True"
            )

    def report_failure(self, error: BaseException) -> None:
        """Tells the others why this process is about to end, where they do not have the same error."""
        if self.peers and not is_common(error) and not isinstance(error, ProcessLost):
            self.peers.note("failure", describe(error) if not isinstance(error, OutdoError) else str(error))

    @contextmanager
    def collective(self) -> Iterator[None]:
        """What torch raises of a broken connection becomes ProcessLost."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, (OutdoError, torch.OutOfMemoryError)) or not self.peers:
                raise
            if self.watch:
                self.watch.stop()
            raise ProcessLost(find_lost(self.peers, error)) from error

    def _attempt(
        self, work: Callable[[], T], phase: str, interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[_Done | _Raised, BaseException | None]:
        assert self.peers
        try:
            with self.peers.busy(phase), interruptible():
                return _Done(pickle.dumps(work())), None
        except ProcessLost:
            raise
        except BaseException as error:
            return _Raised(self.rank, self.portable(error)), error

    def portable(self, error: BaseException) -> BaseException:
        """The error as other processes get it."""
        with suppress(Exception):
            if isinstance(error, SHARED):
                return pickle.loads(pickle.dumps(error))
        if isinstance(error, Halted):  # of a class with a constructor of its own
            return Halted(str(error), keys=error.keys, remedy=error.remedy, onset=error.onset)
        return ProcessFailed(f"process {self.rank} failed: {describe(error)}")

    def _exchanged(self, outcome: _Done | _Raised) -> list[_Done | _Raised]:
        outcomes: list[Any] = [None] * self.size
        with self.collective():
            dist.all_gather_object(outcomes, outcome, group=self.control)
        return outcomes

    def _raise_first(self, outcomes: list[_Done | _Raised], own: BaseException | None) -> list[_Done]:
        """Raises where a process failed: the same error everywhere, that of the lowest rank."""
        failed = next((each for each in outcomes if isinstance(each, _Raised)), None)
        if failed is None:
            return [each for each in outcomes if isinstance(each, _Done)]
        error = own if own is not None and failed.rank == self.rank else failed.error
        raise set_common(error)


_joined: list[World] = []  # the one world of this process


def get_world() -> World:
    """The processes that this one has joined; itself alone where it has joined none."""
    return _joined[0] if _joined else World()


def join(timeout: float, device: str = "auto") -> World:
    """Joins the launch that the environment describes, once in a process. `timeout` is how many seconds a process may
    take for its part before the others give up. Raises ProcessLost where the others do not come."""
    launch = read_launch()
    if _joined and _joined[0].launch == launch:
        _joined[0].begin()
        return _joined[0]
    if launch.size == 1:
        return World()
    end_with_parent()
    uses_gpu = device.partition(":")[0] in ("auto", "cuda") and torch.cuda.is_available()
    if uses_gpu:
        torch.cuda.set_device(_own_gpu(launch, device))
    limit = timedelta(seconds=timeout)
    if not dist.is_initialized():
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if uses_gpu else "gloo", timeout=limit)
        except RuntimeError as error:
            raise ProcessLost(
                f"process {launch.rank} of {launch.size} could not reach the others at "
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {str(error)[:200]}"
            ) from error
    control = dist.new_group(backend="gloo", timeout=limit)
    everyone: list[Any] = [None] * launch.size
    dist.all_gather_object(everyone, (machine(), os.getpid()), group=control)
    peers = Peers(launch, tuple(everyone), _store())
    beside = Peers(launch, tuple(everyone), _store(), "background")
    background = World(launch, dist.new_group(backend="gloo", timeout=limit), beside)
    _joined[:] = [World(launch, control, peers, background=background)]
    _joined[0].begin()
    return _joined[0]


def _own_gpu(launch: Launch, device: str) -> int:
    """Raises RecipeError where there are fewer than processes, or one is named for all."""
    if ":" in device:
        raise RecipeError(f"device={device}: each of {launch.size} processes has a GPU of its own: leave it out")
    if (count := torch.cuda.device_count()) == 1 and os.environ.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0:
        return 0 if launch.local_size == 1 or os.environ.get("CUDA_VISIBLE_DEVICES") else _refuse_gpus(launch, count)
    return launch.local_rank if launch.local_rank < count else _refuse_gpus(launch, count)


def _refuse_gpus(launch: Launch, count: int) -> int:
    raise RecipeError(
        f"{launch.local_size} processes were started on this machine, and it has {count} GPU{'s' * (count > 1)}: start "
        f"{count}, as torchrun --nproc-per-node {count}"
    )


@contextmanager
def joined(timeout: float = 1800, device: str = "auto") -> Iterator[World]:
    """The body is a run of all processes of the launch."""
    world = join(timeout, device)
    try:
        yield world
    except BaseException as error:
        world.leave(error)
        raise
    world.leave()


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
