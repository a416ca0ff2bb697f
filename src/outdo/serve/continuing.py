"""A prompt in tokens. One that continues what was sampled before begins with the sampled tokens: text is never encoded
again to get them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.models.renderer import TOOLS, Renderer
from outdo.serve.recording import Call
from outdo.types import Message, Prompt


@dataclass(frozen=True)
class Rendered:
    ids: tuple[int, ...]
    text: str | None = None  # None: token ids were given
    follows: str = ""  # the turn whose prompt and answer it begins with


def render_chat(
    renderer: Renderer, messages: tuple[Message, ...], tools: Sequence[Mapping[str, Any]], earlier: Sequence[Call]
) -> Rendered:
    """Raises ModelError where the template fails, and TaskError where there is nothing to encode."""
    prompt = Prompt("request", messages, meta={TOOLS: list(tools)} if tools else {})
    text = renderer.render(prompt)
    return _continued(renderer, text, earlier) or _encoded(renderer, text, not renderer.has_template, earlier)


def render_text(renderer: Renderer, text: str, earlier: Sequence[Call]) -> Rendered:
    return _continued(renderer, text, earlier) or _encoded(renderer, text, True, earlier)


def render_ids(ids: tuple[int, ...], earlier: Sequence[Call]) -> Rendered:
    return _followed(ids, None, earlier)


def _encoded(renderer: Renderer, text: str, with_special: bool, earlier: Sequence[Call]) -> Rendered:
    ids = renderer.tokenizer(text, add_special_tokens=with_special, verbose=False)["input_ids"]
    return _followed(tuple(ids), text, earlier)


def _continued(renderer: Renderer, text: str, earlier: Sequence[Call]) -> Rendered | None:
    """Where the text begins with that of an earlier prompt and of the answer to it, special tokens included."""
    for call in reversed(earlier):
        if call.prompt_text is None or not text.startswith(call.prompt_text):
            continue
        before = call.prompt_text + renderer.spell(call.segment.token_ids)
        if text.startswith(before):
            (added,) = renderer.encode_texts([text[len(before) :]])
            return Rendered(call.all_ids + tuple(added), text, call.turn)
    return None


def _followed(ids: tuple[int, ...], text: str | None, earlier: Sequence[Call]) -> Rendered:
    turn = next((call.turn for call in reversed(earlier) if ids[: len(call.all_ids)] == call.all_ids), "")
    return Rendered(ids, text, turn)
