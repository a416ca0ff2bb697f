"""Triton kernels of the fast path on a GPU. Each has its plain form in `ops.py`, `cache.py`, `sampling.py` or
`logprobs.py`, which is what runs elsewhere and what the tests compare with.

Numbers come in and go out in the type of their tensors; everything between is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _warps(width: int) -> int:
    return 1 if width <= 256 else 4 if width <= 4096 else 8


# --- residual, norm


@triton.jit
def _add_norm(x_ptr, delta_ptr, w_ptr, sum_ptr, y_ptr, rstd_ptr, eps, D, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(x_ptr + row * D + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + row * D + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row * D + at, x, mask=inside)
        x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * D + at, x * rstd * w, mask=inside)
    tl.store(rstd_ptr + row, rstd)


def add_norm(x_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, its RMS norm in the weight's type, and what the rows were divided by."""
    rows, width = x_ND.shape
    total = x_ND if delta_ND is None else torch.empty_like(x_ND)
    y = torch.empty_like(x_ND, dtype=weight_D.dtype)
    assert x_ND.is_contiguous() and (delta_ND is None or delta_ND.is_contiguous())
    rstd = torch.empty(rows, dtype=torch.float32, device=x_ND.device)
    block = triton.next_power_of_2(width)
    args = (x_ND, x_ND if delta_ND is None else delta_ND, weight_D, total, y, rstd, eps, width)
    _add_norm[(rows,)](*args, ADD=delta_ND is not None, BLOCK=block, num_warps=_warps(block))
    return total, y, rstd


@triton.jit
def _norm_backward(
    dy_ptr, dsum_ptr, x_ptr, rstd_ptr, w_ptr, dx_ptr, dlow_ptr, y_ptr, dw_ptr, N, D,
    TAKES: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + at, mask=at < D, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, tl.num_programs(0)):
        row = start + program
        base = row * D
        inside = at < tl.where(row < N, D, 0)
        dy = tl.load(dy_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + tl.minimum(row, N - 1))
        unit = tl.load(x_ptr + base + at, mask=inside, other=0.0).to(tl.float32) * rstd
        tl.store(y_ptr + base + at, unit * w, mask=inside)
        dw += dy * unit
        g = dy * w
        dx = rstd * (g - unit * (tl.sum(g * unit, 0) / D))
        if TAKES:
            dx += tl.load(dsum_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + base + at, dx, mask=inside)
        if LOW:
            tl.store(dlow_ptr + base + at, dx, mask=inside)
    tl.store(dw_ptr + program * D + at, dw, mask=at < D)


