"""A listening socket, and how to reach it."""

from __future__ import annotations

import importlib.util
import re
import secrets
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from outdo.errors import RecipeError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
MAX_PORTS = 50  # to try, from the given one on
REQUIRED = ("fastapi", "uvicorn")
TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,256}")  # that needs no escape in an address or a cookie


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
    def origin(self) -> str:
        host = self.host if self.host not in ("0.0.0.0", "::") else socket.gethostname()
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}"

    @property
    def address(self) -> str:
        """With the token, for a browser."""
        return f"{self.origin}/" + (f"?token={self.token}" if self.token else "")


def require(who: str, extra: str) -> None:
    """Raises RecipeError where the packages that a server needs are not installed; `extra` has them."""
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise RecipeError(f"{who} needs {' and '.join(missing)}: pip install 'outdo[{extra}]'")


def check_token(token: str | None) -> None:
    """Raises RecipeError for one that a user gave and that needs escapes or is too short."""
    if token is not None and not TOKEN.fullmatch(token):
        raise RecipeError("--token: use at least 8 letters, digits and - . _ ~, or leave it out")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_names(ip: str) -> frozenset[str]:
    """What requests to this machine alone name as their host, where it listens on that address."""
    return LOOPBACK | {f"[{ip}]" if ":" in ip else ip}


def bind(host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Bound:
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
