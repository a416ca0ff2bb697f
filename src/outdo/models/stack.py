"""The Llama-like decoder, written out: Llama, Mistral, Qwen2, Qwen3, SmolLM and similar, in training and decoding.

The weights of transformers' modules, in fewer and larger steps: attention's three projections are one product, the
gate's two are another; adding to the residual and normalizing it is one operation (`ops.py`). The backward is written
out too: it saves what is expensive to compute and recomputes the rest, with a third of the host calls that autograd
would make. The residual stream is float32, so that bfloat16 weights lose precision in the products only,
and a sampler and a learner that compute the same thing in a different order stay close.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outdo.models import fp8, ops
from outdo.models.attention import AttentionSpec, Layout
from outdo.models.fp8 import RoundedLayer
from outdo.models.lora import Adapter, factor_gradients
from outdo.models.written_out import is_written_out


class Layer(NamedTuple):
    """One layer's weights, fused as they are multiplied."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


NUM_WEIGHTS = len(Layer._fields)
# The parts of those, in the order in which they are fused.
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Slot(NamedTuple):
    """Where an adapter changes a layer: some rows of one of its weights."""

    field: str
    start: int
    stop: int


class Activations(NamedTuple):
    """What a layer's backward needs besides its weights and its output."""

    x: Tensor  # the residual before attention
    rstd: Tensor
    raw: Tensor  # queries, keys and values before their norms and RoPE, where there are such norms
    rstd_q: Tensor | None
    rstd_k: Tensor | None
    rotated: Tensor  # after them
    attended: Tensor  # the output of attention; carries its own graph
    rstd_mlp: Tensor
    gate_up: Tensor


