"""Access control for every request: host name, token, and the headers that limit what a browser may do."""

from __future__ import annotations

import re
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outdo.dash.guesses import Guesses

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
NO_TOKEN = "this dashboard requires its token: open the address that outdo dash printed"
TOO_MANY = "too many wrong tokens came from your address: wait a little, then open the address that outdo dash printed"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
# A name, an IPv4 address or an IPv6 address in brackets, and a port: nothing that two programs could read differently.
HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::([0-9]{1,5}))?")


class Guard:
    """Checks the token where there is one. On loopback, checks that the request names this machine: a foreign page that
    points its own name here (DNS rebinding) sends another."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str] | None, port: int) -> None:
        self.app, self.token, self.hosts = app, token, hosts
        self.cookie = f"outdo-dash-{port}"  # cookies are shared by all ports of a host
        self.session = secrets.token_urlsafe(32)  # the cookie of those who had the token; nobody can guess it
        self.guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        host = _host(scope)
        if host is None or not scope["path"].startswith("/") or (self.hosts is not None and host not in self.hosts):
            await _refuse(send, 403, "use the address that outdo dash printed: this host name is not this machine's")
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.token is not None and not _same(_cookie(headers, self.cookie), self.session):
            refused = await self._refusal(scope, [given, _bearer(headers)])
            if refused is not None:
                status, detail, wait = refused
                await _refuse(send, status, detail, wait)
                return
        cookie = f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/" if self.token and given else ""
        await self.app(scope, receive, _with_headers(send, scope["path"], cookie))

    async def _refusal(self, scope: Scope, candidates: list[str]) -> tuple[int, str, int] | None:
        """Status, reason and seconds to wait; None where one of the candidates is the token."""
        assert self.token is not None
        if not any(candidates):
            return 401, NO_TOKEN, 0
        address = (scope.get("client") or ("",))[0]
        if not await self.guesses.take_turn(address):
            return 429, TOO_MANY, 1
        if any([_same(each, self.token) for each in candidates]):  # all, always
            return None
        wait = self.guesses.count_wrong(address)
        return (429, TOO_MANY, wait) if wait else (401, NO_TOKEN, 0)


def _host(scope: Scope) -> str | None:
    """The host that the request names, without its port; None where that is not one plain name."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    match = HOST.fullmatch(values[0]) if len(values) == 1 else None
    if match is None or (match[2] and not 0 < int(match[2]) < 65536):
        return None
    return match[1]


def _same(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), secret.encode())


def _bearer(headers: dict[bytes, str]) -> str:
    kind, _, bearer = headers.get(b"authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else ""


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


async def _refuse(send: Send, status: int, detail: str, wait: int = 0) -> None:
    body = f'{{"detail": "{detail}"}}'.encode()
    sending = _with_headers(send, "/api", "")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", str(wait).encode())] if wait else []
    await sending({"type": "http.response.start", "status": status, "headers": headers})
    await sending({"type": "http.response.body", "body": body})
