"""The processes behind `pool.py`: a fork server that imports the modules, and its forks, the workers.

`python -m outdo.sandbox.worker FD MEMORY_MB MODULE…` reads commands from a socket: fork (with the new worker's socket
attached), or a signal for one of the workers. A fork takes milliseconds, starting Python and importing sympy a second.
When the other side closes for whatever reason, the fork server and its workers exit.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Any

FORK = 0  # other commands are signal numbers
LOADING, LOADED = b"loading", b"loaded"  # messages before the reply of a job


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Reads `count` bytes. Raises EOFError where the other side closes."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 2**20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


@cache
def _function(path: str) -> Any:
    module, _, name = path.rpartition(":")
    return getattr(importlib.import_module(module), name)


def _serve(connection: socket.socket) -> None:
    """Runs one job after the other. Jobs come pickled from the trusted side; results are JSON.

    A function may have an attribute `load`, which is called with a job's first argument, once for each. It is reported,
    because its time is not the job's.
    """
    loaded: set[tuple[str, Any]] = set()
    while True:
        size = int.from_bytes(read_exactly(connection, 8), "big")
        path, args = pickle.loads(read_exactly(connection, size))
        try:
            function = _function(path)
            if hasattr(function, "load") and (path, args[0]) not in loaded:
                connection.sendall(framed(LOADING))
                function.load(args[0])
                loaded.add((path, args[0]))
                connection.sendall(framed(LOADED))
            reply = json.dumps({"value": function(*args)})
        except Exception as error:
            reply = json.dumps({"raised": type(error).__name__, "message": str(error)[:500]})
        connection.sendall(framed(reply.encode()))


def _child(connection: socket.socket, memory_mb: int) -> None:
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: exit with the fork server
        if memory_mb:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory_mb * 2**20,) * 2)
        _serve(connection)
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_mb, modules = int(sys.argv[2]), sys.argv[3:]
    sys.path[:] = pickle.loads(read_exactly(control, int.from_bytes(read_exactly(control, 8), "big")))
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # keep pages shared: the collector touches none of the objects so far
    children: set[int] = set()
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 5, 1, socket.MSG_WAITALL)
        if not command:
            os.killpg(0, signal.SIGKILL)
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        if command[0] == FORK:
            pid = os.fork()
            if pid == 0:
                control.close()
                _child(socket.socket(fileno=descriptors[0]), memory_mb)
            children.add(pid)
            os.close(descriptors[0])
            control.sendall(pid.to_bytes(4, "big"))
        elif (pid := int.from_bytes(command[1:], "big")) in children:
            os.kill(pid, command[0])


if __name__ == "__main__":
    main()
