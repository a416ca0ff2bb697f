"""The server process: its socket, its address, and a server that runs beside training and ends with it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

from outdo.errors import OutdoError, RecipeError

PORT = 8787
MAX_PORTS = 50  # to try, from the given one on
REQUIRED = ("fastapi", "uvicorn")
NICE = 10  # training has priority
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bound:
    """A listening socket, and how to reach it."""

    sock: socket.socket
    host: str
    token: str | None

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    @property
    def is_local(self) -> bool:
        """Whether it can be reached from this machine alone: by its address, whatever name that had."""
        return is_loopback(self.ip)

    @property
    def ip(self) -> str:
        return str(self.sock.getsockname()[0])

    @property
    def address(self) -> str:
        host = self.host if self.host not in ("0.0.0.0", "::") else socket.gethostname()
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def require() -> None:
    """Raises RecipeError where the extra is not installed."""
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise RecipeError(f"the dashboard needs {' and '.join(missing)}: pip install 'outdo[dash]'")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str = "127.0.0.1", port: int = PORT, token: str | None = None) -> Bound:
    """Listens on the port, or on the next free one. A host that others can reach gets a token if none is given."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise RecipeError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    if not is_loopback(str(place[0])) and not token:
        token = secrets.token_urlsafe(24)
    last: OSError | None = None
    for number in range(port, min(port + MAX_PORTS, 65536)) if port else (0,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((place[0], number, *place[2:]))
            sock.listen(128)
        except OSError as error:
            sock.close()
            last = error
            continue
        return Bound(sock, host, token)
    why = last.strerror if last else "no port"
    raise RecipeError(f"cannot listen on {host}, ports {port} to {port + MAX_PORTS - 1}: {why}; choose another --port")


def serve(root: Path, bound: Bound) -> None:
    """Serves until it is interrupted."""
    import uvicorn

    from outdo.dash.app import guarded, make_api

    api = make_api(root)

    class Server(uvicorn.Server):
        """Ends its streams on a signal, since a shutdown waits for them."""

        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            api.state.api.live.close()
            super().handle_exit(number, frame)

    config = uvicorn.Config(
        guarded(api, bound.token, bound.is_local, bound.port, bound.ip),
        http="h11",  # which hands on a request's target as it was sent
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[bound.sock])


def follow_parent(parent: int) -> None:
    """Ends this process when its parent ends, however it does, and gives the parent priority."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before prctl
        raise SystemExit(0)
    with suppress(OSError):
        os.nice(NICE)


@contextmanager
def serve_beside(root: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Runs a server in its own process for the duration of the block. A failure to start is reported, not raised."""
    child = None
    try:
        require()
        bound = bind()
        command = [sys.executable, "-m", "outdo", "dash", str(root), "--no-open"]
        command += ["--fd", str(bound.sock.fileno()), "--parent", str(os.getpid())]
        silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        # In a session of its own, Ctrl-C reaches training only, which ends the server.
        child = subprocess.Popen(command, pass_fds=(bound.sock.fileno(),), start_new_session=True, **silent)
        notify(f"dashboard at {bound.address}")
        bound.sock.close()
    except (OutdoError, OSError) as error:
        notify(f"no dashboard: {error}; training continues without it")
    try:
        yield
    finally:
        if child is not None:
            child.terminate()
            try:
                child.wait(3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def inherit(descriptor: int, token: str | None = None) -> Bound:
    """A socket that the parent process opened. One that others can reach needs a token."""
    try:
        sock = socket.socket(fileno=descriptor)
        place = sock.getsockname()
    except OSError as error:
        raise RecipeError(f"--fd {descriptor} is not a socket: {error}") from None
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        raise RecipeError(f"--fd {descriptor} is not a TCP socket")
    if not is_loopback(str(place[0])) and not token:
        raise RecipeError(f"--fd {descriptor} listens on {place[0]}, which others can reach: give --token")
    return Bound(sock, str(place[0]), token)
