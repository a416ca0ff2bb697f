"""Unsloth's models under TRL's trainer, which Unsloth replaces by its own when it is imported."""

from __future__ import annotations

from pathlib import Path

import torch
import unsloth  # first: it edits transformers and TRL
from unsloth import FastLanguageModel

from outdo.bridges.backend import BACKENDS, Loaded
from outdo.models.lora import Adapter
from outdo.recipe.schema import Recipe

assert unsloth


def load_model(recipe: Recipe, folder: Path, adapter: Adapter | None) -> Loaded:
    """As Unsloth's users load it: `backend_args` such as fast_inference go to its own loader."""
    backend = BACKENDS["unsloth"]
    assert backend
    args = {key: value for key, value in recipe.backend_args.items() if key in backend.own_args}
    room = {"max_seq_length": recipe.max_completion_length + (recipe.max_prompt_length or 1024)}
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=str(folder),
        dtype=getattr(torch, recipe.dtype),
        load_in_4bit=False,
        full_finetuning=adapter is None,
        **{**room, **args},
    )
    if adapter:
        model = FastLanguageModel.get_peft_model(
            model,
            r=adapter.r,
            target_modules=sorted({name.rpartition(".")[2] for name in adapter.names}),
            lora_alpha=adapter.scale * adapter.r,
            lora_dropout=0,
            bias="none",
            use_gradient_checkpointing="unsloth" if recipe.gradient_checkpointing else False,
            random_state=recipe.seed,
        )
    return Loaded(model, None, tokenizer)
