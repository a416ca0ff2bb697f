"""Who may ask, and what a browser may do with the answer. Around everything, the page included."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-resource-policy": b"same-origin",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """Asks for the token where there is one, and on loopback for a name that means this machine: a foreign page that
    made its own name lead here (DNS rebinding) has another."""

    def __init__(self, app: App, token: str | None, hosts: frozenset[str] | None, port: int) -> None:
        self.app, self.token, self.hosts = app, token, hosts
        self.cookie = f"outdo-dash-{port}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None and _host(headers.get(b"host", "")) not in self.hosts:
            await _refuse(send, 403, "ask by the address that outdo dash printed: this name is not this machine's")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.token is not None and not self._is_known(given, headers):
            await _refuse(send, 401, "this dashboard needs its token: open the address that outdo dash printed")
            return
        keep = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/" if self.token and given else ""
        await self.app(scope, receive, _with_headers(send, scope["path"], keep))

    def _is_known(self, given: str, headers: dict[bytes, str]) -> bool:
        kind, _, bearer = headers.get(b"authorization", "").partition(" ")
        tries = (given, bearer.strip() if kind.lower() == "bearer" else "", _cookie(headers, self.cookie))
        assert self.token is not None
        same = [secrets.compare_digest(each.encode(), self.token.encode()) for each in tries]  # each, always
        return any(same)


def _host(value: str) -> str:
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def _cookie(headers: dict[bytes, str], name: str) -> str:
    try:
        found = SimpleCookie(headers.get(b"cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _with_headers(send: Send, path: str, keep: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            had = list(message.get("headers", ()))
            names = {name.lower() for name, _ in had}
            more = dict(HEADERS)
            more[b"content-security-policy"] = POLICY.encode()
            more[b"cache-control"] = b"no-store" if path.startswith(("/api", "/report")) else b"no-cache"
            had += [(name, value) for name, value in more.items() if name not in names]
            if keep:
                had.append((b"set-cookie", keep.encode()))
            message = {**message, "headers": had}
        await send(message)

    return sending


async def _refuse(send: Send, status: int, words: str) -> None:
    body = f'{{"detail": "{words}"}}'.encode()
    sending = _with_headers(send, "/api", "")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await sending({"type": "http.response.start", "status": status, "headers": headers})
    await sending({"type": "http.response.body", "body": body})
