"""A small Llama as a GGUF file, written with the `gguf` package: two layers, a byte tokenizer, ChatML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2


def _alphabet() -> list[str]:
    """A printable character for each byte, as GPT-2 has it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    import gguf

    rng = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_alphabet(), "th", "he"]
    writer: Any = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("small")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    narrow = HIDDEN // HEADS * KV_HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (narrow, HIDDEN), "attn_v": (narrow, HIDDEN)}
    shapes |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN)}
    shapes |= {"ffn_down": (HIDDEN, WIDE)}
    writer.add_tensor("token_embd.weight", _random(rng, (len(tokens), HIDDEN)))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            quantised = gguf.quants.quantize(_random(rng, shape), gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(f"blk.{layer}.{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _random(rng: Any, shape: tuple[int, ...]) -> Any:
    return (rng.standard_normal(shape) * 0.3).astype(np.float32)
