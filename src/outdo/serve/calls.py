"""The tool calls in an answer, by the format of the model's family."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.models.renderer import Renderer
from outdo.serve.errors import clean

# What a call begins with. In formats that are not listed anything may be part of one.
MARKS = {"hermes": ("<tool_call>",), "qwen_xml": ("<tool_call>", "<function="), "mistral": ("[TOOL_CALLS]",)}


@dataclass(frozen=True)
class CallReader:
    """`parse` gives the text without the calls that could be read, and all calls: {"name", "arguments"}, or {"error"}
    for one that could not. `special` are tokens of a call that the tokenizer counts as special."""

    name: str
    parse: Callable[[str], tuple[str, Sequence[Mapping[str, Any]]]]
    special: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...] | None:
        return MARKS.get(self.name)

    def read(self, text: str, most: int | None = None) -> tuple[str, list[dict[str, Any]]]:
        """The content and OpenAI's `tool_calls` of an answer. Where no call can be read, all of it is content."""
        content, calls = self.parse(text)
        readable = [call for call in calls if "error" not in call][:most]
        if not readable:
            return text, []
        return content, [_openai(call) for call in readable]


def reader_of(renderer: Renderer) -> CallReader:
    """For the model's chat template."""
    return CallReader("hermes", _parse_hermes, ("<tool_call>", "</tool_call>"))


@dataclass(frozen=True)
class Specials:
    """Special tokens that stay in the text of an answer, since its calls are written with them, and the others."""

    kept: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def of(cls, renderer: Renderer, reader: CallReader) -> Specials:
        tokenizer = renderer.tokenizer
        vocab = tokenizer.get_vocab()
        kept = {vocab[token] for token in reader.special if token in vocab}
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        every = added | {*tokenizer.all_special_ids, *renderer.eos_ids}
        return cls(frozenset(kept & every), frozenset(every - kept))


def _openai(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = clean(json.dumps(call["arguments"], ensure_ascii=False))
    function = {"name": clean(call["name"]), "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _parse_hermes(text: str) -> tuple[str, list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []
    for block in _BLOCK.findall(text):
        try:
            value = json.loads(block)
            calls.append({"name": str(value["name"]), "arguments": dict(value["arguments"])})
        except (ValueError, TypeError, KeyError) as error:
            calls.append({"error": str(error)})
    return _BLOCK.sub("", text).strip(), calls
