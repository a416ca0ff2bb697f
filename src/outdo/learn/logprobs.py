"""Log-probabilities and entropies of chosen tokens, without holding the logits of a whole batch.

The head runs over chunks of tokens. The backward recomputes each chunk's logits instead of keeping them, unless there
is only one chunk. Products are in the weights' dtype, sums in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outdo.models.ops import head_logits, kernels

CHUNK = 2**22  # logits held at once: 16 MiB in float32 …
CHUNK_ON_GPU = 2**28  # … and 1 GiB


def token_logprobs(
    hidden_MD: Tensor, head: nn.Linear, targets_M: Tensor, temperature: float, support_MK: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """log p(target) and the entropy of p, for p = softmax(head(hidden) / temperature); both differentiable, float32.

    With `support_MK`, p is over those tokens alone (-1 is padding): the policy renormalised over the tokens that
    sampling with a cut-off tail could choose from.
    """
    return _TokenLogprobs.apply(hidden_MD, head.weight, head.bias, targets_M, temperature, support_MK, cap)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_M: Tensor, temperature: float,
        support_MK: Tensor | None, cap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        chosen, lse, entropy = hidden_MD.new_empty((3, len(targets_M)), dtype=torch.float32)
        chunks = _chunks(len(targets_M), weight_VD)
        for part in chunks:
            logits = _logits(hidden_MD, weight_VD, bias_V, support_MK, cap, part)
            _fill(logits, targets_M[part], temperature, chosen[part], lse[part], entropy[part])
        ctx.logits = logits if len(chunks) == 1 else None  # kept if they are few
        ctx.save_for_backward(hidden_MD, weight_VD, bias_V, targets_M, lse, entropy, support_MK)
        ctx.temperature, ctx.cap = temperature, cap
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, grad_chosen_M: Tensor, grad_entropy_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, weight_VD, bias_V, targets_M, lse, entropy, support_MK = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden_MD)
        frozen = not ctx.needs_input_grad[1]
        grad_weight = None if frozen else torch.zeros_like(weight_VD, dtype=torch.float32)
        grad_bias = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        for part in _chunks(len(targets_M), weight_VD):
            logits = ctx.logits
            if logits is None:
                logits = _logits(hidden_MD, weight_VD, bias_V, support_MK, ctx.cap, part)
            state = targets_M[part], lse[part], entropy[part], grad_chosen_M[part], grad_entropy_M[part]
            grad = _gradient(logits, *state, ctx.temperature, hidden_MD.dtype)
            if ctx.cap is not None:
                grad = (grad * (1.0 - (logits / ctx.cap).square())).to(hidden_MD.dtype)
            torch.mm(grad, weight_VD, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, grad.T, hidden_MD[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        ctx.logits = None
        grad_bias = None if bias_V is None else grad_bias.to(bias_V.dtype)  # type: ignore[union-attr]
        grad_weight = None if grad_weight is None else grad_weight.to(weight_VD.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, support: Tensor | None, cap: float | None, part: slice
) -> Tensor:
    logits = head_logits(hidden[part], weight, bias, cap)
    return logits if support is None else restrict(logits, support[part])


def _fill(logits: Tensor, targets: Tensor, temperature: float, chosen: Tensor, lse: Tensor, entropy: Tensor) -> None:
    if k := kernels(logits):
        k.logprobs(logits, targets, temperature, chosen, lse, entropy)
        return
    logits = logits / temperature if temperature != 1.0 else logits
    lse.copy_(logits.logsumexp(-1))
    chosen.copy_(logits.gather(-1, targets[:, None])[:, 0]).sub_(lse)
    probs = (logits - lse[:, None]).exp_()
    entropy.copy_(lse).sub_(torch.linalg.vecdot(probs, logits))


def _gradient(
    logits: Tensor, targets: Tensor, lse: Tensor, entropy: Tensor, dchosen: Tensor, dentropy: Tensor,
    temperature: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The gradient of the logits, in the dtype of the products that follow."""
    if k := kernels(logits):
        grad = torch.empty_like(logits, dtype=dtype)
        k.logprobs_backward(logits, targets, lse, entropy, dchosen, dentropy, temperature, grad)
        return grad
    logp = (logits / temperature if temperature != 1.0 else logits) - lse[:, None]
    probs = logp.exp()
    grad = probs * -dchosen[:, None]
    if bool(dentropy.any()):
        grad -= probs * (logp + entropy[:, None]) * dentropy[:, None]
    grad.scatter_add_(-1, targets[:, None], dchosen[:, None])
    return (grad.div_(temperature) if temperature != 1.0 else grad).to(dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in float32."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    else:
        total += torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a @ b


def restrict(logits_MV: Tensor, support_MK: Tensor) -> Tensor:
    """The logits of the tokens in `support_MK`; the others get one so low that their probability is 0."""
    ids_MK = torch.where(support_MK < 0, support_MK[:, :1], support_MK)
    return torch.full_like(logits_MV, -1e4).scatter_(-1, ids_MK, logits_MV.gather(-1, ids_MK))


def _chunks(num_tokens: int, weight_VD: Tensor) -> list[slice]:
    size = max(1, (CHUNK_ON_GPU if weight_VD.is_cuda else CHUNK) // len(weight_VD))
    return [slice(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]
