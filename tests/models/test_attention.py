"""Attention on the CPU, whichever way it takes, beside scores written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from outdo.models.attention import MAX_DENSE_KEYS, AttentionSpec, attend


def by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, bias: Tensor | None) -> Tensor:
    rep = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
    scores = scale * torch.einsum("xhnd,xhmd->xhnm", q, k)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    return (scores if bias is None else scores + bias[:, None]).softmax(-1) @ v


def with_gradients(function: Callable[..., Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in leaves]
    result = function(*inputs)
    return [result, *torch.autograd.grad((result * torch.arange(8.0)).sum(), inputs)]


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("keys", [MAX_DENSE_KEYS - 1, MAX_DENSE_KEYS + 1])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_attend_paths_agree(
    heads: int, kv_heads: int, queries: int, keys: int, biased: bool, softcap: float | None
) -> None:
    torch.manual_seed(heads * keys + queries)
    cache = torch.randn(2, 3, kv_heads, keys + 9, 8)  # attended to in part, as a preallocated one is
    leaves = [torch.randn(3, heads, queries, 8), *cache[:, :, :, :keys]]
    hidden = torch.rand(3, queries, keys) < 0.5
    hidden[..., 0] = False
    bias = torch.zeros(3, queries, keys).masked_fill(hidden, -math.inf) if biased else None
    spec = AttentionSpec(heads, 0.3, softcap=softcap)
    found = with_gradients(lambda q, k, v: attend(q, k, v, spec, bias), leaves)
    expected = with_gradients(lambda q, k, v: by_hand(q, k, v, 0.3, softcap, bias), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
