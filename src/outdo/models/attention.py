"""One attention function for every decoder of transformers, in training and in decoding.

transformers calls it in place of its own (`attn_implementation="outdo"`) with the `layout` that was passed to the
model's forward: the object that decides which tokens see which. All tokens of a forward lie in one row of N, without
padding. A group's prompt is laid out once and seen by all of its answers, so G x (L + T) tokens become L + G x T.

Legend: P prompts of L tokens, B answers of T tokens, N tokens in all, H heads, K heads of keys and values, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from outdo.errors import ModelError
from outdo.models import ops

NAME = "outdo"
MAX_DENSE_KEYS = 256  # up to this many, a CPU computes all scores at once


@dataclass(frozen=True)
class AttentionSpec:
    """The attention of one layer."""

    heads: int
    scale: float
    window: int | None = None  # how many tokens a token sees, itself included
    softcap: float | None = None
    rope: tuple[Tensor, Tensor] | None = None  # cosines and signed sines [N, D], where the layout rotates q and k
    overlaps: bool = False  # the kernels before and after it are those of `kernels/few.py`


class Layout(Protocol):
    applies_rope: ClassVar[bool]  # it rotates queries and keys itself; else they come rotated

    @property
    def longest(self) -> int:
        """The most tokens that one query can see."""
        ...

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        """From queries, keys and values of the new tokens, side by side [N, H + K + K, D], to outputs [N, H, D]."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers calls this, with [1, H, N, D]."""
    if layout is None:
        raise ModelError(
            "this model is set up for outdo's own batches; before a plain call, model.set_attn_implementation('sdpa')"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window, softcap = kwargs.get("sliding_window"), kwargs.get("softcap")
    spec = AttentionSpec(query.shape[1], scale, window if window and window < layout.longest else None, softcap)
    qkv = torch.cat([query[0], key[0], value[0]]).transpose(0, 1)
    return layout.attend(module.layer_idx, qkv, spec)[None], None  # type: ignore[arg-type]


AttentionInterface.register(NAME, attention)


class SharedPrompts:
    """Training: the tokens of all prompts, then those of all answers. An answer sees its prompt and itself."""

    applies_rope: ClassVar[bool] = False

    def __init__(
        self, prompt_lens: Sequence[int], prompt_of: Sequence[int], answer_lens: Sequence[int], device: torch.device
    ) -> None:
        """Answer i has `answer_lens[i]` tokens and follows prompt `prompt_of[i]`; siblings are neighbours."""
        self.device, self.num_prompt_tokens = device, sum(prompt_lens)
        self.prompt_lens, self.prompt_of, self.answer_lens = list(prompt_lens), list(prompt_of), list(answer_lens)
        self.max_prompt, self.max_answer = max(prompt_lens, default=0), max(answer_lens, default=0)
        self.longest = self.max_prompt + self.max_answer
        self._padded: _Padded | None = None
        self._flash: _Spans | None = None

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        plain = spec.window is None and spec.softcap is None
        half = qkv_NHD.dtype in (torch.bfloat16, torch.float16) and qkv_NHD.shape[-1] <= 256
        if plain and half and ops.kernels(qkv_NHD, qkv_NHD.shape[-1]):
            self._flash = self._flash or _Spans(self)
            return _FlashShared.apply(qkv_NHD, spec, self._flash)
        self._padded = self._padded or _Padded(self)
        return self._padded.attend(qkv_NHD, spec)


class _Padded:
    """Prompts and answers in padded rectangles: fastest on a CPU, and possible on any device."""

    def __init__(self, of: SharedPrompts) -> None:
        self.of, device = of, of.device
        self.prompts = Rectangle(of.prompt_lens, 0, device)
        self.answers = Rectangle(of.answer_lens, of.num_prompt_tokens, device)
        self.prompt_of_B = torch.tensor(of.prompt_of, dtype=torch.long, device=device)
        # Where groups have one size (the common case), prompts are repeated by a view, whose backward is a plain sum.
        each = len(of.prompt_of) // max(len(of.prompt_lens), 1)
        self.each = each if [i // max(each, 1) for i in range(len(of.prompt_of))] == of.prompt_of else None
        self.biases: dict[int | None, tuple[Tensor, Tensor]] = {}

    def attend(self, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
        split = [spec.heads, kv_heads, kv_heads]
        bias_prompt, bias_answer = self._bias(spec.window)
        q_p, k_p, v_p = (x.transpose(1, 2) for x in self.prompts.fill(qkv_NHD).split(split, dim=2))
        out = self.prompts.empty(attend(q_p, k_p, v_p, spec, bias_prompt).transpose(1, 2))
        if not self.of.max_answer:
            return out
        q_a, k_a, v_a = (x.transpose(1, 2) for x in self.answers.fill(qkv_NHD).split(split, dim=2))
        k_all = torch.cat([self._repeat(k_p), k_a], dim=2)
        v_all = torch.cat([self._repeat(v_p), v_a], dim=2)
        out_answer = self.answers.empty(attend(q_a, k_all, v_all, spec, bias_answer).transpose(1, 2))
        return torch.cat([out, out_answer])

    def _bias(self, window: int | None) -> tuple[Tensor, Tensor]:
        """0 where a query sees a key and -inf elsewhere: for prompts [1, L, L], for answers [B or 1, T, L + T]."""
        if window not in self.biases:
            num_prompt, num_answer, device = self.of.max_prompt, self.of.max_answer, self.of.device
            lens_P = torch.tensor(self.of.prompt_lens, device=device)
            of_prompt = sees(torch.arange(num_prompt, device=device), torch.arange(num_prompt, device=device), window)
            ragged = window is not None or bool((lens_P < num_prompt).any())
            lens_B1 = lens_P[self.prompt_of_B][:, None] if ragged else lens_P[:1, None]
            at_BT = lens_B1 + torch.arange(num_answer, device=device)
            key_BL = torch.arange(num_prompt, device=device).expand(len(lens_B1), -1)
            on_prompt = sees(at_BT, key_BL, window) & (key_BL < lens_B1)[:, None]
            mask_BTN = torch.cat([on_prompt, sees(at_BT, at_BT, window)], dim=2)
            self.biases[window] = bias_of(of_prompt[None]), bias_of(mask_BTN)
        return self.biases[window]

    def _repeat(self, x_PKLD: Tensor) -> Tensor:
        if self.each is None:
            return x_PKLD[self.prompt_of_B]
        return x_PKLD[:, None].expand(-1, self.each, -1, -1, -1).flatten(0, 1)


def sees(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Which positions see which: itself and earlier ones, within the window."""
    back = query[..., :, None] - key[..., None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


def bias_of(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)


class Rectangle:
    """Ragged sequences, stored one after the other from `start` on, as rows of one length."""

    def __init__(self, lens: Sequence[int], start: int, device: torch.device) -> None:
        self.rows, self.width, self.start, self.end = len(lens), max(lens, default=0), start, start + sum(lens)
        self.index = self.inverse = None
        if sum(lens) < self.rows * self.width:
            lens_R = torch.tensor(lens)
            real = torch.arange(self.width) < lens_R[:, None]
            inverse = real.flatten().nonzero()[:, 0]
            index = torch.zeros(self.rows * self.width, dtype=torch.long)
            index[inverse] = torch.arange(len(inverse))
            self.index, self.inverse = index.to(device), inverse.to(device)

    def fill(self, x_NHD: Tensor) -> Tensor:
        """[N, H, D] to [rows, width, H, D]. The padding's content is ignored, because no real token sees it."""
        x = x_NHD[self.start : self.end]
        if self.index is not None:
            x = _Gather.apply(x, self.index, self.inverse)
        return x.unflatten(0, (self.rows, self.width))

    def empty(self, x_RWHD: Tensor) -> Tensor:
        """Back to the ragged tokens."""
        x = x_RWHD.flatten(0, 1)
        return x if self.index is None else _Pick.apply(x, self.inverse)


class _Gather(torch.autograd.Function):
    """x[index], where padding repeats a token and gets no gradient; the backward is a gather too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Pick(torch.autograd.Function):
    """x[index] with no index twice, so that the backward writes each place once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.new_zeros(ctx.shape).index_copy_(0, ctx.saved_tensors[0], grad), None


def attend(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: Tensor | None, dense: bool = False) -> Tensor:
    """Attention of [X, H, N, D] over [X, K, M, D]; `bias` [X or 1, N, M] is added to the scores. `dense` computes all
    scores at once, whatever the device: cuDNN spends 70 ms on every new shape."""
    (rows, heads, n, size), (kv_heads, m) = q.shape, k.shape[1:3]
    rep, on_cpu = heads // kv_heads, q.device.type == "cpu"
    if spec.softcap is None and not dense and not (on_cpu and (n == 1 or m <= MAX_DENSE_KEYS)):
        mask = None if bias is None else bias.to(q.dtype)[:, None]
        if not on_cpu:  # the GPU's kernels for shared keys take no mask
            k, v = (x.repeat_interleave(rep, dim=1) if rep > 1 else x for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=on_cpu and rep > 1)
    # All scores at once: twice as fast as the CPU's flash kernel for short texts, forward and backward, and a little
    # faster for one token after many. Heads that share keys are rows of one product.
    q, k, v = q.reshape(rows * kv_heads, rep * n, size), k.flatten(0, 1), v.flatten(0, 1)
    if bias is not None:
        bias = bias.to(q.dtype)[:, None, None].expand(rows, kv_heads, rep, n, m).reshape(-1, rep * n, m)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(q @ k.transpose(1, 2) * (spec.scale / spec.softcap))
        scores = scores if bias is None else scores + bias
    elif bias is None:
        scores = (q * spec.scale) @ k.transpose(1, 2)
    else:
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=spec.scale)
    return (scores.softmax(-1) @ v).view(rows, heads, n, size)


class _Spans:
    """Offsets of the sequences, in the flash kernels' format."""

    def __init__(self, of: SharedPrompts) -> None:
        self.split = of.num_prompt_tokens
        self.max_prompt, self.max_answer = of.max_prompt, of.max_answer
        after = [0] * len(of.prompt_lens)  # answer tokens that follow each prompt
        for prompt, length in zip(of.prompt_of, of.answer_lens, strict=True):
            after[prompt] += length
        self.max_after = max(after, default=0)
        self.prompts, self.answers, self.after = (
            ops.sent(np.array([0, *accumulate(lens)], np.int32), of.device)
            for lens in (of.prompt_lens, of.answer_lens, after)
        )


class _FlashShared(torch.autograd.Function):
    """Answers attend to their prompt and to themselves in two flash calls, merged by their log-sum-exps.

    The backward of each call, given the merged output and log-sum-exp, is exactly its part of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, qkv_NHD: Tensor, spec: AttentionSpec, spans: _Spans) -> Tensor:
        kv_heads = (qkv_NHD.shape[1] - spec.heads) // 2
        q, k, v = qkv_NHD.split([spec.heads, kv_heads, kv_heads], dim=1)
        s, p = spans, spans.split
        at_p = (s.prompts, s.prompts, s.max_prompt, s.max_prompt, True)
        out_p, lse_p, *rng = _flash(q[:p], k[:p], v[:p], *at_p, spec.scale)
        out, lse_a = out_p, lse_p[:, :0]
        if s.max_answer:
            own, lse_own, *_ = _flash(
                q[p:], k[p:], v[p:], s.answers, s.answers, s.max_answer, s.max_answer, True, spec.scale
            )
            back, lse_back, *_ = _flash(
                q[p:], k[:p], v[:p], s.after, s.prompts, s.max_after, s.max_prompt, False, spec.scale
            )
            kernels = ops.kernels(qkv_NHD)
            assert kernels
            out_a, lse_a = kernels.merge(own, lse_own, back, lse_back)
            out = torch.cat([out_p, out_a])
        ctx.save_for_backward(qkv_NHD, out, lse_p, lse_a, *rng)
        ctx.spec, ctx.spans = spec, spans
        return out

    @staticmethod
    def backward(ctx: Any, grad_NHD: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, lse_p, lse_a, *rng = ctx.saved_tensors
        s, p, scale = ctx.spans, ctx.spans.split, ctx.spec.scale
        kv_heads = (qkv.shape[1] - ctx.spec.heads) // 2
        q, k, v = qkv.split([ctx.spec.heads, kv_heads, kv_heads], dim=1)
        grad = grad_NHD.contiguous()
        dq, dk, dv = _flash_backward(
            grad[:p], q[:p], k[:p], v[:p], out[:p], lse_p,
            s.prompts, s.prompts, s.max_prompt, s.max_prompt, True, rng, scale,
        )  # fmt: skip
        if not s.max_answer:
            return torch.cat([dq, dk, dv], dim=1), None, None
        dq1, dk1, dv1 = _flash_backward(
            grad[p:], q[p:], k[p:], v[p:], out[p:], lse_a,
            s.answers, s.answers, s.max_answer, s.max_answer, True, rng, scale,
        )  # fmt: skip
        dq2, dk2, dv2 = _flash_backward(
            grad[p:], q[p:], k[:p], v[:p], out[p:], lse_a,
            s.after, s.prompts, s.max_after, s.max_prompt, False, rng, scale,
        )  # fmt: skip
        dqkv = torch.empty_like(qkv)
        heads = ctx.spec.heads
        dqkv[:p, :heads], dqkv[p:, :heads] = dq, dq1.add_(dq2)
        dqkv[:p, heads : heads + kv_heads], dqkv[p:, heads : heads + kv_heads] = dk.add_(dk2), dk1
        dqkv[:p, heads + kv_heads :], dqkv[p:, heads + kv_heads :] = dv.add_(dv2), dv1
        return dqkv, None, None


def _flash(
    q: Tensor, k: Tensor, v: Tensor, spans_q: Tensor, spans_k: Tensor, max_q: int, max_k: int, causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Output [N, H, D], log-sum-exp [H, N], and two tensors that the backward needs."""
    return torch.ops.aten._flash_attention_forward(
        q, k, v, spans_q, spans_k, max_q, max_k, 0.0, causal, False, scale=scale
    )[:4]


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans_q: Tensor, spans_k: Tensor,
    max_q: int, max_k: int, causal: bool, rng: Sequence[Tensor], scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, spans_q, spans_k, max_q, max_k, 0.0, causal, *rng, scale=scale
    )
