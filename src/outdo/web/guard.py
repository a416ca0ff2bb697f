"""Access control for every request: host name, token, and the headers that limit what a browser may do."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outdo.web.guesses import Guesses

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
# A name, an IPv4 address or an IPv6 address in brackets, and a port: nothing that two programs could read differently.
HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Refusals:
    """How a server words what it refuses: `body` makes the JSON of a status and a reason."""

    foreign_host: str
    no_token: str
    too_many: str
    body: Callable[[int, str], bytes]


class Guard:
    """Checks the token where there is one. On loopback, checks that the request names this machine: a foreign page that
    points its own name here (DNS rebinding) sends another.

    With a `cookie`, the token may stand in the address, and a browser that had it there gets a cookie instead. Paths
    that begin with `private` are not to be stored by a browser."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        hosts: frozenset[str] | None,
        refusals: Refusals,
        *,
        cookie: str = "",
        private: tuple[str, ...] = ("/",),
    ) -> None:
        self.app, self.token, self.hosts, self.refusals = app, token, hosts, refusals
        self.cookie, self.private = cookie, private
        self.session = secrets.token_urlsafe(32)  # the cookie of those who had the token; nobody can guess it
        self.guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        host = _host(scope)
        if host is None or not scope["path"].startswith("/") or (self.hosts is not None and host not in self.hosts):
            await self._refuse(send, 403, self.refusals.foreign_host)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if self.cookie else ""
        if self.token is not None and not self._has_session(headers):
            refused = await self._refusal(scope, [given, _bearer(headers)])
            if refused is not None:
                await self._refuse(send, *refused)
                return
        cookie = f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/" if self.token and given else ""
        cache = b"no-store" if scope["path"].startswith(self.private) else b"no-cache"
        await self.app(scope, receive, _with_headers(send, cache, cookie))

    def _has_session(self, headers: dict[bytes, str]) -> bool:
        return bool(self.cookie) and _same(_cookie(headers, self.cookie), self.session)

    async def _refusal(self, scope: Scope, candidates: list[str]) -> tuple[int, str, int] | None:
        """Status, reason and seconds to wait; None where one of the candidates is the token."""
        assert self.token is not None
        if not any(candidates):
            return 401, self.refusals.no_token, 0
        address = (scope.get("client") or ("",))[0]
        if not await self.guesses.take_turn(address):
            return 429, self.refusals.too_many, 1
        if any([_same(each, self.token) for each in candidates]):  # all, always
            return None
        wait = self.guesses.count_wrong(address)
        return (429, self.refusals.too_many, wait) if wait else (401, self.refusals.no_token, 0)

    async def _refuse(self, send: Send, status: int, reason: str, wait: int = 0) -> None:
        body = self.refusals.body(status, reason)
        sending = _with_headers(send, b"no-store", "")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"retry-after", str(wait).encode())] if wait else []
        await sending({"type": "http.response.start", "status": status, "headers": headers})
        await sending({"type": "http.response.body", "body": body})


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


def _with_headers(send: Send, cache: bytes, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            more = {**HEADERS, b"content-security-policy": POLICY.encode(), b"cache-control": cache}
            headers += [(name, value) for name, value in more.items() if name not in names]
            if cookie:
                headers.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": headers}
        await send(message)

    return sending
