"""Runs untrusted code in bubblewrap (`jail.py`), under hard limits, killed at a deadline. There is no fallback."""

from __future__ import annotations

import json
import marshal
import os
import secrets
import select
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from outdo.errors import SandboxError
from outdo.sandbox import inside, values, watch
from outdo.sandbox.jail import Limits, command, descriptors
from outdo.sandbox.seccomp import rules

INSTALL = "install bubblewrap (apt-get install bubblewrap, or dnf install bubblewrap)"


class ExecutionError(Exception):
    """The code exited, hung, raised or forged a reply. The message says which."""


class Raised(ExecutionError):
    """The code raised an exception, or returned what cannot leave. The sandbox still works and takes the next call.

    `kinds` are the names of the exception's class and its bases, with their modules; `args` its arguments, encoded.
    """

    def __init__(self, kinds: Sequence[str], message: str, args: Any = None) -> None:
        self.kinds, self.message, self.encoded_args = tuple(kinds), message, args
        self.kind = kinds[0].rpartition(".")[2] if kinds else ""
        super().__init__(f"the code raised {self.kind}: {message}".strip(": "))


class TimedOut(ExecutionError):
    """The code hung."""


class Forged(ExecutionError):
    """The code wrote to the channel itself. Nothing it sends counts any more."""


@cache
def _unavailable() -> str:
    """Why no sandbox can be started here; empty where one can."""
    if not shutil.which("bwrap"):
        return f"bubblewrap is not installed: {INSTALL}"
    try:
        with Sandbox(Limits()) as sandbox:
            sandbox.load(["def one(): return 1"], "one")
            assert sandbox.call([], {}) == 1
    except (ExecutionError, OSError) as error:
        return (
            f"bubblewrap cannot start one: {error}. In a container, allow user namespaces (docker run --privileged, "
            "or a seccomp profile that does); on Ubuntu 24.04 and later, "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return ""


def require_sandbox() -> None:
    """Raises SandboxError where no sandbox can be started. Code never runs outside of one."""
    if reason := _unavailable():
        raise SandboxError(f"code runs only in a sandbox, and {reason}")


def _frame(message: Any) -> bytes:
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def printable(text: Any, limit: int) -> str:
    """Text of the untrusted code, safe for a log."""
    if not isinstance(text, str):
        raise Forged("a reply that is not text")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])


