"""Attention over pages (plain in `cache.py`), and two attentions made one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# --- attention over pages, one new token in each row


@triton.jit
def _paged(
    qkv_ptr, pages_ptr, table_ptr, prompt_ptr, own_ptr, idle_ptr, out_ptr, scale, table_stride, H, K,
    REP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, D)
    slot = tl.arange(0, BLOCK)
    query = tl.arange(0, BLOCK_Q)
    token = qkv_ptr + row.to(tl.int64) * (H + 2 * K) * D
    q = tl.load(token + (head * REP + query[:, None]) * D + at[None, :], mask=query[:, None] < REP, other=0.0)
    k_new = tl.load(token + (H + head) * D + at)
    v_new = tl.load(token + (H + K + head) * D + at)

    prompt = tl.load(prompt_ptr + row)
    own = tl.load(own_ptr + row)
    base = (prompt + PAGE - 1) // PAGE * PAGE  # where the row's own pages begin
    end = base + own  # before the new token
    stop = tl.where(tl.load(idle_ptr + row) != 0, 0, end)  # nobody reads what an idle row makes
    table = table_ptr + row * table_stride

    page_size: tl.constexpr = PAGE * D
    write = tl.load(table + end // PAGE).to(tl.int64) * (2 * K * page_size) + head * page_size + (end % PAGE) * D
    tl.store(pages_ptr + write + at, k_new)
    tl.store(pages_ptr + write + K * page_size + at, v_new)

    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    # The new token first: its score is the start of the running maximum, so nothing is ever -inf minus -inf.
    top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale
    total = tl.full([BLOCK_Q], 1.0, tl.float32)
    out = tl.zeros([BLOCK_Q, D], tl.float32) + v_new.to(tl.float32)[None, :]
    for start in range(0, stop, BLOCK):
        idx = start + slot
        seen = (idx < prompt) | ((idx >= base) & (idx < end))
        page = tl.load(table + idx // PAGE, mask=seen, other=0).to(tl.int64) * (2 * K * page_size) + head * page_size
        where = page[:, None] + (idx % PAGE)[:, None] * D + at[None, :]
        k = tl.load(pages_ptr + where, mask=seen[:, None], other=0.0)
        v = tl.load(pages_ptr + where + K * page_size, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - higher)
        p = tl.exp(scores - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
        top = higher
    out = out / total[:, None]
    place = out_ptr + (row.to(tl.int64) * H + head * REP + query[:, None]) * D + at[None, :]
    tl.store(place, out, mask=query[:, None] < REP)


def paged_attention(
    qkv_NHD: Tensor, pages: Tensor, table_NP: Tensor, prompt_N: Tensor, own_N: Tensor, idle_N: Tensor, heads: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """Writes the new token's key and value into its row's page, and attends over the prompt and what the row wrote.

    `pages` is [pages, 2, K, PAGE, D]; a row's table names its prompt's pages, then its own. `own_N` counts the row's
    own tokens before this one. Of 48 block sizes, warps and stages the ones here were the fastest on an H200.
    """
    rows, _, size = qkv_NHD.shape
    kv_heads, page = pages.shape[2], pages.shape[3]
    out = qkv_NHD.new_empty(rows, heads, size)
    rep = heads // kv_heads
    _paged[(rows, kv_heads)](
        qkv_NHD, pages, table_NP, prompt_N, own_N, idle_N, out, scale, table_NP.stride(0), heads, kv_heads, REP=rep,
        D=size, PAGE=page, BLOCK_Q=max(16, triton.next_power_of_2(rep)), BLOCK=64 if rows * kv_heads > 1000 else 128,
        EXACT=qkv_NHD.dtype == torch.float32, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


# --- two attentions over different keys, made one


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
