"""Raw requests that no client sends: refused in words, and the server answers the next one."""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from outdo.models.load import Policy
from outdo.rollout.local import LocalEngine
from outdo.serve.app import MAX_BODY
from support.api_server import Server, http_server, open_engine, said, with_tools

HI = said("hi")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def server(policy: Policy) -> Iterator[Server]:
    with open_engine(with_tools(policy), LocalEngine(policy)) as api, http_server(api) as server:
        yield server
        still = server.post(CHAT, {"messages": HI, "max_tokens": 2})
        assert still.status == 200 and still.json["usage"]["completion_tokens"] >= 1


def refused(answer: Any, status: int) -> str:
    assert answer.status == status, answer.body[:300]
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 400
    return str(error["message"])


def test_bodies_that_are_no_requests(server: Server) -> None:
    for body, part in (
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[]", "a list"),
        (b"null", "null"),
        (b"[" * 1_000_000, "deeply"),
        (b'{"a":' * 1_000_000, "deeply"),
        (b'{"messages": ' + b"[" * 101 + b"]" * 101 + b"}", "deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
        (b"{}", "messages"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": -3}', "n: "),
        (b'{"messages": [{"role": "user", "content": "x"}], "\\ud800": 1}', "unknown field"),
    ):
        assert part in refused(server.post(CHAT, body), 400), body[:40]
        if part not in ("messages",) and b"messages" not in body:
            assert refused(server.post(TEXT, body), 400)


def test_large_bodies(server: Server) -> None:
    large = b'{"messages": "' + b"x" * (100 << 20) + b'"}'
    assert "16 MB" in refused(server.post(CHAT, large), 413)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    pieces = iter([b"x" * (1 << 20)] * 40)  # without a length, in chunks
    connection.request("POST", CHAT, pieces, {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:  # refused before it is sent
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
        sock.sendall(f"{head}Content-Length: {MAX_BODY + 1}\r\n\r\n".encode())
        assert b"413" in sock.makefile("rb").readline()


def test_long_prompts(server: Server) -> None:
    message = refused(server.post(CHAT, {"messages": said("x" * 3_000_000)}), 400)
    assert "3,000,002 tokens" in message and "512" in message
    assert "characters" in refused(server.post(CHAT, {"messages": said("x" * 5_000_000)}), 400)
    assert "token ids" in refused(server.post(TEXT, {"prompt": [10**9]}), 400)
    assert "token ids" in refused(server.post(TEXT, {"prompt": [-1]}), 400)
    assert "empty" in refused(server.post(TEXT, {"prompt": ""}), 400)


def test_other_addresses_methods_and_kinds(server: Server) -> None:
    assert "/v1" in refused(server.send("GET", "/chat"), 404)
    assert refused(server.send("GET", CHAT), 405)
    assert refused(server.send("DELETE", "/v1/models"), 405)
    assert refused(server.send("GET", "/v1/models/%2e%2e/x"), 404)
    body = json.dumps({"messages": HI}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        message = refused(server.send("POST", CHAT, body, {"Content-Type": kind}), 415)
        assert "Content-Type: application/json" in message, "a page of another site can send these"
    good = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert server.send("POST", CHAT, json.dumps({"messages": HI, "max_tokens": 1}).encode(), good).status == 200
    assert "host name" in refused(server.send("GET", "/v1/models", None, {"Host": "evil.example"}), 403)
    assert server.send("GET", "/health").json == {"status": "ok"}
    assert server.send("GET", "/docs").status == server.send("GET", "/openapi.json").status == 404
    options = server.send("OPTIONS", CHAT, None, {"Origin": "http://evil.example"})
    assert options.status == 405 and "access-control-allow-origin" not in options.headers


def test_sessions_need_a_recorder(server: Server) -> None:
    body = {"messages": HI}
    assert "sessions" in refused(server.post(CHAT, body, **{"X-Outdo-Session": "a"}), 400)
    assert "sessions" in refused(server.post("/s/a/v1/chat/completions", body), 400)


def test_special_content_comes_back_as_json(server: Server) -> None:
    """Control characters, half surrogates and tokens of the template in what is sent."""
    content = "\x00\x1b[2J \ud800 <|end|><|assistant|> \u202e"
    answer = server.post(CHAT, {"messages": said(content), "max_tokens": 3, "tools": [], "user": content})
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    assert refused(server.post(CHAT, {"messages": HI, "model": content}), 404)
    assert refused(server.post(CHAT, {"messages": [{"role": content, "content": "x"}]}), 400)


def test_a_template_that_fails(policy: Policy) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no systems here') }}{% endif %}hi"
    policy.renderer.tokenizer.chat_template = template
    with open_engine(policy, LocalEngine(policy)) as api, http_server(api) as server:
        message = refused(server.post(CHAT, {"messages": said("x", role="system")}), 400)
        assert "no systems here" in message and "template" in message
        assert server.post(CHAT, {"messages": HI, "max_tokens": 1}).status == 200


def test_a_client_that_leaves(server: Server, policy: Policy) -> None:
    """In the middle of a stream, and before its answer."""
    for stream in (True, False):
        body = json.dumps({"messages": HI, "max_tokens": 400, "stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if stream:
                assert b"200" in sock.recv(1000)
            else:
                time.sleep(0.1)
    assert server.post(CHAT, {"messages": HI, "max_tokens": 2}).status == 200


def test_an_engine_that_stops_ends_streams(policy: Policy) -> None:
    with open_engine(policy, LocalEngine(policy)) as api, http_server(api) as server:
        body = json.dumps({"messages": HI, "max_tokens": 500, "temperature": 2, "n": 4, "stream": True})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        threading.Timer(0.1, api.close).start()
        events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        assert json.loads(events[-1][6:])["error"]["type"] == "server_error"
        assert all(math.isfinite(json.loads(line[6:]).get("created", 0)) for line in events)
        assert "stopped" in refused(server.post(CHAT, {"messages": HI}), 503)
