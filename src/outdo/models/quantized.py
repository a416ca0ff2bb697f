"""QLoRA: frozen weights in four bits (bitsandbytes), and an adapter made of PEFT's modules beside them.

A four-bit weight cannot hold the sum, so here the factors are layers of their own, and the model runs by its own
modules. Sampling is slower, and the adapted weights take a quarter or an eighth of the memory. The merged model is made
of the rounded weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from outdo.errors import ModelError
from outdo.models.lora import Adapter, Factors
from outdo.models.sources import Source, why_not

_NAME = "default"  # PEFT's name of the one adapter


def load_quantized(source: Source, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model with its linear layers in four bits. Raises ModelError where that is not possible."""
    missing = [name for name in ("bitsandbytes", "peft", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(f"load_in_4bit=true needs the package {' and '.join(missing)}: pip install 'outdo[qlora]'")
    if source.kind not in ("folder", "hub"):
        raise ModelError(
            f"load_in_4bit=true: {source.name} is a {source.kind}, and only a folder or a hub name can be quantized; "
            "`outdo export` makes a folder of it"
        )
    from transformers import BitsAndBytesConfig

    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    options = {"quantization_config": quantization, "device_map": {"": str(device)}, **source.options}
    try:
        return AutoModelForCausalLM.from_pretrained(source.where, dtype=dtype, use_safetensors=True, **options)
    except Exception as error:  # of many kinds, by transformers and bitsandbytes
        raise ModelError(f"model {source.name}, in four bits, {why_not(source, error)}") from error


class LiveAdapter(Adapter):
    """Factors as modules of the model, with autograd's own gradients: to an optimizer, ordinary weights."""

    def __init__(self, model: Any, factors: Factors) -> None:
        self.model, self.scale = model, factors.scale
        self.names = [name for name, _ in model.named_modules() if name in factors.pairs]
        layers = [model.get_submodule(name) for name in self.names]
        self.pairs = [getattr(layer, part)[_NAME].weight for layer in layers for part in ("lora_A", "lora_B")]
        self.own = self.pairs  # what `instead` replaces
        values = [factor for name in self.names for factor in factors.pairs[name]]
        for mine, value in zip(self.pairs, values, strict=True):
            mine.data = value.to(mine.device, torch.float32)
            mine.requires_grad_(True)

    @property
    def base_bytes(self) -> int:
        return 0  # switching to other weights only takes other factors

    def drop(self) -> None: ...

    def publish(self) -> None: ...

    def weights_of(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        return [state[key].to(self.pairs[0].device) for key in self.keys]

    @torch.no_grad()
    def merged_state(self) -> dict[str, Tensor]:
        """The full model in its compute type, by its names without an adapter; on the CPU, as it may not fit the
        device."""
        from bitsandbytes.functional import dequantize_4bit

        factors = dict(zip(self.names, zip(self.pairs[::2], self.pairs[1::2], strict=True), strict=True))
        state = {}
        for name, value in self.model.state_dict().items():
            plain = name.replace(".base_layer.", ".")
            if ".lora_" in name or any(f".weight.{part}" in name for part in ("absmax", "quant_", "nested_")):
                continue
            owner = self.model.get_submodule(name.rpartition(".")[0])
            packed = getattr(owner.weight, "quant_state", None) if name.endswith(".weight") else None
            weight = value if packed is None else dequantize_4bit(owner.weight.data, packed)
            if plain.endswith(".weight") and (pair := factors.get(plain.removesuffix(".weight"))):
                weight = torch.addmm(weight.float(), pair[1], pair[0], alpha=self.scale).to(weight.dtype)
            state[plain] = weight.cpu()
        return state

    def save_merged(self, folder: Path) -> None:
        """Writes the model without quantization and with the adapter merged."""
        config = type(self.model.config).from_dict(self.model.config.to_dict())
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            merged: Any = type(self.model)(config)
        merged.load_state_dict(self.merged_state(), assign=True)
        merged.tie_weights()
        merged.generation_config = self.model.generation_config
        merged.save_pretrained(folder)


def live_adapter(model: Any, factors: Factors) -> LiveAdapter:
    """Injects the factors into the model as PEFT's modules, and freezes the rest."""
    import peft

    rank = len(next(iter(factors.pairs.values()))[0])
    config: Any = peft.LoraConfig(r=rank, target_modules=list(factors.pairs), lora_dropout=0.0, bias="none")
    config.lora_alpha = factors.scale * rank
    model.requires_grad_(False)
    peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    return LiveAdapter(model, factors)
