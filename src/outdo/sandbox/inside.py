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


def encode(value: Any, other: Any = None) -> str:
    """A plain value as JSON; `other` writes what is not one. Raises TypeError where nothing does.

    `other(value, encode)` is `write` of `values.py`. Without it only exact builtin types of data are allowed.
    """
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
        return f"[{','.join([encode(item, other) for item in value])}]"
    if kind in _TAGS:
        return f'{{"{_TAGS[kind]}":{encode(list(value), other)}}}'
    if kind is dict:
        return f'{{"d":{encode([list(item) for item in value.items()], other)}}}'
    if kind is bytes:
        return f'{{"b":"{value.hex()}"}}'
    if kind is complex:
        return f'{{"c":{encode([value.real, value.imag])}}}'
    if other is None:
        raise TypeError(f"a {kind.__name__} is not a plain value")
    return str(other(value, lambda item: encode(item, other)))


def decode(data: Any, other: Any = None) -> Any:
    """The inverse of `encode`; `other(tag, content, decode)` reads the tags that are not those of plain values.

    Raises ValueError or TypeError for JSON that `encode` does not write.
    """
    if isinstance(data, list):
        return [decode(item, other) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a tagged value")
    ((tag, content),) = data.items()
    if tag == "t":
        return tuple([decode(item, other) for item in content])
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_without_collisions([decode(item, other) for item in content]))
    if tag == "d":
        keys = _without_collisions([decode(key, other) for key, _ in content])
        return dict(zip(keys, [decode(item, other) for _, item in content], strict=True))
    if tag == "i":
        return int(content, 16)
    if tag == "b":
        return bytes.fromhex(content)
    if tag == "c":
        return complex(*content)
    if other is None:
        raise ValueError(f"unknown tag {tag!r:.20}")
    return other(tag, content, lambda item: decode(item, other))


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
        (r.RLIMIT_MEMLOCK, 0),
        (r.RLIMIT_MSGQUEUE, 0),
        (r.RLIMIT_SIGPENDING, 256),
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


def _write_other(value: Any, encode: Any) -> Any:
    return __import__("values").write(value, encode)


def _reader(space: dict[str, Any]) -> Any:
    """Reads the tags of `values.py`; objects may become those of the classes that a module defines itself."""
    own = space.get("__name__")
    classes = {name: item for name, item in space.items() if isinstance(item, type) and item.__module__ == own}

    def read(tag: str, content: Any, decode: Any) -> Any:
        return __import__("values").restore(tag, content, decode, classes)

    return read


def _module(name: str, file: str) -> Any:
    """A new module that classes defined in it can be found in, as dataclasses, pickle and typing require."""
    module = sys.modules[name] = type(sys)(name)
    module.__file__ = file
    return module


def _complete_builtins() -> None:
    """What Python's `site` and `/proc` give to a script: exit(), quit(), and standard streams opened by their names."""
    import io

    builtins: Any = sys.modules["builtins"]

    def leave(code: object = None) -> None:
        raise SystemExit(code)

    folders = ("/dev/fd/", "/proc/self/fd/")
    streams = {f"{folder}{number}": number for folder in folders for number in range(3)}
    streams |= {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}

    def by_name(function: Any) -> Any:
        def open(file: Any, *args: Any, **kwargs: Any) -> Any:
            number = streams.get(file if type(file) is str else str(file)) if type(file) is not int else None
            return function(file, *args, **kwargs) if number is None else opened(function, number, args, kwargs)

        return open

    def opened(function: Any, number: int, args: Any, kwargs: Any) -> Any:
        copy = os.dup(number)
        return copy if function is os_open else function(copy, *args, **kwargs)

    os_open = os.open
    builtins.exit = builtins.quit = leave
    builtins.open = by_name(open)
    io.open, os.open = builtins.open, by_name(os_open)


def run_program(channel: Channel) -> None:
    """Executes a program. Standard input holds its source first, then the program's own input."""
    blocks = channel.read()
    code = _compiled(blocks, "", "", "main.py")
    sys.argv = ["main.py"]
    _complete_builtins()
    exec(code, _module("__main__", "main.py").__dict__)


def serve(channel: Channel) -> None:
    """Loads a source, then serves calls of one of its functions until the other side closes."""
    function: Any = None
    space: dict[str, Any] = {}
    _complete_builtins()
    while True:
        request = channel.read()
        reply = {"nonce": quoted(request["nonce"])}
        try:
            if request["op"] == "load":
                function, space = _load(request)
            elif request["op"] == "check":
                _check(request, channel)
            elif request["op"] == "call":
                value = function(*request["args"], **request["kwargs"])
                reply |= _value(value)
            elif request["op"] == "forward":
                args, kwargs = (decode(request[name], _reader(space)) for name in ("args", "kwargs"))
                value = function(*args, **kwargs)
                reply |= _value(value)
            elif request["op"] == "run":
                reply["value"] = encode(__import__("repl").run(request["code"], request["limit"]))
            elif request["op"] == "fork":
                reply["value"] = _forked(function, request, channel)
        except BaseException as error:
            reply |= _raised(error)
        channel.write(**reply)


