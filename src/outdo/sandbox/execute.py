"""Running code that nobody trusts: in bubblewrap (`jail.py`), under hard limits and a deadline that kills all of it.

Where there is no sandbox nothing runs: there is no fallback.
"""

from __future__ import annotations

import json
import marshal
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from outdo.errors import SandboxError
from outdo.sandbox import inside
from outdo.sandbox.jail import Limits, command, descriptors
from outdo.sandbox.seccomp import rules

INSTALL = "install bubblewrap (apt-get install bubblewrap, or dnf install bubblewrap)"


class ExecutionError(Exception):
    """The code did not do what was asked: it ended, hung, or one of the two below. Says which."""


class Raised(ExecutionError):
    """It raised an exception. The sandbox is in order and takes the next call."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"it raised {kind}: {words}".strip(": "))
        self.kind, self.words = kind, words


class Forged(ExecutionError):
    """It spoke on the channel by itself. Nothing that it says counts any more."""


@cache
def _trouble() -> str:
    """Why nothing can be run here, or nothing."""
    if not shutil.which("bwrap"):
        return f"bubblewrap is not here: {INSTALL}"
    try:
        with Sandbox(Limits()) as sandbox:
            sandbox.ask(op="load", source="def one(): return 1", name="one")
            assert sandbox.call([], {}) == 1
    except (ExecutionError, OSError) as error:
        return (
            f"bubblewrap cannot make one: {error}. In a container, allow user namespaces (docker run --privileged, "
            "or a seccomp profile that does); on Ubuntu 24.04 and later, "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return ""


def require_sandbox() -> None:
    """Raises SandboxError where there is no sandbox. Code never runs outside of one."""
    if trouble := _trouble():
        raise SandboxError(f"code is run in a sandbox only, and {trouble}")


def _frame(message: Any) -> bytes:
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def printable(text: Any, most: int) -> str:
    """What may stand in a log: it comes from the code that is judged."""
    if not isinstance(text, str):
        raise Forged("a reply that is no text")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])


class Sandbox:
    """One process in a sandbox, spoken to in frames. Whatever happens, leaving the context leaves no process."""

    def __init__(self, limits: Limits, mode: str = "serve", ends: float | None = None) -> None:
        self.limits = limits
        self.ends = ends or time.monotonic() + limits.seconds
        pipe = subprocess.PIPE
        self._info, told = os.pipe()
        filtered, filters = os.pipe()
        try:
            os.write(filters, rules())  # fits into the pipe
            self.process = subprocess.Popen(
                command(told, filtered, limits, mode),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                pass_fds=descriptors(told, filtered),
            )
        except BaseException:
            os.close(self._info)
            raise
        finally:
            for end in (told, filtered, filters):
                os.close(end)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self._received = b""
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self._kill()
        os.close(self._info)
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def _kill(self) -> None:
        """Ends the first process of the namespace, and with it all others; bubblewrap sees that, and ends too."""
        with suppress(OSError):
            if first := self._first():
                os.kill(first, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
        self.process.kill()  # where it has not come so far, or does not go
        self.process.wait()

    def _first(self) -> int | None:
        """The pid of the first process, once bubblewrap has told all of it; None where there never was one.

        To kill bubblewrap before would leave that process waiting for it, for ever.
        """
        told = b""
        while piece := os.read(self._info, 2000):
            told += piece
            with suppress(ValueError):
                return int(json.loads(told)["child-pid"])
        return None

    def ask(self, **request: Any) -> Any:
        """One request, one reply to it: the value, or None. Raises ExecutionError for anything else."""
        nonce = secrets.token_hex(16)
        self.send({**request, "nonce": nonce})
        return self.result(self.receive(), nonce)

    def call(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.ask(op="call", args=args, kwargs=kwargs)

    def fork(self, args: list[Any], seconds: float) -> Any:
        """As `call`, in a fork of the process that is gone afterwards: one call leaves nothing behind for the next.

        Raises Raised of a TimeoutError where it takes longer, and of a ChildProcessError where it dies.
        """
        self.ends = time.monotonic() + seconds + 5.0  # for the process to see to its fork
        return self.ask(op="fork", args=args, seconds=seconds)

    def result(self, reply: dict[str, Any], nonce: str) -> Any:
        """What a reply says. An exception of the code is a ExecutionError too, by its own words."""
        if reply.get("nonce") != nonce or self._received:
            raise Forged("a reply that was not asked for")
        if "raised" in reply:
            raise Raised(printable(reply["raised"], 60), printable(reply.get("words"), 200))
        return self.value(reply.get("value"))

    def value(self, data: Any) -> Any:
        try:
            return inside.decode(data)
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise Forged("a reply that is no plain value") from None

    def send(self, message: dict[str, Any]) -> None:
        self.exchange(_frame(message), until=0)

    def receive(self) -> dict[str, Any]:
        """The next frame. Raises ExecutionError where there is none in time, or it is not one."""
        head = self._take(4)
        size = int.from_bytes(head, "big")
        if size > inside.LARGEST:
            raise Forged("a reply that is too large")
        try:
            message = json.loads(self._take(size))
        except (ValueError, RecursionError):
            raise Forged("a reply that is not JSON") from None
        if not isinstance(message, dict):
            raise Forged("a reply that is no object")
        return message

    def _take(self, count: int) -> bytes:
        if len(self._received) < count:
            self._received += self.exchange(b"", until=count - len(self._received))
        if len(self._received) < count:
            raise ExecutionError(self._ended())
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def exchange(self, data: bytes, until: int) -> bytes:
        """Writes all of `data`, and reads until that many bytes have come or the other side closes."""
        got = bytearray()
        view = memoryview(data)
        with selectors.DefaultSelector() as selector:
            if view:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            if until:
                selector.register(self.stdout, selectors.EVENT_READ)
            while selector.get_map() and (view or len(got) < until):
                for key, _ in selector.select(self.left()):
                    if key.fileobj is self.stdin:
                        view = view[self.write(view) :]
                        if not view:
                            selector.unregister(self.stdin)
                    elif (piece := self.stdout.read(2**16)) is not None:
                        got += piece
                        if not piece:
                            selector.unregister(self.stdout)
        return bytes(got)

    def left(self) -> float:
        """Seconds until the deadline. Raises ExecutionError when it is over."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise ExecutionError(f"no end within {self.limits.seconds:g} s")
        return left

    def write(self, view: memoryview) -> int:
        try:
            return self.stdin.write(view[: 2**16]) or 0
        except BrokenPipeError:
            return len(view)  # it went away; reading will tell

    def _ended(self) -> str:
        try:
            status = self.process.wait(timeout=min(1.0, self.left()))
        except subprocess.TimeoutExpired:
            return "it closed its channel"
        words = (self.stderr.read(2000) or b"").decode("utf-8", "replace").strip().splitlines()
        return f"it ended with status {status}" + (f": {printable(words[-1], 200)}" if words else "")


