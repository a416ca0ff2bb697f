"""OpenAI's JSON of an answer, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from outdo.models.renderer import Renderer
from outdo.rollout.turns import Turn
from outdo.serve.requests import Sampling
from outdo.types import Message, Segment

LEAST_LOGPROB = -9999.0  # JSON has no infinite numbers


@dataclass(frozen=True)
class Answer:
    """One choice. `text` is without its tool calls, which are in OpenAI's form."""

    index: int
    prompt_ids: tuple[int, ...]
    turn: Turn
    text: str
    calls: Sequence[Mapping[str, Any]] = ()

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.calls and self.turn.finish == "stop" else self.turn.finish

    @property
    def message(self) -> Message:
        content = self.text or None if self.calls else self.text
        return {"role": "assistant", "content": content, **({"tool_calls": list(self.calls)} if self.calls else {})}


@dataclass(frozen=True)
class Reply:
    """What the answers to one request are wrapped in."""

    chat: bool
    model: str
    sampling: Sampling
    renderer: Renderer
    num_prompt_tokens: int
    id: str = field(default_factory=lambda: token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        written = sum(len(answer.turn.segment.token_ids) for answer in answers)
        read = self.num_prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        body = self._head("chat.completion" if self.chat else "text_completion")
        body["choices"] = [self._choice(answer) for answer in answers]
        body["usage"] = self.usage(answers)
        if self.chat and self.sampling.token_ids:
            body["prompt_token_ids"] = list(answers[0].prompt_ids)
        return body

    def first(self, index: int) -> dict[str, Any]:
        """Of a chat's answer, before its text."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, {"content": text} if self.chat else text)

    def last(self, answer: Answer) -> list[dict[str, Any]]:
        """After the text: the tool calls, then why it ended. Log-probabilities are known at the end."""
        chunks = []
        for number, call in enumerate(answer.calls):
            chunks.append(self._chunk(answer.index, {"tool_calls": [{"index": number, **call}]}))
        end = self._chunk(answer.index, {} if self.chat else "")
        end["choices"][0] |= {"finish_reason": answer.finish_reason, "logprobs": self._logprobs(answer)}
        end["choices"][0] |= self._token_ids(answer)
        return [*chunks, end]

    def end(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The chunk with the usage."""
        return {**self._head(self._chunk_kind), "choices": [], "usage": self.usage(answers)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, index: int, delta: Any) -> dict[str, Any]:
        choice = {"index": index, "delta" if self.chat else "text": delta, "logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self.sampling.with_usage else {}
        return {**self._head(self._chunk_kind), "choices": [choice], **usage}

    def _choice(self, answer: Answer) -> dict[str, Any]:
        said = {"message": {**answer.message, "refusal": None}} if self.chat else {"text": answer.text}
        choice = {"index": answer.index, **said, "logprobs": self._logprobs(answer)}
        return {**choice, "finish_reason": answer.finish_reason, **self._token_ids(answer)}

    def _token_ids(self, answer: Answer) -> dict[str, Any]:
        if not self.sampling.token_ids:
            return {}
        prompt = {} if self.chat else {"prompt_token_ids": list(answer.prompt_ids)}
        return {**prompt, "token_ids": list(answer.turn.segment.token_ids)}

    def _logprobs(self, answer: Answer) -> dict[str, Any] | None:
        if not self.sampling.logprobs:
            return None
        segment, top = answer.turn.segment, bool(self.sampling.top_logprobs)
        pieces = self.renderer.pieces(segment.token_ids)
        return _of_chat(pieces, segment, top) if self.chat else _of_completion(pieces, segment, top)


def _of_chat(pieces: Sequence[str], segment: Segment, top: bool) -> dict[str, Any]:
    content = []
    for piece, value in zip(pieces, segment.logprobs, strict=True):
        own = {"token": piece, "logprob": max(value, LEAST_LOGPROB), "bytes": _bytes(piece)}
        content.append({**own, "top_logprobs": [own] if top else []})
    return {"content": content, "refusal": None}


def _of_completion(pieces: Sequence[str], segment: Segment, top: bool) -> dict[str, Any]:
    values = [max(value, LEAST_LOGPROB) for value in segment.logprobs]
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    alternatives = [{piece: value} for piece, value in zip(pieces, values, strict=True)] if top else None
    shown = {"tokens": list(pieces), "token_logprobs": values, "top_logprobs": alternatives}
    return {**shown, "text_offset": offsets[:-1]}


def _bytes(piece: str) -> list[int] | None:
    """None for a token that is a part of a character only."""
    return None if "\ufffd" in piece else list(piece.encode())
