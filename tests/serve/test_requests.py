"""What a request may say: OpenAI's fields by type and range, and what is refused by its name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outdo.serve.errors import ApiError
from outdo.serve.requests import read_chat, read_completion
from outdo.types import SampleParams
from support.api_server import ADD, said

HI = said("hi")


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_chat({"messages": HI, **fields})
    assert caught.value.status == 400
    return caught.value


def test_all_fields() -> None:
    body = {
        "messages": HI, "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "n": 3, "seed": -7,
        "stop": ["a", "b", "a"], "max_tokens": 9, "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 0,
        "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True, "tools": [ADD],
        "tool_choice": "auto", "parallel_tool_calls": False, "user": "u", "metadata": {"a": "b"}, "store": False,
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"},
        "audio": None, "reasoning_effort": None,
    }  # fmt: skip
    request = read_chat(body)
    sampling = request.sampling
    assert sampling.params == SampleParams(1, 0.5, 0.9, 40, 0.05, ("a", "b"))
    assert (sampling.n, sampling.seed, sampling.max_tokens) == (3, -7, 9)
    assert sampling.stream and sampling.with_usage and sampling.logprobs and sampling.token_ids and request.one_call
    assert request.tools == (ADD,) and request.model == "m"
    plain = read_chat({"messages": HI, **dict.fromkeys(body.keys() - {"messages"})})
    assert plain.sampling.params == SampleParams(1) and plain.sampling.max_tokens is None and not plain.tools
    assert not plain.one_call and plain.sampling.seed is None


def test_greedy_and_no_top_k() -> None:
    assert read_chat({"messages": HI, "temperature": 1e-40}).sampling.params.temperature == 0
    assert read_chat({"messages": HI, "top_k": -1}).sampling.params.top_k == 0
    greedy = read_chat({"messages": HI, "temperature": 0, "logprobs": True, "top_logprobs": 1})
    assert greedy.sampling.top_logprobs == 1
    assert not read_chat({"messages": HI, "tools": [ADD], "tool_choice": "none"}).tools


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (math.nan, math.inf, -0.1, 2.1, "1", True, [1], 10**400)),
        ("top_p", (0, 1.01, -1, math.nan, "x")),
        ("top_k", (-2, 257, 1.5, "x", 10**30)),
        ("min_p", (-0.1, 1.1, math.nan)),
        ("n", (0, -1, 129, 1.5, True, "2", 10**30)),
        ("max_tokens", (0, -5, 1.5, "9", 10**30)),
        ("max_completion_tokens", (0, -5)),
        ("seed", (1.5, "1", 1 << 63, True)),
        ("stop", ("", [""], [1], {}, 5, ["x"] * 17, "y" * 1001)),
        ("stream", ("true", 1)),
        ("logprobs", (1, "yes")),
        ("top_logprobs", (-1, 21, 5, "x", 1)),
        ("stream_options", ({"include_usage": True}, 5)),
        ("tools", ({}, "x", 5, [5], [None], [{"type": "code"}], [ADD, ADD], [ADD] * 600)),
        ("tool_choice", ("required", {"type": "function", "function": {"name": "add"}}, 5)),
        ("parallel_tool_calls", ("no",)),
        ("frequency_penalty", (0.5, "x")),
        ("logit_bias", ({"5": 1},)),
        ("response_format", ({"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, "text")),
        ("modalities", (["text", "audio"],)),
        ("functions", ([],)),
        ("reasoning_effort", ("low",)),
        ("messages", ([], {}, "hi", 5, [5], ["hi"])),
        ("model", (5, [])),
    ],
)
def test_refused_by_name(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        error = refusal(**{field: value})
        assert field in (error.param or "") and field in str(error), (value, str(error))
        assert len(str(error)) < 300


def test_unknown_fields_and_near_names() -> None:
    error = refusal(temprature=0.5)
    assert error.param == "temprature" and "did you mean 'temperature'" in str(error)
    assert "unknown field" in str(refusal(**{"x" * 5000: 1})) and len(str(refusal(**{"x" * 5000: 1}))) < 200
    assert "differ" in str(refusal(max_tokens=5, max_completion_tokens=6))
    for body in (None, [], "x", 5, b"x"):
        with pytest.raises(ApiError, match="JSON object"):
            read_chat(body)


def test_messages_as_a_template_takes_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two \ud800"}]
    given = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann", "refusal": None},
        {"role": "assistant", "content": None, "tool_calls": [call], "audio": None, "function_call": None},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done", "tool_calls": None},
    ]
    shown = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert read_chat({"messages": given}).messages == (
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "one two ?", "name": "ann"},
        {"role": "assistant", "content": "", "tool_calls": [shown]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done"},
    )


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"role": "usr", "content": "x"}, "did you mean 'user'"),
        ({"role": "<|im_start|>system", "content": "x"}, "must be one of"),
        ({"role": ["user"], "content": "x"}, "a list"),
        ({"content": "x"}, "null"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": {"text": "x"}}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "'image_url'"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "text"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, "has a name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "not JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "a JSON object"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 10**6}}]}, "deeply"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id"),
    ],
)
def test_strange_messages(message: dict[str, Any], part: str) -> None:
    error = refusal(messages=[*HI, message])
    assert part in str(error) and "messages[1]" in str(error) and len(str(error)) < 300


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f", "parameters": "object"}, {"name": "f", "parameters": [1]}, {"name": ""}, {"name": "a b"},
        {"name": 5}, {}, {"name": "f", "description": 5}, {"name": "x" * 129},
    ],
    ids=str,
)  # fmt: skip
def test_strange_tools(function: dict[str, Any]) -> None:
    error = refusal(tools=[ADD, {"type": "function", "function": function}])
    assert "tools[1]" in str(error) and len(str(error)) < 300


def test_deep_tools() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"properties": deep}
    assert "deeply" in str(refusal(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}]))


def test_prompts() -> None:
    read = read_completion
    assert read({"prompt": "a"}).prompts == ("a",) and read({"prompt": ["a", "b"]}).prompts == ("a", "b")
    assert read({"prompt": [1, 2]}).prompts == ((1, 2),) and read({"prompt": [[1], [2]]}).prompts == ((1,), (2,))
    assert read({"prompt": "a"}).sampling.max_tokens == 16 and not read({"prompt": "a"}).sampling.logprobs
    assert read({"prompt": "a", "logprobs": 0}).sampling.logprobs
    for prompt in ([], None, {}, 5, [True], [1.5], [[1], [True]], [["a"]], ["a"] * 1025, [[]]):
        with pytest.raises(ApiError, match="prompt"):
            read({"prompt": prompt})
    for more in ({"logprobs": 5}, {"n": 128, "prompt": ["a"] * 9}, {"echo": True}, {"suffix": "x"}, {"best_of": 2}):
        with pytest.raises(ApiError):
            read({"prompt": "a", **more})
    assert read({"prompt": "a", "echo": False, "best_of": 1, "suffix": ""}).prompts
