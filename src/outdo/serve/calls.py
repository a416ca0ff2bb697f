"""The tool calls in an answer, by the format of the model's family."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outdo.models.bridge import Bridge
from outdo.models.call_syntax import END_THINK, THINK
from outdo.models.renderer import Renderer
from outdo.models.tool_formats import ToolFormat
from outdo.serve.errors import clean

# What a call begins with. In formats that are not listed anything may be part of one.
MARKS = {"hermes": ("<tool_call>",), "qwen_xml": ("<tool_call>", "<function="), "mistral": ("[TOOL_CALLS]",)}


@dataclass(frozen=True)
class Specials:
    """Special tokens that stay in the text of an answer, since its calls are written with them, and the others."""

    kept: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def of(cls, renderer: Renderer, tokens: Iterable[str]) -> Specials:
        """`tokens` are kept."""
        tokenizer = renderer.tokenizer
        vocab = tokenizer.get_vocab()
        kept = {vocab[token] for token in tokens if token in vocab}
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        every = added | {*tokenizer.all_special_ids, *renderer.eos_ids}
        return cls(frozenset(kept & every), frozenset(every - kept))


@dataclass(frozen=True)
class CallReader:
    """Of a conversation with tools."""

    bridge: Bridge
    specials: Specials

    @classmethod
    def of(cls, bridge: Bridge) -> CallReader:
        return cls(bridge, Specials.of(bridge.renderer, (THINK, END_THINK, *bridge.tool_format.special)))

    @property
    def marks(self) -> tuple[str, ...] | None:
        """What must not be shown before the answer is done; None: nothing may be."""
        return marks_of(self.bridge.tool_format)

    def read(
        self, text: str, number: Callable[[int], int], most: int | None = None
    ) -> tuple[str, list[dict[str, Any]]]:
        """The content and OpenAI's `tool_calls` of an answer, with ids by `number`: some templates show them to the
        model, so that they must be the same when the answer is. A call that cannot be read stays in the content."""
        message = self.bridge.read_text(text)
        named = [call for call in message.get("tool_calls", ()) if "name" in call][:most]
        calls = [_openai(call, f"call_{number(i):016x}") for i, call in enumerate(named)]
        return (message["content"], calls) if calls else (text, [])


def marks_of(tool_format: ToolFormat) -> tuple[str, ...] | None:
    return MARKS.get(tool_format.name)


def _openai(call: Mapping[str, Any], identity: str) -> dict[str, Any]:
    arguments = clean(json.dumps(call["arguments"], ensure_ascii=False))
    function = {"name": clean(call["name"]), "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}
