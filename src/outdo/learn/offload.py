"""Optimizer state and masters in pinned host memory, copied to a GPU and back while it works on others."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outdo.errors import ModelError

MIN_MOVED = 4096  # elements; smaller tensors stay on the device
SLAB = 2**28  # bytes pinned at once; a larger tensor has one of its own
ALIGNMENT = 512


class StateTensor(NamedTuple):
    """A tensor that an owner has under a name: an item of a dict, or an attribute."""

    key: tuple[int, str, str]  # which one: the number of the weight, the slot of its state, the part of that
    owner: Any
    name: str

    def get(self) -> Tensor:
        return self.owner[self.name] if isinstance(self.owner, dict) else getattr(self.owner, self.name)

    def put(self, value: Tensor) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


TensorsOf = Callable[[int], Iterable[StateTensor]]
Fetched = tuple[list[tuple[StateTensor, Tensor]], torch.cuda.Event]


class HostMemory:
    """Pinned memory for the tensors of all weights. On a CPU nothing moves."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: dict[tuple[int, str, str], Tensor] = {}
        self._slabs: list[Tensor] = []
        self._used = 0  # bytes of the last slab
        if device.type == "cuda":
            self._incoming, self._outgoing = torch.cuda.Stream(device), torch.cuda.Stream(device)
            weakref.finalize(self, _unpin, self._slabs).atexit = False

    def copy_of(self, tensor: Tensor) -> Tensor:
        """The values, in memory of this kind; small ones as they are."""
        moves = self.device.type == "cuda" and tensor.numel() >= MIN_MOVED
        return self._like(tensor).copy_(tensor) if moves else tensor

    def stream(self, chunks: Sequence[list[int]], tensors_of: TensorsOf, step: Callable[[list[int]], None]) -> None:
        """Calls `step` for each chunk of weights, with their tensors on the device. Their new values are in the host's
        memory when this returns. At most three chunks are on the device at once."""
        if self.device.type != "cuda":
            for chunk in chunks:
                step(chunk)
            return
        fetched = self._fetch(chunks[0], tensors_of) if chunks else None
        stored: list[torch.cuda.Event] = []
        for n, chunk in enumerate(chunks):
            assert fetched
            tensors, is_here = fetched
            if n >= 2:
                stored[n - 2].synchronize()
            fetched = self._fetch(chunks[n + 1], tensors_of) if n + 1 < len(chunks) else None
            now = torch.cuda.current_stream(self.device)
            now.wait_event(is_here)
            for place, value in tensors:
                value.record_stream(now)
                place.put(value)
            del tensors
            step(chunk)
            stored.append(self._store(chunk, tensors_of))
        self._outgoing.synchronize()

    def stow(self, tensors: Iterable[StateTensor], scalars_too: bool) -> None:
        """Moves tensors home that were just restored, and small ones to the device."""
        if self.device.type != "cuda":
            return
        for place in tensors:
            value = place.get()
            if value.numel() >= MIN_MOVED:
                place.put(self._home(place, value).copy_(value))
            elif value.numel() > 1 or scalars_too:
                place.put(value.to(self.device))

    def _fetch(self, chunk: list[int], tensors_of: TensorsOf) -> Fetched:
        arriving = []
        with torch.cuda.stream(self._incoming):
            for place in (place for i in chunk for place in tensors_of(i)):
                value = place.get()
                if value.numel() >= MIN_MOVED and not value.is_cuda:
                    self._home(place, value)
                    arriving.append((place, value.to(self.device, non_blocking=True)))
            return arriving, self._incoming.record_event()

    def _store(self, chunk: list[int], tensors_of: TensorsOf) -> torch.cuda.Event:
        self._outgoing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._outgoing):
            for place in (place for i in chunk for place in tensors_of(i)):
                value = place.get()
                if value.numel() >= MIN_MOVED:
                    home = self._home(place, value)
                    home.copy_(value, non_blocking=True)
                    value.record_stream(self._outgoing)
                    place.put(home)
            return self._outgoing.record_event()

    def _home(self, place: StateTensor, value: Tensor) -> Tensor:
        if place.key not in self.kept:
            known = not value.is_cuda and value.is_pinned()  # a master that was made here
            self.kept[place.key] = value if known else self._like(value)
        return self.kept[place.key]

    def _like(self, tensor: Tensor) -> Tensor:
        """Pinned memory for such a tensor. torch's own allocator would round its size up to a power of two."""
        size = tensor.numel() * tensor.element_size()
        if not self._slabs or self._used + size > len(self._slabs[-1]):
            self._slabs.append(_pinned(max(size, SLAB)))
            self._used = 0
        part = self._slabs[-1][self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return part.view(tensor.dtype).view(tensor.shape)


def _pinned(size: int) -> Tensor:
    slab = torch.ones(size, dtype=torch.uint8)  # by all threads: pinning would bring in its pages one after the other
    error = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), size, 0)
    if int(error):
        raise ModelError(
            f"parallel_offload: the host has no {size / 2**30:.3g} GiB more to pin (CUDA error {int(error)}); "
            "see `ulimit -l` and the free memory, or choose an optimizer with less state"
        )
    return slab


def _unpin(slabs: Sequence[Tensor]) -> None:
    torch.cuda.synchronize()
    for slab in slabs:
        torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())
