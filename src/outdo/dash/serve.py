"""The server process, and one that runs beside training and ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from outdo.errors import OutdoError
from outdo.web.process import run
from outdo.web.sockets import Bound, bind, require

PORT = 8787
EXTRA = ("the dashboard", "dash")  # what needs it, and its name
NICE = 10  # training has priority
PR_SET_PDEATHSIG = 1


def serve(root: Path, bound: Bound) -> None:
    """Serves until it is interrupted."""
    from outdo.dash.app import guarded, make_api
    from outdo.runs.foreign.translate import TRANSLATIONS

    api = make_api(root)

    def end() -> None:
        api.state.api.live.close()
        TRANSLATIONS.discard()  # a signal ends the process without what it does at its exit

    run(guarded(api, bound.token, bound.is_local, bound.port, bound.ip), bound, end)


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
        require(*EXTRA)
        bound = bind(port=PORT)
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
