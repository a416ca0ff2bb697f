"""Decoding with fewer, larger products: a Llama's weights fused for as long as they stay the same.

On a CPU a decode step of a small model is mostly the cost of calling its many small operations. Here the three
projections of attention are one product, so are the two of the gate, and a norm's weight is multiplied into the
product that follows it. Float32 and no gradients only: in bfloat16 the fused products would round differently from
the learner's. The layout attends, as everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outdo.models.attention import Layout

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM")  # RMS norms, rotary positions, a SiLU gate, no biases


class FusedDecoder:
    """The hidden states of `model`, computed from a copy of its weights as they are now."""

    def __init__(self, model: Any) -> None:
        base, config = model.base_model, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps, self.rotary = config.rms_norm_eps, base.rotary_emb
        self.embedding, self.norm = base.embed_tokens.weight.detach(), base.norm.weight.detach()
        self.layers = [_fuse(layer) for layer in base.layers]

    def hidden(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        rows, n = input_ids.shape
        x = F.embedding(input_ids, self.embedding)
        cos, sin = (table[:, :, None] for table in self.rotary(x, position_ids))
        for i, (qkv, out, gate_up, down, scale) in enumerate(self.layers):
            heads = (self._unit(x) @ qkv.T).view(rows, n, self.heads + 2 * self.kv_heads, -1)
            turned, values = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
            first, second = turned.chunk(2, dim=-1)
            turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
            q, k = turned.transpose(1, 2).split([self.heads, self.kv_heads], dim=1)
            seen = layout.attend(i, q, k, values.transpose(1, 2), scale)
            x = x + seen.transpose(1, 2).reshape(rows, n, -1) @ out.T
            gate, up = (self._unit(x) @ gate_up.T).chunk(2, dim=-1)
            x = x + (F.silu(gate) * up) @ down.T
        return self._unit(x) * self.norm

    def _unit(self, x: Tensor) -> Tensor:
        return x * (x * x).mean(-1, keepdim=True).add_(self.eps).rsqrt_()


def can_fuse(model: Any, device: torch.device) -> bool:
    """Whether this model is one whose layers are known, in the precision in which fusing changes nothing."""
    config = model.config
    known = type(model).__name__ in CLASSES and config.hidden_act == "silu" and device.type == "cpu"
    plain = not getattr(config, "attention_bias", False) and not getattr(config, "mlp_bias", False)
    return known and plain and model.dtype == torch.float32 and getattr(config, "sliding_window", None) is None


def _fuse(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    a, m = layer.self_attn, layer.mlp
    qkv = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]) * layer.input_layernorm.weight
    gate_up = torch.cat([m.gate_proj.weight, m.up_proj.weight]) * layer.post_attention_layernorm.weight
    return qkv.detach(), a.o_proj.weight.detach(), gate_up.detach(), m.down_proj.weight.detach(), a.scaling
