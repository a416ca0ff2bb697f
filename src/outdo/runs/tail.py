"""Follows a file of lines that a run appends to, and cuts back when it resumes."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from outdo.runs.safe_open import file_stamp, open_regular, stamp_of

CHUNK_BYTES = 4 << 20  # read at a time; a longer line is skipped
END_BYTES = 64  # compared, to notice that a file was rewritten


@dataclass(frozen=True)
class TailUpdate:
    """The lines since the last read."""

    lines: list[bytes]
    restarted: bool = False  # the file was cut back or replaced: these lines are from its start
    more: bool = False  # another read returns more at once


class Tail:
    """Returns each complete line once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.problem = ""  # why the file cannot be read
        self.too_long = 0  # lines that were skipped
        self._reset()

    def _reset(self) -> None:
        self.offset, self.end, self.in_long_line, self.stamp = 0, b"", False, (0, 0, 0)

    def read(self) -> TailUpdate:
        """The next complete lines, of a bounded number of bytes."""
        stamp = file_stamp(self.path)
        if stamp is not None and stamp == self.stamp:
            return TailUpdate([])
        try:
            with open_regular(self.root, self.path) as file:
                return self._next(file)
        except FileNotFoundError:
            self.problem = ""
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"
        restarted = self.offset > 0
        self._reset()
        return TailUpdate([], restarted)

    def _next(self, file: io.FileIO) -> TailUpdate:
        status = os.fstat(file.fileno())
        size, restarted = status.st_size, False
        if self.offset and (status.st_ino != self.stamp[0] or size < self.offset or not self._is_same(file)):
            self._reset()
            self.too_long, restarted = 0, True
        self.problem = ""
        data = os.pread(file.fileno(), CHUNK_BYTES, self.offset)
        start = 0
        if self.in_long_line:
            start = data.find(b"\n") + 1
            self.in_long_line = not start
        end = data.rfind(b"\n") + 1
        if end <= start and len(data) == CHUNK_BYTES and not self.in_long_line and not start:
            self.in_long_line, self.too_long = True, self.too_long + 1
        used = len(data) if self.in_long_line else end
        self.offset += used
        self.end = data[max(0, used - END_BYTES) : used] or self.end
        more = used > 0 and self.offset < size
        self.stamp = (status.st_ino, -1, 0) if more else stamp_of(status)
        return TailUpdate(data[start : end - 1].split(b"\n") if end > start else [], restarted, more)

    def _is_same(self, file: io.FileIO) -> bool:
        """Whether what was read is still there: a file may be cut back and grow past it between two reads."""
        return os.pread(file.fileno(), len(self.end), self.offset - len(self.end)) == self.end
