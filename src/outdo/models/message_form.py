"""How a chat template wants messages of assistants that call tools, and of the tools. Found out by rendering some.

A conversation is kept in one form: an assistant's `tool_calls` are {"name", "arguments"}, or {"error"} for a call that
could not be read, whose text stays in the content; a message of role tool answers each call, in their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outdo.models.templates import Conversation, TemplateFails, render_each
from outdo.types import Message

if TYPE_CHECKING:
    from outdo.models.tool_formats import ToolFormat

PROBE_CALL: dict[str, Any] = {"name": "lookup_zq7", "arguments": {"city": "Paris 12"}}
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE_CALL["name"],
        "description": "Looks it up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where."}},
            "required": ["city"],
        },
    },
}
MALFORMED = "malformed_call"  # stands for a call that could not be read, where the template counts calls
PLAIN_KEYS = ("role", "content", "name", "tool_call_id")  # of an environment's message; a template sees no others
_ANSWER = "answer zq7"
_NOT_NAME = re.compile(r"[^\w.\-]", re.ASCII)
Shown = dict[str, Any]  # a message as the template gets it


@dataclass(frozen=True)
class Form:
    """What a template does with messages of calls and tools."""

    shows_calls: bool  # it writes an assistant's `tool_calls`; else they are written into the content
    text_arguments: bool = False  # it wants a call's arguments as JSON text
    empty: str | None = None  # the content of a message with nothing but calls
    tool_role: bool = True  # it shows messages of role tool; else they become a user's
    counts_calls: bool = False  # it refuses a tool's message without a call
    one_call: bool = False  # it refuses several calls in a message; then they are written into the content


def probe_form(tokenizer: Any) -> tuple[Form, str]:
    """The template's form, and how it writes the call PROBE_CALL."""
    user = {"role": "user", "content": "?"}
    forms = [Form(True, as_text, empty) for as_text in (False, True) for empty in (None, "")]
    before, *after = render_each(
        tokenizer,
        [_talk([user], True), *(_talk([user, _assistant("", [PROBE_CALL], ["call00000"], form)]) for form in forms)],
    )
    form, shown = Form(False, empty=""), ""
    for each, text in zip(forms, after, strict=True):
        if isinstance(before, str) and isinstance(text, str):
            region = text[_num_shared(before, text) :]
            if PROBE_CALL["name"] in region and "Paris 12" in region:
                form, shown = each, region
                break
    ids = ["call00000", "call00001"]
    called, several, plain = (_assistant("", [PROBE_CALL] * n * form.shows_calls, ids, form) for n in (1, 2, 0))
    tools = [{"role": "tool", "content": _ANSWER, "name": PROBE_CALL["name"], "tool_call_id": each} for each in ids]
    done = [{"role": "assistant", "content": "done"}, user]
    talks = [user, called, tools[0]], [user, called, tools[0], *done], [user, plain, tools[0], *done]
    texts = render_each(tokenizer, [*map(_talk, talks), _talk([user, several, *tools])])
    fails = [isinstance(text, TemplateFails) for text in texts]
    form = replace(
        form,
        tool_role=isinstance(texts[0], str) and _ANSWER in texts[0].lower(),
        counts_calls=fails[1:3] == [False, True],
        one_call=form.shows_calls and fails[3] and not fails[0],
    )
    return form, shown


