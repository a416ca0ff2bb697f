"""A prompt in tokens. One that continues what was sampled before begins with the sampled tokens: text is never encoded
again to get them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.errors import ModelError
from outdo.models.bridge import Bridge, TurnEnd
from outdo.models.renderer import Renderer
from outdo.serve.recording import Call
from outdo.types import Message


@dataclass(frozen=True)
class Rendered:
    ids: tuple[int, ...]
    text: str | None = None  # of a completion's prompt; None: token ids were given, or messages
    follows: str = ""  # the turn whose prompt and answer it begins with


def render_chat(
    bridge: Bridge, messages: tuple[Message, ...], tools: Sequence[Mapping[str, Any]], earlier: Sequence[Call]
) -> Rendered:
    """`earlier` are the calls of the session. Messages that continue one of them become what the chat template adds to
    its tokens. Raises ModelError where the template fails, and TaskError where there is nothing to encode."""
    for call in reversed(earlier):
        if call.reply is None or tuple(tools) != call.tools:
            continue
        known = (*call.messages, call.reply)
        new = messages[len(known) :]
        if not new or messages[: len(known)] != known:
            continue
        ended = call.segment.token_ids[-1] in bridge.renderer.eos_ids
        (added,) = bridge.extend_all([TurnEnd(call.messages, call.reply, ended, new)])
        if added.problem:
            raise ModelError(added.problem)
        if added.prompt_ids is not None:  # the template rewrites earlier turns
            return _followed(added.prompt_ids, None, earlier)
        return Rendered(call.all_ids + added.token_ids, None, call.turn)
    return _followed(bridge.conversation(messages), None, earlier)


def render_text(renderer: Renderer, text: str, earlier: Sequence[Call]) -> Rendered:
    """Of a completion. A text that begins with an earlier prompt and its answer, special tokens included, is encoded
    from there on."""
    for call in reversed(earlier):
        if call.prompt_text is not None and text.startswith(call.prompt_text):
            before = call.prompt_text + renderer.spell(call.segment.token_ids)
            if text.startswith(before):
                (added,) = renderer.encode_texts([text[len(before) :]])
                return Rendered(call.all_ids + tuple(added), text, call.turn)
    ids = renderer.tokenizer(text, verbose=False)["input_ids"]
    return _followed(tuple(ids), text, earlier)


def render_ids(ids: tuple[int, ...], earlier: Sequence[Call]) -> Rendered:
    return _followed(ids, None, earlier)


def _followed(ids: tuple[int, ...], text: str | None, earlier: Sequence[Call]) -> Rendered:
    turn = next((call.turn for call in reversed(earlier) if ids[: len(call.all_ids)] == call.all_ids), "")
    return Rendered(ids, text, turn)
