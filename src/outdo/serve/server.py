"""The server process."""

from __future__ import annotations

from outdo.serve.api import Api
from outdo.serve.app import guarded, make_app
from outdo.web.process import run
from outdo.web.sockets import Bound

PORT = 8000
EXTRA = ("the server", "serve")  # what needs it, and its name


def serve(api: Api, bound: Bound) -> None:
    """Serves until it is interrupted."""
    run(guarded(make_app(api), bound), bound, on_exit=api.close)