def _num_shared(first: str, second: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def shows_tools(tokenizer: Any) -> bool:
    """Whether the chat template shows the model which tools there are."""
    if not tokenizer.chat_template:
        return False
    (text,) = render_each(tokenizer, [_talk([{"role": "user", "content": "?"}], True)])
    return isinstance(text, str) and PROBE_CALL["name"] in text


def _talk(messages: Sequence[Message], prompts: bool = False) -> Conversation:
    return {"messages": list(messages), "tools": [PROBE_TOOL], "add_generation_prompt": prompts}


def template_messages(messages: Sequence[Message], form: Form, tool_format: ToolFormat) -> list[Shown]:
    """The messages as the template wants them. Those before the first assistant's keep all their keys."""
    shown: list[Shown] = []
    open_calls: list[tuple[Any, str]] = []  # without an answer yet: the id that the call had, and the one it gets
    num_calls, is_prompt, previous = 0, True, ""
    for message in messages:
        role, content = str(message["role"]), _text(message.get("content"))
        if role == "assistant":
            calls, is_prompt = list(message.get("tool_calls") or ()), False
            ids = [f"call{number:05d}" for number in range(num_calls, num_calls + len(calls))]
            num_calls += len(calls)
            open_calls = [(call.get("id"), identity) for call, identity in zip(calls, ids, strict=True)]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            shown.append({**rest, **_written(content, calls, ids, form, tool_format)})
        elif not form.tool_role and previous and {role, previous} in ({"tool"}, {"tool", "user"}):
            shown[-1]["content"] += "\n" + content  # since roles may have to alternate
        else:
            keys = message if is_prompt else [key for key in PLAIN_KEYS if message.get(key) is not None]
            plain = {**{key: message[key] for key in keys}, "role": role, "content": content}
            if message.get("name"):
                plain["name"] = _name(message["name"])
            if role == "tool":
                plain["tool_call_id"] = _identity(open_calls, message.get("tool_call_id"), num_calls)
            if role == "tool" and not form.tool_role:
                plain = {"role": "user", "content": content}
            shown.append(plain)
        previous = role
    return shown


def _identity(open_calls: list[tuple[Any, str]], given: Any, num_calls: int) -> str:
    """Of the call that a tool's message answers: the one with the id that it names, else the next."""
    named = [i for i, (identity, _) in enumerate(open_calls) if given is not None and identity == given]
    return open_calls.pop(named[0] if named else 0)[1] if open_calls else f"call{num_calls:05d}"


def _written(
    content: str, calls: Sequence[Any], ids: Sequence[str], form: Form, tool_format: ToolFormat
) -> dict[str, Any]:
    if tool_format.inline:
        return {"role": "assistant", "content": content}
    plain = [_plain(call) for call in calls]
    if form.shows_calls and not (form.one_call and len(plain) > 1):
        return _assistant(content, plain, ids, form)
    written = [tool_format.render_call(call["name"], call["arguments"]) for call in plain if "name" in call]
    return {"role": "assistant", "content": "\n".join(filter(None, [content, *written]))}


def _assistant(content: str, calls: Sequence[Mapping[str, Any]], ids: Sequence[str], form: Form) -> Shown:
    if form.counts_calls and calls and not any("name" in call for call in calls):
        calls = [{"name": MALFORMED, "arguments": {}}]
    written = tool_calls(calls, ids, form.text_arguments)
    message = {"role": "assistant", "content": content if content.strip() or not written else form.empty}
    return {**message, "tool_calls": written} if written else message


def tool_calls(
    calls: Sequence[Mapping[str, Any]], ids: Sequence[str] = (), text_arguments: bool = False
) -> list[dict[str, Any]]:
    """Calls as templates and OpenAI's clients want them. An id is of nine letters and digits, as Mistral demands."""
    numbered = zip(ids or [f"call{number:05d}" for number in range(len(calls))], calls, strict=False)
    return [
        {
            "type": "function",
            "id": identity,
            "function": {
                "name": call["name"],
                "arguments": json.dumps(call["arguments"]) if text_arguments else call["arguments"],
            },
        }
        for identity, call in numbered
        if "name" in call
    ]


def _plain(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call in our form, from that of OpenAI's clients too."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call if "error" in call else {"name": _name(call["name"]), "arguments": call["arguments"]}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {"error": "its arguments are not JSON"}
    return {"name": _name(function.get("name")), "arguments": arguments}


def _name(value: Any) -> str:
    """A name that is part of the template's own text: nothing in it can be a special token."""
    return _NOT_NAME.sub("_", str(value))[:64]


def _text(content: Any) -> str:
    """Content is text; a list of parts, as OpenAI's clients send, is joined."""
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(str(part) for part in parts if part is not None)
    return "" if content is None else str(content)
