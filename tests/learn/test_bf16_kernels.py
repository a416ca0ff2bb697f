"""The kernels of training with bfloat16 state: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and Triton's interpreter is not on: TRITON_INTERPRET=1", allow_module_level=True)

from outdo.learn.bf16 import adamw  # noqa: E402
from outdo.models import kernels  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
VALUES = [1.0 + 2**-10, -3.0 - 2**-9, 1e-30, 0.0, 2.5]


def test_rounding() -> None:
    x = torch.tensor(VALUES, device=DEVICE).repeat(4001, 1)
    found = [torch.empty_like(x, dtype=torch.bfloat16) for _ in range(3)]
    for target, seed in zip(found, (2**61 + 5, 2**61 + 5, 7), strict=True):
        kernels.store_rounded(target, x, seed)
    one, same, other = found
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(one[:, 3:].float(), x[:, 3:]), "what bfloat16 has is kept"
    assert set(one[:, 0].tolist()) == {1.0, 1.0078125} and set(one[:, 1].tolist()) == {-3.0, -3.015625}
    means, steps = one.double().mean(0), torch.tensor([2**-7, 2**-6, 1e-32, 1.0, 1.0], device=DEVICE)
    assert ((means - x[0].double()).abs() < 5 * steps / len(x) ** 0.5).all()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_adamw(kind: torch.dtype) -> None:
    """The same weights as in plain torch, and moments that are a rounding apart: on average the same."""
    torch.manual_seed(0)
    numbers = {"rate": 1e-3, "decay": 0.999, "betas": (0.9, 0.95), "eps": 1e-8, "step": 3}
    weight, grad = torch.randn(2, 5001, device=DEVICE)
    grad = grad.to(kind)
    mean, square = torch.randn(2, 5001, device=DEVICE).to(torch.bfloat16)
    square.abs_()
    ours = [t.clone() for t in (weight, grad, mean, square)]
    theirs = weight, grad, mean, square
    kernels.adamw_bf16(*ours, **numbers, seed=11)  # type: ignore[arg-type]
    adamw(theirs, torch.Generator(DEVICE).manual_seed(1), **numbers)  # type: ignore[arg-type]
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-6, rtol=1e-5)
    for mine, other in zip(ours[2:], theirs[2:], strict=True):
        wide, wide_other = mine.float(), other.float()
        assert ((wide - wide_other).abs() <= 2**-7 * wide_other.abs() + 1e-30).all()
        error = (wide - wide_other) / wide_other.abs().clamp(min=1e-20)
        assert abs(float(error.mean())) < 5 * 2**-8 / 5001**0.5
