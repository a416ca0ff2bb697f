"""Files that nobody vouches for: opened inside the root only, regular ones only, and read in bounded pieces."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

CHUNK = 4 << 20  # bytes read at a time; a line of numbers that is longer is passed over
DEPTH = 40  # levels of a value that is handed on as it is
MANIFEST = 8 << 20  # bytes of run.json or sweep.json
WHOLE = 1 << 53  # integers beyond this are not exact in a browser

Row = dict[str, Any]
Sign = tuple[int, int, int]  # which file it is, how long, and when it was written


class Outside(OSError):
    """A path that leads out of the root."""


def is_inside(root: Path, path: Path) -> bool:
    return path == root or root in path.parents


def real(root: Path, path: Path) -> Path:
    """Where a path leads. Raises OSError where that is outside the root, and where it cannot be told."""
    try:
        found = Path(os.path.realpath(path))
    except ValueError as error:  # a null byte
        raise Outside(str(error)) from None
    if not is_inside(root, found):
        raise Outside(f"{path.name} leads out of the folder that is shown")
    return found


def sign_of(path: Path) -> Sign | None:
    """Changes whenever the file does; None where there is no regular file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def opened(root: Path, path: Path) -> io.FileIO:
    """A regular file inside the root, to be read. A pipe, a device or a folder is refused before it could hang us."""
    place = real(root, path)
    if not stat.S_ISREG(os.stat(place).st_mode):
        raise OSError(f"{path.name} is no regular file")
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    file = io.FileIO(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path.name} is no regular file")
    return file


def read_object(root: Path, path: Path, most: int = MANIFEST) -> Row:
    """One JSON object. Raises OSError or ValueError, which say what is wrong with it."""
    with opened(root, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path.name} has {size >> 20} MB, and {most >> 20} are read at most")
        found = parsed(file.read(most))
    if found is None:
        raise ValueError(f"{path.name} is no JSON object")
    return found


def parsed(line: bytes) -> Row | None:
    """One line's object, fit to be handed on; None where it is no JSON object."""
    try:
        found = from_json(line)
    except ValueError:  # also half a surrogate pair and bytes that are no UTF-8, which the other reader takes
        try:
            found = plain(json.loads(line.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def parsed_all(lines: Sequence[bytes]) -> tuple[list[Row], int]:
    """The objects of many lines, and how many lines were none."""
    lines = [line for line in lines if line.strip()]
    try:
        rows = from_json(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return rows, 0
    except ValueError:
        pass
    found = [row for row in map(parsed, lines) if row is not None]
    return found, len(lines) - len(found)


def plain(value: Any, depth: int = DEPTH) -> Any:
    """What JSON can carry to a browser: no NaN, no integer that it would bend, no half characters, no endless depth."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= WHOLE else as_float(value)
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {text_of(str(key)): plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, depth - 1) for each in value]
    return text_of(str(value))


def as_float(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def as_int(value: Any) -> int | None:
    """A whole number that a browser can hold, or None."""
    number = as_float(value)
    return int(number) if number is not None and abs(number) <= WHOLE else None


def text_of(value: Any) -> str:
    """A text without half characters, which no encoding has."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@dataclass(frozen=True)
class News:
    """What a file has more than last time. `again`: it was taken back or replaced, and these are from its start."""

    lines: list[bytes]
    again: bool = False
    more: bool = False  # there is more to be read at once


class Tail:
    """A file of lines that grows, and that a run which goes on cuts back. Each line is handed on once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.trouble = ""  # why it cannot be read
        self.too_long = 0  # lines that were passed over
        self._forget()

    def _forget(self) -> None:
        self.offset, self.end, self.inside, self.seen = 0, b"", False, (0, 0, 0)

    def read(self) -> News:
        """The next lines that are whole, a bounded number of bytes of them."""
        sign = sign_of(self.path)
        if sign is not None and sign == self.seen:
            return News([])
        try:
            with opened(self.root, self.path) as file:
                return self._next(file)
        except FileNotFoundError:
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self.path.name} cannot be read: {error.strerror or error}"
        had = self.offset > 0
        self._forget()
        return News([], again=had)

    def _next(self, file: io.FileIO) -> News:
        found = os.fstat(file.fileno())
        size, again = found.st_size, False
        if self.offset and (found.st_ino != self.seen[0] or size < self.offset or not self._is_same(file)):
            self._forget()
            self.too_long, again = 0, True
        self.trouble = ""
        data = os.pread(file.fileno(), CHUNK, self.offset)
        start = 0
        if self.inside:  # of a line that is too long
            start = data.find(b"\n") + 1
            self.inside = not start
        end = data.rfind(b"\n") + 1
        if end <= start and len(data) == CHUNK and not self.inside and not start:
            self.inside, self.too_long = True, self.too_long + 1
        used = len(data) if self.inside else end
        self.offset += used
        self.end = data[max(0, used - 64) : used] or self.end
        more = used > 0 and self.offset < size
        self.seen = (found.st_ino, -1, 0) if more else (found.st_ino, size, found.st_mtime_ns)
        return News(data[start : end - 1].split(b"\n") if end > start else [], again, more)

    def _is_same(self, file: io.FileIO) -> bool:
        """Whether what was read is still there: a file may be cut back and grow past where it was between two looks."""
        return os.pread(file.fileno(), len(self.end), self.offset - len(self.end)) == self.end
