"""The command line: parse, call, print. A command is a function in a module here, and a name in the import below.

Exit status: 0 done, 1 failed, 2 bad input, 3 halted by a guard, 130 and 143 told to stop, 141 who read
what it prints went away.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

STOPPED = 130  # by Ctrl-C
READER_GONE = 141  # as a command has that SIGPIPE ends

try:
    from outdo.cli import (  # noqa: F401 they add their commands
        chat,
        dash,
        doctor,
        drill,
        evaluate,
        export,
        grade,
        harvest,
        report,
        sft,
        sweep,
        tasks,
        train,
    )
    from outdo.cli.app import app
    from outdo.errors import OutdoError
    from outdo.parallel.host import share_cores
except KeyboardInterrupt:  # told to stop before there was anything to stop
    sys.exit(STOPPED)


def main() -> None:
    """The `outdo` command. Bad input and failures are told in a sentence; a traceback needs OUTDO_DEBUG=1."""
    share_cores()
    status = _run()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed from the start
            stream.flush()
    except OSError as error:
        if not status and not isinstance(error, BrokenPipeError):
            _tell(f"cannot print: {error.strerror}")
        os._exit(status or (READER_GONE if isinstance(error, BrokenPipeError) else 1))
    if status in (STOPPED, 143, READER_GONE):  # threads that still grade are not waited for
        os._exit(status)
    sys.exit(status)


def _run() -> int:
    """The exit status."""
    place = _place(1)
    try:
        app()
    except KeyboardInterrupt:
        return STOPPED
    except OutdoError as error:
        if os.environ.get("OUTDO_DEBUG"):
            raise
        _tell(str(error))
        return error.exit_status
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich make an exit of it
            return READER_GONE if _reader_is_gone(place) else _unforeseen(end.__context__)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError as error:
        return READER_GONE if _reader_is_gone(place) else _unforeseen(error)
    except Exception as error:
        return _unforeseen(error)
    return 0


def _unforeseen(error: Exception) -> int:
    if os.environ.get("OUTDO_DEBUG"):
        raise error
    _tell(
        f"failed: {type(error).__name__}: {error}\n"
        "This is not an error that outdo foresaw; OUTDO_DEBUG=1 shows where it happened"
    )
    return 1


def _tell(words: str) -> None:
    with suppress(BrokenPipeError):  # nobody reads it: the exit status says it
        print(f"outdo: {words}", file=sys.stderr)


def _place(descriptor: int) -> tuple[int, int] | None:
    """What it leads to."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reader_is_gone(place: tuple[int, int] | None) -> bool:
    """Whether whoever read what is printed went away, where output led to `place`: a pipe to a worker breaks too."""
    if _place(1) != place:  # rich puts /dev/null there once it cannot print
        return True
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
