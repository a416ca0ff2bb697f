"""Which folders under the root hold runs and sweeps, and which folder an id names. An id is a path from the root."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from outdo.runs.foreign.sources import CHECKPOINT, sources_in
from outdo.runs.foreign.translate import PATIENCE, translated
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
    """Ids, in order. `foreign` are runs of other trainers: their ids may name files."""

    runs: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
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
        """A run's folder; of another trainer's run the translated one, up to date. Raises UnknownId."""
        try:
            return self._folder(run_id, MANIFEST, "run")
        except UnknownId:
            if (folder := self._translated(run_id)) is None:
                raise
            return folder

    def _translated(self, run_id: str) -> Path | None:
        if run_id != "." and any(part in ("", ".", "..") for part in run_id.split("/")):
            return None
        try:
            return translated(self.root, resolve_inside(self.root, self.root / run_id), PATIENCE)
        except (OSError, ValueError):
            return None

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
    runs, sweeps, foreign, claimed = list[str](), list[str](), list[str](), set[Path]()
    own: set[str] = set()  # folders inside runs of ours
    for visited, (place, folders, files) in enumerate(os.walk(root)):
        if visited == MAX_FOLDERS:
            problem = f"{root} has more than {MAX_FOLDERS} folders: not all were searched"
            return Listing(tuple(sorted(runs)), tuple(sorted(foreign)), tuple(sorted(sweeps)), (problem,))
        parts, names = Path(place).relative_to(root).parts, {*folders, *files}
        for file, ids in ((MANIFEST, runs), (SWEEP, sweeps)):
            if file in names:
                ids.append("/".join(parts) or ".")
        if MANIFEST in names or place in own:
            own |= {os.path.join(place, name) for name in folders}
        else:
            found = sources_in(root, Path(place), [*folders, *files], claimed)
            foreign += [path.relative_to(root).as_posix() for path in found if str(path).isprintable()]
            folders[:] = [name for name in folders if not (found and CHECKPOINT.fullmatch(name))]
        skipped = SUBFOLDERS if MANIFEST in names else frozenset()
        shown = [name for name in folders if not name.startswith(".") and name.isprintable()]  # an address can hold it
        folders[:] = [name for name in shown if name not in skipped] if len(parts) < MAX_DEPTH else []
    return Listing(tuple(sorted(runs)), tuple(sorted(foreign)), tuple(sorted(sweeps)))