@dataclass(frozen=True)
class Program:
    """What a program did."""

    stdout: str
    status: int
    stderr: str = ""


def run_program(source: str, stdin: str, limits: Limits, ends: float | None = None) -> Program:
    """Runs a program to its end. Raises ExecutionError where it hangs or floods."""
    with Sandbox(limits, "program", ends) as sandbox:
        printed = _communicate(sandbox, _frame(source) + stdin.encode("utf-8", "surrogatepass"))
        try:
            status = sandbox.process.wait(timeout=sandbox.left())
        except subprocess.TimeoutExpired:
            raise ExecutionError(f"no end within {limits.seconds:g} s") from None
        stdout, stderr = (data.decode("utf-8", "replace") for data in printed)
        return Program(stdout, status, stderr[-2000:])


def _communicate(sandbox: Sandbox, data: bytes) -> list[bytearray]:
    """Writes all of `data`; all that comes on standard output and error."""
    view, printed = memoryview(data), [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        selector.register(sandbox.stdin, selectors.EVENT_WRITE)
        for pipe, into in zip((sandbox.stdout, sandbox.stderr), printed, strict=True):
            selector.register(pipe, selectors.EVENT_READ, (pipe, into))
        while selector.get_map():
            for key, _ in selector.select(sandbox.left()):
                if key.data is None:
                    view = view[sandbox.write(view) :]
                    if not view:
                        selector.unregister(sandbox.stdin)
                        sandbox.stdin.close()
                    continue
                pipe, into = key.data
                if (piece := pipe.read(2**16)) is not None:
                    into += piece
                    if not piece:
                        selector.unregister(pipe)
            if max(map(len, printed)) > sandbox.limits.output:
                raise ExecutionError(f"it printed more than {sandbox.limits.output} bytes")
    return printed


def call_function(
    source: str,
    name: str,
    args: list[Any],
    *,
    seconds: float = 120.0,
    memory_mb: int = 2048,
    packages: bool = True,
) -> Any:
    """What `name(*args)` of a source returns, a plain value.

    Raises ExecutionError where it returns none, and SandboxError where there is no sandbox.
    """
    require_sandbox()
    with Sandbox(Limits(seconds, memory_mb, packages=packages)) as sandbox:
        sandbox.ask(op="load", source=source, name=name)
        return sandbox.call(args, {})
