"""The server's process: its socket, its address, and one that goes beside a training run and ends with it."""

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

from outdo.errors import OutdoError, RecipeError

PORT = 8787
TRIES = 50  # ports that are tried, from the one asked for on
NEEDS = ("fastapi", "uvicorn")
MISSING = "the dashboard needs {}: pip install 'outdo[dash]'"
NICE = 10  # beside a run, training comes first
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bound:
    """A socket that listens, and how it is reached."""

    sock: socket.socket
    host: str
    token: str | None

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        host = self.host if self.host not in ("0.0.0.0", "::") else socket.gethostname()
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def require() -> None:
    """Raises RecipeError where the extra is not installed."""
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        raise RecipeError(MISSING.format(" and ".join(lacking)))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str = "127.0.0.1", port: int = PORT, token: str | None = None) -> Bound:
    """Listens at the port, or at the next one that is free. Hosts that others reach get a token if none is given."""
    if not is_loopback(host) and not token:
        token = secrets.token_urlsafe(24)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise RecipeError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    last: OSError | None = None
    for number in range(port, min(port + TRIES, 65536)) if port else (0,):
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
    raise RecipeError(f"cannot listen at {host}, ports {port} to {port + TRIES - 1}: {why}; choose another --port")


def serve(root: Path, bound: Bound) -> None:
    """Answers until it is told to stop."""
    import uvicorn

    from outdo.dash.app import guarded, make_api

    api = make_api(root)

    class Server(uvicorn.Server):
        """Ends its streams when it is told to stop: it would wait for them."""

        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            api.state.desk.live.close()
            super().handle_exit(number, frame)

    config = uvicorn.Config(
        guarded(api, bound.token, bound.is_local, bound.port),
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


def goes_with(parent: int) -> None:
    """Ends this process when that one is gone, however it went, and lets it have the machine first."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before we asked
        raise SystemExit(0)
    with suppress(OSError):
        os.nice(NICE)


@contextmanager
def beside(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A server in a process of its own, as long as this lasts. What keeps it from starting is said, and no more."""
    child = None
    try:
        require()
        bound = bind()
        words = [sys.executable, "-m", "outdo", "dash", str(root), "--no-open"]
        words += ["--fd", str(bound.sock.fileno()), "--parent", str(os.getpid())]
        child = subprocess.Popen(
            words,
            pass_fds=(bound.sock.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches training, which ends it
        )
        say(f"dashboard at {bound.address}")
        bound.sock.close()
    except (OutdoError, OSError) as error:
        say(f"no dashboard: {error}; training goes on without it")
    try:
        yield
    finally:
        if child is not None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(3)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def inherited(descriptor: int) -> Bound:
    """A socket that the process beside us opened."""
    try:
        sock = socket.socket(fileno=descriptor)
        host = str(sock.getsockname()[0])
    except OSError as error:
        raise RecipeError(f"--fd {descriptor} is no socket: {error}") from None
    return Bound(sock, host, None)
