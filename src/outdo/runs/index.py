"""Where each group is in a run's group files, each of which is scanned once for where its lines start.

A line starts with {"step": N, "prompt_id": "…", so its first bytes identify it. Texts stay on the disk.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outdo.runs.layout import GROUPS, STEPS_PER_FILE, group_file
from outdo.runs.reader import JsonRow
from outdo.runs.safe_open import Stamp, file_stamp, open_regular, stamp_of
from outdo.runs.tail import CHUNK_BYTES, END_BYTES
from outdo.runs.values import as_int, parse_object

MAX_LINE_BYTES = 32 << 20  # of a line that is parsed
HEAD_BYTES = 4096  # of a line, to identify it
MAX_GROUPS = 2_000_000  # of a file, and of a run: 64 MB of locations
MAX_FILES = 20_000
FILE_NAME = re.compile(r"steps-(\d{1,15})\.jsonl")
_HEAD = re.compile(rb'\{"step": ?(-?\d{1,15}), ?"prompt_id": ?("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class Location:
    """One group: a line of a file."""

    path: Path
    offset: int
    length: int
    step: int


def prompt_key(prompt_id: str) -> int:
    """Stands for a prompt's id in an index: ids may be as long as prompts."""
    return hash(prompt_id)


@dataclass
class GroupFile:
    """The index of one file, as far as it was scanned. Methods return copies, since other threads may scan on."""

    root: Path
    path: Path
    invalid: int = 0  # lines that are not groups
    problem: str = ""  # why it cannot be read
    scanned: int = 0  # bytes, up to the last complete line
    restarts: int = 0  # scans from the start, because the file was cut back or replaced
    steps: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    _stamp: Stamp | None = None
    _end: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """Scans what is new; all of it where the file was cut back or replaced."""
        with self._lock:
            stamp = file_stamp(self.path)
            if stamp is not None and stamp == self._stamp:
                return
            self.problem = ""
            try:
                with open_regular(self.root, self.path) as file:
                    status = os.fstat(file.fileno())
                    if self.scanned and not self._is_continued(file, status):
                        self._reset()
                    self._scan(file)
                    self._stamp = stamp_of(status)
            except OSError as error:
                self._reset()
                if not isinstance(error, FileNotFoundError):
                    self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"

    def _is_continued(self, file: io.FileIO, status: os.stat_result) -> bool:
        offset = self.scanned - len(self._end)
        same = self._stamp is not None and status.st_ino == self._stamp[0] and status.st_size >= self.scanned
        return same and os.pread(file.fileno(), len(self._end), offset) == self._end

    def _reset(self) -> None:
        self.restarts += bool(self.scanned)
        self.scanned, self.invalid, self._stamp, self._end = 0, 0, None, b""
        self.steps, self.keys, self.offsets, self.lengths = (array("q") for _ in range(4))

    def _scan(self, file: io.FileIO) -> None:
        start = position = self.scanned  # of the current line; of the next chunk
        head = b""  # of the current line, from earlier chunks
        while data := os.pread(file.fileno(), CHUNK_BYTES, position):
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 10).tolist()
            first = 0  # of the current line, in this chunk
            for end in ends:
                if head:
                    match, head = _HEAD.match(head + data[: min(end, HEAD_BYTES)]), b""
                else:
                    match = _HEAD.match(data, first, end)
                self._add(file, match, start, position + end - start)
                first, start = end + 1, position + end + 1
            if len(head) < HEAD_BYTES:
                head += data[first : first + HEAD_BYTES - len(head)]
            position += len(data)
            if ends:
                self.scanned, self._end = start, data[max(0, first - END_BYTES) : first]

    def _add(self, file: io.FileIO, match: re.Match[bytes] | None, offset: int, length: int) -> None:
        if length == 0 or len(self.steps) >= MAX_GROUPS:
            return
        step, prompt = (int(match[1]), _unquote(match[2])) if match else _parse_head(file, offset, length)
        if step is None or prompt is None:
            self.invalid += 1
            return
        self.steps.append(step)
        self.keys.append(prompt_key(prompt))
        self.offsets.append(offset)
        self.lengths.append(length)

    def at(self, step: int, key: int | None = None) -> list[Location]:
        """The groups of a step; of one prompt where its key is given."""
        with self._lock:
            indices = [i for i, each in enumerate(self.steps) if each == step and key in (None, self.keys[i])]
            return [self._location(i) for i in indices]

    def locations(self) -> list[Location]:
        with self._lock:
            return [self._location(i) for i in range(len(self.steps))]

    def columns(self) -> NDArray[np.int64]:
        """Steps, keys, offsets and lengths of all groups, a row each."""
        with self._lock:
            return np.array([self.steps, self.keys, self.offsets, self.lengths], dtype=np.int64)

    def _location(self, index: int) -> Location:
        return Location(self.path, self.offsets[index], self.lengths[index], self.steps[index])


def _unquote(quoted: bytes) -> str | None:
    if b"\\" not in quoted:
        return quoted[1:-1].decode("utf-8", "replace")
    row = parse_object(b'{"x":' + quoted + b"}")
    return str(row["x"]) if row else None


