"""Drawing a token (in plain torch: `rollout/sampling.py`) and storing it (`rollout/decode.py`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# --- drawing a token


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
    """As `sampling.pick` without truncation: one pass over the logits, and a second over one chunk of each row."""
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
    eos_ptr, B, T, DUMMY, NUM_EOS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < B
    chosen = tl.load(chosen_ptr + row, mask=inside, other=0)
    idle = tl.load(idle_ptr + row, mask=inside, other=1) != 0
    own = tl.load(own_ptr + row, mask=inside, other=0)
    at = tl.minimum(own, T - 1)
    answer = tl.where(idle, DUMMY, tl.load(answer_ptr + row, mask=inside, other=0))
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
    """As `DecodeState.advance`."""
    rows, block = len(chosen_B), 128
    _advance[(triton.cdiv(rows, block),)](
        chosen_B, logprob_B, token_B, own_B, idle_B, ended_B, answer_B, tokens_AT, logprobs_AT, lengths_A, eos, rows,
        tokens_AT.shape[1], len(tokens_AT) - 1, NUM_EOS=len(eos), BLOCK=block,
    )  # fmt: skip
