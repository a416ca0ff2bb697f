"""Log-probabilities of given tokens and their gradient (in plain torch: `learn/logprobs.py`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

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