def _parse_head(file: io.FileIO, offset: int, length: int) -> tuple[int | None, str | None]:
    """Step and prompt id of a line whose keys are in another order."""
    row = parse_object(os.pread(file.fileno(), length, offset)) if length <= MAX_LINE_BYTES else None
    if row is None or not isinstance(row.get("prompt_id"), str):
        return None, None
    return as_int(row.get("step")), row["prompt_id"]


class GroupReader:
    """Reads groups by location, a context manager. The last file stays open for the next group."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path: Path | None = None
        self._file: io.FileIO | None = None

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def row(self, location: Location) -> JsonRow:
        """A group's row. Raises OSError or ValueError, with the reason."""
        if (size := location.length) > MAX_LINE_BYTES:
            raise ValueError(f"a group of {size >> 20} MB is not read: the limit is {MAX_LINE_BYTES >> 20} MB")
        if self._file is None or self._path != location.path:
            self.__exit__()
            self._file, self._path = None, None
            self._file, self._path = open_regular(self.root, location.path), location.path
        row = parse_object(os.pread(self._file.fileno(), location.length, location.offset))
        if row is None or as_int(row.get("step")) != location.step:
            raise ValueError("the file changed while it was read: try again")
        return row


def read_location(root: Path, location: Location) -> JsonRow:
    """One group. Raises as GroupReader does."""
    with GroupReader(root) as reader:
        return reader.row(location)


def read_locations(root: Path, locations: Iterable[Location], max_bytes: int) -> Iterator[JsonRow]:
    """The groups that can be read, up to a number of bytes."""
    num_bytes = 0
    with GroupReader(root) as reader:
        for location in locations:
            num_bytes += location.length
            if num_bytes > max_bytes:
                return
            with suppress(OSError, ValueError):
                yield reader.row(location)


class GroupIndex:
    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.renew: Callable[[], None] | None = None  # called before the files are listed
        self._files: dict[int, GroupFile] = {}
        self._lock = threading.Lock()

    def paths(self) -> dict[int, Path]:
        """The files by their first steps, in order."""
        if self.renew:
            self.renew()
        try:
            with os.scandir(self.folder / GROUPS) as entries:
                paths = {int(m[1]): Path(e.path) for e in entries if (m := FILE_NAME.fullmatch(e.name))}
        except OSError:
            return {}
        return {first: paths[first] for first in sorted(paths)[:MAX_FILES]}

    def file(self, first: int, path: Path | None = None) -> GroupFile:
        """The file that starts at a step, up to date."""
        if path is None and self.renew:
            self.renew()
        path = path or group_file(self.folder, first)
        with self._lock:
            file = self._files.get(first) or GroupFile(self.root, path)
            if path.exists():
                self._files[first] = file
        file.refresh()
        return file

    def at(self, step: int, prompt_id: str | None = None) -> tuple[list[Location], list[str]]:
        """The groups of a step, or of one prompt at that step; and what could not be read of the file."""
        file = self.file(step // STEPS_PER_FILE * STEPS_PER_FILE)
        return file.at(step, None if prompt_id is None else prompt_key(prompt_id)), problems_of([file])

    def all(self) -> AllGroups:
        """Every file, up to date. The first call reads all of them."""
        paths = self.paths()
        with self._lock:
            for removed in self._files.keys() - paths.keys():
                del self._files[removed]
        within = itertools.takewhile(lambda _: self.num_groups <= MAX_GROUPS, paths.items())
        files = [self.file(first, path) for first, path in within]
        columns = [file.columns() for file in files]
        steps, keys, offsets, lengths = np.concatenate([np.zeros((4, 0), np.int64), *columns], axis=1)
        files_N = np.repeat(np.arange(len(files)), [each.shape[1] for each in columns])
        return AllGroups(files, steps, keys, offsets, lengths, files_N, len(files) < len(paths))

    @property
    def num_groups(self) -> int:
        """In memory now."""
        return sum(len(file.steps) for file in list(self._files.values()))


@dataclass(frozen=True)
class AllGroups:
    """All groups of a run at one moment, N of them in the order of the files."""

    files: list[GroupFile]
    steps_N: NDArray[np.int64]
    keys_N: NDArray[np.int64]
    offsets_N: NDArray[np.int64]
    lengths_N: NDArray[np.int64]
    files_N: NDArray[np.int64]  # the index of each group's file
    is_truncated: bool = False  # there are more than the limit

    def location(self, index: int) -> Location:
        path = self.files[self.files_N[index]].path
        return Location(path, int(self.offsets_N[index]), int(self.lengths_N[index]), int(self.steps_N[index]))

    @property
    def restarts(self) -> int:
        return sum(file.restarts for file in self.files)

    def problems(self) -> list[str]:
        truncated = [f"{GROUPS}/ has more than {MAX_GROUPS:,} groups: only the first are read"]
        return [*problems_of(self.files), *(truncated if self.is_truncated else [])]


def problems_of(files: list[GroupFile]) -> list[str]:
    lines = [file.problem for file in files if file.problem]
    invalid = [file for file in files if file.invalid]
    if invalid:
        count, name = sum(file.invalid for file in invalid), invalid[0].path.name
        lines.append(f"skipped {count} lines of {GROUPS}/ that are not groups, the first in {name}")
    return lines
