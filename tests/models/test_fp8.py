"""Sampling with products in 8 bits: the rounding, and a model's hidden states beside those of its own weights."""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from outdo.errors import ModelError
from outdo.models import fp8
from outdo.models.attention import SharedPrompts
from outdo.models.load import Policy
from outdo.models.stack import Layer
from outdo.rollout.local import LocalEngine
from outdo.types import Request, SampleParams


def test_round_rows() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 64) * torch.tensor([1e-3, 1.0, 50.0, 1e4, 0.0])[:, None]
    values, scale = fp8.round_rows(x)
    assert values.dtype == torch.float8_e4m3fn and float(values.float().abs().max()) == 448
    assert_close(scale[:4], x[:4].abs().amax(1) / 448)
    error = (values.float() * scale[:, None] - x).abs()
    assert bool((error <= x.abs() / 16 + scale[:, None] * 2**-9).all())  # 3 bits of mantissa; below, steps of 2^-9
    assert not values[4].float().any() and bool(scale[4] > 0)


def test_product() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(7, 256), torch.randn(48, 256)
    exact, rounded = x @ w.T, fp8.product(fp8.round_rows(x), *fp8.round_rows(w), torch.float32)
    assert 0.01 < float((rounded - exact).norm() / exact.norm()) < 0.06
    parts = fp8.product_parts(fp8.round_rows(x), *fp8.round_rows(w), torch.float32)
    assert_close(parts.sum(0), rounded)


def test_hidden(policy: Policy) -> None:
    """Near that of the exact weights, and not equal to it."""
    stack = policy.stack
    assert stack
    layers = stack.rounded()
    assert {name for name in Layer._fields if getattr(layers[0], name) is not None} <= set(layers[0]._fields)
    ids, at = torch.arange(12) % 9 + 1, torch.cat([torch.arange(6), torch.arange(6, 9), torch.arange(6, 9)])
    layout = SharedPrompts([6], [0, 0], [3, 3], torch.device("cpu"))
    with torch.no_grad():
        exact, rounded = (stack.hidden(ids, at, layout, each) for each in (stack.fused(), layers))
    difference = float((rounded - exact).norm() / exact.norm())
    assert 1e-3 < difference < 0.2, difference


def test_engine(policy: Policy) -> None:
    """It samples by its own rounded weights, which it rounds again when the learner's have changed."""
    policy = replace(policy, model=deepcopy(policy.model))
    engine = LocalEngine(policy, rounds=True)
    request = Request("a", tuple(range(1, 7)), (3, 4), SampleParams(5), 5)
    (generation,) = engine.generate([request])
    assert policy.stack
    for segment in generation.segments:
        ids = torch.tensor([*request.prompt_ids, *segment.token_ids])
        layout = SharedPrompts([len(ids)], [], [], policy.device)
        with torch.no_grad():
            hidden = policy.stack.hidden(ids, torch.arange(len(ids)), layout, policy.stack.rounded())
            logprobs = policy.logits(hidden[5:-1]).log_softmax(-1).gather(1, ids[6:, None])[:, 0]
        assert_close(torch.tensor(segment.logprobs), logprobs, atol=0.05, rtol=0.05)
    before = engine.layers
    with torch.no_grad():
        policy.model.get_submodule("model.layers.0.mlp.down_proj").weight.mul_(2)
    engine.update(lambda: iter(()), 1)
    list(engine.generate([request]))
    assert before and engine.layers
    assert_close(engine.layers[0].down_scale, 2 * before[0].down_scale)
    with pytest.raises(ModelError):
        LocalEngine(replace(policy, written_out=False), rounds=True)


@pytest.mark.parametrize("width", [32, 48, 576])
@pytest.mark.parametrize("num_parts", [0, 1, 2])
def test_rounding_kernels(monkeypatch: pytest.MonkeyPatch, width: int, num_parts: int) -> None:
    kernels = pytest.importorskip("outdo.models.kernels")
    device = _kernel_device()
    monkeypatch.setattr(fp8.ops, "kernels", lambda *args: None)
    torch.manual_seed(0)
    x, weight = torch.randn(7, width, device=device), torch.randn(width, device=device)
    parts = torch.randn(num_parts, 7, width, device=device) if num_parts else None
    for rounds in (False, True):
        total, y, scale = kernels.fp8.add_norm(x, parts, weight, 1e-5, rounds)
        expected, norm = fp8.add_norm(x, parts, weight, 1e-5)
        assert_close(total, expected)
        if rounds:
            _near(fp8.Rounded(y, scale), fp8.round_rows(norm))
        else:
            assert_close(y, norm)
    gate_up = torch.randn(7, 2 * width, device=device)
    _near(fp8.Rounded(*kernels.fp8.swiglu(gate_up)), fp8.swiglu(gate_up))


@pytest.mark.parametrize(("rows", "width"), [(5, 256), (130, 384), (70, 144)])
def test_split_product(monkeypatch: pytest.MonkeyPatch, rows: int, width: int) -> None:
    kernels = pytest.importorskip("outdo.models.kernels")
    device = _kernel_device()
    torch.manual_seed(0)
    x, w = fp8.round_rows(torch.randn(rows, width)), fp8.round_rows(torch.randn(200, width))
    expected = (x.values_ND.float() * x.scale_N[:, None]) @ (w.values_ND.float() * w.scale_N[:, None]).T
    args = [t.to(device) for t in (*x, *w)]
    parts = kernels.fp8.split_product(*args)
    assert parts.shape == (2, rows, 200)
    assert_close(parts.sum(0).cpu(), expected, atol=2e-2, rtol=2e-3)


def _near(ours: fp8.Rounded, theirs: fp8.Rounded) -> None:
    """Equal but for values that lie between two numbers of 8 bits."""
    assert_close(ours.scale_N, theirs.scale_N)
    a, b = (each.values_ND.float() for each in (ours, theirs))
    if not a.is_cuda:  # Triton's interpreter rounds up to a power of two wrongly: it returns half of that
        a = torch.where(a.abs() * 2 == b.abs(), b, a)
    assert float((a != b).float().mean()) < 0.02
    assert bool(((a - b).abs() <= b.abs() / 8 + 2**-9).all())


def _kernel_device() -> str:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1" or torch.cuda.is_available():
        pytest.skip("no GPU from Hopper on, and Triton's interpreter is not on: TRITON_INTERPRET=1")
    return "cpu"
