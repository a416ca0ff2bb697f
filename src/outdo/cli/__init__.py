"""The command line: parse, call, print. A command is a function in a module here, and a name in the import below.

Exit status: 0 done, 1 failed, 2 bad input, 3 halted by a guard, 130 and 143 told to stop.
"""

from __future__ import annotations

import os
import sys

STOPPED = 130  # by Ctrl-C

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
    from outdo.host import share_cores
except KeyboardInterrupt:  # told to stop before there was anything to stop
    sys.exit(STOPPED)


def main() -> None:
    """The `outdo` command. Bad input and failures are told in a sentence; a traceback needs OUTDO_DEBUG=1."""
    share_cores()
    debug = bool(os.environ.get("OUTDO_DEBUG"))
    try:
        app()
    except SystemExit as end:
        if end.code in (130, 143):  # told to stop: threads that still grade are not waited for
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
    except OutdoError as error:
        if debug:
            raise
        print(f"outdo: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except BrokenPipeError:
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except Exception as error:
        if debug:
            raise
        print(
            f"outdo: failed: {type(error).__name__}: {error}\n"
            "This is not an error that outdo foresaw; OUTDO_DEBUG=1 shows where it happened",
            file=sys.stderr,
        )
        sys.exit(1)
