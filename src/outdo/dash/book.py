"""One run as far as it was read, and a shelf of those that were looked at last. Nothing is read twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from outdo.dash.blocks import Index
from outdo.dash.files import Row, Sign, Tail, parsed_all, plain, read_object, sign_of
from outdo.dash.prompts import Gains
from outdo.dash.table import Frame, Table
from outdo.runs.layout import STEPS_PER_FILE

BOOKS = 24  # runs that are kept
CELLS = 12_000_000  # of their tables: 96 MB
PLACES = 3_000_000  # of their groups: 96 MB
LISTED = 20_000  # rows of evals.jsonl or findings.jsonl
LARGE = 64 << 20  # bytes of these that are read at once


class Numbers:
    """A file of rows as a table."""

    def __init__(self, root: Path, path: Path) -> None:
        self.tail, self.table = Tail(root, path), Table()
        self.times = 0  # that it was begun again
        self.lock = threading.Lock()

    def frame(self) -> Frame:
        """All rows there are now."""
        with self.lock:
            more = True
            while more:
                news = self.tail.read()
                if news.again:
                    self.table, self.times = Table(), self.times + 1
                rows, broken = parsed_all(news.lines)
                self.table.broken += broken
                self.table.add(rows)
                more = news.more
            return self.table.frame()

    def trouble(self) -> list[str]:
        name, table, tail = self.tail.path.name, self.table, self.tail
        found = [tail.trouble] if tail.trouble else []
        if table.broken:
            found.append(f"{table.broken} lines of {name} are no rows: they are passed over")
        if tail.too_long:
            found.append(f"{tail.too_long} lines of {name} are too long to be rows: they are passed over")
        if table.left_out:
            found.append(f"{name} is too large: {table.left_out} rows are left out")
        return found


class Rows:
    """A short file of rows as they are."""

    def __init__(self, root: Path, path: Path) -> None:
        self.tail, self.found, self.broken, self.is_cut = Tail(root, path), list[Row](), 0, False
        self.lock = threading.Lock()

    def all(self) -> list[Row]:
        with self.lock:
            more = True
            while more:
                news = self.tail.read()
                if news.again:
                    self.found, self.broken = [], 0
                rows, broken = parsed_all(news.lines)
                self.found += rows[: max(0, LISTED - len(self.found))]
                self.broken += broken
                more = news.more and self.tail.offset < LARGE
            self.is_cut = news.more or len(self.found) >= LISTED
            return list(self.found)

    def trouble(self) -> list[str]:
        name = self.tail.path.name
        found = [self.tail.trouble] if self.tail.trouble else []
        found += [f"{name} is too large: its first rows are shown"] if self.is_cut else []
        lost = self.broken + self.tail.too_long
        return [*found, f"{lost} lines of {name} are no rows: they are passed over"] if lost else found


class Book:
    """One run's folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.metrics, self.sft = (Numbers(root, folder / name) for name in ("metrics.jsonl", "sft.jsonl"))
        self.evals, self.findings = (Rows(root, folder / name) for name in ("evals.jsonl", "findings.jsonl"))
        self.index = Index(root, folder)
        self.gains = Gains(root, self.index)
        self.kept: dict[str, tuple[Any, Any]] = {}  # what was worked out, with what it was worked out from
        self._manifest: tuple[Sign | None, Row, list[str]] = (None, {}, [])

    def manifest(self) -> tuple[Row, list[str]]:
        """run.json, and why it cannot be read."""
        sign = sign_of(self.folder / "run.json")
        if sign is None or sign != self._manifest[0]:
            self._manifest = (sign, *read_manifest(self.root, self.folder))
        return self._manifest[1], self._manifest[2]

    def steps(self) -> list[int]:
        """The steps whose answers are kept: those with a row of numbers whose file is there. Files without such are
        scanned."""
        steps = np.unique(self.metrics.frame().steps)
        files = self.index.files()
        firsts = np.array(sorted(files), dtype=np.int64)
        found = steps[np.isin(steps // STEPS_PER_FILE * STEPS_PER_FILE, firsts)]
        bare = (
            [first for first in files if not np.any(found // STEPS_PER_FILE * STEPS_PER_FILE == first)] if files else []
        )
        more = [step for first in bare[:50] for step in set(self.index.block(first, files[first]).steps)]
        return sorted({*found.tolist(), *more})


def read_manifest(root: Path, folder: Path) -> tuple[Row, list[str]]:
    try:
        return plain(read_object(root, folder / "run.json")), []
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return {}, [f"run.json cannot be read: {why}"]


class Shelf:
    """The books that were opened last, as many as memory is given for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._books: OrderedDict[Path, Book] = OrderedDict()
        self._lock = threading.Lock()

    def book(self, folder: Path) -> Book:
        with self._lock:
            book = self._books.pop(folder, None) or Book(self.root, folder)
            self._books[folder] = book
            self._tidy()
            return book

    def _tidy(self) -> None:
        """Lets go of the oldest; the one in hand stays."""
        while len(self._books) > 1 and self._is_full():
            self._books.popitem(last=False)

    def _is_full(self) -> bool:
        books = list(self._books.values())
        cells = sum(book.metrics.table.cells + book.sft.table.cells for book in books)
        places = sum(book.index.rows for book in books)
        return len(books) > BOOKS or cells > CELLS or places > PLACES


def listed(manifest: Row, key: str) -> str:
    """A text of the recipe, or nothing."""
    recipe = manifest.get("recipe")
    value = recipe.get(key) if isinstance(recipe, dict) else None
    return value if isinstance(value, str) else ""