class Stack:
    """Computes the hidden states of a model that `find_stack` accepts."""

    def __init__(self, model: Any, adapter: Adapter | None = None) -> None:
        base, config = model.base_model, model.config
        self.base = base
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_size, self.eps = base.layers[0].self_attn.head_dim, base.norm.variance_epsilon
        self.scale = base.layers[0].self_attn.scaling
        self.windows = [_window(layer.self_attn, config) for layer in base.layers]
        self.positions = config.max_position_embeddings
        self._tables: tuple[Tensor, Tensor] | None = None
        self.adapter = adapter
        self.adapted = [_adapted(model, layer, adapter) for layer in base.layers] if adapter else None
        self._by_modules = False
        for layer, names in itertools.product(base.layers, PARTS.values()):
            ops.place_together([layer.get_submodule(name).weight for name in names])

    def compute_by_modules(self) -> None:
        """Makes each layer's own module compute it, so that hooks on the modules, as FSDP's, are called."""
        self._by_modules = True
        for layer in self.base.layers:
            layer.forward = partial(_forward_of_module, layer)

    def fused(self) -> list[Layer]:
        """The current weights, fused, in the memory of the modules' own unless those were moved. Where gradients are
        enabled, they flow back to the modules."""
        return [_fuse(layer) for layer in self.base.layers]

    def rounded(self) -> list[RoundedLayer]:
        """The current weights for sampling in 8 bits."""
        return [fp8.rounded(_fuse(layer)) for layer in self.base.layers]

    def hidden(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        layout: Layout,
        layers: Sequence[Layer] | Sequence[RoundedLayer] | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Last hidden states [N, D]. `recompute` saves only each layer's input for the backward."""
        x = F.embedding(ids_N, self.base.embed_tokens.weight).float()
        cos, sin = (table[positions_N] for table in self._rope_tables(x.device))
        if layers and isinstance(layers[0], RoundedLayer):
            return self._hidden_rounded(x, cos, sin, layout, cast("Sequence[RoundedLayer]", layers))
        exact = cast("Sequence[Layer] | None", layers)
        if exact and layout.applies_rope and self._use_few(len(ids_N), exact[0]):
            return self._hidden_few(x, cos, sin, layout, exact)
        delta: Tensor | None = None
        if self._by_modules:
            for i, module in enumerate(self.base.layers):
                x, delta = module(_Pass(self, i, layout, cos, sin), recompute, x, delta)
            return ops.differentiable_add_norm(x, delta, self.base.norm.weight, self.eps)[1]
        for i, layer in enumerate(exact or self.fused()):
            one = _Pass(self, i, layout, cos, sin)
            if torch.is_grad_enabled():
                factors = self.adapted[i].values() if self.adapted else ()
                x, delta = _LayerFunction.apply(one, recompute, x, delta, *layer, *itertools.chain(*factors))
            else:
                x, delta, _ = one.forward(x, delta, layer)
        return ops.differentiable_add_norm(x, delta, self.base.norm.weight, self.eps)[1]

    def _use_few(self, rows: int, layer: Layer) -> bool:
        k = ops.kernels(layer.norm, self.head_size)
        return bool(k and layer.q_norm is None and k.few.supports(rows, layer.qkv, layer.out, layer.down))

    def _hidden_few(self, x_ND: Tensor, cos: Tensor, sin: Tensor, layout: Layout, layers: Sequence[Layer]) -> Tensor:
        """`hidden` for decoding few rows, in five kernels a layer."""
        k = ops.kernels(x_ND)
        assert k
        spec = AttentionSpec(self.heads, self.scale, rope=(cos, sin), overlaps=True)
        for i, w in enumerate(layers):
            qkv = k.few.norm_product(x_ND, w.norm, self.eps, w.qkv, w.qkv_bias)
            attended = layout.attend(i, qkv.unflatten(1, (-1, self.head_size)), spec)
            k.few.add_product(x_ND, attended.flatten(1), w.out)
            gated = k.few.norm_product(x_ND, w.norm_mlp, self.eps, w.gate_up, gate=True)
            k.few.add_product(x_ND, gated, w.down)
        return ops.add_norm(x_ND, None, self.base.norm.weight, self.eps)[1]

    def _hidden_rounded(
        self, x_ND: Tensor, cos: Tensor, sin: Tensor, layout: Layout, layers: Sequence[RoundedLayer]
    ) -> Tensor:
        """`hidden` with the products of the MLPs in 8 bits."""
        dtype, parts = self.base.norm.weight.dtype, None
        for i, w in enumerate(layers):
            one = _Pass(self, i, layout, cos, sin)
            x_ND, y = fp8.add_norm(x_ND, parts, w.norm, self.eps)
            raw = F.linear(y, w.qkv, w.qkv_bias).unflatten(1, (-1, self.head_size))
            attended = one.attend(one.rotated(raw, w)[0])
            x_ND, rounded = fp8.add_norm_rounded(x_ND, F.linear(attended.flatten(1), w.out), w.norm_mlp, self.eps)
            gated = fp8.swiglu(fp8.product(rounded, w.gate_up, w.gate_up_scale, dtype))
            parts = fp8.product_parts(gated, w.down, w.down_scale, dtype)
        return fp8.add_norm(x_ND, parts, self.base.norm.weight, self.eps)[1]

    @torch.no_grad()
    def _rope_tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of every position, computed once."""
        if self._tables is None or self._tables[0].device != device:
            positions = torch.arange(self.positions, device=device)[None]
            cos, sin = self.base.rotary_emb(torch.zeros(1, device=device), positions)
            sin[..., : self.head_size // 2] *= -1
            self._tables = cos[0], sin[0]
        return self._tables


@dataclass(frozen=True)
class _Pass:
    """One layer in one forward. Input and output are the residual and what is still to be added to it."""

    stack: Stack
    index: int
    layout: Layout
    cos: Tensor
    sin: Tensor

    def forward(self, x: Tensor, delta: Tensor | None, w: Layer) -> tuple[Tensor, Tensor, Activations]:
        s = self.stack
        x, y, rstd = ops.add_norm(x, delta, w.norm, s.eps)
        raw = F.linear(y, w.qkv, w.qkv_bias).unflatten(1, (-1, s.head_size))
        rotated, rstd_q, rstd_k = self.rotated(raw, w)
        attended = self.attend(rotated)
        x_mlp, y, rstd_mlp = ops.add_norm(x, F.linear(attended.detach().flatten(1), w.out), w.norm_mlp, s.eps)
        gate_up = F.linear(y, w.gate_up)
        out = F.linear(ops.swiglu(gate_up), w.down)
        return x_mlp, out, Activations(x, rstd, raw, rstd_q, rstd_k, rotated, attended, rstd_mlp, gate_up)

    def backward(
        self,
        w: Layer,
        saved: Activations,
        x_mlp: Tensor,
        dx: Tensor,
        dout: Tensor,
        low: torch.dtype | None,
        needs: Sequence[bool],
        factors: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """Gradients of the residual, of what was added to it (in its type `low`; None: nothing was), of the weights
        that need one, and of the adapter's factors."""
        need = dict(zip(Layer._fields, needs, strict=True))
        of_factors = _FactorGradients(self.stack, self.index, factors)
        dgate_up, activated = ops.swiglu_backward(dout @ w.down, saved.gate_up)
        dw_down = dout.T @ activated if need["down"] else None
        of_factors.add("down", activated, dout)
        dx, dattn, dw_norm_mlp, y = ops.norm_backward(
            dgate_up @ w.gate_up, dx, x_mlp, saved.rstd_mlp, w.norm_mlp, dout.dtype
        )
        dw_gate_up = dgate_up.T @ y if need["gate_up"] else None
        of_factors.add("gate_up", y, dgate_up)
        assert dattn is not None
        attended = saved.attended.detach().flatten(1)
        dw_out = dattn.T @ attended if need["out"] else None
        of_factors.add("out", attended, dattn)
        (dqkv,) = torch.autograd.grad(saved.attended, saved.rotated, (dattn @ w.out).view_as(saved.attended))
        rotated_heads = self.stack.heads + self.stack.kv_heads
        dqkv = ops.rotate(dqkv, self.cos, self.sin, rotated_heads, sign=-1.0, inplace=True)
        dq_norm = dk_norm = None
        if saved.rstd_q is not None and saved.rstd_k is not None and w.q_norm is not None and w.k_norm is not None:
            (dq, dk, dv), (q, k, _) = self.split(dqkv), self.split(saved.raw)
            dq, dq_norm = self._norm_heads_backward(dq, q, saved.rstd_q, w.q_norm)
            dk, dk_norm = self._norm_heads_backward(dk, k, saved.rstd_k, w.k_norm)
            dqkv = torch.cat([dq, dk, dv], dim=1)
        flat = dqkv.flatten(1)
        dbias = flat.sum(0) if need["qkv_bias"] else None
        dx, ddelta, dw_norm, y = ops.norm_backward(flat @ w.qkv, dx, saved.x, saved.rstd, w.norm, low)
        dw_qkv = flat.T @ y if need["qkv"] else None
        of_factors.add("qkv", y, flat)
        weights = [dw_norm, dw_qkv, dbias, dq_norm, dk_norm, dw_out, dw_norm_mlp, dw_gate_up, dw_down]
        return dx, ddelta, [*weights, *of_factors.values]

    def rotated(self, raw_NHD: Tensor, w: Layer | RoundedLayer) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries, keys and values after the norms of heads and RoPE, except what the layout does itself; and the
        reciprocal RMS of queries and keys."""
        qkv, rstd_q, rstd_k = raw_NHD, None, None
        if w.q_norm is not None and w.k_norm is not None:
            q, k, v = self.split(raw_NHD)
            q, rstd_q = self._norm_heads(q, w.q_norm)
            k, rstd_k = self._norm_heads(k, w.k_norm)
            qkv = torch.cat([q, k, v], dim=1)
        if not self.layout.applies_rope:
            qkv = ops.rotate(qkv, self.cos, self.sin, self.stack.heads + self.stack.kv_heads, inplace=True)
        return qkv, rstd_q, rstd_k

    def split(self, qkv_NHD: Tensor) -> tuple[Tensor, ...]:
        return qkv_NHD.split([self.stack.heads, self.stack.kv_heads, self.stack.kv_heads], dim=1)

    def attend(self, rotated_NHD: Tensor) -> Tensor:
        window = self.stack.windows[self.index]
        window = window if window and window < self.layout.longest else None
        rope = (self.cos, self.sin) if self.layout.applies_rope else None
        spec = AttentionSpec(self.stack.heads, self.stack.scale, window, rope=rope)
        return self.layout.attend(self.index, rotated_NHD, spec)

    def _norm_heads(self, x_NHD: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        _, y, rstd = ops.add_norm(x_NHD.reshape(-1, x_NHD.shape[-1]), None, weight, self.stack.eps)
        return y.view(x_NHD.shape), rstd

    def _norm_heads_backward(self, dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        dy_flat, x_flat = (t.reshape(-1, t.shape[-1]) for t in (dy, x))
        dx, _, dw, _ = ops.norm_backward(dy_flat, None, x_flat, rstd, weight, None)
        return dx.view(x.shape), dw


class _FactorGradients:
    """Of one layer's factors, A, B, A, B, … in the order of its slots, whatever the order in which they are added."""

    def __init__(self, stack: Stack, index: int, factors: Sequence[Tensor]) -> None:
        self.slots = list(stack.adapted[index]) if stack.adapted else []
        self.scale = stack.adapter.scale if stack.adapter else 0.0
        self.factors = factors
        self.values: list[Tensor | None] = [None] * len(factors)

    def add(self, field: str, x_NI: Tensor, dy_NO: Tensor) -> None:
        """Of the factors of this weight, from its input and the gradient of its output."""
        for i, slot in enumerate(self.slots):
            if slot.field == field:
                a, b = self.factors[2 * i : 2 * i + 2]
                dy = dy_NO[:, slot.start : slot.stop]
                self.values[2 * i : 2 * i + 2] = factor_gradients(x_NI, dy, a, b, self.scale)


class _LayerFunction(torch.autograd.Function):
    """A layer for autograd. Attention, which differs by layout, keeps a small graph of its own."""

    @staticmethod
    def forward(
        ctx: Any, one: _Pass, recompute: bool, x: Tensor, delta: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_out, out, saved = _with_graph(one, x, delta, Layer(*weights[:NUM_WEIGHTS]))
        ctx.one, ctx.low = one, None if delta is None else delta.dtype
        ctx.saved = None if recompute else saved
        ctx.save_for_backward(x_out, *((x, delta) if recompute else (None, None)), *weights)
        return x_out, out

    @staticmethod
    def backward(ctx: Any, dx: Tensor, dout: Tensor) -> tuple[Tensor | None, ...]:
        x_out, x, delta, *weights = ctx.saved_tensors
        w, factors = Layer(*weights[:NUM_WEIGHTS]), weights[NUM_WEIGHTS:]
        saved = ctx.saved or _with_graph(ctx.one, x, delta, w)[2]
        ctx.saved = None
        needs = ctx.needs_input_grad[4 : 4 + NUM_WEIGHTS]
        dx, ddelta, dw = ctx.one.backward(w, saved, x_out, dx, dout, ctx.low, needs, factors)
        return None, None, dx, ddelta, *dw


def _forward_of_module(
    module: nn.Module, one: _Pass, recompute: bool, x: Tensor, delta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A layer by its module's weights as they are now."""
    return _LayerFunction.apply(one, recompute, x, delta, *_fuse(module))


@dataclass(frozen=True)
class _Tracked:
    """A layout whose attention records a graph inside a forward without gradients."""

    layout: Layout
    applies_rope: ClassVar[bool] = False

    @property
    def longest(self) -> int:
        return self.layout.longest

    def attend(self, layer: int, qkv_NHD: Tensor, spec: AttentionSpec) -> Tensor:
        with torch.enable_grad():
            return self.layout.attend(layer, qkv_NHD.requires_grad_(True), spec)


def _with_graph(one: _Pass, x: Tensor, delta: Tensor | None, w: Layer) -> tuple[Tensor, Tensor, Activations]:
    with torch.no_grad():
        return replace(one, layout=_Tracked(one.layout)).forward(x, delta, w)


def find_stack(model: Any, adapter: Adapter | None = None) -> Stack | None:
    """The stack of a model whose layers consist only of the parts that are written out here; else None. `adapter` is
    what is trained, unless all weights are."""
    return Stack(model, adapter) if is_written_out(model) else None


def _window(attn: nn.Module, config: Any) -> int | None:
    return getattr(attn, "sliding_window", getattr(config, "sliding_window", None))


def _adapted(model: Any, layer: nn.Module, adapter: Adapter) -> dict[Slot, tuple[Tensor, Tensor]]:
    """The factors of one layer, by where they belong."""
    prefix = next(name for name, module in model.named_modules() if module is layer)
    found = {}
    for field, parts in PARTS.items():
        start = 0
        for part in parts:
            end = start + len(layer.get_submodule(part).weight)  # type: ignore[arg-type]
            if pair := adapter.factors(f"{prefix}.{part}"):
                found[Slot(field, start, end)] = pair
            start = end
    return found


def _fuse(layer: Any) -> Layer:
    a, m = layer.self_attn, layer.mlp
    projections = (a.q_proj, a.k_proj, a.v_proj)
    bias = torch.cat([p.bias for p in projections]) if a.q_proj.bias is not None else None
    return Layer(
        layer.input_layernorm.weight,
        ops.joined([p.weight for p in projections]),
        bias,
        getattr(getattr(a, "q_norm", None), "weight", None),
        getattr(getattr(a, "k_norm", None), "weight", None),
        a.o_proj.weight,
        layer.post_attention_layernorm.weight,
        ops.joined([m.gate_proj.weight, m.up_proj.weight]),
        m.down_proj.weight,
    )
