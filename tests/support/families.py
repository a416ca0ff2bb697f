"""Models of several families with random weights, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from outdo.models.tiny import tiny_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def make(folder: Path, family: str, **more: Any) -> Path:
    """A folder with random weights and the tiny tokenizer."""
    tokenizer = tiny_tokenizer()
    config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")(
        **{**SHAPE, **more},
        vocab_size=len(tokenizer),
        eos_token_id=4,
        pad_token_id=0,
        bos_token_id=None,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for parameter in model.parameters():  # norms and biases start as ones and zeros, which would hide a mistake
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
