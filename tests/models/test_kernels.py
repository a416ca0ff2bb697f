"""The kernels against the plain forms: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and Triton's interpreter is not on: TRITON_INTERPRET=1", allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from outdo.learn import logprobs  # noqa: E402
from outdo.models import attention, cache, kernels, ops  # noqa: E402
from outdo.models.load import Policy  # noqa: E402
from outdo.models.stack import find_stack  # noqa: E402
from outdo.rollout.decode import DecodeState  # noqa: E402
from outdo.rollout.sampling import SPLITMIX, Picked, pick, uniforms  # noqa: E402
from outdo.types import SampleParams  # noqa: E402
from support.samplers import ending_with  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called outside of `kernels` runs without them."""
    for module in (ops, cache, logprobs):
        monkeypatch.setattr(module, "kernels", lambda *args: None)
    for name in ("sampling", "decode"):
        monkeypatch.setattr(f"outdo.rollout.{name}.kernels", lambda *args: None)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("width", [32, 48, 576])
@pytest.mark.parametrize("adds", [True, False])
def test_add_norm(plain: None, width: int, adds: bool) -> None:
    x, delta, weight = random(7, width), random(7, width) if adds else None, random(width)
    ours, theirs = kernels.add_norm(x, delta, weight, 1e-5), ops.add_norm(x, delta, weight, 1e-5)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)
    dy, dsum = random(7, width), random(7, width)
    args = (dy, dsum, ours[0], ours[2], weight, torch.float32 if adds else None)
    for a, b in zip(kernels.norm_backward(*args), ops.norm_backward(*args), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_add_norm_residual_dtype(plain: None) -> None:
    x, delta, weight = random(5, 64), random(5, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16)
    total, y, rstd = kernels.add_norm(x, delta, weight, 1e-5)
    assert total.dtype == torch.float32 and y.dtype == torch.bfloat16
    assert_close(total, x + delta.float())
    dx, dlow, dw, again = kernels.norm_backward(y, None, total, rstd, weight, torch.bfloat16)
    assert dx.dtype == torch.float32 and dlow is not None and dlow.dtype == torch.bfloat16 == dw.dtype
    assert_close(dlow, dx.bfloat16())
    assert_close(again, y)


def test_rotate(plain: None) -> None:
    x, angle = random(6, 5, 32), random(6, 16)
    cos, sin = torch.cat([angle.cos()] * 2, dim=-1), torch.cat([-angle.sin(), angle.sin()], dim=-1)
    rotated = kernels.rotate(x, cos, sin, 4)
    assert_close(rotated, ops.rotate(x, cos, sin, 4))
    assert torch.equal(rotated[:, 4:], x[:, 4:])
    assert_close(kernels.rotate(rotated, cos, sin, 4, sign=-1.0), x)


def test_swiglu(plain: None) -> None:
    x, dy = random(9, 2 * 344), random(9, 344)
    assert_close(kernels.swiglu(x), ops.swiglu(x))
    for a, b in zip(kernels.swiglu_backward(dy, x), ops.swiglu_backward(dy, x), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("with_rope", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 4, 32), (6, 2, 64), (9, 3, 16)])
def test_paged_attention(plain: None, heads: int, kv_heads: int, size: int, with_rope: bool, splits: int) -> None:
    prompt = torch.tensor([0, 1, 63, 64, 65, 130], dtype=torch.int32, device=DEVICE)
    own = torch.tensor([0, 70, 0, 63, 64, 5], dtype=torch.int32, device=DEVICE)
    pages = random(40, 2, kv_heads, cache.PAGE, size)
    table = (torch.randperm(39, device=DEVICE)[:36] + 1).view(6, 6).int()
    qkv = random(6, heads + 2 * kv_heads, size)
    ours, theirs = pages.clone(), pages.clone()
    idle = torch.tensor([False, False, False, False, False, True], device=DEVICE)
    rope = (random(6, size), random(6, size)) if with_rope else None
    arrived = torch.zeros(6, kv_heads, dtype=torch.int32, device=DEVICE)
    out = kernels.paged_attention(qkv, ours, table, prompt, own, idle, arrived, heads, 0.3, rope, splits)
    rotated = qkv if rope is None else ops.rotate(qkv, *rope, heads + kv_heads)
    expected = cache.paged_attention(rotated, theirs, table, prompt, own, heads, 0.3)
    assert_close(out[:5], expected[:5], atol=1e-5, rtol=1e-4)  # what an idle row makes is of no account
    assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert not torch.equal(ours, pages) and not arrived.any()


