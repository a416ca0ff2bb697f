"""The endpoints on a socket: as a process of their own, or beside a training run."""

from __future__ import annotations

from outdo.serve.api import Api
from outdo.serve.app import guarded, make_app
from outdo.web.process import run, run_in_thread
from outdo.web.sockets import Bound

PORT = 8000
EXTRA = ("the server", "serve")  # what needs it, and its name


def serve(api: Api, bound: Bound) -> None:
    """Serves until it is interrupted."""
    run(guarded(make_app(api), bound), bound, on_exit=api.close)


def serve_in_thread(api: Api, bound: Bound) -> str:
    """Serves as long as this process runs; the origin of its addresses."""
    run_in_thread(guarded(make_app(api), bound), bound)
    return bound.origin
