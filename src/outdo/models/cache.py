"""The KV cache: keys and values of prompts and answers, while answers are decoded.

Two kinds with the same methods. `SlotCache` gives each row a slot of its own and copies the prompt into it: for the
CPU, and for models that the kernels do not support. `PagedCache` divides the memory into pages; the answers to a prompt
share its pages, rows take new ones as they grow, and rows pause when none are free.

A prompt is prefilled except for its last token, which is the first that its rows are fed: `prompt` counts what was
prefilled, `own` what the row has been fed since. A row whose answer is done may be parked: a later turn, whose prompt
begins with that prompt and answer, is placed in any row, gets a copy of what was parked, and prefills the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from outdo.models.attention import AttentionSpec, SharedPrompts, attend
from outdo.models.ops import kernels, rotate, sent
from outdo.models.resume import ExtendedRows, Parked, Resumed

PAGE = 64  # tokens


class SlotCache:
    """Rows 0 to R - 1, each with room for the longest text."""

    applies_rope: ClassVar[bool] = False

    def __init__(self, rows: int, longest: int, device: torch.device) -> None:
        self.rows, self.longest, self.device = rows, longest, device
        self.prompt_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.own_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.idle_B = torch.ones(rows, dtype=torch.bool, device=device)  # rows that are done or not started
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._at: Tensor | None = None

    def has_room(self, prompt: int, rows: int, tokens: int) -> bool:
        return True

    def place(self, prompt: int, rows: Sequence[int]) -> None:
        """Assigns a prompt of that many tokens to these rows. It is stored when it is prefilled, with `reading`."""
        index = torch.tensor(rows, device=self.device)
        self.prompt_B[index], self.own_B[index] = prompt, 0

    def reading(self, groups: Sequence[tuple[int, Sequence[int]]]) -> SlotPrompts:
        """The layout to prefill placed prompts with."""
        return SlotPrompts(self, groups)

    def grow(self, rows: Sequence[int], tokens: int) -> list[int]:
        """Reserves room for more tokens of each row. Returns the rows that got none: here always empty."""
        return []

    def release(self, rows: Sequence[int]) -> None:
        """Frees rows that are done."""

    def upload(self) -> None:
        """Before steps run: copies to the device what has been placed, grown and released."""

    def keep(self, rows: Sequence[int], drop: bool = True) -> None:
        """Drops all rows but these, which become 0, 1, 2, …; without `drop` the others become free."""
        index, n = torch.tensor(rows, device=self.device), len(rows)
        if drop:
            self.keys, self.values = [x[index] for x in self.keys], [x[index] for x in self.values]
            self.prompt_B, self.own_B, self.idle_B = self.prompt_B[index], self.own_B[index], self.idle_B[index]
            self.rows = n
            return
        for x in (*self.keys, *self.values, self.prompt_B, self.own_B, self.idle_B):
            x[:n] = x[index]
        self.idle_B[n:] = True

    def park(self, row: int) -> Parked:
        """What a done row has cached, for a later turn. The row is free then."""
        end = int(self.prompt_B[row] + self.own_B[row]) + 1
        return Parked(tensors=[x[row, :, :end].clone() for x in (*self.keys, *self.values)])

    def resume(self, items: Sequence[Resumed]) -> ExtendedRows:
        """The layout to prefill rows that were placed with what was parked, which is copied into them."""
        for item in items:
            for x, parked in zip((*self.keys, *self.values), item.parked.tensors, strict=True):
                x[item.row, :, : item.start] = parked[:, : item.start]
        return ExtendedRows(self, items)

    def discard(self, parked: Parked) -> None:
        """It is needed no more."""

    def places(self, rows: np.ndarray, at: np.ndarray) -> tuple[Tensor, Tensor]:
        """Where the tokens at these positions of these rows are stored, for `write`."""
        return sent(rows, self.device), sent(at, self.device)

    def write(self, layer: int, places: tuple[Tensor, Tensor], k_NKD: Tensor, v_NKD: Tensor) -> None:
        row_N, at_N = places
        self.keys[layer][row_N, :, at_N], self.values[layer][row_N, :, at_N] = k_NKD, v_NKD

    def sources(self, rows: Sequence[int], longest: int) -> Tensor:
        """Where these rows' first `longest` tokens are stored, for `read`."""
        return sent(rows, self.device)

    def read(self, layer: int, sources: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [rows, K, longest, D] each."""
        return self.keys[layer][sources, :, :longest], self.values[layer][sources, :, :longest]

    def begin(self, rows: int) -> None:
        """Before the forward of one more token for the first `rows` rows."""
        self._at = (self.prompt_B + self.own_B)[:rows]
        self._end = int(self._at.max()) + 1
        first = int(self._at[0])
        self._even = bool((self._at == first).all())
        self._row = torch.arange(rows, device=self.device)
        self._bias: dict[int | None, Tensor | None] = {}

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        assert self._at is not None
        kv_heads, n = (qkv_NHD.shape[1] - spec.heads) // 2, len(qkv_NHD)
        q, k, v = qkv_NHD.split([spec.heads, kv_heads, kv_heads], dim=1)
        if layer == len(self.keys):  # only prompts of one token, so nothing was prefilled
            self._add_layer(k)
        keys, values = self.keys[layer], self.values[layer]
        if self._even:
            keys[:n, :, self._end - 1], values[:n, :, self._end - 1] = k, v
        else:
            keys[self._row, :, self._at], values[self._row, :, self._at] = k, v
        seen = keys[:n, :, : self._end], values[:n, :, : self._end]
        return attend(q[:, :, None], *seen, spec, self._seen(spec.window))[:, :, 0]

    def _seen(self, window: int | None) -> Tensor | None:
        if window not in self._bias:
            assert self._at is not None
            slots, at = torch.arange(self._end, device=self.device), self._at[:, None]
            hidden = slots > at if window is None else (slots > at) | (slots <= at - window)
            bias = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -math.inf)[:, None]
            self._bias[window] = None if self._even and window is None else bias
        return self._bias[window]

    def _add_layer(self, like_NKD: Tensor) -> None:
        shape = (self.rows, like_NKD.shape[1], self.longest, like_NKD.shape[2])
        self.keys.append(like_NKD.new_zeros(shape))  # zeroed: masked values are still multiplied, by 0
        self.values.append(like_NKD.new_zeros(shape))


class SlotPrompts:
    """Prefills prompts, all at once, into the slots of their rows."""

    applies_rope: ClassVar[bool] = False

    def __init__(self, cache: SlotCache, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        self.cache, self.longest = cache, max((length for length, _ in groups), default=0)
        self.groups = [(length, torch.tensor(rows, device=cache.device)) for length, rows in groups]
        self.prompts = SharedPrompts([length for length, _ in groups], [], [], cache.device)

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
        k, v = qkv_NHD[:, spec.heads :].split(kv_heads, dim=1)
        if layer == len(self.cache.keys):
            self.cache._add_layer(k)
        start = 0
        for length, rows in self.groups:
            read = slice(start, start + length)
            self.cache.keys[layer][rows, :, :length] = k[read].transpose(0, 1)
            self.cache.values[layer][rows, :, :length] = v[read].transpose(0, 1)
            start += length
        return self.prompts.attend(layer, qkv_NHD, spec)


class PagedCache:
    """`num_pages` pages of 64 tokens for up to `rows` rows. Page 0 is a dummy that idle rows write to."""

    applies_rope: ClassVar[bool] = True

    def __init__(self, rows: int, longest: int, device: torch.device, num_pages: int) -> None:
        self.rows, self.longest, self.device, self.num_pages = rows, longest, device, num_pages
        width = 2 + -(-longest // PAGE)  # a prompt's and a row's last pages may be partly empty
        self.table_RP = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.prompt_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self.own_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self.idle_B = torch.ones(rows, dtype=torch.bool, device=device)  # rows that are done, paused or not started
        self.pages: list[Tensor] = []
        self.arrived_BK = torch.zeros(0, dtype=torch.int32, device=device)  # the kernel's own count
        # The host's own copy, which is uploaded to the device.
        self.table = np.zeros((rows, width), dtype=np.int32)
        # Copies of the table on their way to the device: when the third is sent, the first has arrived.
        pinned = device.type == "cuda"
        self.uploads = [torch.zeros(rows, width, dtype=torch.int32, pin_memory=pinned) for _ in range(3)]
        self.prompt = np.zeros(rows, dtype=np.int32)
        self.fed = np.zeros(rows, dtype=np.int32)  # a row's own tokens that have pages
        self.held = np.zeros(rows, dtype=np.int32)  # a row's own pages
        self.placed = np.zeros(rows, dtype=bool)
        self.reset()

    def reset(self) -> None:
        """Removes everything; the memory stays allocated."""
        self.free = list(range(self.num_pages - 1, 0, -1))
        self.group_of: list[list[int] | None] = [None] * self.rows  # the prompt's pages, one list for all its answers
        self.sharers: dict[int, int] = {}  # id of that list: how many rows still use it
        self._active = self.rows
        for array in (self.table, self.prompt, self.fed, self.held, self.placed):
            array[:] = 0
        for tensor in (self.table_RP, self.prompt_B, self.own_B):
            tensor.zero_()
        self.idle_B.fill_(True)

    def has_room(self, prompt: int, rows: int, tokens: int) -> bool:
        """Whether a group fits beside the placed ones, if every row writes that many tokens."""
        reserved = np.maximum(-(-tokens // PAGE) - self.held[self.placed], 0).sum()
        return -(-prompt // PAGE) + rows * -(-tokens // PAGE) + int(reserved) <= len(self.free)

    def place(self, prompt: int, rows: Sequence[int]) -> None:
        pages = [self.free.pop() for _ in range(-(-prompt // PAGE))]
        self.sharers[id(pages)] = len(rows)
        index = np.asarray(rows, dtype=np.int64)
        self.table[index] = 0
        self.table[index, : len(pages)] = pages
        self.prompt[index], self.fed[index], self.held[index], self.placed[index] = prompt, 0, 0, True
        for row in rows:
            self.group_of[row] = pages

    def reading(self, groups: Sequence[tuple[int, Sequence[int]]]) -> PagedPrompts:
        lens = [length for length, _ in groups]
        rows = sent([row for _, rows in groups for row in rows], self.device)
        each = sent([length for length, rows in groups for _ in rows], self.device).int()
        self.prompt_B[rows], self.own_B[rows] = each, 0
        return PagedPrompts(self, lens, [self.group_of[rows[0]] or [] for _, rows in groups])

    def grow(self, rows: Sequence[int], tokens: int) -> list[int]:
        """Takes pages for more tokens of each row. Returns the rows that got none."""
        index = np.asarray(rows, dtype=np.int64)
        need = -(-(self.fed[index] + tokens) // PAGE) - self.held[index]
        need = np.minimum(need, self.table.shape[1] - self.held[index] - -(-self.prompt[index] // PAGE))
        refused = []
        for row, count in zip(index[need > 0].tolist(), need[need > 0].tolist(), strict=True):
            if count > len(self.free):
                refused.append(row)
                continue
            start = -(-int(self.prompt[row]) // PAGE) + int(self.held[row])
            self.table[row, start : start + count] = [self.free.pop() for _ in range(count)]
            self.held[row] += count
        self.fed[index if not refused else np.setdiff1d(index, refused)] += tokens
        return refused

    def upload(self) -> None:
        self.uploads.append(self.uploads.pop(0))
        self.uploads[-1].copy_(torch.from_numpy(self.table))
        self.table_RP.copy_(self.uploads[-1], non_blocking=True)

    def release(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.discard(self._pages(row))
        self._clear(rows)

    def park(self, row: int) -> Parked:
        """What a done row has cached, for a later turn: its pages, until they are discarded. The row is free then."""
        parked = self._pages(row)
        self._clear([row])
        return parked

    def _pages(self, row: int) -> Parked:
        pages = self.group_of[row]
        assert pages is not None
        start = len(pages)
        return Parked(int(self.prompt[row]), pages, self.table[row, start : start + int(self.held[row])].tolist())

    def discard(self, parked: Parked) -> None:
        """Frees its pages, except those that siblings still use."""
        self.free += parked.own
        self.sharers[id(parked.pages)] -= 1
        if not self.sharers[id(parked.pages)]:
            del self.sharers[id(parked.pages)]
            self.free += parked.pages

    def resume(self, items: Sequence[Resumed]) -> ExtendedRows:
        """Copies what was parked into the pages of rows that were placed, and frees it; then the layout to prefill."""
        taken, given = [], []
        for item in items:
            at = np.arange(item.start)
            own = np.maximum(at - item.parked.prompt, 0)  # a row's own tokens begin on a page of their own
            from_prompt = at < item.parked.prompt
            places = np.where(from_prompt, at, len(item.parked.pages) * PAGE + own)
            source = np.array([*item.parked.pages, *item.parked.own], np.int64)
            taken.append(source[places // PAGE] * PAGE + places % PAGE)
            given.append(np.array(self.group_of[item.row], np.int64)[at // PAGE] * PAGE + at % PAGE)
            self.discard(item.parked)
        old, new = (sent(np.concatenate(x), self.device) for x in (taken, given))
        (old_page, old_slot), (new_page, new_slot) = ((x // PAGE, x % PAGE) for x in (old, new))
        for pages in self.pages:
            pages[new_page, :, :, new_slot] = pages[old_page, :, :, old_slot]
        rows = sent([item.row for item in items], self.device)
        self.prompt_B[rows] = sent([item.length for item in items], self.device).int()
        self.own_B[rows] = 0
        return ExtendedRows(self, items)

    def places(self, rows: np.ndarray, at: np.ndarray) -> tuple[Tensor, Tensor]:
        page = self.table[rows, at // PAGE].astype(np.int64)
        return sent(page, self.device), sent(at % PAGE, self.device)

    def write(self, layer: int, places: tuple[Tensor, Tensor], k_NKD: Tensor, v_NKD: Tensor) -> None:
        (page_N, slot_N), pages = places, self.pages[layer]
        pages[page_N, 0, :, slot_N], pages[page_N, 1, :, slot_N] = k_NKD, v_NKD

    def sources(self, rows: Sequence[int], longest: int) -> Tensor:
        return sent(self.table[np.asarray(rows), : -(-longest // PAGE)].astype(np.int64), self.device)

    def read(self, layer: int, sources: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        both = self.pages[layer][sources].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :longest]
        return both[0], both[1]

    def _clear(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.group_of[row] = None
        index = np.asarray(rows, dtype=np.int64)
        self.table[index], self.prompt[index], self.held[index], self.placed[index] = 0, 0, 0, False

    def keep(self, rows: Sequence[int], drop: bool = True) -> None:
        """These rows become 0, 1, 2, …; the others have been released. No keys or values are moved."""
        index, n = np.asarray(rows, dtype=np.int64), len(rows)
        for own in (self.table, self.prompt, self.fed, self.held, self.placed):
            own[:n] = own[index]
            own[n:] = 0
        self.group_of[:n] = [self.group_of[row] for row in rows]
        self.group_of[n:] = [None] * (self.rows - n)
        on_device = sent(index, self.device)
        for tensor, rest in ((self.prompt_B, 0), (self.own_B, 0), (self.idle_B, True)):
            tensor[:n] = tensor[on_device]
            tensor[n:] = rest

    def begin(self, rows: int) -> None:
        self._active = rows

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        n = self._active
        self._store_for(layer, qkv_NHD, spec)
        rows = self.table_RP[:n], self.prompt_B[:n], self.own_B[:n]
        if k := kernels(qkv_NHD, qkv_NHD.shape[-1]):
            state = *rows, self.idle_B[:n], self.arrived_BK
            args = spec.heads, spec.scale, spec.rope
            return k.paged_attention(qkv_NHD, self.pages[layer], *state, *args, overlaps=spec.overlaps)
        if spec.rope:
            qkv_NHD = rotate(qkv_NHD, *spec.rope, (qkv_NHD.shape[1] + spec.heads) // 2)
        return paged_attention(qkv_NHD, self.pages[layer], *rows, spec.heads, spec.scale)

    def _store_for(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> None:
        if layer == len(self.pages):
            kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
            self.pages.append(qkv_NHD.new_zeros(self.num_pages, 2, kv_heads, PAGE, qkv_NHD.shape[-1]))
            if not layer:
                self.arrived_BK = self.arrived_BK.new_zeros(self.rows, kv_heads)


class PagedPrompts:
    """Prefills prompts into their pages."""

    applies_rope: ClassVar[bool] = False

    def __init__(self, cache: PagedCache, lens: Sequence[int], taken: Sequence[Sequence[int]]) -> None:
        self.cache, self.longest = cache, max(lens, default=0)
        self.prompts = SharedPrompts(lens, [], [], cache.device)
        at = np.concatenate([np.arange(length) for length in lens])
        page = np.concatenate([np.repeat(pages, PAGE)[:length] for length, pages in zip(lens, taken, strict=True)])
        self.page_N, self.slot_N = sent(page.astype(np.int64), cache.device), sent(at % PAGE, cache.device)

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        self.cache._store_for(layer, qkv_NHD, spec)
        kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
        k, v = qkv_NHD[:, spec.heads :].split(kv_heads, dim=1)
        pages = self.cache.pages[layer]
        pages[self.page_N, 0, :, self.slot_N], pages[self.page_N, 1, :, self.slot_N] = k, v
        return self.prompts.attend(layer, qkv_NHD, spec)


def paged_attention(
    qkv_NHD: Tensor, pages: Tensor, table_NP: Tensor, prompt_N: Tensor, own_N: Tensor, heads: int, scale: float
) -> Tensor:
    """The kernel in plain torch."""
    kv_heads, n = pages.shape[2], len(qkv_NHD)
    q, k, v = qkv_NHD.split([heads, kv_heads, kv_heads], dim=1)
    base = (prompt_N + PAGE - 1) // PAGE * PAGE
    at = (base + own_N).long()
    page = table_NP[torch.arange(n, device=at.device), at // PAGE].long()
    pages[page, 0, :, at % PAGE], pages[page, 1, :, at % PAGE] = k, v
    both = pages[table_NP.long()].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)  # [2, N, K, slots, D]
    slots = torch.arange(both.shape[3], device=at.device)
    seen = (slots < prompt_N[:, None]) | ((slots >= base[:, None]) & (slots <= at[:, None]))
    bias = torch.zeros(seen.shape, device=at.device).masked_fill_(~seen, -math.inf)[:, None]
    return attend(q[:, :, None], both[0], both[1], AttentionSpec(heads, scale), bias)[:, :, 0]
