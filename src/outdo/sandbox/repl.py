"""Runs blocks of code one after another in one module, as an interactive session does. Standard library only.

Runs inside the sandbox: `inside.py` imports it when it gets the first block. What a block prints, also through
processes that it starts, is read back from a file that standard output and error are for that long.
"""

from __future__ import annotations

import ast
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FRAMES = 6  # of a traceback
_FILE = "/tmp/.printed"

_PROCESS = os.getpid()
_MODULE = type(sys)("__main__")  # where its names stay
_sources: dict[str, str] = {}  # of the blocks so far, for tracebacks


def run(code: str, limit: int) -> list[str]:
    """What a block printed, the value of its last expression, and the error that it raised, at most about `limit`
    characters of each."""
    name = f"<call {len(_sources) + 1}>"
    if code:
        _sources[name] = code
    sys.modules["__main__"] = _MODULE
    file = _OUTPUT.capture()
    value = error = ""
    try:
        value = _executed(code, name)
    except BaseException as raised:  # SystemExit too: it ends the block only
        error = _traceback(raised)
    _OUTPUT.flush()
    if os.getpid() != _PROCESS:
        os._exit(0)  # a fork that the block has left running
    printed = _printed(file, limit)
    os.close(file)
    return [printed, _cut(value, limit), _cut(error, limit)]


def _executed(code: str, name: str) -> str:
    """Runs all of it; the value of a last expression, as Python shows it."""
    space: dict[str, Any] = _MODULE.__dict__
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), space)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), space)
    return "" if value is None else repr(value)


class _Output:
    """Standard output and error of the blocks, one stream, so that their order is kept."""

    stream: Any = None

    def capture(self) -> int:
        """A new file without a name, which they now are."""
        file = os.open(_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.unlink(_FILE)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        if self.stream is None or self.stream.closed:
            options: Any = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
            self.stream = open(1, "w", buffering=1, **options)  # noqa: SIM115 (stays open)
        sys.stdout = sys.stderr = self.stream
        return file

    def flush(self) -> None:
        """Leaves nothing in the buffer that the next block would print."""
        try:
            self.stream.flush()
        except ValueError:  # the code has closed it
            pass
        except OSError:  # the file is full
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
            self.stream.flush()


_OUTPUT = _Output()


def _printed(file: int, limit: int) -> str:
    size = os.fstat(file).st_size
    if size <= 4 * limit:  # as many characters at least
        return _cut(os.pread(file, size, 0).decode("utf-8", "replace"), limit)
    head, tail = os.pread(file, limit // 2, 0), os.pread(file, limit // 2, size - limit // 2)
    cut = f"\n… {size} bytes, cut here …\n"
    return head.decode("utf-8", "replace") + cut + tail.decode("utf-8", "replace")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… {len(text)} characters, cut here …\n{text[-limit // 2 :]}"


def _traceback(error: BaseException) -> str:
    """As Python prints it, from the first line of the code's own."""
    import linecache
    import traceback

    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename not in _sources:
        trace = trace.tb_next
    for name, source in _sources.items():
        linecache.cache[name] = len(source), None, source.splitlines(True), name
    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES)).rstrip()
    except Exception:
        return type(error).__name__
