"""Which folders under the root hold runs and sweeps, and which folder an id means. An id is a path from the root."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from outdo.dash.files import Outside, real

DEPTH = 5  # folders below the root
MOST = 20_000  # folders that are looked into
FRESH = 1.0  # seconds that a look is good for
OF_A_RUN = frozenset({"groups", "checkpoints", "reference", "model", "adapter"})  # its own folders, with no run in them


class Unknown(LookupError):
    """There is no such run or sweep under the root."""


@dataclass(frozen=True)
class Found:
    """What a look came to: ids, in order."""

    runs: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


@dataclass
class Places:
    """The root, and what was found under it a moment ago."""

    root: Path
    _found: Found = field(default_factory=Found)
    _at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.root = Path(os.path.realpath(self.root))

    def look(self) -> Found:
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._found, self._at = look(self.root), time.monotonic()
            return self._found

    def run(self, name: str) -> Path:
        """A run's folder. Raises Unknown."""
        return self._folder(name, "run.json", "run")

    def sweep(self, name: str) -> Path:
        return self._folder(name, "sweep.json", "sweep")

    def _folder(self, name: str, file: str, what: str) -> Path:
        """Only paths that are written as we write them: no parent, no second slash, no link that leads out."""
        parts = name.split("/")
        if name != "." and any(part in ("", ".", "..") for part in parts):
            raise Unknown(f"there is no {what} {name!r:.200}: an id is a path from the root, as /api/runs lists it")
        try:
            folder = real(self.root, self.root / name)
            there = folder.is_dir() and (folder / file).exists()
        except (Outside, OSError, ValueError):
            there = False
        if not there:
            raise Unknown(f"there is no {what} {name!r:.200} here; /api/runs lists what there is")
        return folder


def look(root: Path) -> Found:
    """Every folder with a run.json or a sweep.json. Links are not followed: what they lead to is listed where it is."""
    runs: list[str] = []
    sweeps: list[str] = []
    queue = [("", 0)]
    looked = 0
    while queue and looked < MOST:
        name, depth = queue.pop()
        looked += 1
        try:
            with os.scandir(root / name) as entries:
                inside = list(entries)
        except OSError:
            continue
        files = {entry.name for entry in inside}
        if "run.json" in files:
            runs.append(name or ".")
        if "sweep.json" in files:
            sweeps.append(name or ".")
        if depth < DEPTH:
            own = OF_A_RUN if "run.json" in files else frozenset()
            folders = [entry.name for entry in inside if _is_room(entry) and entry.name not in own]
            queue += [(f"{name}/{each}" if name else each, depth + 1) for each in folders]
    trouble = (f"more than {MOST} folders are under {root}: not all were looked into",) if queue else ()
    return Found(tuple(sorted(runs)), tuple(sorted(sweeps)), trouble)


def _is_room(entry: os.DirEntry[str]) -> bool:
    """A folder that a run may be in. A name that is no text cannot be asked for."""
    if entry.name.startswith(".") or not entry.name.isprintable():
        return False
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
