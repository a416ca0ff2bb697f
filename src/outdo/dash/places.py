"""Which folders under the root hold runs and sweeps, and which folder an id names. An id is a path from the root."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from outdo.runs.layout import MANIFEST, SUBFOLDERS
from outdo.runs.safe_open import resolve_inside

SWEEP = "sweep.json"
MAX_DEPTH = 5  # folders below the root
MAX_FOLDERS = 20_000
MAX_AGE = 1.0  # seconds that a listing is used


class UnknownId(LookupError):
    """There is no such run or sweep under the root."""


@dataclass(frozen=True)
class Listing:
    """Ids, in order."""

    runs: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class Places:
    """The root, with its last listing."""

    root: Path
    _listing: Listing = field(default_factory=Listing)
    _listed: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.root = Path(os.path.realpath(self.root))

    def list(self) -> Listing:
        with self._lock:
            if time.monotonic() - self._listed > MAX_AGE:
                self._listing, self._listed = list_folders(self.root), time.monotonic()
            return self._listing

    def run(self, run_id: str) -> Path:
        """A run's folder. Raises UnknownId."""
        return self._folder(run_id, MANIFEST, "run")

    def sweep(self, sweep_id: str) -> Path:
        return self._folder(sweep_id, SWEEP, "sweep")

    def _folder(self, id_: str, file: str, what: str) -> Path:
        """Refuses every other spelling of a path: parents, empty parts, links that lead out."""
        if id_ != "." and any(part in ("", ".", "..") for part in id_.split("/")):
            raise UnknownId(f"there is no {what} {id_!r:.200}: an id is a path from the root, as /api/runs lists it")
        try:
            folder = resolve_inside(self.root, self.root / id_)
            exists = folder.is_dir() and (folder / file).exists()
        except (OSError, ValueError):
            exists = False
        if not exists:
            raise UnknownId(f"there is no {what} {id_!r:.200} here; /api/runs lists what exists")
        return folder


def list_folders(root: Path) -> Listing:
    """Every folder that holds a run or a sweep. Links are not followed: their targets are listed where they are."""
    runs: list[str] = []
    sweeps: list[str] = []
    queue = [("", 0)]
    visited = 0
    while queue and visited < MAX_FOLDERS:
        name, depth = queue.pop()
        visited += 1
        try:
            with os.scandir(root / name) as iterator:
                entries = list(iterator)
        except OSError:
            continue
        names = {entry.name for entry in entries}
        if MANIFEST in names:
            runs.append(name or ".")
        if SWEEP in names:
            sweeps.append(name or ".")
        if depth < MAX_DEPTH:
            skipped = SUBFOLDERS if MANIFEST in names else frozenset()
            folders = [entry.name for entry in entries if _may_hold_runs(entry) and entry.name not in skipped]
            queue += [(f"{name}/{each}" if name else each, depth + 1) for each in folders]
    problems = (f"{root} has more than {MAX_FOLDERS} folders: not all were searched",) if queue else ()
    return Listing(tuple(sorted(runs)), tuple(sorted(sweeps)), problems)


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    """Not hidden, and with a name that an address can hold."""
    if entry.name.startswith(".") or not entry.name.isprintable():
        return False
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
