"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of a whole batch.

The head runs over chunks of tokens; the backward computes each chunk's logits once more instead of keeping them.
Products are in the weights' type, sums in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 2**22  # logits held at once: 16 MiB in float32


def token_logprobs(hidden_MD: Tensor, head: nn.Linear, targets_M: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of p, for p = softmax(head(hidden) / temperature); both differentiable, float32."""
    return _TokenLogprobs.apply(hidden_MD, head.weight, head.bias, targets_M, temperature)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden_MD, weight_VD, bias_V, targets_M)
        ctx.temperature = temperature
        chosen = hidden_MD.new_empty(len(targets_M), dtype=torch.float32)
        entropy = torch.empty_like(chosen)
        for part in _chunks(len(targets_M), len(weight_VD)):
            logprobs = _logprobs(hidden_MD[part], weight_VD, bias_V, temperature)
            chosen[part] = logprobs.gather(-1, targets_M[part, None])[:, 0]
            entropy[part] = -(logprobs.exp() * logprobs).sum(-1)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, grad_chosen_M: Tensor, grad_entropy_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, weight_VD, bias_V, targets_M = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden_MD)
        grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32)
        grad_bias = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        for part in _chunks(len(targets_M), len(weight_VD)):
            logprobs = _logprobs(hidden_MD[part], weight_VD, bias_V, ctx.temperature)
            probs = logprobs.exp()
            grad = -probs * grad_chosen_M[part, None]
            if bool(grad_entropy_M.any()):
                entropy = -(probs * logprobs).sum(-1, keepdim=True)
                grad -= probs * (logprobs + entropy) * grad_entropy_M[part, None]
            grad.scatter_add_(-1, targets_M[part, None], grad_chosen_M[part, None])
            grad = (grad / ctx.temperature).to(hidden_MD.dtype)
            grad_hidden[part] = grad @ weight_VD
            grad_weight += grad.T @ hidden_MD[part]
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        grad_bias = None if bias_V is None else grad_bias.to(bias_V.dtype)  # type: ignore[union-attr]
        return grad_hidden, grad_weight.to(weight_VD.dtype), grad_bias, None, None


def _logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return (torch.nn.functional.linear(hidden, weight, bias).float() / temperature).log_softmax(-1)


def _chunks(num_tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK // vocabulary)
    return [slice(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]
