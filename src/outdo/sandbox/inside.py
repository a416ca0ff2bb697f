"""Runs inside the sandbox, in one process with the untrusted code. Standard library only; executed as a file.

The trusted side (`execute.py`) trusts nothing here: the untrusted code can change or forge all of it. That gains it
nothing, because the values to match never enter the sandbox.

A frame is a length of four bytes and a message: marshal on the way in, JSON on the way out, because marshal is safe
only for data from the trusted side. Plain values leave as tagged JSON, of exact builtin types only, so that a subclass
that lies about itself cannot be sent. Starting the interpreter dominates the cost of a small program: hence as few
imports as possible (json imports re).
"""

from __future__ import annotations

import marshal
import os
import sys
from _json import encode_basestring_ascii as quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FRAME_BYTES = 8 * 2**20
_MAX_DECIMAL_BITS = 10_000  # Python refuses to write longer integers in decimal
_MAX_COLLISIONS = 100  # keys with one hash

_SEQUENCES: dict[str, Any] = {"t": tuple, "s": set, "f": frozenset}
_TAGS: dict[Any, str] = {kind: tag for tag, kind in _SEQUENCES.items()}


def encode(value: Any) -> str:
    """A plain value as JSON. Raises TypeError for anything but exact builtin types of data."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is int:
        return int.__repr__(value) if value.bit_length() < _MAX_DECIMAL_BITS else f'{{"i":"{value:x}"}}'
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is float:
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
    if kind is list:
        return f"[{','.join(map(encode, value))}]"
    if kind in _TAGS:
        return f'{{"{_TAGS[kind]}":{encode(list(value))}}}'
    if kind is dict:
        return f'{{"d":{encode([list(item) for item in value.items()])}}}'
    if kind is bytes:
        return f'{{"b":"{value.hex()}"}}'
    if kind is complex:
        return f'{{"c":{encode([value.real, value.imag])}}}'
    raise TypeError(f"a {kind.__name__} is not a plain value")


def decode(data: Any) -> Any:
    """The inverse of `encode`. Raises ValueError or TypeError for JSON that `encode` does not write."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a tagged value")
    ((tag, content),) = data.items()
    if tag == "t":
        return tuple(decode(item) for item in content)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_without_collisions([decode(item) for item in content]))
    if tag == "d":
        keys = _without_collisions([decode(key) for key, _ in content])
        return dict(zip(keys, [decode(item) for _, item in content], strict=True))
    if tag == "i":
        return int(content, 16)
    if tag == "b":
        return bytes.fromhex(content)
    if tag == "c":
        return complex(*content)
    raise ValueError(f"unknown tag {tag!r:.20}")


def _without_collisions(keys: list[Any]) -> list[Any]:
    """The same keys. Raises ValueError where many share one hash: a set of them would take hours to build."""
    from collections import Counter

    if max(Counter(map(hash, keys)).values(), default=0) > _MAX_COLLISIONS:
        raise ValueError("too many keys with one hash")
    return keys


def limit(user: int, memory_mb: int, seconds: int, processes: int, file_mb: int) -> None:
    """Sets hard limits on this process and its children before untrusted code runs. Nothing inside can raise them."""
    import resource as r

    if user:  # started by root: drop to a user of its own, without capabilities
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for name, value in (
        (r.RLIMIT_AS, memory_mb * 2**20),
        (r.RLIMIT_CPU, seconds),
        (r.RLIMIT_NPROC, processes),
        (r.RLIMIT_FSIZE, file_mb * 2**20),
        (r.RLIMIT_NOFILE, 64),
        (r.RLIMIT_CORE, 0),
    ):
        r.setrlimit(name, (value, value))


