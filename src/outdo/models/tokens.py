"""The tokens with a meaning of their own: what ends an answer, and what fills up a row that is too short.

Padding never is a token that ends an answer: who reads the model's folder later may guess masks from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.errors import ModelError, TaskError
from outdo.types import Prompt

_MARK = "outdo"  # an answer that no template has a rule for


def ending_ids(name: str, tokenizer: PreTrainedTokenizerBase, generation: Any) -> tuple[int, ...]:
    """The end of a turn by the chat template, then whatever else the model's generation config stops at.

    The first is what a demonstration ends with. Raises ModelError where nothing is known.
    """
    eos = getattr(generation, "eos_token_id", None)
    eos = tokenizer.eos_token_id if eos is None else eos
    named = [] if eos is None else list(eos) if isinstance(eos, (list, tuple)) else [eos]
    turn = end_of_turn(tokenizer)
    found = tuple(dict.fromkeys(([turn] if turn is not None else []) + named))
    if not found:
        raise ModelError(f"{name}: neither its generation config nor its tokenizer names a token that ends an answer")
    return found


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an answer; None where it puts none."""
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a template is a stranger's program; one that fails is told of where a prompt meets it
        return None
    after = text.rpartition(_MARK)[2].lstrip()
    ids = tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
    return ids[0] if ids and _is_special(tokenizer, ids[0]) else None


def set_padding(tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int]) -> int:
    """The tokenizer's own pad token, or one that is special and ends nothing; as a last resort, an end."""
    words = tokenizer.convert_ids_to_tokens(list(tokenizer.all_special_ids))
    named = [token for token in words if "pad" in token.lower()]
    spare = [token for token in words if token != tokenizer.bos_token]
    order = [tokenizer.pad_token, *named, tokenizer.unk_token, *spare, tokenizer.bos_token]
    ids = [tokenizer.convert_tokens_to_ids(token) for token in order if token]
    pad_id = next((i for i in ids if i is not None and i not in eos_ids), eos_ids[0])
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    return pad_id


def keep_spaces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Its texts as its tokens say. The spaces before punctuation that WordPiece puts too many of are right in BPE:
    transformers leaves them there whatever a tokenizer's files ask for, and would say so in the middle of our lines."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is not None and type(rust.model).__name__ == "BPE":
        tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def token_facts(tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int], pad_id: int) -> dict[str, Any]:
    """What a run's manifest says of them."""
    return {
        "chat_template": bool(tokenizer.chat_template),
        "eos_ids": list(eos_ids),
        "eos_tokens": tokenizer.convert_ids_to_tokens(list(eos_ids)),
        "pad_id": pad_id,
        "pad_token": tokenizer.convert_ids_to_tokens(pad_id),
    }


def _is_special(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bool:
    added = tokenizer.added_tokens_decoder.get(token_id)
    return token_id in tokenizer.all_special_ids or bool(added and added.special)


def encoded(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Prompts' tokens, by the chat template where there is one; in a tokenizer of Rust's, on all cores."""
    if not prompts:
        return []
    texts = [_text(tokenizer, prompt) for prompt in prompts]
    # Not verbose: what is too long for the model is told by whoever asks, in words of ours.
    made = tokenizer(texts, add_special_tokens=not tokenizer.chat_template, verbose=False)
    found = [tuple(ids) for ids in made["input_ids"]]
    for prompt, ids in zip(prompts, found, strict=True):
        if not ids:
            raise TaskError(f"prompt {prompt.id!r} is empty: nothing to answer")
    return found


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    messages = [dict(m) for m in prompt.messages]
    if not tokenizer.chat_template:
        return "\n".join(m["content"] for m in messages)
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a stranger's program, in a sandbox: it may raise anything
        words = f"{type(error).__name__}: {error}"
        raise ModelError(f"the model's chat template fails on prompt {prompt.id!r:.60}: {words:.300}") from error