@pytest.mark.parametrize("rows", [6, 40])
def test_paged_attention_overlapping(plain: None, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for few rows, whose first keys are loaded before the new token is there."""
    if not CUDA:  # the interpreter runs one program after the other: there is nothing to wait for
        monkeypatch.setattr(kernels.attention, "start_next", _nothing)
        monkeypatch.setattr(kernels.attention, "wait", _nothing)
        monkeypatch.setattr(kernels.attention, "launch", lambda overlaps: {})
    elif torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels overlap on a GPU from Hopper on")
    _check_attention_of(rows, overlaps=True)


@pytest.mark.skipif(not CUDA, reason="so many rows take a GPU")
@pytest.mark.parametrize("rows", [200, 300, 400, 1000])
def test_paged_attention_many_rows(plain: None, rows: int) -> None:
    """Every shape of the kernel that the number of rows decides on."""
    _check_attention_of(rows, overlaps=False)


def _check_attention_of(rows: int, overlaps: bool) -> None:
    row = torch.arange(rows, device=DEVICE)
    prompt, own = (row * 131 % 700).int(), (row * 87 % 250).int()  # some with more keys than are loaded before the wait
    pages, table = random(16 * rows + 1, 2, 3, cache.PAGE, 32), (torch.randperm(16 * rows, device=DEVICE) + 1).int()
    qkv, idle, rope = random(rows, 15, 32), row % 7 == 6, (random(rows, 32), random(rows, 32))
    ours, theirs, arrived = pages.clone(), pages.clone(), torch.zeros(rows, 3, dtype=torch.int32, device=DEVICE)
    state = table.view(rows, 16), prompt, own
    out = kernels.paged_attention(qkv, ours, *state, idle, arrived, 9, 0.3, rope, overlaps=overlaps)
    expected = cache.paged_attention(ops.rotate(qkv, *rope, 12), theirs, *state, 9, 0.3)
    assert_close(out[~idle], expected[~idle], atol=1e-5, rtol=1e-4)
    assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert not arrived.any()


@triton.jit
def _nothing(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("biased", [False, True])
def test_few_products(plain: None, rows: int, biased: bool) -> None:
    x, norm, w = random(rows, 192), random(192), random(80, 192) / 10
    bias = random(80) if biased else None
    _, y, _ = ops.add_norm(x, None, norm, 1e-5)
    assert_close(kernels.few.norm_product(x, norm, 1e-5, w, bias), F.linear(y, w, bias), atol=1e-4, rtol=1e-4)
    gate = random(2 * 96, 192) / 10
    assert_close(
        kernels.few.norm_product(x, norm, 1e-5, gate, gate=True), ops.swiglu(F.linear(y, gate)), atol=1e-4, rtol=1e-4
    )
    z, down, before = random(rows, 320), random(192, 320) / 10, x.clone()
    kernels.few.add_product(x, z, down)
    assert_close(x, before + F.linear(z, down), atol=1e-4, rtol=1e-4)


def test_few_supports() -> None:
    def serves(rows: int, width: int, inner: int, heads: int = 576, dtype: torch.dtype = torch.bfloat16) -> bool:
        weights = (torch.empty(1, n, dtype=dtype, device=DEVICE) for n in (width, heads, inner))
        return kernels.few.supports(rows, *weights)

    modern = CUDA and torch.cuda.get_device_capability() >= (9, 0)
    assert serves(64, 576, 1536) is modern and serves(1, 128, 256) is modern
    assert not serves(65, 576, 1536)
    assert not serves(8, 896, 4864) and not serves(8, 576, 4864)  # a program could not hold them
    assert not serves(8, 128, 344)  # not of whole pieces
    assert not serves(8, 576, 1536, heads=4096)
    assert not serves(8, 576, 1536, dtype=torch.float32)


@pytest.mark.skipif(
    not CUDA or torch.cuda.get_device_capability() < (9, 0), reason="kernels overlap on a GPU from Hopper on"
)
@pytest.mark.parametrize("rows", [3, 16, 30, 40, 64])
def test_few_equals_many(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step by both paths: the same hidden states and the same keys; and the same each time that it is replayed."""
    config = LlamaConfig(
        vocab_size=300, hidden_size=576, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=1024,
    )  # fmt: skip
    stack = find_stack(LlamaForCausalLM(config).to(DEVICE, torch.bfloat16))
    assert stack
    with torch.no_grad():
        layers = stack.fused()
        paged = cache.PagedCache(rows, 512, torch.device(DEVICE), 8 * rows + 1)
        lengths = [(37 * row) % 200 + 1 for row in range(rows)]
        for row, length in enumerate(lengths):
            paged.place(length, [row])
        paged.grow(range(rows), 200)
        paged.upload()
        ids = torch.randint(300, (sum(lengths),), device=DEVICE)
        at = torch.cat([torch.arange(length) for length in lengths]).to(DEVICE)
        stack.hidden(ids, at, paged.reading([(length, [row]) for row, length in enumerate(lengths)]), layers)
        paged.own_B[:] = torch.arange(rows, device=DEVICE) % 90  # of which the keys are zero, as they were made
        paged.idle_B.fill_(False)
        paged.begin(rows)
        before, tokens = [page.clone() for page in paged.pages], torch.randint(300, (rows,), device=DEVICE)

        def step() -> tuple[Tensor, list[Tensor]]:
            for page, was in zip(paged.pages, before, strict=True):
                page.copy_(was)
            hidden = stack.hidden(tokens, paged.prompt_B + paged.own_B, paged, layers)
            return hidden, [page.clone() for page in paged.pages]

        few, few_pages = step()
        graph = torch.cuda.CUDAGraph()  # as the sampler runs it: kernel upon kernel, with no time between them
        with torch.cuda.graph(graph):
            step()
            captured = step()
        for _ in range(50):
            graph.replay()
            assert torch.equal(captured[0], few) and all(map(torch.equal, captured[1], few_pages))
        monkeypatch.setattr(kernels.few, "MAX_ROWS", 0)
        many, many_pages = step()
    assert_close(few, many, atol=5e-2, rtol=2e-2)
    assert not torch.equal(few_pages[-1], before[-1])
    for a, b in zip(few_pages, many_pages, strict=True):
        assert_close(a, b, atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize("vocabulary", [50, 4096, 9000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draw(plain: None, vocabulary: int, temperature: float) -> None:
    logits = random(64, vocabulary) * 3
    logits[:, 7] = -torch.inf
    seeds, at = torch.arange(64, device=DEVICE) * 2**40 - 5, torch.arange(64, device=DEVICE) % 7
    noise = uniforms(seeds, at)
    tokens, found = kernels.draw(logits, seeds, at, temperature, SPLITMIX)
    expected = pick(logits, noise, SampleParams(1, temperature))
    same = tokens == expected.tokens_B
    assert same.float().mean() > 0.95  # a draw may fall on the border of two tokens, which rounding moves
    assert_close(found[same], expected.logprobs_B[same])
    assert not (tokens == 7).any()


def test_advance(plain: None, policy: Policy) -> None:
    """Rows that go on, end by a token, end by length, and stand idle: the same in both."""
    both = []
    for with_kernels in (True, False):
        slots = cache.SlotCache(5, 20, torch.device(DEVICE))
        state = DecodeState(ending_with(replace(policy, device=torch.device(DEVICE)), 4, 9), slots, 5, SampleParams(6))
        state.begin([0, 1, 2, 3], [7, 7, 7, 7], [1, 2, 3, 4], [3, 1, 0, 2])
        slots.own_B[:] = torch.tensor([2, 0, 5, 1, 3])
        torch.manual_seed(0)
        picked = Picked(torch.tensor([8, 9, 8, 4, 4], device=DEVICE), random(5))
        rows = state.token_B, slots.own_B, slots.idle_B, state.ended_B, state.answer_B
        if with_kernels:
            kernels.advance(*picked[:2], *rows, state.tokens_AT, state.logprobs_AT, state.lengths_A, state.eos)
        else:
            state.advance(picked)
        both.append([*rows, state.tokens_AT[:5], state.lengths_A[:5], state.logprobs_AT[:5]])
    for a, b in zip(*both, strict=True):
        assert torch.equal(a, b)
    assert both[0][3].tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_logprobs(plain: None, temperature: float) -> None:
    logits, targets = random(11, 3000) * 4, torch.arange(11, device=DEVICE) * 200
    ours, theirs = torch.empty(3, 11, device=DEVICE), torch.empty(3, 11, device=DEVICE)
    kernels.logprobs(logits, targets, temperature, *ours)
    logprobs._fill(logits, targets, temperature, *theirs)
    assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
    dchosen, dentropy = random(11), random(11)
    grad = torch.empty_like(logits)
    kernels.logprobs_backward(logits, targets, ours[1], ours[2], dchosen, dentropy, temperature, grad)
    state = (targets, theirs[1], theirs[2], dchosen, dentropy)
    assert_close(grad, logprobs._gradient(logits, *state, temperature, torch.float32), atol=1e-5, rtol=1e-4)


def test_merge(plain: None) -> None:
    q, k, v = random(1, 3, 5, 16), random(1, 3, 12, 16), random(1, 3, 12, 16)

    def over(part: slice) -> tuple[Tensor, Tensor]:
        scores = q @ k[:, :, part].transpose(2, 3)
        return (scores.softmax(-1) @ v[:, :, part])[0].transpose(0, 1).contiguous(), scores.logsumexp(-1)[0]

    out, lse = kernels.merge(*over(slice(0, 4)), *over(slice(4, 12)))
    expected, expected_lse = over(slice(0, 12))
    assert_close(out, expected)
    assert_close(lse, expected_lse)


@pytest.mark.skipif(not CUDA, reason="flash attention needs a GPU")
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4)])
def test_flash_shared_prompts(heads: int, kv_heads: int) -> None:
    prompts, prompt_of, answers = [5, 130, 1], [0, 0, 1, 1, 1, 2], [7, 0, 64, 33, 1, 9]
    layout = attention.SharedPrompts(prompts, prompt_of, answers, torch.device(DEVICE))
    n = sum(prompts) + sum(answers)
    leaf = random(n, heads + 2 * kv_heads, 64, dtype=torch.bfloat16).requires_grad_(True)
    wide = leaf.detach().float().requires_grad_(True)
    spec = attention.AttentionSpec(heads, 0.125)
    out, expected = layout.attend(0, leaf, spec), layout.attend(0, wide, spec)
    assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)
    weight = random(*out.shape)
    (out.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    assert leaf.grad is not None and wide.grad is not None
    gap = (leaf.grad.float() - wide.grad).norm() / wide.grad.norm()
    assert gap < 1e-2
