"""Reads a run that may still be written, as far as it is, with bounded memory; nothing is read twice.

The functions of `reader.py` read a file once and name each line that they skip. This reader is for viewers, which read
again and again, and from untrusted folders.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outdo.runs import layout
from outdo.runs.foreign.translate import renew, source_of
from outdo.runs.index import GroupIndex
from outdo.runs.manifest import manifest_path, with_current_names
from outdo.runs.reader import JsonRow
from outdo.runs.safe_open import Stamp, file_stamp, read_object
from outdo.runs.table import Frame, Table
from outdo.runs.tail import Tail
from outdo.runs.values import as_dict, json_safe, parse_rows

MAX_READERS = 24
MAX_CELLS = 12_000_000  # of their tables: 96 MB
MAX_GROUPS = 3_000_000  # of their indices: 96 MB
MAX_ROWS = 20_000  # of evaluations or findings
MAX_ROW_BYTES = 64 << 20  # of these files
MAX_SCANNED_FILES = 50  # of groups without metrics

Stamps = tuple[Stamp | None, ...]


class MetricsFile:
    """A file of rows of numbers, as a table."""

    def __init__(self, root: Path, path: Path) -> None:
        self.tail, self.table, self.lock = Tail(root, path), Table(), threading.Lock()
        self.restarts = 0  # times that the file was cut back or replaced

    def frame(self) -> Frame:
        with self.lock:
            more = True
            while more:
                update = self.tail.read()
                if update.restarted:
                    self.table, self.restarts = Table(), self.restarts + 1
                rows, invalid = parse_rows(update.lines)
                self.table.invalid += invalid
                self.table.add(rows)
                more = update.more
            return self.table.frame()

    def problems(self) -> list[str]:
        name, table, tail = self.tail.path.name, self.table, self.tail
        problems = {
            tail.problem: tail.problem,
            f"skipped {table.invalid} lines of {name} that are not JSON rows": table.invalid,
            f"skipped {tail.too_long} lines of {name} that are too long": tail.too_long,
            f"{name} is too large: its last {table.dropped} rows are not shown": table.dropped,
        }
        return [problem for problem, holds in problems.items() if holds]


class RowFile:
    """A short file of rows, as they are."""

    def __init__(self, root: Path, path: Path) -> None:
        self.tail, self.lock = Tail(root, path), threading.Lock()
        self.rows, self.invalid, self.is_truncated = list[JsonRow](), 0, False

    def all(self) -> list[JsonRow]:
        with self.lock:
            more = True
            while more:
                update = self.tail.read()
                if update.restarted:
                    self.rows, self.invalid = [], 0
                rows, invalid = parse_rows(update.lines)
                self.rows += rows[: max(0, MAX_ROWS - len(self.rows))]
                self.invalid += invalid
                more = update.more and self.tail.offset < MAX_ROW_BYTES
            self.is_truncated = update.more or len(self.rows) >= MAX_ROWS
            return list(self.rows)

    def problems(self) -> list[str]:
        name, skipped = self.tail.path.name, self.invalid + self.tail.too_long
        problems = {
            self.tail.problem: self.tail.problem,
            f"{name} is too large: only its first rows are shown": self.is_truncated,
            f"skipped {skipped} lines of {name} that are not JSON rows": skipped,
        }
        return [problem for problem, holds in problems.items() if holds]


class RunReader:
    """One run's folder. No file outside `root` is read."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.metrics, self.sft = (MetricsFile(root, folder / name) for name in (layout.METRICS, layout.SFT))
        self.evals, self.findings = (RowFile(root, folder / name) for name in (layout.EVALS, layout.FINDINGS))
        self.groups = GroupIndex(root, folder)
        self.is_foreign = source_of(folder) is not None
        if self.is_foreign:
            self.groups.renew = partial(self.renew, with_answers=True)
        self.derived: dict[str, Any] = {}  # results that viewers keep with the run
        self._manifest: tuple[Stamp | None, JsonRow, list[str]] = (None, {}, [])

    def manifest(self) -> tuple[JsonRow, list[str]]:
        """The manifest, and why it cannot be read."""
        stamp = file_stamp(manifest_path(self.folder))
        if stamp is None or stamp != self._manifest[0]:
            self._manifest = (stamp, *load_manifest(self.root, self.folder))
        return self._manifest[1], self._manifest[2]

    @property
    def recipe(self) -> dict[str, Any]:
        return as_dict(self.manifest()[0].get("recipe"))

    def renew(self, with_answers: bool = False) -> None:
        """Where it is a run of another trainer: takes what is new of it."""
        renew(self.folder, with_answers)

    def steps(self) -> list[int]:
        """The steps that have groups: those with metrics whose file exists. Files without metrics are scanned."""
        steps = np.unique(self.metrics.frame().steps)
        paths = self.groups.paths()
        firsts = steps - steps % layout.STEPS_PER_FILE
        with_file = steps[np.isin(firsts, np.array(list(paths), dtype=np.int64))]
        has_metrics = set(firsts.tolist())
        without = [first for first in paths if first not in has_metrics]
        files = [self.groups.file(first, paths[first]) for first in without[:MAX_SCANNED_FILES]]
        return sorted({*with_file.tolist(), *(step for file in files for step in file.steps)})


def load_manifest(root: Path, folder: Path) -> tuple[JsonRow, list[str]]:
    """A manifest of whatever content, and why it cannot be read."""
    path = manifest_path(folder)
    try:
        return json_safe(with_current_names(read_object(root, path))), []
    except (OSError, ValueError) as error:
        return {}, [f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"]


def root_of(root: Path, folder: Path) -> Path:
    """What a run is read within: the root, or, of another trainer's run, its translated folder."""
    return root if source_of(folder) is None else folder


def run_stamps(folder: Path) -> Stamps:
    """Change whenever the run writes anything but groups."""
    return tuple(file_stamp(folder / name) for name in (layout.MANIFEST, *layout.ROW_FILES))


def status_stamps(folder: Path) -> Stamps:
    """Change when the run's status, evaluations or findings do, and not with each step."""
    return tuple(file_stamp(folder / name) for name in (layout.MANIFEST, layout.EVALS, layout.FINDINGS))


class RunCache:
    """The readers that were used last, within a bound on memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._readers: OrderedDict[Path, RunReader] = OrderedDict()
        self._lock = threading.Lock()

    def reader(self, folder: Path) -> RunReader:
        with self._lock:
            root = root_of(self.root, folder)
            reader = self._readers.pop(folder, None) or RunReader(root, folder)
            self._readers[folder] = reader
            while len(self._readers) > 1 and self._is_full():
                self._readers.popitem(last=False)
            return reader

    def _is_full(self) -> bool:
        readers = list(self._readers.values())
        cells = sum(reader.metrics.table.cells + reader.sft.table.cells for reader in readers)
        groups = sum(reader.groups.num_groups for reader in readers)
        return len(readers) > MAX_READERS or cells > MAX_CELLS or groups > MAX_GROUPS
