"""What a run will do and take, said before anything is loaded: `outdo train --dry-run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outdo.config import Recipe
from outdo.errors import ModelError
from outdo.learn.memory import TOKENS
from outdo.models.load import pick_device
from outdo.models.sources import TINY
from outdo.models.tiny import tiny_model, tiny_tokenizer
from outdo.run import default_folder

BYTES = {"float32": 4, "bfloat16": 2}
TYPICAL_PROMPT = 128  # tokens, where nothing is known of the prompts yet


@dataclass(frozen=True)
class Shape:
    """What memory depends on."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int


def model_shape(name: str) -> Shape:
    """A model's sizes from its config alone; no weights are read."""
    with torch.device("meta"):
        if name == TINY:
            model: Any = tiny_model(tiny_tokenizer())
        else:
            try:
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name))
            except (OSError, ValueError) as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise ModelError(f"model_name_or_path={name}: no config to plan with: {reason}") from error
    c = model.config
    heads = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    wide = getattr(c, "intermediate_size", None) or 4 * c.hidden_size
    parameters = sum(p.numel() for p in model.parameters())
    return Shape(parameters, c.num_hidden_layers, c.hidden_size, wide, heads * head, c.vocab_size)


def memory(recipe: Recipe, shape: Shape) -> dict[str, int]:
    """Bytes by purpose: an estimate, meant to be right within a factor of about 1.5."""
    each = BYTES[recipe.dtype]
    tokens = TYPICAL_PROMPT + recipe.max_completion_length
    rows = min(recipe.rollout_rows or 512, recipe.answers_per_step)
    asked = recipe.tokens_per_micro_batch or TOKENS["cpu"]
    micro = min(asked, recipe.answers_per_step * recipe.max_completion_length)
    # Kept for the backward of one layer, in widths: about ten of the hidden size and four of the intermediate.
    activations = micro * shape.layers * (10 * shape.hidden + 4 * shape.intermediate) * each
    return {
        "weights": shape.parameters * each,
        "gradients": shape.parameters * each,
        "optimizer": 2 * shape.parameters * each,
        "reference": shape.parameters * each if recipe.beta else 0,
        "cache": rows * tokens * shape.layers * 2 * shape.kv_width * each,
        "activations": activations + min(micro * shape.vocabulary, 2**22) * 4 * 3,
    }


def describe(recipe: Recipe) -> list[str]:
    """The plan, line by line."""
    r, shape = recipe, model_shape(recipe.model_name_or_path)
    parts = memory(r, shape)
    taken = ", ".join(f"{name} {_size(n)}" for name, n in parts.items() if n)
    folder = Path(r.output_dir) if r.output_dir else default_folder(r.dataset_name)
    warm = f"{r.sft_steps} steps of {r.sft_batch_size} demonstrations, then " if r.sft_steps else ""
    return [
        f"model     {r.model_name_or_path}: {shape.parameters:,} parameters, {r.dtype}, on {pick_device(r.device)}",
        f"task      {r.dataset_name}, rewarded by {', '.join(r.reward_funcs) or 'its own verifier'}",
        f"run       {warm}{r.max_steps} GRPO steps",
        f"a step    {r.prompts_per_step} prompts x {r.num_generations} answers = {r.answers_per_step} answers of up to "
        f"{r.max_completion_length} tokens, {r.answers_per_step * r.max_completion_length:,} in all",
        f"updates   {r.updates_per_step * r.num_iterations} a step, of {r.answers_per_update} answers each",
        f"memory    about {_size(sum(parts.values()))} beyond Python's own: {taken}",
        f"writes    {folder}",
    ]


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
