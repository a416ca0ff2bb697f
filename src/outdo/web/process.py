"""Runs an application on a socket: until it is interrupted, or in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from outdo.web.sockets import Bound


def run(app: Any, bound: Bound, on_exit: Callable[[], None]) -> None:
    """`on_exit` is called at the signal that ends it: a shutdown waits for streams, which must end then."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            on_exit()
            super().handle_exit(number, frame)

    with suppress(KeyboardInterrupt):
        Server(_config(app)).run(sockets=[bound.sock])


def run_in_thread(app: Any, bound: Bound) -> None:
    """Returns at once; the socket listens already. Ends with the process."""
    import uvicorn

    server = uvicorn.Server(_config(app))
    threading.Thread(target=server.run, args=([bound.sock],), name="http", daemon=True).start()


def _config(app: Any) -> Any:
    import uvicorn

    return uvicorn.Config(
        app,
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
