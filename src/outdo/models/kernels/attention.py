"""Paged attention (in plain torch: `cache.py`), and the merge of two attentions."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from outdo.models.kernels.overlap import launch, start_next, wait

LOG2_E = 1.4426950408889634
LONG = 1024  # tokens

# --- paged attention, one new token in each row


@triton.jit
def _rotated(ptr, at, mask, cos, sin, D: tl.constexpr, ROPE: tl.constexpr):
    """A head, rotated by its token's position: as `ops.rotate`."""
    x = tl.load(ptr + at, mask=mask, other=0.0)
    if ROPE:
        swapped = tl.load(ptr + (at - at % D) + (at + D // 2) % D, mask=mask, other=0.0)
        x = (x.to(tl.float32) * cos + swapped.to(tl.float32) * sin).to(x.dtype)
    return x


@triton.jit
def _joined(parts, query, spot, BLOCK_Q: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr):
    """Combines all splits' maxima, sums and outputs, which other programs stored."""
    top = tl.full([BLOCK_Q], -1e30, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    out = tl.zeros([BLOCK_Q, D], tl.float32)
    for i in range(SPLITS):
        part = parts + i * BLOCK_Q * (D + 2)
        split_top = tl.load(part + query, cache_modifier=".cg")
        higher = tl.maximum(top, split_top)
        shrink, grow = tl.exp2(top - higher), tl.exp2(split_top - higher)
        total = total * shrink + tl.load(part + BLOCK_Q + query, cache_modifier=".cg") * grow
        out = out * shrink[:, None] + tl.load(part + spot, cache_modifier=".cg") * grow[:, None]
        top = higher
    return out / total[:, None]


@triton.jit
def _seen(idx, prompt, base, stop):
    """Which slots hold a token: the prompt's last page may be partly empty. An idle row has `stop` 0 and sees none."""
    return (idx < stop) & ((idx < prompt) | (idx >= base))


@triton.jit
def _keys_and_values(pages, table, i, seen, spot, K, PAGE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """The i-th block of keys and values of one head. A block lies within a page."""
    page = tl.load(table + i * BLOCK // PAGE).to(tl.int64) * (2 * K * PAGE * D)
    at = pages + page + i * BLOCK % PAGE * D + spot
    k = tl.load(at, mask=seen[:, None], other=0.0)
    return k, tl.load(at + K * PAGE * D, mask=seen[:, None], other=0.0)


@triton.jit
def _folded(q, k, v, seen, top, total, out, scale, EXACT: tl.constexpr):
    """Adds more keys and values to the running maximum, sum and output. Scores are logarithms to the base 2."""
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp2(top - higher)
    p = tl.exp2(scores - higher[:, None])
    total = total * shrink + tl.sum(p, 1)
    out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
    return higher, total, out


@triton.jit
def _paged(  # noqa: PLR0915 one kernel
    qkv_ptr, cos_ptr, sin_ptr, pages_ptr, table_ptr, prompt_ptr, own_ptr, idle_ptr, out_ptr, part_ptr, arrived_ptr,
    scale, table_stride, H, K, REP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, ROPE: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    at = tl.arange(0, D)
    slot = tl.arange(0, BLOCK)
    query = tl.arange(0, BLOCK_Q)
    start_next(PDL)
    prompt = tl.load(prompt_ptr + row)
    own = tl.load(own_ptr + row)
    base = (prompt + PAGE - 1) // PAGE * PAGE  # where the row's own pages begin
    end = base + own  # before the new token
    stop = tl.where(tl.load(idle_ptr + row) != 0, 0, end)  # an idle row's output is never read
    table = table_ptr + row * table_stride
    page_size: tl.constexpr = PAGE * D
    pages = pages_ptr + head * page_size
    spot = slot[:, None] * D + at[None, :]
    first, blocks = split, (stop + BLOCK - 1) // BLOCK
    if PDL:  # keys of earlier steps can be loaded before the wait
        seen = _seen(first * BLOCK + slot, prompt, base, stop)
        k, v = _keys_and_values(pages, table, tl.where(first < blocks, first, 0), seen, spot, K, PAGE, D, BLOCK)
        first += SPLITS

    wait(PDL)
    token = qkv_ptr + row.to(tl.int64) * (H + 2 * K) * D
    cos = tl.load(cos_ptr + row * D + at) if ROPE else 1.0
    sin = tl.load(sin_ptr + row * D + at) if ROPE else 0.0
    q = _rotated(token, (head * REP + query[:, None]) * D + at[None, :], query[:, None] < REP, cos, sin, D, ROPE)

    # The first split takes the new token, whose score starts the running maximum. Elsewhere that starts at a finite
    # minimum, to avoid -inf minus -inf.
    top = tl.full([BLOCK_Q], -1e30, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    out = tl.zeros([BLOCK_Q, D], tl.float32)
    if split == 0:
        k_new = _rotated(token, (H + head) * D + at, at < D, cos, sin, D, ROPE)
        v_new = tl.load(token + (H + K + head) * D + at)
        write = pages + tl.load(table + end // PAGE).to(tl.int64) * (2 * K * page_size) + (end % PAGE) * D
        tl.store(write + at, k_new)
        tl.store(write + K * page_size + at, v_new)
        top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale
        total += 1.0
        out += v_new.to(tl.float32)[None, :]
    if PDL:
        top, total, out = _folded(q, k, v, seen, top, total, out, scale, EXACT)
    # Every second head begins at the end: while half of the programs read a prompt, which siblings find in the L2
    # cache, the others load their own keys from memory.
    for i in tl.range(first, blocks, SPLITS, num_stages=STAGES):
        block = i if PDL else tl.where(head % 2 == 1, blocks - 1 - i, i)
        seen = _seen(block * BLOCK + slot, prompt, base, stop)
        k, v = _keys_and_values(pages, table, block, seen, spot, K, PAGE, D, BLOCK)
        top, total, out = _folded(q, k, v, seen, top, total, out, scale, EXACT)

    place = out_ptr + (row.to(tl.int64) * H + head * REP + query[:, None]) * D + at[None, :]
    if SPLITS > 1:
        # Each program stores its part. The last one to arrive combines them, in the order of the splits.
        part_size: tl.constexpr = BLOCK_Q * (D + 2)
        spot_q = 2 * BLOCK_Q + query[:, None] * D + at[None, :]
        parts = part_ptr + (row * K + head).to(tl.int64) * SPLITS * part_size
        mine = parts + split * part_size
        tl.store(mine + query, top)
        tl.store(mine + BLOCK_Q + query, total)
        tl.store(mine + spot_q, out)
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + row * K + head, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrived_ptr + row * K + head, 0)
            tl.store(place, _joined(parts, query, spot_q, BLOCK_Q, D, SPLITS), mask=query[:, None] < REP)
    else:
        tl.store(place, out / total[:, None], mask=query[:, None] < REP)


def paged_attention(
    qkv_NHD: Tensor, pages: Tensor, table_NP: Tensor, prompt_N: Tensor, own_N: Tensor, idle_N: Tensor,
    arrived: Tensor, heads: int, scale: float, rope: tuple[Tensor, Tensor] | None = None, splits: int | None = None,
    overlaps: bool = False,
) -> Tensor:  # fmt: skip
    """Writes the new token's key and value into its row's page, and attends over the prompt and the row's own tokens.

    `pages` is [pages, 2, K, PAGE, D]; a row's table names its prompt's pages, then its own. `own_N` counts the row's
    own tokens before this one. `rope` are the cosines and signed sines for queries and keys that are not rotated
    yet. Where rows are few their keys are split among programs, which count themselves in `arrived` [N, K]: zero
    before and after the call. `overlaps`: the kernels before and after are those of `few.py`; elsewhere it is slower.
    """
    rows, _, size = qkv_NHD.shape
    kv_heads, page = pages.shape[2], pages.shape[3]
    rep, programs = heads // kv_heads, rows * kv_heads
    block_q = max(16, triton.next_power_of_2(rep))
    shape = _shape(programs, page * size * pages.dtype.itemsize, table_NP.shape[1] * page, overlaps)
    splits = splits or shape.splits
    out = qkv_NHD.new_empty(rows, heads, size)
    parts = qkv_NHD.new_empty(programs * splits * block_q * (size + 2) if splits > 1 else 0, dtype=torch.float32)
    _paged[(kv_heads, rows, splits)](
        qkv_NHD, *(rope or (qkv_NHD, qkv_NHD)), pages, table_NP, prompt_N, own_N, idle_N, out, parts, arrived,
        scale * LOG2_E, table_NP.stride(0), heads, kv_heads, REP=rep, D=size, PAGE=page, BLOCK_Q=block_q,
        BLOCK=min(shape.block, page), STAGES=shape.stages, ROPE=rope is not None, SPLITS=splits,
        EXACT=qkv_NHD.dtype == torch.float32, PDL=overlaps, num_warps=shape.warps, **launch(overlaps),
    )  # fmt: skip
    return out


class _Shape(NamedTuple):
    splits: int
    block: int  # keys
    warps: int
    stages: int  # blocks that are loaded at the same time, and one


def _shape(programs: int, page_bytes: int, longest: int, overlaps: bool) -> _Shape:
    """The fastest on an H200 for texts of up to 384 and of up to 2,560 tokens, halfway through their answers."""
    if overlaps and programs <= 144:
        return _Shape(6, 64, 2, 2) if programs <= 48 else _Shape(2 if programs <= 96 else 3, 64, 4, 2)
    splits = max(1, min(6, 400 // programs))
    if splits > 1 or page_bytes > 16384:
        return _Shape(splits, 64 if page_bytes <= 16384 else 32, 4, 2)
    return _Shape(1, 32, 2, 5) if longest > LONG else _Shape(1, 16, 1, 6)


# --- the merge of two attentions over different keys


@triton.jit
def _merge(a_ptr, la_ptr, b_ptr, lb_ptr, out_ptr, lse_ptr, N, H, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)
    inside = head < H
    la = tl.load(la_ptr + head * N + row, mask=inside, other=0.0)
    lb = tl.load(lb_ptr + head * N + row, mask=inside, other=0.0)
    top = tl.maximum(la, lb)
    wa, wb = tl.exp(la - top), tl.exp(lb - top)
    lse = top + tl.log(wa + wb)
    tl.store(lse_ptr + head * N + row, lse, mask=inside)
    at = row * H * D + head[:, None] * D + tl.arange(0, D)[None, :]
    a = tl.load(a_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
    out = a * tl.exp(la - lse)[:, None] + b * tl.exp(lb - lse)[:, None]
    tl.store(out_ptr + at, out, mask=inside[:, None])


def merge(a_NHD: Tensor, la_HN: Tensor, b_NHD: Tensor, lb_HN: Tensor) -> tuple[Tensor, Tensor]:
    """The attention over both sets of keys, from the outputs and log-sum-exps over each."""
    rows, heads, size = a_NHD.shape
    out, lse = torch.empty_like(a_NHD), torch.empty_like(la_HN)
    _merge[(rows,)](
        a_NHD, la_HN, b_NHD, lb_HN, out, lse, rows, heads, D=size, BLOCK=triton.next_power_of_2(heads), num_warps=2
    )
    return out, lse
