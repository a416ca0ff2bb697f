"""The command line: parse, call, print. To add a command, write a function in a module here and import it below.

Exit status: 0 done, 1 failed, 2 bad input, 3 halted by a guard, 130 and 143 stopped by a signal, 141 the reader of
standard output is gone.
"""

from __future__ import annotations

import os
import select
import sys
import warnings
from contextlib import suppress
from typing import Any

STOPPED = 130  # by Ctrl-C
READER_GONE = 141  # as of a command that SIGPIPE ends
_format_other = warnings.formatwarning

try:
    # importing registers the commands
    from outdo.cli import chat, dash, doctor, drill, evaluate, export, grade, harvest, push, report, serve, sweep  # noqa: F401
    from outdo.cli import convert as _convert  # noqa: F401
    from outdo.cli import train as _train  # noqa: F401
    from outdo.cli.app import app
    from outdo.errors import OutdoError, OutdoWarning
    from outdo.host import share_cores
    from outdo.parallel.launch import Launch, may_speak, read_launch
    from outdo.untrusted.terminal import make_output_printable
except KeyboardInterrupt:  # before anything started
    sys.exit(STOPPED)


def main() -> None:
    """The `outdo` command. Errors are printed as a sentence; OUTDO_DEBUG=1 shows the traceback."""
    share_cores()
    make_output_printable()
    warnings.formatwarning = _format_warning  # type: ignore[assignment]
    _hush()
    status = _run()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed at the start
            stream.flush()
    except OSError as error:
        if not status and not isinstance(error, BrokenPipeError):
            _print_error(f"cannot print: {error.strerror}")
        os._exit(status or (READER_GONE if isinstance(error, BrokenPipeError) else 1))
    if status in (STOPPED, 143, READER_GONE):  # does not wait for threads that still grade
        os._exit(status)
    sys.exit(status)


def _hush() -> None:
    """Of several processes that a launcher started, the first one talks. The others print errors only."""
    with suppress(OutdoError):  # it is refused where it is used
        if not read_launch().is_first:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _format_warning(message: Warning | str, category: type[Warning], *where: Any) -> str:
    own = isinstance(message, OutdoWarning)
    return f"outdo: {message}\n" if own else _format_other(message, category, *where)


def _run() -> int:
    """Runs the command; returns the exit status."""
    stdout_id = _file_id(1)
    try:
        app()
    except KeyboardInterrupt:
        return STOPPED
    except OutdoError as error:
        if os.environ.get("OUTDO_DEBUG"):
            raise
        _report_failure(error)
        _print_error(str(error))
        return error.exit_status
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich turn it into an exit
            return READER_GONE if _reader_is_gone(stdout_id) else _unexpected(end.__context__)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError as error:
        return READER_GONE if _reader_is_gone(stdout_id) else _unexpected(error)
    except Exception as error:
        return _unexpected(error)
    return 0


def _unexpected(error: Exception) -> int:
    if os.environ.get("OUTDO_DEBUG"):
        raise error
    _report_failure(error)
    _print_error(
        f"failed: {type(error).__name__}: {error}\nThis error was not expected; set OUTDO_DEBUG=1 for a traceback"
    )
    return 1


def _report_failure(error: Exception) -> None:
    """The processes that train along learn why this one ends."""
    if joined := sys.modules.get("outdo.parallel.world"):
        joined.get_world().report_failure(error)


def _print_error(message: str) -> None:
    """Of several processes one prints it: they have the same error, or one that follows from another's."""
    launch = Launch()
    with suppress(OutdoError):  # an environment that describes no launch is the error to print
        launch = read_launch()
    with suppress(BrokenPipeError):  # the exit status remains
        if may_speak(launch):
            print(f"outdo: {message}", file=sys.stderr if launch.is_first else sys.__stderr__)


def _file_id(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of an open file."""
    try:
        stat = os.fstat(descriptor)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _reader_is_gone(stdout_id: tuple[int, int] | None) -> bool:
    """Whether the reader of our output is gone: a pipe to a worker breaks with the same error."""
    if _file_id(1) != stdout_id:  # rich puts /dev/null there once it cannot print
        return True
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
