"""Runs the command line in real child processes that start at once: they are forked from here, where all is imported.

Reads a job a line (JSON: words of the command line, folder, files for standard output and error, faults), prints the
child's pid, and when it has ended its exit status. Nothing is computed in this process itself.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", COLUMNS="160")
for name in ("api", "cli", "training.plan", "models.tiny", "rewards.command", "evals.held_out"):
    importlib.import_module(f"outdo.{name}")


def child(job: dict) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])  # as `python -m outdo` has it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # not this process's own: that one is of the jobs
    for descriptor, path in ((1, job["stdout"]), (2, job["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if job["faults"]:
        importlib.import_module("faults").install(job["faults"])
    sys.argv = ["outdo", *job["words"]]
    try:
        sys.modules["outdo.cli"].main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        import atexit

        atexit._run_exitfuncs()  # a fork ends without them
    return 0


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                status = child(json.loads(line))
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