class Channel:
    """Frames to and from the trusted side, on file descriptors of their own."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink

    def read(self) -> Any:
        return marshal.loads(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def write(self, **message: str) -> None:
        """Sends a frame; the values are JSON already."""
        body = "{" + ",".join(f'"{key}":{value}' for key, value in message.items()) + "}"
        data = len(body).to_bytes(4, "big") + body.encode()
        while data:
            data = data[os.write(self.sink, data) :]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = os.read(self.source, min(count - len(data), 2**16))
            if not piece:
                os._exit(0)  # the other side closed
            data += piece
        return data


def run_program(channel: Channel) -> None:
    """Executes a program. Standard input holds its source first, then the program's own input."""
    source = channel.read()
    sys.argv = ["main.py"]
    exec(compile(source, "main.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})


def serve(channel: Channel) -> None:
    """Loads a source, then serves calls of one of its functions until the other side closes."""
    function: Any = None
    while True:
        request = channel.read()
        reply = {"nonce": quoted(request["nonce"])}
        try:
            if request["op"] == "load":
                function = _load(request["source"], request["name"])
            elif request["op"] == "check":
                _check(request, channel)
            elif request["op"] == "call":
                reply["value"] = encode(function(*request["args"], **request["kwargs"]))
            elif request["op"] == "fork":
                reply["value"] = _forked(function, request, channel)
        except Exception as error:
            reply |= {"raised": quoted(type(error).__name__), "message": quoted(_message(error))}
        channel.write(**reply)


def _forked(function: Any, request: dict[str, Any], channel: Channel) -> str:
    """What the function returns in a fork of this process, as JSON. Side effects end with the fork."""
    import select
    import signal
    import time
    from contextlib import suppress

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            for descriptor in (reading, channel.source, channel.sink):
                os.close(descriptor)
            os.write(writing, encode(function(*request["args"])).encode())
        finally:
            os._exit(0)
    os.close(writing)
    deadline, data = time.monotonic() + request["seconds"], b""
    try:
        while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(reading, 2**16)
            if not piece:
                break
            data += piece
        else:
            raise TimeoutError(f"timed out after {request['seconds']:g} s")
    finally:
        os.close(reading)
        for target in (-child, child):  # its group, and itself where it has no group yet
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        os.waitpid(child, 0)
    if not data:
        raise ChildProcessError("the process exited without a value")
    return data.decode()


def _load(source: str, name: str) -> Any:
    """The function of that name; `Solution.solve` is a method of a new `Solution()`."""
    space: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}
    exec(compile(source, "answer.py", "exec"), space)
    first, _, method = name.partition(".")
    function = space.get(first)
    if method and function is not None:
        function = getattr(function(), method, None)
    if not callable(function):
        raise NameError(f"the code defines no function {name!r}")
    return function


def _check(request: dict[str, Any], channel: Channel) -> None:
    """HumanEval: runs `check(candidate)` here; the candidate forwards each call to a function in another sandbox."""
    import builtins

    def candidate(*args: Any, **kwargs: Any) -> Any:
        channel.write(call=quoted(request["nonce"]), args=encode(args), kwargs=encode(kwargs))
        reply = channel.read()
        if "raised" in reply:
            kind: Any = getattr(builtins, reply["raised"], None)
            is_exception = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_exception else RuntimeError)(reply["message"])
        return reply["value"]

    space: dict[str, Any] = {"__name__": "check", "__builtins__": __builtins__}
    exec(compile(request["prompt"], "prompt.py", "exec"), space)
    space[request["name"]] = candidate
    exec(compile(request["test"], "test.py", "exec"), space)
    space["check"](candidate)


def _message(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return ""


def main() -> None:
    mode, packages = sys.argv[1], sys.argv[7:]
    sys.path.extend(packages)
    os.closerange(3, 64)  # what bubblewrap left open
    limit(*map(int, sys.argv[2:7]))
    if mode == "program":
        run_program(Channel(0, 1))
        return
    channel = Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # discard what the code prints
        os.dup2(null, descriptor)
    serve(channel)


if __name__ == "__main__":
    main()
