"""Conversations of several turns on small tokenizers, for tests of the bridge between turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.bridge import Bridge, TurnEnd
from outdo.models.renderer import Renderer
from outdo.types import Message
from support.chat_templates import TOOL, family_tokenizer

USER: Message = {"role": "user", "content": "What is the weather in Paris? And why?\n"}
PARIS, ROME = {"city": "Paris é", "days": 2}, {"city": "Rome"}


def bridge_of(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Any] = ()) -> Bridge:
    return Bridge(Renderer.of("model", tokenizer, None, 4096), tools)


def family_bridge(family: str) -> Bridge:
    return bridge_of(family_tokenizer(family), [TOOL])


def encode(bridge: Bridge, text: str) -> tuple[int, ...]:
    return tuple(bridge.tokenizer(text, add_special_tokens=False)["input_ids"])


def rendered(bridge: Bridge, messages: Sequence[Message], opens: bool = False) -> str:
    """By transformers itself."""
    tools = bridge.tools or None
    return bridge.tokenizer.apply_chat_template(
        [dict(message) for message in messages], tools=tools, tokenize=False, add_generation_prompt=opens
    )


def play(bridge: Bridge, messages: list[Message], turns: Sequence[tuple[str, list[Message]]]) -> tuple[int, ...]:
    """The tokens of a conversation in which the model writes these texts, and a token that ends them."""
    ids, before = bridge.start(messages), list(messages)
    for text, new in turns:
        sampled = (*encode(bridge, text), bridge.renderer.eos_ids[0])
        ids += sampled
        if new:
            answer = bridge.read(sampled)
            (extension,) = bridge.extend_all([TurnEnd(before, answer, True, new)])
            assert extension.prompt_ids is None and not extension.problem
            ids += extension.token_ids
            before += [answer, *new]
    return ids


def tool(content: str) -> Message:
    return {"role": "tool", "name": "weather", "content": content}


def called(content: str | None, number: int, *arguments: dict[str, Any]) -> Message:
    """As transformers' users write it."""
    calls = [
        {"type": "function", "id": f"call{number + i:05d}", "function": {"name": "weather", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def controls(bridge: Bridge, ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i in bridge.tokenizer.added_tokens_decoder]
