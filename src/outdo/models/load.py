"""Loading and saving: whatever `sources.py` finds, as a policy; a policy, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from outdo.errors import ModelError, TaskError
from outdo.models import attention
from outdo.models.gguf import kept_in, load_gguf
from outdo.models.lora import Adapter, Lora, new_factors, read_factors
from outdo.models.ops import head_logits
from outdo.models.quantized import LiveAdapter, live_adapter, load_quantized
from outdo.models.sources import SCRATCH, TOKENIZERS, Source, find_source, why_not
from outdo.models.stack import Layer, Stack, find_stack
from outdo.models.tiny import tiny_model, tiny_tokenizer
from outdo.models.tokens import encoded, ending_ids, keep_spaces, set_padding, token_facts
from outdo.types import Prompt


@dataclass(frozen=True)
class Policy:
    """A model with its tokenizer, on its device: the thing that is sampled from and trained."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    eos_ids: tuple[int, ...]
    pad_id: int
    context: int  # the most tokens that it can see
    written_out: bool = True  # False: its layers look like those of `stack.py` and are not
    plain: bool = False  # True: neither our attention nor our head gives its logits; only its own forward does
    source: Source = SCRATCH
    adapter: Adapter | None = None  # where only that is trained
    stack: Stack | None = field(init=False)  # the model written out, where it is of the kind that can be

    def __post_init__(self) -> None:
        object.__setattr__(self, "stack", find_stack(self.model) if self.written_out and not self.plain else None)

    def set_training(self, on: bool) -> None:
        """Whether dropout is on, where there is any. It takes milliseconds to tell all modules: only on a change."""
        if self.model.training != on:
            self.model.train(on)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """A prompt's tokens, by the chat template where the tokenizer has one."""
        return self.encode_all([prompt])[0]

    def encode_all(self, prompts: Sequence[Prompt], room: int = 0) -> list[tuple[int, ...]]:
        """Many at once. Each must leave room for an answer of that length."""
        found = encoded(self.tokenizer, prompts)
        for prompt, ids in zip(prompts, found, strict=True):
            if room and len(ids) + room > self.context:
                raise TaskError(
                    f"prompt {prompt.id!r} has {len(ids)} tokens; with max_completion_length={room} it does not fit "
                    f"the model's {self.context}"
                )
        return found

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def spell(self, token_ids: Sequence[int]) -> str:
        """As `decode`, with the special tokens: what a stop text is looked for in."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token alone, as a person reads it, the special ones too."""
        return [self.tokenizer.decode([token]) for token in token_ids]

    def decode_all(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """Many at once: in a tokenizer of Rust's, on all cores."""
        rust = getattr(self.tokenizer, "backend_tokenizer", None)
        if rust is None or self.tokenizer.clean_up_tokenization_spaces:
            return [self.decode(tuple(ids)) for ids in answers]
        return rust.decode_batch([list(ids) for ids in answers], skip_special_tokens=True)

    def hidden(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        layout: attention.Layout,
        layers: Sequence[Layer] | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """The last hidden states [N, D] of a row of tokens, before the head. `layers` are the stack's weights as they
        were fused before; `recompute` saves the memory of activations where gradients are wanted."""
        if self.stack:
            return self.stack.hidden(ids_N, positions_N, layout, layers, recompute)
        out = self.model.base_model(
            input_ids=ids_N[None], position_ids=positions_N[None], use_cache=False, layout=layout
        )
        return out.last_hidden_state[0]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """In float32, where the weights are in less: rounded logits are what would tell a sampler from a learner."""
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
        """The shortest of its layers' windows: a text that fits it needs none."""
        config = self.model.config
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        return getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None

    @property
    def softcap(self) -> float | None:
        return getattr(self.model.config, "attn_logit_softcapping", None)

    @property
    def cap(self) -> float | None:
        """What its logits are bent to stay under, as Gemma's are."""
        return getattr(self.model.config, "final_logit_softcapping", None)

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * self.head_size * self.model.dtype.itemsize

    @property
    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of its model."""
        found = {
            "source": self.source.told,
            "device": str(self.device),
            "num_parameters": self.num_parameters,
            **token_facts(self.tokenizer, self.eos_ids, self.pad_id),
            "context": self.context,
        }
        if self.adapter:
            found["adapter"] = self.adapter.facts
        return found

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def pick_device(name: str = "auto") -> torch.device:
    """By its name. A GPU becomes the current one, which is where kernels and streams go."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device={name}: torch {torch.__version__} sees no CUDA device here; use device=cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device={name}: there is no such device; use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and device.index is not None:
        if device.index >= (there := torch.cuda.device_count()):
            raise ModelError(f"device={name}: there are {there} GPUs here, and the first is cuda:0")
        torch.cuda.set_device(device)
    return device


def load_policy(
    name: str = SCRATCH.name, *, dtype: str = "float32", device: str = "auto", seed: int = 0, lora: Lora | None = None
) -> Policy:
    """The policy by any name that `find_source` knows. Raises ModelError where it cannot be had or trained here.

    With `lora` only an adapter is trained: the one that `name` is, or a new one. Without, an adapter is merged.
    """
    target = pick_device(device)
    source = find_source(name)
    if lora and source.kind == "tiny":
        raise ModelError(f"use_peft=true adapts a model that knows something, and {name} starts from nothing")
    if lora and lora.four_bit:
        model, tokenizer = load_quantized(source.base or source, getattr(torch, dtype), target), load_tokenizer(source)
    else:
        model, tokenizer = _read(source, seed)
        model = model.to(target, getattr(torch, dtype))
    eos_ids = ending_ids(name, tokenizer, model.generation_config)
    pad_id = set_padding(tokenizer, eos_ids)
    _tell(model, eos_ids, pad_id)
    adapter = _adapted(model, source, lora)
    return _faithful(
        Policy(model, tokenizer, target, eos_ids, pad_id, context_of(model.config), source=source, adapter=adapter)
    )


def _adapted(model: PreTrainedModel, source: Source, lora: Lora | None) -> Adapter | None:
    """Puts the adapter on the model that there is or is asked for. The one that is to be trained, if any."""
    if source.kind == "adapter" and source.path:
        factors = read_factors(model, source.path)
    elif lora:
        factors = new_factors(model, lora)
    else:
        return None
    if lora and lora.four_bit:
        return live_adapter(model, factors)
    adapter = Adapter(model, factors)
    if lora:
        adapter.train_only_this(model)
    return adapter if lora else None


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """As the model's maker left it. Raises ModelError."""
    if source.kind == "tiny":
        return tiny_tokenizer()
    if source.kind == "adapter" and source.path and source.base:
        own = any((source.path / file).is_file() for file in TOKENIZERS)
        return load_tokenizer(replace(source, kind="folder") if own else source.base)
    more, where = {}, source.where
    if source.kind == "gguf" and source.path:
        kept = kept_in(source.path)
        more = {} if kept.is_dir() else {"gguf_file": str(source.path)}
        where = str(kept if kept.is_dir() else source.path.parent)
    try:
        return keep_spaces(AutoTokenizer.from_pretrained(where, **source.options, **more))
    except Exception as error:  # as below
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
    """An ordinary Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads.

    `weights` are copies of what a learner trained (`Updates.weights`); where that was an adapter, it alone is written.
    """
    if weights is not None and policy.adapter:
        save_adapter(policy, folder, weights)
        return
    disable_progress_bar()  # of transformers: a bar for one file, in the middle of ours
    if isinstance(policy.adapter, LiveAdapter):
        policy.adapter.save_merged(folder)
    else:
        policy.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    policy.tokenizer.save_pretrained(folder)


def save_adapter(policy: Policy, folder: Path, factors: Mapping[str, Tensor] | None = None) -> None:
    """In PEFT's format, with the tokenizer beside it."""
    assert policy.adapter
    policy.adapter.save(folder, (policy.source.base or policy.source).lasting, factors)
    policy.tokenizer.save_pretrained(folder)


def _read(source: Source, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer as they are in their files."""
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
            model = AutoModelForCausalLM.from_pretrained(
                source.where, dtype="auto", use_safetensors=True, **source.options
            )
        except Exception as error:  # transformers raises many kinds; all mean that the user must choose another model
            raise ModelError(f"model {source.name} {why_not(source, error)}") from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"model {source.name} is an adapter on the hub: get it into a folder first, with "
            f"`hf download {source.name} --local-dir FOLDER`, and give that"
        )
    for param in model.parameters():  # out of the file, into memory of its own: where it lies decides its last bits
        param.data = param.data.clone(memory_format=torch.contiguous_format)
    return model, tokenizer


def _tell(model: PreTrainedModel, eos_ids: Sequence[int], pad_id: int) -> None:
    """The model's own configs are told what was found, so that its folder says so too."""
    model.config.pad_token_id = pad_id
    if generation := model.generation_config:
        generation.pad_token_id = pad_id
        generation.eos_token_id = list(eos_ids) if len(eos_ids) > 1 else eos_ids[0]


@torch.no_grad()
def _faithful(policy: Policy) -> Policy:
    """The policy by the fastest way that gives the model's own logits: written out, by its modules with our attention,
    or by nothing of ours. Classes that scale their logits, or attend in ways of their own, are found out here."""
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
        # A prompt and two answers that must not see each other: a class that ignores the layout gives itself away.
        layout = attention.SharedPrompts([n], [0, 0], [n, n], device)
        try:
            hidden = way.hidden(torch.cat([prompt_N, *answers]), torch.cat([at_N, at_N[n:]]), layout)
            ours = way.logits(hidden[n:])
        except Exception:  # one that knows no attention but its own may fail in any way
            continue
        if float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6)) < allowed:
            return way
    model.set_attn_implementation(own)
    return replace(policy, plain=True)
