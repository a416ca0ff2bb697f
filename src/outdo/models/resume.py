"""Later turns in the KV cache: what a done row had cached is parked, and a row that continues its text starts there.

Legend: R rows, T new tokens of a row, N new tokens in all, K heads of keys and values, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from outdo.models.attention import AttentionSpec, Rectangle, attend, bias_of, sees
from outdo.models.ops import sent

MAX_DENSE_TOKENS = 64  # new ones of a row, up to which all scores are computed at once


@dataclass(eq=False)
class Parked:
    """What a row had cached when its answer was done: pages, or copies of its keys and values."""

    prompt: int = 0  # tokens in `pages`, which siblings may share
    pages: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # keys of each layer, then values, [K, tokens, D]


@dataclass(frozen=True)
class Resumed:
    """A row that continues a parked text: `length` tokens are to be in the cache, the first `start` of them are."""

    row: int
    start: int
    length: int
    parked: Parked


class Cache(Protocol):
    """What it needs of a cache."""

    device: torch.device

    def places(self, rows: np.ndarray, at: np.ndarray) -> tuple[Tensor, Tensor]: ...
    def write(self, layer: int, places: tuple[Tensor, Tensor], k_NKD: Tensor, v_NKD: Tensor) -> None: ...
    def sources(self, rows: Sequence[int], longest: int) -> Tensor: ...
    def read(self, layer: int, sources: Tensor, longest: int) -> tuple[Tensor, Tensor]: ...


class ExtendedRows:
    """Prefills tokens into rows whose earlier ones are cached. Each sees those and the ones before it."""

    applies_rope: ClassVar[bool] = False

    def __init__(self, cache: Cache, items: Sequence[Resumed]) -> None:
        self.cache, rows = cache, [item.row for item in items]
        self.longest = max(item.length for item in items)
        counts = [item.length - item.start for item in items]
        self.rectangle = Rectangle(counts, 0, cache.device)
        self.at = np.concatenate([np.arange(item.start, item.length) for item in items])
        self.places = cache.places(np.repeat(rows, counts), self.at)
        self.sources = cache.sources(rows, self.longest)
        self.start_R = sent([item.start for item in items], cache.device)
        self._bias: dict[int | None, Tensor] = {}

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
        q_NHD, k_NKD, v_NKD = qkv_NHD.split([spec.heads, kv_heads, kv_heads], dim=1)
        self.cache.write(layer, self.places, k_NKD, v_NKD)
        keys, values = self.cache.read(layer, self.sources, self.longest)
        q_RHTD = self.rectangle.fill(q_NHD).transpose(1, 2)
        dense = self.rectangle.width <= MAX_DENSE_TOKENS
        out = attend(q_RHTD, keys, values, spec, self._seen(spec.window), dense)
        return self.rectangle.empty(out.transpose(1, 2))

    def _seen(self, window: int | None) -> Tensor:
        if window not in self._bias:
            at_RT = self.start_R[:, None] + torch.arange(self.rectangle.width, device=self.cache.device)
            slot = torch.arange(self.longest, device=self.cache.device)
            self._bias[window] = bias_of(sees(at_RT, slot[None], window))
        return self._bias[window]
