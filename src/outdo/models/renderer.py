"""Text to tokens and back: a tokenizer, its chat template, and the special tokens that end an answer or pad a row.

Padding is never a token that ends an answer: whoever reads the model's folder later may derive masks from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.errors import ModelError, OutdoWarning, TaskError
from outdo.models.templates import TemplateFails, render_template
from outdo.types import Prompt
from outdo.untrusted.parse import MAX_PROMPT_CHARS

TOOLS = "tools"  # the column with the functions that a model may call
NO_TOOLS = "the data has `tools`, and the model's chat template has no place for them: the model does not see them"
_MARK = "outdo"  # an answer that no template has a rule for


@dataclass(frozen=True)
class Renderer:
    """What a prompt is in tokens, and what tokens are as text."""

    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]  # tokens that end an answer; demonstrations end with the first
    pad_id: int
    context: int  # the most tokens that the model can see

    @classmethod
    def of(cls, name: str, tokenizer: PreTrainedTokenizerBase, generation: Any, context: int) -> Renderer:
        """Of the model of that name. Sets the tokenizer's padding. Raises ModelError where nothing ends an answer."""
        eos_ids = ending_ids(name, tokenizer, generation)
        return cls(tokenizer, eos_ids, set_padding(tokenizer, eos_ids), context)

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    @property
    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of its tokens."""
        tokens_of, eos_ids = self.tokenizer.convert_ids_to_tokens, list(self.eos_ids)
        facts = {"chat_template": self.has_template, "eos_ids": eos_ids, "eos_tokens": tokens_of(eos_ids)}
        return {**facts, "pad_id": self.pad_id, "pad_token": tokens_of(self.pad_id), "context": self.context}

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """A prompt's tokens, by the chat template where the tokenizer has one."""
        return self.encode_all([prompt])[0]

    def encode_all(self, prompts: Sequence[Prompt], max_completion_length: int = 0) -> list[tuple[int, ...]]:
        """Many at once. Raises TaskError where one leaves no room for an answer of that length."""
        encoded = encode_prompts(self.tokenizer, prompts)
        for prompt, ids in zip(prompts, encoded, strict=True):
            if max_completion_length and len(ids) + max_completion_length > self.context:
                raise TaskError(
                    f"prompt {prompt.id!r} has {len(ids)} tokens; with max_completion_length={max_completion_length} "
                    f"it does not fit the model's {self.context}"
                )
        return encoded

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts as they are, without special tokens."""
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def decode_answers(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """Many at once, without the token that ended an answer, which need not be a special one."""
        answers = [ids[:-1] if ids and ids[-1] in self.eos_ids else ids for ids in answers]
        rust = getattr(self.tokenizer, "backend_tokenizer", None)
        if rust is None or self.tokenizer.clean_up_tokenization_spaces:
            return [self.decode(ids) for ids in answers]
        return rust.decode_batch([list(ids) for ids in answers], skip_special_tokens=True)  # uses all cores

    def spell(self, token_ids: Sequence[int]) -> str:
        """As `decode`, with the special tokens: stop texts are searched in this."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token alone, special ones included."""
        return [self.tokenizer.decode([token]) for token in token_ids]


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Prompts' tokens, by the chat template where there is one. Raises TaskError where a prompt has none."""
    if not prompts:
        return []
    texts = _texts(tokenizer, prompts)
    # Not verbose: transformers would warn of long prompts, which our callers report themselves.
    encoded = tokenizer(texts, add_special_tokens=not tokenizer.chat_template, verbose=False)["input_ids"]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not ids:
            raise TaskError(f"prompt {prompt.id!r} is empty: nothing to answer")
    return [tuple(ids) for ids in encoded]


def _texts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[str]:
    if any(prompt.meta.get(TOOLS) for prompt in prompts) and not takes_tools(tokenizer):
        warnings.warn(NO_TOOLS, OutdoWarning, stacklevel=2)
    for prompt in prompts:
        if (size := sum(len(message["content"] or "") for message in prompt.messages)) > MAX_PROMPT_CHARS:
            raise TaskError(
                f"prompt {prompt.id!r:.60} has {size:,} characters; at most {MAX_PROMPT_CHARS:,} are read: shorten it"
            )
    if not tokenizer.chat_template:
        return ["\n".join(message["content"] or "" for message in prompt.messages) for prompt in prompts]
    try:
        return render_template(tokenizer, [_conversation(prompt) for prompt in prompts])
    except ModelError:
        raise
    except Exception as error:  # such as a set of templates without a default one
        prompt = prompts[error.index if isinstance(error, TemplateFails) else 0]
        reason = str(error) if isinstance(error, TemplateFails) else f"{type(error).__name__}: {error}"
        raise ModelError(f"the model's chat template fails on prompt {prompt.id!r:.60}: {reason:.300}") from error


def _conversation(prompt: Prompt) -> dict[str, Any]:
    messages, tools = [dict(message) for message in prompt.messages], prompt.meta.get(TOOLS) or None
    return {"messages": messages, "tools": tools, "add_generation_prompt": True}


def takes_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template shows tools to the model."""
    template = tokenizer.chat_template
    return "tools" in (" ".join(map(str, template.values())) if isinstance(template, dict) else str(template or ""))


def ending_ids(name: str, tokenizer: PreTrainedTokenizerBase, generation: Any) -> tuple[int, ...]:
    """The chat template's end of a turn, then whatever else the model's generation config stops at."""
    eos = getattr(generation, "eos_token_id", None)
    eos = tokenizer.eos_token_id if eos is None else eos
    named = [] if eos is None else list(eos) if isinstance(eos, (list, tuple)) else [eos]
    turn = end_of_turn(tokenizer)
    ids = tuple(dict.fromkeys(([turn] if turn is not None else []) + named))
    if not ids:
        raise ModelError(f"{name}: neither its generation config nor its tokenizer names a token that ends an answer")
    return ids


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an answer, if any."""
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        (text,) = render_template(tokenizer, [{"messages": messages}])
    except Exception:  # a template is untrusted code; a failing one is reported where it meets a prompt
        return None
    after = text.rpartition(_MARK)[2].lstrip()
    ids = tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
    return ids[0] if ids and _is_special(tokenizer, ids[0]) else None


def set_padding(tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int]) -> int:
    """The tokenizer's own pad token, or a special one that ends nothing; as a last resort, an ending one."""
    tokens = tokenizer.convert_ids_to_tokens(list(tokenizer.all_special_ids))
    named = [token for token in tokens if "pad" in token.lower()]
    spare = [token for token in tokens if token != tokenizer.bos_token]
    order = [tokenizer.pad_token, *named, tokenizer.unk_token, *spare, tokenizer.bos_token]
    ids = [tokenizer.convert_tokens_to_ids(token) for token in order if token]
    pad_id = next((i for i in ids if i is not None and i not in eos_ids), eos_ids[0])
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    return pad_id


def keep_spaces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Switches off the removal of spaces before punctuation for BPE, whose tokens hold the right spaces. transformers
    never removes them for BPE, but would print a warning between our lines where a tokenizer's files ask for it."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is not None and type(rust.model).__name__ == "BPE":
        tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def _is_special(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bool:
    added = tokenizer.added_tokens_decoder.get(token_id)
    return token_id in tokenizer.all_special_ids or bool(added and added.special)
