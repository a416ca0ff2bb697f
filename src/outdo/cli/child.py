"""Starts `outdo …` in a process of its own without import time: by a fork of this one, where everything is imported.
This process must not have computed anything before: threads do not survive a fork."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from outdo.sweeps.devices import Share

PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A started process. `status` is its exit status once it ended, negative for a signal."""

    pid: int
    status: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it is running."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start(words: Sequence[str], log: Path, share: Share) -> Child:
    """Starts `outdo WORDS`, which writes to `log`, has its share of the machine, and gets SIGTERM when this process
    ends. It has a process group of its own, so that Ctrl-C reaches it once, through this process."""
    from outdo import api, cli  # noqa: F401 imported once, before the fork
    from outdo.training import plan  # noqa: F401 imported once, before the fork

    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        pid = os.fork()
        if pid == 0:
            _become(words, log, share)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Child(pid)


def _become(words: Sequence[str], log: Path, share: Share) -> NoReturn:
    status = 70
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        _redirect(log)
        status = _run(words, share)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print(f"outdo: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        atexit._run_exitfuncs()  # os._exit skips them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(log: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115


def _run(words: Sequence[str], share: Share) -> int:
    os.environ.update(share.variables, COLUMNS="100")  # before CUDA starts, which reads its GPUs once
    import torch

    from outdo.cli import main

    torch.set_num_threads(share.threads)
    sys.argv = ["outdo", *words]
    main()
    return 0
