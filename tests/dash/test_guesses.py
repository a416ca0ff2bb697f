"""Guessing a token is slow, for all connections of a client together; one who has the token always gets in."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outdo.errors import RecipeError
from outdo.web import guesses
from outdo.web.sockets import bind, inherit
from support.folders import make_run
from support.served import Served, servers

Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


def send(port: int, request: str) -> int:
    """The status of a raw request; 0 where the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(request.encode("latin-1"))
        sock.settimeout(20)
        line = sock.makefile("rb").readline()
    return int(line.split()[1]) if line else 0


ODD = (
    *("[::1].evil.com", "[::1]evil", "[::1]:80:90", "127.0.0.1@evil.com", "evil.com@127.0.0.1", "user:p@localhost"),
    *("localhost.", "LOCALHOST", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:8a", "127.0.0.1:-1", "127.0.0.1:0"),
    *("127.0.0.1 evil.com", "127.0.0.1,evil.com", "localhost/evil", "localhost#x", "localhost?x", "127.1", "0", "::1"),
    *("0x7f000001", "2130706433", "[::ffff:127.0.0.1]", "localhost\t", "xn--", "[", "[]", "127.0.0.1.", "0.0.0.0"),
)


def test_odd_host_names(tmp_path: Path, serve: Serve) -> None:
    served = serve(tmp_path)
    for host in ODD:
        status = send(served.port, f"GET /api/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert status in (400, 403), host
    two = "Host: 127.0.0.1\r\nHost: evil.com\r\n"
    for headers in (two, "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n", "", "Host:\r\n", "Host: \r\n"):
        assert send(served.port, f"GET /api/runs HTTP/1.1\r\n{headers}Connection: close\r\n\r\n") in (400, 403), headers
        assert send(served.port, f"GET /api/runs HTTP/1.0\r\n{headers}\r\n") in (400, 403), headers
    for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.1:9000", "localhost:1"):
        assert send(served.port, f"GET /api/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n") == 200, host


def test_guesses_are_slowed_and_the_holder_gets_in(tmp_path: Path, serve: Serve) -> None:
    make_run(tmp_path / "run", steps=1)
    served = serve(tmp_path, token="right-token", loopback=False)
    session = served.raw("/api/runs?token=right-token").headers["set-cookie"].partition(";")[0]
    assert "right-token" not in session

    def guess(number: int) -> int:
        return served.raw(f"/api/runs?token=wrong-{number}").status

    assert {guess(number) for number in range(guesses.FREE)} == {401}
    with ThreadPoolExecutor(32) as pool:
        start = time.monotonic()
        pending = [pool.submit(guess, number) for number in range(100)]
        before = time.monotonic()
        assert served.raw("/api/runs", Cookie=session).status == 200  # who is in stays in, at once
        assert time.monotonic() - before < 5
        statuses = [each.result() for each in pending]
    assert set(statuses) == {429}
    checked = served.raw("/api/runs?token=wrong")
    assert checked.status == 429 and int(checked.headers["retry-after"]) >= 1
    assert time.monotonic() - start > 3  # most of them were refused unread, the others took turns
    assert served.raw("/api/runs", Authorization="Bearer right-token").status == 200
    assert served.raw("/api/runs?token=right-token").status == 200
    for wrong in ("outdo-dash-1=right-token", session[:-1], f"{session.partition('=')[0]}=right-token"):
        assert served.raw("/api/runs", Cookie=wrong).status == 401


def test_clients_and_forgiveness(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(guesses.time, "monotonic", lambda: now[0])
    counts = guesses.Guesses()
    waits = [counts.count_wrong("10.0.0.1") for _ in range(guesses.FREE + 3)]
    assert waits == [0] * guesses.FREE + [1] * 3
    assert counts.count_wrong("10.0.0.2") == 0  # another client
    addresses = [f"2001:db8::{i:x}" for i in range(1, guesses.FREE + 2)]  # of one machine
    assert [counts.count_wrong(each) for each in addresses][-1] == 1 and counts.count_wrong("2001:db9::1") == 0
    now[0] += 3600
    assert counts.count_wrong("10.0.0.1") == 0
    for index in range(guesses.ATTACK + 1):
        counts.count_wrong(f"10.1.{index // 250}.{index % 250}")
    assert [counts.count_wrong("10.2.0.1") for _ in range(4)] == [0, 0, 0, 1]  # fewer are free
    monkeypatch.setattr(guesses, "MAX_CLIENTS", 100)
    for index in range(1000):
        counts.count_wrong(f"10.3.{index // 250}.{index % 250}")
    assert len(counts.clients) <= 201


def test_inherited_sockets() -> None:
    for host in ("0.0.0.0", "::"):
        try:
            bound = bind(host, 0, "a-long-token")
        except RecipeError:
            continue  # no IPv6 here
        with pytest.raises(RecipeError, match="token"):
            inherit(bound.sock.dup().detach())
        assert inherit(bound.sock.dup().detach(), "a-long-token").token == "a-long-token" and not bound.is_local
    local = bind("127.0.0.1", 0)
    assert inherit(local.sock.dup().detach()).is_local
    for family, kind in ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)):
        with socket.socket(family, kind) as other, pytest.raises(RecipeError, match="TCP"):
            inherit(other.detach())
    assert bind("localhost", 0).is_local
