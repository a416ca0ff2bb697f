"""How models write calls of tools: what is read, what is answered with an error, which template has which format."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from outdo.errors import ModelError
from outdo.models.call_syntax import MAX_CALLS, Call
from outdo.models.message_form import tool_calls
from outdo.models.tiny import tiny_tokenizer
from outdo.models.tool_formats import (
    FORMATS,
    HERMES,
    LLAMA,
    MARKS,
    MISTRAL,
    QWEN_XML,
    choose_format,
    fit_types,
    refuse_without_tools,
)
from outdo.untrusted.parse import parse_json_at
from support.chat_templates import CHATML, family_tokenizer

HOSTILE = {"city": 'Pa"ris\n</tool_call> <think> é \\ {[', "deep": [[{"a": [None, True, -1.5e3]}]]}


def call(name: str, **arguments: Any) -> Call:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral"])
def test_reads_what_it_writes(name: str) -> None:
    one = FORMATS[name]
    assert one.parse(one.render_call("weather", HOSTILE)) == ("", [{"name": "weather", "arguments": HOSTILE}])
    both = "\n".join([one.render_call("weather", HOSTILE), one.render_call("now", {})])
    assert one.parse(both) == ("", [{"name": "weather", "arguments": HOSTILE}, call("now")])


def test_reads_tags_that_it_writes() -> None:
    values = {"code": "\nprint('<b>')\n  ", "count": "3", "text": "</parameters"}
    assert QWEN_XML.parse(QWEN_XML.render_call("run", values)) == ("", [{"name": "run", "arguments": values}])
    assert QWEN_XML.parse(QWEN_XML.render_call("run", {"n": 3, "on": True}))[1] == [call("run", n="3", on="true")]


A, B = '{"name": "a", "arguments": {"x": 1}}', '{"name": "b", "arguments": {}}'
READ = [
    (HERMES, f"Let me see.\n<tool_call>\n{A}\n</tool_call>\n", "Let me see.", [call("a", x=1)]),
    (HERMES, f"<tool_call>{A}</tool_call> and <tool_call>{B}</tool_call>", "and", [call("a", x=1), call("b")]),
    (HERMES, f"<tool_call>{A}", "", [call("a", x=1)]),
    (HERMES, '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [call("a", x=1)]),
    (HERMES, f"<think>\n<tool_call>{A}</tool_call></think>\n\nNo.", None, []),
    (HERMES, f"<think>\n<tool_call>{A}</tool_call>", None, []),
    (HERMES, f"<tool_call>{A}</think><tool_call>{B}</tool_call>", f"<tool_call>{A}</think>", [call("b")]),
    (HERMES, f"<think>hm</think>\n<tool_call>{B}</tool_call>", "<think>hm</think>", [call("b")]),
    (HERMES, "Tools are called with <tool_cal>, and [1] is 2 < 3.", None, []),
    (QWEN_XML, "<function=a><parameter=x>1</parameter></function>", "", [call("a", x="1")]),
    (QWEN_XML, "Well,\n<tool_call>\n<function=a>\n</function>\n</tool_call>", "Well,", [call("a")]),
    (LLAMA, '{"name": "a", "parameters": {"x": 1}}', "", [call("a", x=1)]),
    (LLAMA, '<|python_tag|>{"name": "a", "parameters": {"x": 1}}', "", [call("a", x=1)]),
    (LLAMA, '{"type": "function", "name": "a", "parameters": {}}', "", [call("a")]),
    (LLAMA, '{"type": "function", "function": {"name": "a", "parameters": {"x": 1}}}', "", [call("a", x=1)]),
    (LLAMA, f"{A}; {B}", "", [call("a", x=1), call("b")]),
    (LLAMA, '<think>{"name": "a", "parameters": {}}', None, []),
    (LLAMA, '<think>hm</think>\n{"name": "a", "parameters": {}}', "<think>hm</think>", [call("a")]),
    (LLAMA, '{"answer": 5}', None, []),
    (LLAMA, '{"name": "Alice", "age": 5}', None, []),
    (LLAMA, 'I call {"name": "a", "parameters": {}}', None, []),
    (MISTRAL, f"[TOOL_CALLS] [{A}, {B}]", "", [call("a", x=1), call("b")]),
    (MISTRAL, f"Wait.[TOOL_CALLS]{A}", "Wait.", [call("a", x=1)]),
    (MISTRAL, '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', "", [call("a", x=1), call("b")]),
    (MISTRAL, '[TOOL_CALLS]a[CALL_ID]Ab3dE5g7i[ARGS]{"x": 1}', "", [call("a", x=1)]),
    (MARKS, "He has 48/2 = <<48/2=", None, [call("calculator", expression="48/2")]),
    (MARKS, "<think>It is <<1+1=2>>2 and <<(3+4)*2=", None, [call("calculator", expression="(3+4)*2")]),
    (MARKS, "It is <<1+1=2>>2, so x =", None, []),
    (MARKS, "<<a\n=", None, []),
    (MARKS, "1 << 2 = 4 =", None, []),
]


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), READ)
def test_calls(tool_format: Any, text: str, content: str | None, calls: list[Call]) -> None:
    """A content of None: the text as it is."""
    assert tool_format.parse(text) == (text if content is None else content, calls)


UNREAD = [
    (HERMES, '<tool_call>{"name": "a", "arguments": {x: 1}}</tool_call>', "character 29"),
    (HERMES, "<tool_call>weather in Paris</tool_call>", "not valid JSON"),
    (HERMES, f"<tool_call>{A}}}</tool_call>", "must follow"),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>', "needs a `name`"),
    (HERMES, '<tool_call>{"name": "a b", "arguments": {}}</tool_call>', "needs a `name`"),
    (HERMES, '<tool_call>{"name": ["a"], "arguments": {}}</tool_call>', "needs a `name`"),
    (HERMES, '<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "arguments of a"),
    (HERMES, f"<tool_call>[{A}]</tool_call>", "a JSON object"),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN"),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "too large"),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("9" * 5000), "5,000 digits"),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("[" * 101 + "]" * 101), "too deeply"),
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": "\\ud83d"}}</tool_call>', "half of a character"),
    (QWEN_XML, "<tool_call>\n<function=a>\n<parameter=x>\n1\n</function>\n</tool_call>", "</parameter>"),
    (QWEN_XML, "<tool_call>\n<function=a>\n<parameter=x>1</parameter>", "</function>"),
    (QWEN_XML, f"<tool_call>{A}</tool_call>", "<function=name>"),
    (QWEN_XML, "<function=a><parameter=x>1</parameter><parameter=x>2</parameter></function>", "twice"),
    (LLAMA, "<|python_tag|>print(1)", "not valid JSON"),
    (LLAMA, '{"name": "a", "parameters": {"x": }}', "not valid JSON"),
    (MISTRAL, "[TOOL_CALLS] []", "1 to 32"),
    (MISTRAL, '[TOOL_CALLS]a[ARGS]{"x"}', "not valid JSON"),
    (MISTRAL, "[TOOL_CALLS]", "must follow"),
    (MARKS, "that is <<=", "nothing to calculate"),
]


@pytest.mark.parametrize(("tool_format", "text", "reason"), UNREAD)
def test_unread_calls(tool_format: Any, text: str, reason: str) -> None:
    """An error for the model; the text stays in the content."""
    content, calls = tool_format.parse(text)
    assert content == text and list(calls[0]) == ["error"] and len(calls) == 1
    assert reason in calls[0]["error"] and len(calls[0]["error"]) < 200


def test_calls_around_one_that_is_unread() -> None:
    bad = "<tool_call>{bad}</tool_call>"
    content, calls = HERMES.parse(f"x <tool_call>{A}</tool_call>{bad}<tool_call>{B}</tool_call>")
    assert content == f"x {bad}" and [set(one) for one in calls] == [{"name", "arguments"}, {"error"}, set(calls[0])]
    after = LLAMA.parse('{"name": "a", "parameters": {}} and so on')[1]
    assert after[0] == call("a") and "nothing but further calls" in after[1]["error"]
    content, calls = MISTRAL.parse(f"[TOOL_CALLS]???[TOOL_CALLS] [{A}]")
    assert content == "[TOOL_CALLS]???" and calls[1:] == [call("a", x=1)]


def test_too_many_calls() -> None:
    content, calls = HERMES.parse(f"<tool_call>{A}</tool_call>" * 1000)
    assert len(calls) == MAX_CALLS + 1 and calls[:-1] == [call("a", x=1)] * MAX_CALLS
    assert "others are ignored" in calls[-1]["error"] and content.count("<tool_call>") == 1000 - MAX_CALLS


N = 100_000
BOMBS = [
    "[" * N,
    "<tool_call>" * N,
    "<tool_call>" + "[" * N,
    "<tool_call>" + '{"a":' * N,
    '<tool_call>["' * N,
    '<tool_call>[",",",' * N,
    "<tool_call>" + " " * N + "<tool_call>",
    "<tool_call>" + "9" * N,
    "<tool_call>0." + "1" * N,
    '<tool_call>{"name": "' + "a" * N,
    "<think>" * N + "</think>" * N,
    "</think><think>" * N,
    "<function=" * N,
    "<function=a>" + "<parameter=x>" * N,
    "<function=a>" + "".join(f"<parameter=x{i}></parameter>" for i in range(N // 4)),
    "<|python_tag|>" * N,
    '{"name":' * N,
    '{"function":' * N,
    '{"name": "a", "parameters": {}};' * N,
    "[TOOL_CALLS]" * N,
    "[TOOL_CALLS] [" * N,
    "[TOOL_CALLS] [" + "1," * N + "1]",
    "[TOOL_CALLS]" + "a" * N,
    "<<" * N + "=",
    "<<" + "1" * N + "=",
    "<<=" * N,
    "\ud800<tool_call>\x00",
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: f"{bomb[:12]!r}+{bomb[-12:]!r}")
def test_hostile_text(bomb: str) -> None:
    """Read within limits, in time that grows with the length alone, and without an exception."""
    for one in FORMATS.values():
        start = time.process_time()
        content, calls = one.parse(bomb)
        assert time.process_time() - start < 2
        assert len(calls) <= 2 * MAX_CALLS and isinstance(content, str)
        json.dumps(calls, allow_nan=False)


def test_json_at_a_place() -> None:
    assert parse_json_at('x  {"a": [1]} y', 1) == ({"a": [1]}, 13)
    for bad in ("-Infinity", "1e400", "", "]"):
        with pytest.raises(ValueError):
            parse_json_at(bad, 0)


def test_types_of_a_schema() -> None:
    schema = {
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": ["number", "null"]},
            "on": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "items": {"type": "array"},
            "s": {"type": "string"},
            "bad": {"type": "integer"},
        }
    }
    read = {"n": "3", "x": "2.5", "on": "True", "items": "[1]", "s": "7", "bad": "3.5", "other": "1"}
    assert fit_types(read, schema) == {**read, "n": 3, "x": 2.5, "on": True, "items": [1]}
    assert fit_types({"x": "null", "on": "5"}, schema) == {"x": None, "on": "5"}
    assert fit_types({"n": "3"}, {}) == {"n": "3"}


@pytest.mark.parametrize(
    ("family", "name"),
    [("chatml", "hermes"), ("thinking", "hermes"), ("tags", "qwen_xml"), ("llama", "llama"), ("mistral", "mistral")],
)
def test_format_of_a_template(family: str, name: str) -> None:
    tokenizer = family_tokenizer(family)
    assert choose_format(tokenizer).name == name
    refuse_without_tools(tokenizer, ["search"])


def test_format_where_the_template_writes_no_calls() -> None:
    tokenizer = family_tokenizer("chatml")
    assert choose_format(tiny_tokenizer()) is HERMES and choose_format(family_tokenizer("gemma")) is HERMES
    tokenizer.chat_template = "{# [TOOL_CALLS] #}{{ messages[0].content }}"
    assert choose_format(tokenizer) is MISTRAL
    tokenizer.chat_template = None
    assert choose_format(tokenizer) is MARKS


def test_unknown_format() -> None:
    tokenizer = family_tokenizer("chatml")
    tokenizer.chat_template = CHATML.replace("<tool_call>", "<call>")
    with pytest.raises(ModelError, match=r"<call>.*tool_format"):
        choose_format(tokenizer)


def test_tools_that_are_not_shown() -> None:
    """An error that names them, and what to do. A template may mention tools and yet not show them."""
    tokenizer = family_tokenizer("gemma")
    refuse_without_tools(tokenizer, [])
    refuse_without_tools(tokenizer, ["calculator"], MARKS)
    with pytest.raises(ModelError, match=r"search.*template shows tools.*tool_format: marks"):
        refuse_without_tools(tokenizer, ["search"])
    with pytest.raises(ModelError, match="calculator alone, not search"):
        refuse_without_tools(tokenizer, ["calculator", "search"], MARKS)
    tokenizer.chat_template = "{% if tools %}{% endif %}{{ messages[0].content }}"
    with pytest.raises(ModelError, match="no place for them"):
        refuse_without_tools(tokenizer, ["search"])
    tokenizer.chat_template = None
    refuse_without_tools(tokenizer, ["calculator"])
    with pytest.raises(ModelError, match="no chat template"):
        refuse_without_tools(tokenizer, ["search"])


def test_calls_for_templates() -> None:
    """Ids of nine letters and digits; a call that could not be read is none."""
    written = tool_calls([call("a", x=1), {"error": "?"}, call("b")])
    assert [one["id"] for one in written] == ["call00000", "call00002"]
    assert written[0] == {"type": "function", "id": "call00000", "function": {"name": "a", "arguments": {"x": 1}}}


def test_tokens_that_end_a_mark() -> None:
    """Those with an equals sign that may stand in a mark, not the one with a space before it."""
    tokenizer = family_tokenizer("chatml")
    tokenizer.add_tokens([")=", " =", "==", "5="])
    texts = {tokenizer.decode([i]) for i in MARKS.stop_ids(tokenizer)}
    assert texts == {"=", ")=", "5="} and HERMES.stop_ids(tokenizer) == ()