def _value(value: Any) -> dict[str, str]:
    """A result for a reply. One that cannot cross is an exception of a kind that no test can expect."""
    try:
        return {"value": encode(value, _write_other)}
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        return {"raised": encode(["ResultError"]), "message": quoted(_message(error))}


def _raised(error: BaseException) -> dict[str, str]:
    """The names of an exception's class and its bases, its message, and its arguments where they are plain."""
    try:
        names = [f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__[:-1]]
        reply = {"raised": encode(names), "message": quoted(_message(error))}
    except Exception:
        return {"raised": encode(["ResultError"]), "message": quoted("an exception without a name")}
    try:
        return {**reply, "args": encode(list(error.args))}
    except Exception:
        return reply


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


def _compiled(blocks: list[str], prompt: str, name: str, file: str) -> Any:
    """The code of the block that defines `name`, after the prompt's code. Raises SyntaxError where none compiles.

    One block that compiles as it is needs no choice, which takes time (`sources.py`).
    """
    text = blocks[-1]
    is_body = bool(name) and text[:1] in " \t"
    defines = f"def {name.partition('.')[0]}" in text
    separator = "" if is_body else "\n\n"
    may_be_prose = any(line[:1].isupper() and ": " in line for line in text.split("\n"))
    if len(blocks) == 1 and (not name or is_body != defines) and not may_be_prose:
        try:
            return compile(prompt + separator + text, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            pass
    source = __import__("sources").choose(blocks, prompt, name)
    return compile(source, file, "exec", dont_inherit=True)


def _load(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The function of that name, and the names around it; `Solution.solve` is a method of a new `Solution()`."""
    space = _module("answer", "answer.py").__dict__
    name = request["name"]
    code = _compiled(request["blocks"], request.get("prompt", ""), name, "answer.py")
    try:  # noqa: SIM105 (importing contextlib takes time)
        exec(code, space)
    except SystemExit:
        pass  # a script that ends itself has defined the function all the same
    first, _, method = name.partition(".")
    function = space.get(first)
    if method and function is not None:
        function = getattr(function(), method, None)
    if not callable(function):
        raise NameError(f"the code defines no function {name!r}")
    return function, space


def _check(request: dict[str, Any], channel: Channel) -> None:
    """HumanEval: runs `check(candidate)` here; the candidate forwards each call to a function in another sandbox."""
    space = _module("check", "check.py").__dict__
    exec(compile(request["prompt"], "prompt.py", "exec", dont_inherit=True), space)
    read = _reader(space)  # the classes of the prompt, not of the test

    def candidate(*args: Any, **kwargs: Any) -> Any:
        channel.write(
            call=quoted(request["nonce"]), args=encode(args, _write_other), kwargs=encode(kwargs, _write_other)
        )
        reply = channel.read()
        if "raised" in reply:
            raise _exception(reply, space)
        value = __import__("values").marked(reply["value"]) if reply["has_nan"] else reply["value"]
        return decode(value, read)

    first, _, method = request["name"].partition(".")
    space[first] = type(first, (), {method: staticmethod(candidate)}) if method else candidate
    exec(compile(request["test"], "test.py", "exec", dont_inherit=True), space)
    try:
        space["check"](candidate)
    except SystemExit as end:  # as unittest ends
        if end.code:
            raise AssertionError(f"the tests exit with {end.code!r:.60}") from None


def _exception(reply: dict[str, Any], space: dict[str, Any]) -> BaseException:
    """An exception as the answer raised it: of the first of its classes that is known here and ends no iteration."""
    for name in reply["raised"]:
        module, _, last = name.rpartition(".")
        kind: Any = (space if module in ("answer", "check") else vars(sys.modules.get(module, object))).get(last)
        is_exception = isinstance(kind, type) and issubclass(kind, Exception)
        if is_exception and not issubclass(kind, (StopIteration, StopAsyncIteration)):
            error: BaseException = kind.__new__(kind)
            error.args = tuple(decode(reply["args"])) if "args" in reply else (reply["message"],)
            return error
    return RuntimeError(reply["message"])


def _message(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return ""


def main() -> None:
    mode, packages = sys.argv[1], sys.argv[7:]
    sys.path += [*packages, "/sandbox"]
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
