"""One attention function for every decoder of transformers, in training and in decoding.

transformers calls it in place of its own (`attn_implementation="outdo"`) and hands it the `layout` that was passed to
the model's forward: the object that knows which tokens see which. A group's prompt is laid out once and seen by all
of its answers, so G x (L + T) tokens become L + G x T.

Legend: P prompts of L tokens (right-padded), B answers of T tokens (right-padded), H heads, K heads of keys and
values, D head size. Not covered: sliding windows shorter than the text, soft-capped scores (refused below).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from outdo.errors import ModelError

NAME = "outdo"
SHORT = 256  # keys up to which a CPU attends plainly


class Layout(Protocol):
    longest: int  # tokens that one query may look back on

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Queries [*, H, N, D], keys and values [*, K, N, D] of the new tokens, to outputs [*, H, N, D]."""
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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layout is None:
        raise ModelError(
            "this model is set up for outdo's own batches; for plain calls, first model.set_attn_implementation('sdpa')"
        )
    window = kwargs.get("sliding_window")
    if kwargs.get("softcap") is not None or (window is not None and window < layout.longest):
        raise ModelError(
            f"{type(module).__name__} wants attention that outdo does not have yet (soft-capped scores, or a sliding "
            f"window of {window} tokens over a text of {layout.longest}): shorten the text or choose another model"
        )
    return layout.attend(module.layer_idx, query, key, value, scale).transpose(1, 2), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, attention)


class SharedPrompts:
    """Training: all prompts, then all answers, flattened into one row of P x L + B x T tokens."""

    def __init__(self, prompt_lens_P: Tensor, prompt_of_B: Tensor, num_prompt: int, num_answer: int) -> None:
        self.prompt_of_B, self.num_prompt, self.num_answer = prompt_of_B, num_prompt, num_answer
        self.num_prompts, self.num_answers = len(prompt_lens_P), len(prompt_of_B)
        self.longest = num_prompt + num_answer
        each = self.num_answers // max(self.num_prompts, 1)
        whole = torch.arange(self.num_prompts, device=prompt_of_B.device).repeat_interleave(each)
        # Groups of one size (the common case) are repeated by a view, whose backward is a plain sum.
        self.each = each if torch.equal(whole, prompt_of_B) else None
        device = prompt_lens_P.device
        own_TT = torch.ones(num_answer, num_answer, dtype=torch.bool, device=device).tril()
        seen_PL = torch.arange(num_prompt, device=device) < prompt_lens_P[:, None]
        if bool(seen_PL.all()):
            mask_BTN = torch.cat([own_TT.new_ones(num_answer, num_prompt), own_TT], dim=1)[None]
        else:
            seen_BTL = seen_PL[prompt_of_B][:, None].expand(-1, num_answer, -1)
            mask_BTN = torch.cat([seen_BTL, own_TT.expand(self.num_answers, -1, -1)], dim=2)
        self.bias = torch.zeros(mask_BTN.shape, device=device).masked_fill_(~mask_BTN, -math.inf)[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q_prompt, q_answer = self._split(q)
        k_prompt, k_answer = self._split(k)
        v_prompt, v_answer = self._split(v)
        # A pad comes after its prompt's tokens, so causality alone keeps it out of sight.
        out_prompt = _attend(q_prompt, k_prompt, v_prompt, scale, causal=True)
        if not self.num_answer:
            return _join(out_prompt)
        k_all = torch.cat([self._repeat(k_prompt), k_answer], dim=2)
        v_all = torch.cat([self._repeat(v_prompt), v_answer], dim=2)
        out_answer = _attend(q_answer, k_all, v_all, scale, bias=self.bias)
        return torch.cat([_join(out_prompt), _join(out_answer)], dim=2)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[1, H, N, D] to [P, H, L, D] and [B, H, T, D]."""
        heads, size = x.shape[1], x.shape[3]
        prompt, answer = x[0].split([self.num_prompts * self.num_prompt, self.num_answers * self.num_answer], dim=1)
        return (
            prompt.view(heads, self.num_prompts, self.num_prompt, size).transpose(0, 1),
            answer.view(heads, self.num_answers, self.num_answer, size).transpose(0, 1),
        )

    def _repeat(self, x_PHLD: Tensor) -> Tensor:
        if self.each is None:
            return x_PHLD[self.prompt_of_B]
        return x_PHLD[:, None].expand(-1, self.each, -1, -1, -1).flatten(0, 1)


class DecodeCache:
    """Decoding: keys and values of the prompts, each repeated for its answers, with room for what is written next."""

    def __init__(self, prompt_lens_P: Tensor, num_prompt: int, copies: int, room: int) -> None:
        self.copies, self.room, self.num_prompt = copies, room, num_prompt
        self.longest = num_prompt + room
        self.used = 0  # slots filled; 0 until the prompts have been encoded
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.prompt_lens_B = prompt_lens_P.repeat_interleave(copies)
        slots = torch.arange(self.longest, device=prompt_lens_P.device)
        padded = bool((prompt_lens_P < num_prompt).any())
        hidden_BN = (slots >= self.prompt_lens_B[:, None]) & (slots < num_prompt)
        bias_BN = torch.zeros(hidden_BN.shape, device=slots.device).masked_fill_(hidden_BN, -math.inf)
        self.bias = bias_BN if padded else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if not self.used:
            self.keys.append(self._store(k))
            self.values.append(self._store(v))
            return _attend(q, k, v, scale, causal=True)
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.used] = k[:, :, 0]
        values[:, :, self.used] = v[:, :, 0]
        end = self.used + 1
        bias = None if self.bias is None else self.bias[:, None, None, :end]
        return _attend(q, keys[:, :, :end], values[:, :, :end], scale, bias=bias)

    def advance(self) -> None:
        """After a forward: the prompts are in, or one more token of each answer is."""
        self.used = self.used + 1 if self.used else self.num_prompt

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these: finished answers cost nothing."""
        self.keys = [x[rows] for x in self.keys]
        self.values = [x[rows] for x in self.values]
        self.prompt_lens_B = self.prompt_lens_B[rows]
        self.bias = None if self.bias is None else self.bias[rows]

    def _store(self, x_PKLD: Tensor) -> Tensor:
        prompts, heads, length, size = x_PKLD.shape
        slots = x_PKLD.new_empty(prompts * self.copies, heads, self.longest, size)
        slots[:, :, :length] = x_PKLD.repeat_interleave(self.copies, dim=0)
        return slots


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, bias: Tensor | None = None) -> Tensor:
    """Attention of [X, H, N, D] over [X, K, M, D]; `bias` is added to the scores, -inf where nothing may be seen."""
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    if q.device.type == "cpu" and k.shape[2] <= SHORT:
        return _attend_plainly(q, k, v, scale, causal, bias)
    bias = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale)


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, bias: Tensor | None) -> Tensor:
    """All scores at once: for short texts twice as fast as the CPU's flash kernel, forwards and backwards."""
    (rows, heads, n, _), m = q.shape, k.shape[2]
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if causal:
        bias = torch.full((n, m), -math.inf, device=q.device).triu(1)
    if bias is None:
        scores = (q * scale) @ k.transpose(1, 2)
    else:
        bias = bias.to(q.dtype).expand(rows, heads, n, m).reshape(-1, n, m)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    return (scores.softmax(-1) @ v).view(rows, heads, n, -1)


def _join(x: Tensor) -> Tensor:
    """[X, H, N, D] back to one row, [1, H, X x N, D]."""
    return x.transpose(0, 1).flatten(1, 2)[None]
