"""Loads a policy from any source that `sources.py` resolves; saves one as a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from outdo.errors import ModelError
from outdo.models import attention
from outdo.models.fp8 import RoundedLayer
from outdo.models.gguf import cache_folder, load_gguf
from outdo.models.lora import Adapter, Lora, called_layers, new_factors, read_factors
from outdo.models.ops import head_logits
from outdo.models.quantized import LiveAdapter, live_adapter, load_quantized
from outdo.models.renderer import Renderer, keep_spaces
from outdo.models.sources import SCRATCH, TOKENIZERS, Source, find_source, why_not
from outdo.models.stack import Layer, Stack, find_stack
from outdo.models.tiny import tiny_model, tiny_tokenizer
from outdo.recipe.launchers import load_on_every_rank


@dataclass(frozen=True)
class Policy:
    """A model with its renderer, on its device: what is sampled from and trained."""

    model: PreTrainedModel
    renderer: Renderer
    device: torch.device
    written_out: bool = True  # False: its layers look like those of `stack.py`, but give other numbers
    plain: bool = False  # True: only its own forward gives its logits, neither our attention nor our head
    source: Source = SCRATCH
    adapter: Adapter | None = None  # set where only an adapter is trained
    stack: Stack | None = field(init=False)  # the model written out, where its architecture allows it

    def __post_init__(self) -> None:
        written_out = self.written_out and not self.plain
        object.__setattr__(self, "stack", find_stack(self.model, self.adapter) if written_out else None)

    def train_only_adapter(self) -> None:
        """Freezes all but the adapter, whose factors get gradients."""
        if self.adapter and not isinstance(self.adapter, LiveAdapter):
            self.adapter.train_only_this(self.model, called_layers(self.model, self._try))

    def _try(self) -> None:
        """A forward of two tokens by the model's modules."""
        ids_N = torch.arange(2, device=self.device)
        if self.plain:
            self.model(input_ids=ids_N[None], use_cache=False)
        else:
            layout = attention.SharedPrompts([2], [], [], self.device)
            replace(self, written_out=False).hidden(ids_N, ids_N, layout)

    def set_training(self, on: bool) -> None:
        """Switches dropout. Only on a change: visiting all modules takes milliseconds."""
        if self.model.training != on:
            self.model.train(on)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.renderer.eos_ids

    @property
    def pad_id(self) -> int:
        return self.renderer.pad_id

    @property
    def context(self) -> int:
        """The most tokens that it can see."""
        return self.renderer.context

    def hidden(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        layout: attention.Layout,
        layers: Sequence[Layer] | Sequence[RoundedLayer] | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """The last hidden states [N, D] of a row of tokens, before the head. `layers` are the stack's weights, fused
        earlier; `recompute` trades time for the memory of activations where gradients are needed."""
        if self.stack:
            return self.stack.hidden(ids_N, positions_N, layout, layers, recompute)
        ids_1N, at_1N = ids_N[None], positions_N[None]
        out = self.model.base_model(input_ids=ids_1N, position_ids=at_1N, use_cache=False, layout=layout)
        return out.last_hidden_state[0]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """In float32 whatever the weights are in: rounding would make sampler and learner disagree."""
        return head_logits(hidden_ND, self.head.weight, self.head.bias, self.cap)

    @property
    def head(self) -> torch.nn.Linear:
        return self.model.get_output_embeddings()

    @property
    def head_size(self) -> int:
        config = self.model.config
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    @property
    def window(self) -> int | None:
        """The shortest attention window of its layers: shorter texts need none."""
        config = self.model.config
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        return getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None

    @property
    def softcap(self) -> float | None:
        return getattr(self.model.config, "attn_logit_softcapping", None)

    @property
    def cap(self) -> float | None:
        """The bound that its logits are softly capped at, as Gemma's are."""
        return getattr(self.model.config, "final_logit_softcapping", None)

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * self.head_size * self.model.dtype.itemsize

    @property
    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of its model."""
        own = {"source": self.source.description, "device": str(self.device), "num_parameters": self.num_parameters}
        return {**own, **self.renderer.facts, **({"adapter": self.adapter.facts} if self.adapter else {})}

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name. A GPU becomes the current one, where kernels and streams run."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device={name}: torch {torch.__version__} sees no CUDA device here; use device=cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device={name}: no such device; use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and device.index is not None:
        if device.index >= (count := torch.cuda.device_count()):
            raise ModelError(f"device={name}: this machine has {count} GPUs; the first is cuda:0")
        torch.cuda.set_device(device)
    return device


def load_policy(
    name: str = SCRATCH.name, *, dtype: str = "float32", device: str = "auto", seed: int = 0, lora: Lora | None = None
) -> Policy:
    """The policy by any name that `find_source` resolves. Raises ModelError where it cannot be loaded or trained.

    With `lora` only an adapter is trained: the one that `name` is, or a new one. Without, an adapter is merged.
    """
    target = pick_device(device)
    source = find_source(name)
    load_on_every_rank(os.environ)
    if lora and source.kind == "tiny":
        raise ModelError(f"use_peft=true needs a pretrained model, and {name} has random weights")
    if lora and lora.four_bit:
        model, tokenizer = load_quantized(source.base or source, getattr(torch, dtype), target), load_tokenizer(source)
    else:
        model, tokenizer = _read(source, seed)
        model = model.to(target, getattr(torch, dtype))
    renderer = Renderer.of(name, tokenizer, model.generation_config, context_of(model.config))
    _set_tokens(model, renderer)
    adapter = _adapted(model, source, lora)
    return _ready(Policy(model, renderer, target, source=source, adapter=adapter))


@dataclass(frozen=True)
class LoadedModel:
    """A model that the caller loaded, with its tokenizer. It is trained in place."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def name(self) -> str:
        return getattr(self.model.config, "name_or_path", "") or type(self.model).__name__

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """After the body its attention, its mode and what of it is frozen are again those that it was given with."""
        attention_before, was_training = self.model.config._attn_implementation, self.model.training
        trained = {id(p) for p in self.model.parameters() if p.requires_grad}
        try:
            yield
        finally:
            for p in self.model.parameters():
                p.requires_grad_(id(p) in trained)
            self.model.set_attn_implementation(attention_before)
            self.model.train(was_training)


def loaded_model(model: Any, tokenizer: Any = None) -> LoadedModel:
    """A model as a caller has it. Its tokenizer, where none is given, is that of where it was loaded from. Raises
    ModelError where it is no model that can be trained."""
    if not isinstance(model, PreTrainedModel):
        hint = (
            ": merge the adapter first (merge_and_unload), or set use_peft=true"
            if hasattr(model, "peft_config")
            else ""
        )
        raise ModelError(f"model is a {type(model).__name__}, not a name, a path or a model of transformers{hint}")
    if getattr(model, "_hf_peft_config_loaded", False) or getattr(model, "is_quantized", False):
        raise ModelError("model has an adapter or quantized weights: give it by its name or folder")
    name = getattr(model.config, "name_or_path", "")
    if tokenizer is None and not name:
        raise ModelError("model has no tokenizer: give it too, as processing_class=AutoTokenizer.from_pretrained(…)")
    return LoadedModel(model, keep_spaces(tokenizer) if tokenizer is not None else load_tokenizer(find_source(name)))


def policy_of(given: LoadedModel, where: Path, *, dtype: str, device: str, lora: Lora | None = None) -> Policy:
    """The policy of a loaded model, which is moved and trained in place. `where` is the folder that keeps it."""
    target = pick_device(device)
    model = given.model.to(target, getattr(torch, dtype))
    _align(model)
    renderer = Renderer.of(given.name, given.tokenizer, model.generation_config, context_of(model.config))
    _set_tokens(model, renderer)
    source = Source(str(where), "folder", where)
    return _ready(Policy(model, renderer, target, source=source, adapter=_adapted(model, source, lora)))


def _adapted(model: PreTrainedModel, source: Source, lora: Lora | None) -> Adapter | None:
    """Applies the source's adapter or a new one to the model. Returns it where it is to be trained."""
    if source.kind == "adapter" and source.path:
        factors = read_factors(model, source.path)
    elif lora:
        factors = new_factors(model, lora)
    else:
        return None
    if lora and lora.four_bit:
        return live_adapter(model, factors)
    adapter = Adapter(model, factors)
    return adapter if lora else None


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The source's tokenizer as published. Raises ModelError."""
    if source.kind == "tiny":
        return tiny_tokenizer()
    if source.kind == "adapter" and source.path and source.base:
        own = any((source.path / file).is_file() for file in TOKENIZERS)
        return load_tokenizer(replace(source, kind="folder") if own else source.base)
    more, where = {}, source.where
    if source.kind == "gguf" and source.path:
        cached = cache_folder(source.path)
        more = {} if cached.is_dir() else {"gguf_file": str(source.path)}
        where = str(cached if cached.is_dir() else source.path.parent)
    try:
        return keep_spaces(AutoTokenizer.from_pretrained(where, **source.options, **more))
    except Exception as error:  # many kinds, as in `_read`
        raise ModelError(f"the tokenizer of {source.name} {why_not(source, error)}") from error


def load_encoder(name: str) -> Callable[[str], list[int]]:
    """A tokenizer alone: text to token ids. Raises ModelError."""
    try:
        tokenizer = load_tokenizer(find_source(name))
    except ModelError as error:
        raise ModelError(f"tokenizer {name} cannot be loaded: {error}") from None
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def context_of(config: Any) -> int:
    """The most tokens that a model can see."""
    return getattr(config, "max_position_embeddings", None) or 2**20


def save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads.

    `weights` are copies of what a learner trained (`Updates.weights`). Of an adapter, only the adapter is written.
    """
    if weights is not None and policy.adapter:
        save_adapter(policy, folder, weights)
        return
    disable_progress_bar()  # of transformers: it would break into our own output
    if isinstance(policy.adapter, LiveAdapter):
        policy.adapter.save_merged(folder)
    else:
        policy.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    policy.renderer.tokenizer.save_pretrained(folder)


def save_adapter(policy: Policy, folder: Path, factors: Mapping[str, Tensor] | None = None) -> None:
    """Writes the adapter in PEFT's format, with the tokenizer."""
    assert policy.adapter
    policy.adapter.save(folder, (policy.source.base or policy.source).lasting, factors)
    policy.renderer.tokenizer.save_pretrained(folder)


def _read(source: Source, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer, unchanged from their files."""
    if source.kind == "tiny":
        tokenizer = tiny_tokenizer()
        return tiny_model(tokenizer, seed), tokenizer
    disable_progress_bar()
    if source.kind == "adapter":
        assert source.base
        return _read(source.base, seed)[0], load_tokenizer(source)
    if source.kind == "gguf":
        assert source.path
        model, tokenizer = load_gguf(source.path)
    else:
        tokenizer = load_tokenizer(source)
        try:
            options = {"dtype": "auto", "use_safetensors": True, **source.options}
            model = AutoModelForCausalLM.from_pretrained(source.where, **options)
        except Exception as error:  # transformers raises many kinds; all mean that this model cannot be used
            raise ModelError(f"model {source.name} {why_not(source, error)}") from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"model {source.name} is an adapter on the hub: download it first, with "
            f"`hf download {source.name} --local-dir FOLDER`, and give that folder"
        )
    _align(model)
    return model, tokenizer


def _align(model: PreTrainedModel) -> None:
    """Moves the weights out of a mapped file: alignment changes the last bits of results."""
    for param in model.parameters():
        param.data = param.data.clone(memory_format=torch.contiguous_format)


def _set_tokens(model: PreTrainedModel, renderer: Renderer) -> None:
    """Writes the special tokens to the model's own configs, so that its saved folder has them too."""
    model.config.pad_token_id = renderer.pad_id
    if generation := model.generation_config:
        generation.pad_token_id = renderer.pad_id
        generation.eos_token_id = list(renderer.eos_ids) if len(renderer.eos_ids) > 1 else renderer.eos_ids[0]


def _ready(policy: Policy) -> Policy:
    policy = _fastest_exact(policy)
    policy.train_only_adapter()
    return policy


@torch.no_grad()
def _fastest_exact(policy: Policy) -> Policy:
    """The policy by the fastest way that gives the model's own logits: written out, by its modules with our attention,
    or plain. Detects classes that scale their logits, or attend in ways that ours does not."""
    model, device, n = policy.model, policy.device, min(32, policy.context) // 2
    own = model.config._attn_implementation
    prompt_N, *answers = (torch.arange(n, device=device) * step % policy.head.weight.shape[0] for step in (7, 5, 3))
    model.eval()
    model.set_attn_implementation("eager")
    texts = torch.stack([torch.cat([prompt_N, answer_N]) for answer_N in answers])
    theirs = model(input_ids=texts, use_cache=False).logits[:, n:].flatten(0, 1).float()
    model.set_attn_implementation(attention.NAME)
    at_N = torch.arange(2 * n, device=device)
    allowed = 1e-3 if model.dtype == torch.float32 else 0.05
    for way in (policy, replace(policy, written_out=False)):
        # A prompt and two answers that must not see each other: a class that ignores the layout gives other logits.
        layout = attention.SharedPrompts([n], [0, 0], [n, n], device)
        try:
            hidden = way.hidden(torch.cat([prompt_N, *answers]), torch.cat([at_N, at_N[n:]]), layout)
            ours = way.logits(hidden[n:])
        except Exception:  # a class that supports no other attention may raise anything
            continue
        if float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6)) < allowed:
            return way
    model.set_attn_implementation(own)
    return replace(policy, plain=True)
