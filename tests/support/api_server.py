"""Endpoints of tiny models, in this process and over HTTP on a free port."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from outdo.models.load import Policy
from outdo.serve.api import Api
from outdo.serve.app import guarded, make_app
from outdo.serve.engine_host import EngineHost
from outdo.types import Engine, Request
from outdo.web.sockets import bind
from support.scripted_engine import ScriptedEngine

# Shows tools, and writes calls as Hermes does.
TOOL_TEMPLATE = (
    "{% if tools %}<|user|>{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}"
    "{{ ('<|assistant|>' if m['role'] == 'assistant' else '<|user|>') }}"
    "{% if m['role'] == 'tool' %}= {% endif %}{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}"
    "<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>"
    "{% endfor %}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 30}}\n</tool_call>'


def with_tools(policy: Policy) -> Policy:
    policy.renderer.tokenizer.chat_template = TOOL_TEMPLATE
    return policy


def saying(policy: Policy, *texts: str) -> ScriptedEngine:
    """An engine whose n-th request is answered with the n-th text and the token that ends an answer."""
    rows = [(*ids, policy.eos_ids[0]) for ids in policy.renderer.encode_texts(texts)]
    answered: list[Request] = []

    def script(request: Request, i: int) -> tuple[int, ...]:
        answered.append(request)
        return rows[(len(answered) - 1) % len(rows)]

    return ScriptedEngine(script)


@contextmanager
def open_engine(policy: Policy, engine: Engine, **more: Any) -> Iterator[Api]:
    host = EngineHost(engine, more.get("context") or policy.context, patience=0.2).start()
    api = Api(policy.renderer, host, "tiny", **more)
    try:
        yield api
    finally:
        api.close()
        host.join()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda word: exec(f"raise AssertionError({word!r})"))


@dataclass
class Server:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """`body` as JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"Content-Type": "application/json", **headers})

    def send(self, method: str, path: str, data: bytes | None = None, headers: Any = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body=data, headers=headers or {})
        answer = connection.getresponse()
        found = Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        connection.close()
        return found


@contextmanager
def http_server(api: Api, token: str | None = None) -> Iterator[Server]:
    bound = replace(bind(port=0), token=token)
    config = uvicorn.Config(
        guarded(make_app(api), bound), http="h11", log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound.sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Server(bound.port)
    finally:
        server.should_exit = True
        thread.join(10)


def said(*contents: str, role: str = "user") -> Sequence[dict[str, str]]:
    return [{"role": role, "content": content} for content in contents]
