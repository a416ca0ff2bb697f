"""Where each group stands in a run's groups/: a file for each hundred steps, scanned once for where its lines begin.

A line begins {"step": N, "prompt_id": "…", so that a few bytes of it tell what it is. Texts stay on the disk.
"""

from __future__ import annotations

import io
import os
import re
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outdo.dash.files import CHUNK, Row, as_int, opened, parsed, sign_of
from outdo.runs.layout import STEPS_PER_FILE

LONGEST = 32 << 20  # bytes of a line that is parsed
HEAD = 4096  # bytes of a line that are looked at to tell what it is
MOST_ROWS = 2_000_000  # groups of a file, and of a run: 64 MB of places
MOST_FILES = 20_000
FILE = re.compile(r"steps-(\d{1,15})\.jsonl")
_HEAD = re.compile(rb'\{"step": ?(-?\d{1,15}), ?"prompt_id": ?("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class Place:
    """One line of one file."""

    path: Path
    offset: int
    length: int
    step: int


def key_of(prompt_id: str) -> int:
    """Stands for a prompt's id in an index: ids may be as long as prompts are."""
    return hash(prompt_id)


@dataclass
class Block:
    """One file as far as it was scanned. What is asked of it is a copy: other threads may scan on."""

    root: Path
    path: Path
    broken: int = 0
    trouble: str = ""
    scanned: int = 0  # bytes; a line that has no end yet is not among them
    times: int = 0  # that it was begun again
    steps: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    _seen: tuple[int, int, int] | None = None
    _end: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """Scans what is new; all of it again where the file was cut back or replaced."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        sign = sign_of(self.path)
        if sign is not None and sign == self._seen:
            return
        self.trouble = ""
        try:
            with opened(self.root, self.path) as file:
                found = os.fstat(file.fileno())
                if self.scanned and not self._goes_on(file, found):
                    self._forget()
                self._scan(file)
                self._seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            self._forget()
            self.trouble = f"{self.path.name} cannot be read: {error.strerror or error}"

    def _goes_on(self, file: io.FileIO, found: os.stat_result) -> bool:
        at = self.scanned - len(self._end)
        same = self._seen is not None and found.st_ino == self._seen[0] and found.st_size >= self.scanned
        return same and os.pread(file.fileno(), len(self._end), at) == self._end

    def _forget(self) -> None:
        self.times += bool(self.scanned)
        self.scanned, self.broken, self._seen, self._end = 0, 0, None, b""
        self.steps, self.keys, self.offsets, self.lengths = (array("q") for _ in range(4))

    def _scan(self, file: io.FileIO) -> None:
        start = at = self.scanned  # of the line in hand; of the next chunk
        head = b""  # what is known of the line in hand from earlier chunks
        while data := os.pread(file.fileno(), CHUNK, at):
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 10).tolist()
            begin = 0
            for end in ends:
                if head:
                    told, head = head + data[: min(end, HEAD)], b""
                    self._note(file, _HEAD.match(told), start, at + end - start)
                else:
                    self._note(file, _HEAD.match(data, begin, end), start, at + end - start)
                begin, start = end + 1, at + end + 1
            if len(head) < HEAD:
                head += data[begin : begin + HEAD - len(head)]
            at += len(data)
            if ends:
                self.scanned, self._end = start, data[max(0, begin - 64) : begin]

    def _note(self, file: io.FileIO, found: re.Match[bytes] | None, offset: int, length: int) -> None:
        if length == 0 or len(self.steps) >= MOST_ROWS:
            return
        step, prompt = (int(found[1]), _text(found[2])) if found else _told(file, offset, length)
        if step is None or prompt is None:
            self.broken += 1
            return
        self.steps.append(step)
        self.keys.append(key_of(prompt))
        self.offsets.append(offset)
        self.lengths.append(length)

    def at(self, step: int, key: int | None = None) -> list[Place]:
        """The groups of a step; of one prompt where its key is given."""
        with self._lock:
            found = [i for i, each in enumerate(self.steps) if each == step and key in (None, self.keys[i])]
            return [self._place(i) for i in found]

    def places(self) -> list[Place]:
        with self._lock:
            return [self._place(i) for i in range(len(self.steps))]

    def columns(self) -> NDArray[np.int64]:
        """Steps, keys, offsets and lengths of all groups, a row each."""
        with self._lock:
            return np.array([self.steps, self.keys, self.offsets, self.lengths], dtype=np.int64)

    def _place(self, index: int) -> Place:
        return Place(self.path, self.offsets[index], self.lengths[index], self.steps[index])


def _text(quoted: bytes) -> str | None:
    if b"\\" not in quoted:
        return quoted[1:-1].decode("utf-8", "replace")
    found = parsed(b'{"x":' + quoted + b"}")
    return str(found["x"]) if found else None


def _told(file: io.FileIO, offset: int, length: int) -> tuple[int | None, str | None]:
    """Of a line that begins otherwise."""
    row = parsed(os.pread(file.fileno(), length, offset)) if length <= LONGEST else None
    if row is None or not isinstance(row.get("prompt_id"), str):
        return None, None
    return as_int(row.get("step")), row["prompt_id"]


class Reader:
    """Reads groups by their places; the file of the last one stays open for the next. Close it, or use it in a with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path: Path | None = None
        self._file: io.FileIO | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def row(self, place: Place) -> Row:
        """A line's object. Raises OSError or ValueError, which say why there is none."""
        if place.length > LONGEST:
            raise ValueError(f"a group of {place.length >> 20} MB is not read: {LONGEST >> 20} MB is the most")
        if self._file is None or self._path != place.path:
            self.__exit__()
            self._file, self._path = None, None
            self._file, self._path = opened(self.root, place.path), place.path
        row = parsed(os.pread(self._file.fileno(), place.length, place.offset))
        if row is None or as_int(row.get("step")) != place.step:
            raise ValueError("the file changed as it was read: ask again")
        return row


def read_place(root: Path, place: Place) -> Row:
    """One group. Raises as a Reader does."""
    with Reader(root) as reader:
        return reader.row(place)


class Index:
    """All files of one run's groups."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder / "groups"
        self._blocks: dict[int, Block] = {}
        self._lock = threading.Lock()

    def files(self) -> dict[int, Path]:
        """The first step of each file, in order."""
        try:
            with os.scandir(self.folder) as entries:
                found = {int(m[1]): Path(e.path) for e in entries if (m := FILE.fullmatch(e.name))}
        except OSError:
            return {}
        return {first: found[first] for first in sorted(found)[:MOST_FILES]}

    def block(self, first: int, path: Path | None = None) -> Block:
        """One file, as it is now."""
        path = path or self.folder / f"steps-{first:06d}.jsonl"
        with self._lock:
            block = self._blocks.get(first) or Block(self.root, path)
            if path.exists():
                self._blocks[first] = block
        block.refresh()
        return block

    def at(self, step: int, prompt_id: str | None = None) -> tuple[list[Place], list[str]]:
        """The groups of a step, or that of one prompt; and what could not be read of the file."""
        block = self.block(step // STEPS_PER_FILE * STEPS_PER_FILE)
        return block.at(step, None if prompt_id is None else key_of(prompt_id)), trouble_of([block])

    def all(self) -> Whole:
        """Every file, scanned: the whole of groups/ is read once for it."""
        files = self.files()
        with self._lock:
            for gone in self._blocks.keys() - files.keys():
                del self._blocks[gone]
        blocks: list[Block] = []
        for first, path in files.items():
            if self.rows > MOST_ROWS:
                break
            blocks.append(self.block(first, path))
        columns = [block.columns() for block in blocks]
        steps, keys, offsets, lengths = np.concatenate([np.zeros((4, 0), np.int64), *columns], axis=1)
        owners = np.repeat(np.arange(len(blocks)), [each.shape[1] for each in columns])
        return Whole(blocks, steps, keys, offsets, lengths, owners, len(blocks) < len(files))

    @property
    def rows(self) -> int:
        return sum(len(block.steps) for block in list(self._blocks.values()))


@dataclass(frozen=True)
class Whole:
    """All groups of a run at one moment, N of them in the order of the files."""

    blocks: list[Block]
    steps_N: NDArray[np.int64]
    keys_N: NDArray[np.int64]
    offsets_N: NDArray[np.int64]
    lengths_N: NDArray[np.int64]
    owners_N: NDArray[np.int64]  # which block each is of
    is_cut: bool = False  # there are more than are kept in mind

    def place(self, index: int) -> Place:
        path = self.blocks[self.owners_N[index]].path
        return Place(path, int(self.offsets_N[index]), int(self.lengths_N[index]), int(self.steps_N[index]))

    @property
    def times(self) -> int:
        """That files were begun again."""
        return sum(block.times for block in self.blocks)

    def trouble(self) -> list[str]:
        cut = [f"groups/ has more than {MOST_ROWS:,} groups: the first are looked at"] if self.is_cut else []
        return [*trouble_of(self.blocks), *cut]


def trouble_of(blocks: list[Block]) -> list[str]:
    lines = [block.trouble for block in blocks if block.trouble]
    broken = [block for block in blocks if block.broken]
    if broken:
        count, name = sum(block.broken for block in broken), broken[0].path.name
        lines.append(f"{count} lines of groups/ are no groups, the first in {name}: they are passed over")
    return lines
