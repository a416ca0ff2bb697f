"""Loading and saving: a folder or hub name of transformers, or the embedded tiny default."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from outdo.errors import ModelError, TaskError
from outdo.models import attention
from outdo.models.tiny import tiny_model, tiny_tokenizer
from outdo.types import Prompt

TINY = "tiny"


@dataclass(frozen=True)
class Policy:
    """A model with its tokenizer, on its device: the thing that is sampled from and trained."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    eos_ids: tuple[int, ...]
    pad_id: int
    context: int  # the most tokens that it can see

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """A prompt's tokens, by the chat template where the tokenizer has one."""
        messages = [dict(m) for m in prompt.messages]
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            text = "\n".join(m["content"] for m in messages)
        ids = tuple(self.tokenizer(text, add_special_tokens=not self.tokenizer.chat_template)["input_ids"])
        if not ids:
            raise TaskError(f"prompt {prompt.id!r} is empty: nothing to answer")
        return ids

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def hidden(self, input_ids: Tensor, position_ids: Tensor, layout: attention.Layout) -> Tensor:
        """The last hidden states, before the head."""
        out = self.model.base_model(input_ids=input_ids, position_ids=position_ids, use_cache=False, layout=layout)
        return out.last_hidden_state

    @property
    def head(self) -> torch.nn.Linear:
        return self.model.get_output_embeddings()

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def pick_device(name: str = "auto") -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device={name}: torch {torch.__version__} sees no CUDA device here; use device=cpu")
    return torch.device(name)


def load_policy(name: str = TINY, *, dtype: str = "float32", device: str = "auto", seed: int = 0) -> Policy:
    """The policy by folder, hub name, or `tiny`. Raises ModelError where it cannot be had or cannot be trained here."""
    target = pick_device(device)
    if name == TINY:
        tokenizer = tiny_tokenizer()
        model: PreTrainedModel = tiny_model(tokenizer, seed)
    else:
        model, tokenizer = _pretrained(name)
    model = model.to(target, getattr(torch, dtype))
    model.set_attn_implementation(attention.NAME)
    eos = model.generation_config.eos_token_id if model.generation_config else None
    eos = tokenizer.eos_token_id if eos is None else eos
    if eos is None:
        raise ModelError(f"{name}: neither its generation config nor its tokenizer names a token that ends an answer")
    eos_ids = tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0]
    context = getattr(model.config, "max_position_embeddings", None) or 2**20
    policy = Policy(model, tokenizer, target, eos_ids, pad_id, context)
    _check_faithful(policy, name)
    return policy


def load_encoder(name: str) -> Callable[[str], list[int]]:
    """A tokenizer alone, by folder, hub name or `tiny`: text to token ids. Raises ModelError."""
    try:
        offline = Path(name).expanduser().exists() or not _hub_answers()
        tokenizer = tiny_tokenizer() if name == TINY else AutoTokenizer.from_pretrained(name, local_files_only=offline)
    except Exception as error:  # as below
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"tokenizer {name} cannot be loaded: {reason[0]}") from error
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """An ordinary Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads; of `weights` where given."""
    disable_progress_bar()  # of transformers: a bar for one file, in the middle of ours
    policy.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    policy.tokenizer.save_pretrained(folder)


def _pretrained(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = Path(name).expanduser()
    looks_local = folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_local and not (folder / "config.json").is_file():
        what = "has no config.json, so it is no model folder" if folder.exists() else "does not exist"
        raise ModelError(f"model_name_or_path={name}: {what}; give a Hugging Face folder, a hub name, or {TINY!r}")
    where, offline = str(folder) if looks_local else name, looks_local or not _hub_answers()
    try:
        options = {"local_files_only": offline, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(where, dtype="auto", use_safetensors=True, **options)
    except Exception as error:  # transformers raises many kinds; all mean that the user must choose another model
        hint = "there is no network, and it is not in the cache" if offline else "is the name right?"
        hint = "is the folder whole?" if looks_local else hint
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"model_name_or_path={name} cannot be loaded ({hint}): {reason[0]}") from error
    for param in model.parameters():  # out of the file, into memory of its own: where it lies decides its last bits
        param.data = param.data.clone(memory_format=torch.contiguous_format)
    return model, tokenizer


def _hub_answers() -> bool:
    """Whether the hub's name can be looked up: without that, every request would be tried for a minute."""
    host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


@torch.no_grad()
def _check_faithful(policy: Policy, name: str) -> None:
    """Our attention and head must give the model's own logits: a class that scales or caps them is found out here."""
    ids = torch.arange(4, device=policy.device)[None] % policy.head.weight.shape[0]
    policy.model.eval()
    layout = attention.SharedPrompts(torch.tensor([4]), torch.zeros(0, dtype=torch.long), 4, 0)
    ours = policy.head(policy.hidden(ids, torch.arange(4, device=policy.device)[None], layout))
    policy.model.set_attn_implementation("eager")
    theirs = policy.model(input_ids=ids, use_cache=False).logits
    policy.model.set_attn_implementation(attention.NAME)
    gap = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-6)
    if not gap < 0.05:
        kind = type(policy.model).__name__
        raise ModelError(f"{name}: {kind} computes its logits in a way that outdo does not follow yet; choose another")
