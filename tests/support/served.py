"""Real servers over folders, in threads of this process."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from outdo.dash.app import guarded, make_api
from outdo.web.sockets import bind


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@dataclass
class Served:
    """One server. `api` is what it serves, unguarded."""

    root: Path
    port: int
    api: Any

    def raw(self, target: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def get(self, name: str, **query: Any) -> Any:
        """JSON of an address that answers."""
        found = self.raw(f"/api/{name}?{urlencode(query, doseq=True)}")
        assert found.status == 200, (name, query, found.status, found.body[:300])
        return found.json

    def status(self, name: str, **query: Any) -> int:
        return self.raw(f"/api/{name}?{urlencode(query, doseq=True)}").status


@contextmanager
def servers() -> Iterator[Callable[..., Served]]:
    """Starts servers; all are gone afterwards."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(root: Path, token: str | None = None, loopback: bool = True) -> Served:
        bound = bind(port=0)
        api = make_api(root)
        app = guarded(api, token, loopback, bound.port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound.sock]}, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return Served(root, bound.port, api)

    try:
        yield start
    finally:
        for server, _ in running:
            server.should_exit = True
        for _, thread in running:
            thread.join(10)