class Sandbox:
    """One sandboxed process, driven by frames. Leaving the context kills every process in it."""

    def __init__(self, limits: Limits, mode: str = "serve", deadline: float | None = None) -> None:
        self.limits = limits
        self.deadline = deadline or time.monotonic() + limits.seconds
        self.killed_for = ""  # why the watcher killed it
        self._lock = threading.RLock()  # the watcher is another thread
        self._started: int | None = None
        self._is_ending = self._is_in_cgroup = False
        pipe = subprocess.PIPE
        self._info, info = os.pipe()
        rules_read, rules_write = os.pipe()
        self.cgroup = watch.cgroups().take(limits.total_mb)
        try:
            os.write(rules_write, rules())  # fits in the pipe's buffer
            line, inherited = command(info, rules_read, limits, mode), descriptors(info, rules_read)
            self.process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, pass_fds=inherited)
        except BaseException:
            os.close(self._info)
            raise
        finally:
            for end in (info, rules_read, rules_write):
                os.close(end)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self._received = b""
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)
        watch.WATCHER.add(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        watch.WATCHER.remove(self)
        with self._lock:
            if self.process.poll() is None:
                self._kill()
            os.close(self._info)
            self._info = -1
        watch.cgroups().give_back(self.cgroup, self.limits.total_mb)
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def enter_cgroup(self) -> None:
        """Moves the first processes into the cgroup. They have no code yet, and what they start later is in it too."""
        if self.cgroup is not None and not self._is_in_cgroup:
            with self._lock:
                pid, self._is_in_cgroup = self._init_pid(), True
            if pid is not None:
                watch.enter(self.cgroup, pid)
                watch.enter(self.cgroup, *watch.children(pid))

    def end(self) -> None:
        """Kills every process without waiting for them, which takes a while. Leaving the context waits."""
        with self._lock, suppress(OSError):
            if not self._is_ending and self.process.poll() is None and (pid := self._init_pid()):
                os.kill(pid, signal.SIGKILL)
                self._is_ending = True

    def destroy(self, reason: str) -> None:
        """Kills every process, from another thread; whoever reads next gets the reason."""
        with self._lock:
            if self._info >= 0 and self.process.poll() is None:
                self.killed_for = reason
                self._kill()

    def _kill(self) -> None:
        """Kills the first process of the namespace, and with it all others; bubblewrap then exits too."""
        self.end()
        if self._is_ending:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.kill()  # where it has not started that process yet, or does not exit
        self.process.wait()

    def started_pid(self) -> int | None:
        """The pid of the namespace's first process where it runs already."""
        with self._lock:
            if self._info < 0 or not (self._started or select.select([self._info], [], [], 0)[0]):
                return None
            return self._init_pid()

    def _init_pid(self) -> int | None:
        """The pid of the namespace's first process, once bubblewrap has written it; None where it started none.

        Killing bubblewrap earlier would leave that process waiting for it forever.
        """
        data = b""
        while self._started is None and (piece := os.read(self._info, 2000)):
            data += piece
            with suppress(ValueError):
                self._started = int(json.loads(data)["child-pid"])
        return self._started

    def request(self, **fields: Any) -> Any:
        """Sends one request; the value of its reply, or None. Raises ExecutionError for anything else."""
        nonce = secrets.token_hex(16)
        self.send({**fields, "nonce": nonce})
        return self.result(self.receive(), nonce)

    def load(self, blocks: Sequence[str], name: str, prompt: str = "") -> None:
        """Loads the function `name` of the last block that defines it (`sources.py`), after the prompt's code."""
        self.request(op="load", blocks=list(blocks), name=name, prompt=prompt)

    def call(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.request(op="call", args=args, kwargs=kwargs)

    def forward(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Like `call`, with arguments that another sandbox encoded; the result encoded, and as a plain value."""
        nonce = secrets.token_hex(16)
        self.send({"op": "forward", "args": args, "kwargs": kwargs, "nonce": nonce})
        reply = self.receive()
        return reply.get("value"), self.result(reply, nonce)

    def fork(self, args: list[Any], seconds: float) -> Any:
        """Like `call`, in a fork that exits afterwards: a call leaves no side effects for the next.

        Raises Raised with kind TimeoutError where it takes longer, and ChildProcessError where it dies.
        """
        self.deadline = time.monotonic() + seconds + 5.0  # time to kill the fork
        return self.request(op="fork", args=args, seconds=seconds)

    def result(self, reply: dict[str, Any], nonce: str) -> Any:
        """The value of a reply. Raises Raised where the code raised, and Forged for a reply to no request."""
        if reply.get("nonce") != nonce or self._received:
            raise Forged("a reply to no request")
        if "raised" in reply:
            raise self._raised(reply)
        return self.value(reply.get("value"))

    def _raised(self, reply: dict[str, Any]) -> Raised:
        kinds, args = reply["raised"], reply.get("args")
        if not isinstance(kinds, list) or not kinds or not isinstance(args, (list, type(None))):
            raise Forged("an exception that is none")
        self.value(args)
        return Raised([printable(kind, 200) for kind in kinds[:50]], printable(reply.get("message"), 200), args)

    def value(self, data: Any) -> Any:
        """The nearest plain value of what the code encoded."""
        try:
            return inside.decode(data, values.plain)
        except (ValueError, TypeError, OverflowError, RecursionError, LookupError, AttributeError):
            raise Forged("a reply that is not a plain value") from None

    def send(self, message: dict[str, Any]) -> None:
        try:
            frame = _frame(message)
        except ValueError:
            raise Forged("a value that is nested too deep") from None
        self.exchange(frame, until=0)

    def receive(self) -> dict[str, Any]:
        """The next frame. Raises ExecutionError where none comes in time, or it is not valid."""
        size = int.from_bytes(self._take(4), "big")
        if size > inside.MAX_FRAME_BYTES:
            raise Forged("a reply that is too large")
        try:
            message = json.loads(self._take(size))
        except (ValueError, RecursionError):
            raise Forged("a reply that is not JSON") from None
        if not isinstance(message, dict):
            raise Forged("a reply that is not an object")
        return message

    def _take(self, count: int) -> bytes:
        if len(self._received) < count:
            self._received += self.exchange(b"", until=count - len(self._received))
        if len(self._received) < count:
            raise ExecutionError(self._exit_message())
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def exchange(self, data: bytes, until: int) -> bytes:
        """Writes all of `data`, and reads until that many bytes arrived or the other side closes."""
        self.enter_cgroup()
        received = bytearray()
        view = memoryview(data)
        with selectors.DefaultSelector() as selector:
            if view:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            if until:
                selector.register(self.stdout, selectors.EVENT_READ)
            while selector.get_map() and (view or len(received) < until):
                for key, _ in selector.select(self.remaining()):
                    if key.fileobj is self.stdin:
                        view = view[self.write(view) :]
                        if not view:
                            selector.unregister(self.stdin)
                    elif (piece := self.stdout.read(2**16)) is not None:
                        received += piece
                        if not piece:
                            selector.unregister(self.stdout)
        return bytes(received)

    def remaining(self) -> float:
        """Seconds until the deadline. Raises ExecutionError after it."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimedOut(f"timed out after {self.limits.seconds:g} s")
        return seconds

    def write(self, view: memoryview) -> int:
        try:
            return self.stdin.write(view[: 2**16]) or 0
        except BrokenPipeError:
            return len(view)  # it exited; reading reports that

    def _exit_message(self) -> str:
        try:
            status = self.process.wait(timeout=min(1.0, self.remaining()))
        except subprocess.TimeoutExpired:
            return "the code closed its channel"
        if self.killed_for:
            return f"killed, because it {self.killed_for}"
        lines = (self.stderr.read(2000) or b"").decode("utf-8", "replace").strip().splitlines()
        return f"exited with status {status}" + (f": {printable(lines[-1], 200)}" if lines else "")


@dataclass(frozen=True)
class ProgramResult:
    stdout: str
    status: int
    stderr: str = ""


def run_program(
    source: str | Sequence[str], stdin: str, limits: Limits, deadline: float | None = None
) -> ProgramResult:
    """Runs a program to its end; of several blocks, the last that is one (`sources.py`).

    Raises ExecutionError where it times out or prints too much.
    """
    blocks = [source] if isinstance(source, str) else list(source)
    with Sandbox(limits, "program", deadline) as sandbox:
        printed = _communicate(sandbox, _frame(blocks) + stdin.encode("utf-8", "surrogatepass"))
        try:
            status = sandbox.process.wait(timeout=sandbox.remaining())
        except subprocess.TimeoutExpired:
            raise TimedOut(f"timed out after {limits.seconds:g} s") from None
        if sandbox.killed_for:
            raise ExecutionError(f"killed, because it {sandbox.killed_for}")
        stdout, stderr = (data.decode("utf-8", "replace") for data in printed)
        return ProgramResult(stdout, status, stderr[-2000:])


def _communicate(sandbox: Sandbox, data: bytes) -> list[bytearray]:
    """Writes all of `data`; what came on standard output and standard error."""
    sandbox.enter_cgroup()
    view, printed = memoryview(data), [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        selector.register(sandbox.stdin, selectors.EVENT_WRITE)
        for pipe, buffer in zip((sandbox.stdout, sandbox.stderr), printed, strict=True):
            selector.register(pipe, selectors.EVENT_READ, (pipe, buffer))
        while selector.get_map():
            for key, _ in selector.select(sandbox.remaining()):
                if key.data is None:
                    view = view[sandbox.write(view) :]
                    if not view:
                        selector.unregister(sandbox.stdin)
                        sandbox.stdin.close()
                    continue
                pipe, buffer = key.data
                if (piece := pipe.read(2**16)) is not None:
                    buffer += piece
                    if not piece:
                        selector.unregister(pipe)
            if max(map(len, printed)) > sandbox.limits.output:
                raise ExecutionError(f"printed more than {sandbox.limits.output} bytes")
    return printed


def call_function(source: str, name: str, args: list[Any], seconds: float = 120.0) -> Any:
    """The plain value that `name(*args)` of a source returns. Raises ExecutionError, SandboxError without a sandbox."""
    require_sandbox()
    with Sandbox(Limits(seconds, memory_mb=2048, packages=True)) as sandbox:
        sandbox.load([source], name)
        return sandbox.call(args, {})
