"""Access control for every request: host name, token, and the headers that limit what a browser may do."""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Checks the token where there is one. On loopback, checks that the request names this machine: a foreign page that
    points its own name here (DNS rebinding) sends another."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str] | None, port: int) -> None:
        self.app, self.token, self.hosts = app, token, hosts
        self.cookie = f"outdo-dash-{port}"  # cookies are shared by all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None and _host(headers.get(b"host", "")) not in self.hosts:
            await _refuse(send, 403, "use the address that outdo dash printed: this host name is not this machine's")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.token is not None and not self._has_token(given, headers):
            await _refuse(send, 401, "this dashboard requires its token: open the address that outdo dash printed")
            return
        cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/" if self.token and given else ""
        await self.app(scope, receive, _with_headers(send, scope["path"], cookie))

    def _has_token(self, given: str, headers: dict[bytes, str]) -> bool:
        kind, _, bearer = headers.get(b"authorization", "").partition(" ")
        candidates = (given, bearer.strip() if kind.lower() == "bearer" else "", _cookie(headers, self.cookie))
        assert self.token is not None
        same = [secrets.compare_digest(each.encode(), self.token.encode()) for each in candidates]  # all, always
        return any(same)


def _host(value: str) -> str:
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def _cookie(headers: dict[bytes, str], name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get(b"cookie", "")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def _with_headers(send: Send, path: str, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            cache = b"no-store" if path.startswith(("/api", "/report")) else b"no-cache"
            more = {**HEADERS, b"content-security-policy": POLICY.encode(), b"cache-control": cache}
            headers += [(name, value) for name, value in more.items() if name not in names]
            if cookie:
                headers.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": headers}
        await send(message)

    return sending


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = f'{{"detail": "{detail}"}}'.encode()
    sending = _with_headers(send, "/api", "")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await sending({"type": "http.response.start", "status": status, "headers": headers})
    await sending({"type": "http.response.body", "body": body})
