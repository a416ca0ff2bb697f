"""Which models `stack.py` writes out: by the parts that they consist of, not by their names."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_written_out(model: Any) -> bool:
    """Whether the model's layers consist only of the parts that are written out."""
    base, config = model.base_model, model.config
    layers = getattr(base, "layers", None)
    if not layers or not all(hasattr(base, name) for name in ("embed_tokens", "norm", "rotary_emb")):
        return False
    supported = (
        getattr(config, "hidden_act", None) == "silu"
        and _is_norm(base.norm)
        and all(_is_supported(layer) for layer in layers)
    )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    fixed = isinstance(rope, dict) and rope.get("rope_type", "default") in ("default", "linear", "llama3", "yarn")
    full = rope.get("partial_rotary_factor", 1.0) == 1.0 and getattr(config, "partial_rotary_factor", 1.0) == 1.0
    return supported and fixed and full


def _is_supported(layer: nn.Module) -> bool:
    parts = dict(layer.named_children())
    if set(parts) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    attn, mlp = dict(parts["self_attn"].named_children()), dict(parts["mlp"].named_children())
    linear = [attn.pop(f"{name}_proj", None) for name in "qkvo"]
    linear += [mlp.pop(f"{name}_proj", None) for name in ("gate", "up", "down")]
    mlp.pop("act_fn", None)
    norms = [attn.pop("q_norm", None), attn.pop("k_norm", None)]
    plain = all(type(module) is nn.Linear for module in linear)
    unbiased = plain and all(module.bias is None for module in linear[3:])  # type: ignore[union-attr]
    normed = norms == [None, None] or all(n is not None and _is_norm(n) and n.weight.ndim == 1 for n in norms)
    complete = hasattr(parts["self_attn"], "head_dim") and hasattr(parts["self_attn"], "scaling")
    outer = _is_norm(parts["input_layernorm"]) and _is_norm(parts["post_attention_layernorm"])
    return plain and unbiased and normed and complete and outer and not attn and not mlp


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