def norm_backward(
    dy_ND: Tensor, dsum_ND: Tensor | None, x_ND: Tensor, rstd_N: Tensor, weight_D: Tensor, low: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """As `ops.norm_backward`."""
    rows, width = x_ND.shape
    dy_ND, dsum_ND = dy_ND.contiguous(), None if dsum_ND is None else dsum_ND.contiguous()
    dx = torch.empty_like(x_ND)
    y = torch.empty_like(x_ND, dtype=weight_D.dtype)
    dlow = None if low is None or low == x_ND.dtype else torch.empty_like(x_ND, dtype=low)
    programs = min(rows, 1024)
    dw = torch.empty(programs, width, dtype=torch.float32, device=x_ND.device)
    block = triton.next_power_of_2(width)
    out = (dx, dx if dlow is None else dlow, y, dw)
    args = (dy_ND, dy_ND if dsum_ND is None else dsum_ND, x_ND, rstd_N, weight_D, *out)
    options = {"TAKES": dsum_ND is not None, "LOW": dlow is not None, "BLOCK": block, "num_warps": _warps(block)}
    _norm_backward[(programs,)](*args, rows, width, **options)
    return dx, (dx if low == x_ND.dtype else dlow), dw.sum(0).to(weight_D.dtype), y


# --- rotary positions


@triton.jit
def _rotate(x_ptr, out_ptr, cos_ptr, sin_ptr, TURNED, HEADS, D: tl.constexpr, SIGN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = D // 2
    head = tl.arange(0, BLOCK)[:, None]
    at = tl.arange(0, half)[None, :]
    base = row * HEADS * D + head * D + at
    inside = head < HEADS
    first = tl.load(x_ptr + base, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + base + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * D + at)
    sin = tl.load(sin_ptr + row * D + half + at) * SIGN
    turned = head < TURNED
    tl.store(out_ptr + base, tl.where(turned, first * cos - second * sin, first), mask=inside)
    tl.store(out_ptr + base + half, tl.where(turned, second * cos + first * sin, second), mask=inside)


def rotate(
    x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, turned: int, sign: float = 1.0, inplace: bool = False
) -> Tensor:
    """As `ops.rotate`."""
    rows, heads, size = x_NHD.shape
    x_NHD = x_NHD.contiguous()
    out = x_NHD if inplace else torch.empty_like(x_NHD)
    _rotate[(rows,)](
        x_NHD, out, cos_ND, sin_ND, turned, heads, D=size, SIGN=sign, BLOCK=triton.next_power_of_2(heads), num_warps=2
    )
    return out


# --- the gate


@triton.jit
def _swiglu(x_ptr, out_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    gate = tl.load(x_ptr + row * 2 * F + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * F + F + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * F + at, gate * tl.sigmoid(gate) * up, mask=inside)


def swiglu(x_N2F: Tensor) -> Tensor:
    rows, width = x_N2F.shape[0], x_N2F.shape[1] // 2
    out = x_N2F.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu[(rows, triton.cdiv(width, block))](x_N2F, out, width, BLOCK=block)
    return out


@triton.jit
def _swiglu_backward(dy_ptr, x_ptr, dx_ptr, y_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    dy = tl.load(dy_ptr + row * F + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + row * 2 * F + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * F + F + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    tl.store(dx_ptr + row * 2 * F + at, dy * up * s * (1.0 + gate * (1.0 - s)), mask=inside)
    tl.store(dx_ptr + row * 2 * F + F + at, dy * gate * s, mask=inside)
    tl.store(y_ptr + row * F + at, gate * s * up, mask=inside)


def swiglu_backward(dy_NF: Tensor, x_N2F: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient, and the output once more."""
    rows, width = dy_NF.shape
    dx, y = torch.empty_like(x_N2F), torch.empty_like(dy_NF)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu_backward[(rows, triton.cdiv(width, block))](dy_NF.contiguous(), x_N2F, dx, y, width, BLOCK=block)
    return dx, y


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


# --- choosing a token


@triton.jit
def _sums(logits_ptr, top_ptr, sum_ptr, inverse_temperature, V, CHUNKS, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * V + at, mask=at < V, other=float("-inf")) * inverse_temperature
    top = tl.max(x, 0)
    tl.store(top_ptr + row * CHUNKS + chunk, top)
    tl.store(sum_ptr + row * CHUNKS + chunk, tl.sum(tl.exp(x - top), 0))


@triton.jit
def _draw(
    logits_ptr, top_ptr, sum_ptr, seed_ptr, at_ptr, token_ptr, logprob_ptr, inverse_temperature, V, CHUNKS,
    STEP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    # As `sampling.uniforms`: splitmix64 of the seed and the position.
    z = tl.load(seed_ptr + row) + (tl.load(at_ptr + row).to(tl.int64) + 1) * STEP
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    noise = (((z >> 40) & 0xFFFFFF) | 1).to(tl.float32) * 5.9604644775390625e-08
    c = tl.arange(0, BLOCK_C)
    tops = tl.load(top_ptr + row * CHUNKS + c, mask=c < CHUNKS, other=float("-inf"))
    sums = tl.load(sum_ptr + row * CHUNKS + c, mask=c < CHUNKS, other=0.0)
    top = tl.max(tops, 0)
    sums = tl.where(c < CHUNKS, sums * tl.exp(tops - top), 0.0)
    total = tl.sum(sums, 0)
    draw = noise * total
    upto = tl.cumsum(sums, 0)
    last = tl.max(tl.where(sums > 0, c, 0), 0)
    chunk = tl.minimum(tl.sum((upto <= draw).to(tl.int32), 0), last)
    before = tl.sum(tl.where(c < chunk, sums, 0.0), 0)
    at = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * V + at, mask=at < V, other=float("-inf")) * inverse_temperature
    p = tl.exp(x - top)
    past = (before + tl.cumsum(p, 0) > draw) & (p > 0)
    first = tl.min(tl.where(past, at, 2147483647), 0)
    final = tl.max(tl.where(p > 0, at, 0), 0)  # rounding may leave the draw just past the end
    token = tl.where(first == 2147483647, final, first)
    chosen = tl.max(tl.where(at == token, x, float("-inf")), 0)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(logprob_ptr + row, chosen - top - tl.log(total))


def draw(
    logits_BV: Tensor, seed_B: Tensor, at_B: Tensor, temperature: float, constants: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """As `sampling.pick` without truncation: one pass over the logits, and a second look at one chunk of each row."""
    rows, vocabulary = logits_BV.shape
    block = 4096
    chunks = triton.cdiv(vocabulary, block)
    tops = torch.empty(rows, chunks, dtype=torch.float32, device=logits_BV.device)
    sums = torch.empty_like(tops)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    _sums[(rows, chunks)](logits_BV, tops, sums, 1.0 / temperature, vocabulary, chunks, BLOCK=block)
    step, first, second = constants
    _draw[(rows,)](
        logits_BV, tops, sums, seed_B, at_B, tokens, logprobs, 1.0 / temperature, vocabulary, chunks, STEP=step,
        FIRST=first, SECOND=second, BLOCK=block, BLOCK_C=triton.next_power_of_2(chunks), num_warps=8,
    )  # fmt: skip
    return tokens, logprobs


@triton.jit
def _advance(
    chosen_ptr, logprob_ptr, token_ptr, own_ptr, idle_ptr, ended_ptr, answer_ptr, tokens_ptr, logprobs_ptr, length_ptr,
    eos_ptr, B, T, NOBODY, NUM_EOS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < B
    chosen = tl.load(chosen_ptr + row, mask=inside, other=0)
    idle = tl.load(idle_ptr + row, mask=inside, other=1) != 0
    own = tl.load(own_ptr + row, mask=inside, other=0)
    at = tl.minimum(own, T - 1)
    answer = tl.where(idle, NOBODY, tl.load(answer_ptr + row, mask=inside, other=0))
    tl.store(tokens_ptr + answer * T + at, chosen, mask=inside)
    tl.store(logprobs_ptr + answer * T + at, tl.load(logprob_ptr + row, mask=inside, other=0.0), mask=inside)
    tl.store(length_ptr + answer, (at + 1).to(tl.int64), mask=inside)
    last = at + 1 == T
    for i in range(NUM_EOS):
        last = last | (chosen == tl.load(eos_ptr + i))
    ended = last & (idle == 0)
    was = tl.load(ended_ptr + row, mask=inside, other=0) != 0
    tl.store(token_ptr + row, chosen, mask=inside & (idle == 0))
    tl.store(ended_ptr + row, was | ended, mask=inside)
    tl.store(idle_ptr + row, idle | ended, mask=inside)
    tl.store(own_ptr + row, own + 1, mask=inside & ((idle | ended) == 0))


def advance(
    chosen_B: Tensor, logprob_B: Tensor, token_B: Tensor, own_B: Tensor, idle_B: Tensor, ended_B: Tensor,
    answer_B: Tensor, tokens_AT: Tensor, logprobs_AT: Tensor, lengths_A: Tensor, eos: Tensor,
) -> None:  # fmt: skip
    """As `Deck.advance`."""
    rows, block = len(chosen_B), 128
    _advance[(triton.cdiv(rows, block),)](
        chosen_B, logprob_B, token_B, own_B, idle_B, ended_B, answer_B, tokens_AT, logprobs_AT, lengths_A, eos, rows,
        tokens_AT.shape[1], len(tokens_AT) - 1, NUM_EOS=len(eos), BLOCK=block,
    )  # fmt: skip


# --- log-probabilities of given tokens


@triton.jit
def _logprobs(logits_ptr, target_ptr, chosen_ptr, lse_ptr, entropy_ptr, inverse_temperature, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    tops = tl.full([BLOCK], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)  # sum of exp(x - top) * x, for the entropy
    for start in range(0, V, BLOCK):
        at = start + lane
        x = tl.load(logits_ptr + row * V + at, mask=at < V, other=float("-inf")).to(tl.float32) * inverse_temperature
        higher = tl.maximum(tops, x)
        shrink = tl.where(tops == float("-inf"), 0.0, tl.exp(tops - higher))
        p = tl.where(x == float("-inf"), 0.0, tl.exp(x - higher))
        sums = sums * shrink + p
        weighted = weighted * shrink + p * tl.where(x == float("-inf"), 0.0, x)
        tops = higher
    top = tl.max(tops, 0)
    scale = tl.where(tops == float("-inf"), 0.0, tl.exp(tops - top))
    total = tl.sum(sums * scale, 0)
    lse = top + tl.log(total)
    target = tl.load(target_ptr + row)
    x = tl.load(logits_ptr + row * V + target).to(tl.float32) * inverse_temperature
    tl.store(chosen_ptr + row, x - lse)
    tl.store(lse_ptr + row, lse)
    tl.store(entropy_ptr + row, lse - tl.sum(weighted * scale, 0) / total)


def logprobs(
    logits_MV: Tensor, targets_M: Tensor, temperature: float, chosen_M: Tensor, lse_M: Tensor, entropy_M: Tensor
) -> None:
    """Fills the three: log p(target), log-sum-exp, entropy, in one pass."""
    rows, vocabulary = logits_MV.shape
    block = min(2048, triton.next_power_of_2(vocabulary))
    args = (logits_MV, targets_M, chosen_M, lse_M, entropy_M, 1.0 / temperature, vocabulary)
    _logprobs[(rows,)](*args, BLOCK=block, num_warps=8)


@triton.jit
def _logprobs_backward(
    logits_ptr, target_ptr, lse_ptr, entropy_ptr, dchosen_ptr, dentropy_ptr, grad_ptr, inverse_temperature, V,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < V
    x = tl.load(logits_ptr + row * V + at, mask=inside, other=float("-inf")).to(tl.float32) * inverse_temperature
    logp = x - tl.load(lse_ptr + row)
    p = tl.exp(logp)
    dchosen = tl.load(dchosen_ptr + row)
    grad = tl.where(at == tl.load(target_ptr + row), dchosen, 0.0) - p * dchosen
    grad -= tl.where(p > 0, p * (logp + tl.load(entropy_ptr + row)), 0.0) * tl.load(dentropy_ptr + row)
    tl.store(grad_ptr + row * V + at, grad * inverse_temperature, mask=inside)


def logprobs_backward(
    logits_MV: Tensor, targets_M: Tensor, lse_M: Tensor, entropy_M: Tensor, dchosen_M: Tensor, dentropy_M: Tensor,
    temperature: float, grad_MV: Tensor,
) -> None:  # fmt: skip
    """Fills the gradient of the logits, in its tensor's type."""
    rows, vocabulary = logits_MV.shape
    block = min(4096, triton.next_power_of_2(vocabulary))
    args = (logits_MV, targets_M, lse_M, entropy_M, dchosen_M, dentropy_M, grad_MV, 1.0 / temperature, vocabulary)
    _logprobs_backward[(rows, triton.cdiv(vocabulary, block))](*args, BLOCK=block)


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
