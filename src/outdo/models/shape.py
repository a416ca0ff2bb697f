"""The sizes of a model that memory depends on, from its config alone: no weights are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outdo.errors import ModelError
from outdo.models.gguf import Header, read_header
from outdo.models.load import Policy, context_of
from outdo.models.lora import Lora, targets
from outdo.models.sources import Source, why_not
from outdo.models.tiny import tiny_model, tiny_tokenizer

# What PEFT's names of layers are in a GGUF file.
GGUF_LAYERS = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
GGUF_LAYERS |= {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}


@dataclass(frozen=True)
class ModelShape:
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    query_width: int  # all heads
    kv_width: int  # all heads of keys, or of values
    vocabulary: int
    context: int
    adapted: int = 0  # weights of the layers that an adapter changes
    factors: int = 0  # weights of the adapter


def shape_of(source: Source, lora: Lora | None = None) -> ModelShape:
    """Of a model by where it is, with the adapter that is to be trained. Raises ModelError."""
    if source.base:
        return shape_of(source.base, lora)
    if source.kind == "gguf" and source.path:
        return _gguf_shape(read_header(source.path), lora)
    with torch.device("meta"):
        if source.kind == "tiny":
            model: Any = tiny_model(tiny_tokenizer())
        else:
            try:
                config = AutoConfig.from_pretrained(source.where, **source.options)
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            except Exception as error:  # transformers raises many kinds
                raise ModelError(f"model {source.name} {why_not(source, error)}") from error
    parameters = sum(p.numel() for p in model.parameters())
    sizes = _adapter_sizes([m.weight.shape for m in targets(model, lora.targets).values()], lora) if lora else (0, 0)
    return _from_config(model.config, parameters, *sizes)


def shape_of_policy(policy: Policy) -> ModelShape:
    """Of a model that is loaded, with the adapter that it has."""
    parameters = sum(p.numel() for p in policy.model.parameters())
    adapter = policy.adapter
    factors = sum(p.numel() for p in adapter.pairs) if adapter else 0
    adapted = adapter.base_bytes // policy.model.dtype.itemsize if adapter else 0
    return _from_config(policy.model.config, parameters, adapted, factors)


def _from_config(c: Any, parameters: int, adapted: int, factors: int) -> ModelShape:
    heads, kv_heads = c.num_attention_heads, getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    head_size = getattr(c, "head_dim", None) or c.hidden_size // heads
    return ModelShape(
        parameters=parameters,
        layers=c.num_hidden_layers,
        hidden=c.hidden_size,
        intermediate=getattr(c, "intermediate_size", None) or 4 * c.hidden_size,
        query_width=heads * head_size,
        kv_width=kv_heads * head_size,
        vocabulary=c.vocab_size,
        context=context_of(c),
        adapted=adapted,
        factors=factors,
    )


def _gguf_shape(header: Header, lora: Lora | None) -> ModelShape:
    hidden, heads = header.number("embedding_length"), max(1, header.number("attention.head_count"))
    sizes = (0, 0)
    if lora:
        layers = {name: GGUF_LAYERS.get(name.split(".")[-2], "") for name in header.shapes if name.startswith("blk.")}
        chosen = [n for n, p in layers.items() if p and (lora.targets == Lora.targets or p in lora.targets)]
        sizes = _adapter_sizes([header.shapes[name] for name in chosen], lora)
    return ModelShape(
        parameters=header.parameters,
        layers=header.number("block_count"),
        hidden=hidden,
        intermediate=header.number("feed_forward_length", 4 * hidden),
        query_width=hidden,
        kv_width=hidden // heads * header.number("attention.head_count_kv", heads),
        vocabulary=max(header.shapes.get("token_embd.weight", (0,))),
        context=header.number("context_length", 2**20),
        adapted=sizes[0],
        factors=sizes[1],
    )


def _adapter_sizes(shapes: Iterable[Sequence[int]], lora: Lora) -> tuple[int, int]:
    pairs = [(a, b) for a, b in shapes]
    return sum(a * b for a, b in pairs), sum(lora.r * (a + b) for a, b in pairs)
