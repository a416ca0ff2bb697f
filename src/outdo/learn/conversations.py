"""Demonstrations in tokens: the answer to a prompt or, over several turns, a conversation. What the model does not
write itself, the messages of tools and environments and the results in calculator's marks, is context only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.models.bridge import Bridge, TurnEnd
from outdo.models.load import Policy
from outdo.models.tool_formats import ToolFormat, format_of
from outdo.tasks.task import Shown
from outdo.types import Message, Prompt

ToolsOf = Callable[[Prompt], Sequence[Mapping[str, Any]]]  # the schemas of the tools that a prompt is shown with
_RESULT = re.compile(r"(?<==)[^<>=]*>>")  # of a calculator's mark: what stands between the last = and the end


@dataclass(frozen=True)
class Dialect:
    """How demonstrations are written: the tools that they are shown with, and how calls are."""

    tools_of: ToolsOf = lambda prompt: ()
    tool_format: ToolFormat | None = None  # None: that of the chat template, and no marks
    bridges: dict[str, Bridge] = field(default_factory=dict)  # by the tools that are shown

    @classmethod
    def named(cls, tools_of: ToolsOf, tool_format: str, policy: Policy) -> Dialect:
        return cls(tools_of, format_of(tool_format, policy.renderer.tokenizer))

    def bridge(self, policy: Policy, prompt: Prompt) -> Bridge:
        tools = self.tools_of(prompt)
        key = json.dumps(tools, sort_keys=True, default=str)
        if key not in self.bridges:
            self.bridges[key] = Bridge(policy.renderer, tools, self.tool_format)
        return self.bridges[key]


Ids = tuple[int, ...]


@dataclass(frozen=True)
class Encoded:
    """A demonstration in tokens, with those of others masked; an empty mask: all are the model's."""

    prompt_ids: Ids
    answer_ids: Ids
    mask: tuple[bool, ...] = ()


@dataclass
class _Talk:
    prompt: Prompt
    messages: Sequence[Message]
    bridge: Bridge
    prompt_ids: Ids = ()
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    at: int = 0  # messages that are encoded
    is_cut: bool = False  # the template shows earlier turns otherwise from here on

    def add(self, ids: Sequence[int], own: bool) -> None:
        self.ids += ids
        self.mask += [own] * len(ids)


def encode_answers(policy: Policy, examples: Sequence[tuple[Prompt, Shown]], dialect: Dialect) -> list[Encoded]:
    """Each demonstration's tokens. An end-of-turn token follows every turn of the model."""
    marks = dialect.tool_format is not None and dialect.tool_format.inline
    texts = [
        (i, text) for i, (_, text) in enumerate(examples) if isinstance(text, str) and not (marks and ">>" in text)
    ]
    out: dict[int, Encoded] = {}
    prompts = policy.renderer.encode_all([examples[i][0] for i, _ in texts])
    answers = policy.renderer.encode_texts([text for _, text in texts])
    for (i, _), prompt_ids, ids in zip(texts, prompts, answers, strict=True):
        out[i] = Encoded(prompt_ids, (*ids, policy.eos_ids[0]))
    others = [i for i in range(len(examples)) if i not in out]
    talks = [_talk(policy, examples[i][0], examples[i][1], dialect) for i in others]
    _encode(policy, talks)
    for i, talk in zip(others, talks, strict=True):
        out[i] = Encoded(talk.prompt_ids, tuple(talk.ids), () if all(talk.mask) else tuple(talk.mask))
    return [out[i] for i in range(len(examples))]


def _talk(policy: Policy, prompt: Prompt, shown: Shown, dialect: Dialect) -> _Talk:
    messages = [{"role": "assistant", "content": shown}] if isinstance(shown, str) else shown
    return _Talk(prompt, messages, dialect.bridge(policy, prompt))


def _encode(policy: Policy, talks: Sequence[_Talk]) -> None:
    """Turn by turn, as an episode is sampled: what follows a turn is the difference that the template adds."""
    for bridge, part in _by_bridge(talks):
        for talk, ids in zip(part, bridge.start_all([talk.prompt for talk in part]), strict=True):
            talk.prompt_ids = ids
    while active := [talk for talk in talks if talk.at < len(talk.messages) and not talk.is_cut]:
        for talk in active:
            for text, own in _pieces(talk):
                rows: Sequence[Sequence[int]]
                rows = policy.renderer.encode_texts([text]) if own else talk.bridge.insert_all([text])
                talk.add(rows[0], own)
            talk.add([policy.eos_ids[0]], own=True)
            talk.at += 1
        for bridge, part in _by_bridge([talk for talk in active if talk.at < len(talk.messages)]):
            turns = [_turn_end(talk) for talk in part]
            for talk, turn, extension in zip(part, turns, bridge.extend_all(turns), strict=True):
                talk.is_cut = extension.prompt_ids is not None or bool(extension.problem)
                talk.at += len(turn.new)
                if not talk.is_cut and talk.at < len(talk.messages):
                    talk.add(extension.token_ids, own=False)


def _by_bridge(talks: Sequence[_Talk]) -> list[tuple[Bridge, list[_Talk]]]:
    parts: dict[int, tuple[Bridge, list[_Talk]]] = {}
    for talk in talks:
        parts.setdefault(id(talk.bridge), (talk.bridge, []))[1].append(talk)
    return list(parts.values())


def _turn_end(talk: _Talk) -> TurnEnd:
    before = [*talk.prompt.messages, *talk.messages[: talk.at - 1]]
    return TurnEnd(before, talk.messages[talk.at - 1], True, list(_until_answer(talk.messages[talk.at :])))


def _until_answer(messages: Sequence[Message]) -> Iterator[Message]:
    for message in messages:
        if message["role"] == "assistant":
            return
        yield message


def _pieces(talk: _Talk) -> Iterator[tuple[str, bool]]:
    """The text of the model's next turn, and whether each part of it is its own."""
    message, tool_format = talk.messages[talk.at], talk.bridge.tool_format
    calls = [tool_format.render_call(call["name"], call["arguments"]) for call in message.get("tool_calls") or ()]
    text = "\n".join([part for part in (message.get("content"), *calls) if part])
    if not tool_format.inline:
        yield text, True
        return
    end = 0
    for result in _RESULT.finditer(text):
        yield text[end : result.start()], True
        yield result[0], False
        end = result.end()
    if end < len(text):
        yield text[end:], True
