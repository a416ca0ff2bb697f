"""Summaries of all runs and sweeps, each read again when its files change; and the page of a sweep."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path

from outdo.dash.models import SweepPage, SweepSummary
from outdo.dash.places import SWEEP
from outdo.doctor.summary import RunSummary, summarize
from outdo.runs.files import is_locked
from outdo.runs.manifest import manifest_path
from outdo.runs.run_reader import Stamps, root_of, run_stamps
from outdo.runs.safe_open import Stamp, file_stamp, read_object
from outdo.runs.values import as_dict, as_list, as_text, dicts_in, json_safe

LOCK_CHECK_INTERVAL = 2.0  # seconds between two checks of one lock
MAX_SUMMARIES = 5000
MAX_SWEEP_BYTES = 32 << 20


class Summaries:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[Path, tuple[Stamps, RunSummary]] = {}
        self._locks: dict[Path, tuple[float, bool]] = {}
        self._lock = threading.Lock()

    def of(self, folder: Path, run_id: str) -> RunSummary:
        stamps = run_stamps(folder)
        with self._lock:
            cached = self._cache.get(folder)
        if cached is None or cached[0] != stamps or cached[1].id != run_id:
            cached = (stamps, summarize(root_of(self.root, folder), folder, run_id))
            with self._lock:
                if len(self._cache) >= MAX_SUMMARIES:
                    self._cache.clear()
                self._cache[folder] = cached
        summary = cached[1]
        if summary.status == "running" and not summary.trainer and not self._is_locked(folder):
            return summary.model_copy(update={"status": "lost", "why": "its process ended without recording why"})
        return summary

    def _is_locked(self, folder: Path) -> bool:
        """Checked now and then: a check takes a free lock for an instant. Without locks, the manifest is believed."""
        with self._lock:
            checked, locked = self._locks.get(folder, (-math.inf, False))
            if time.monotonic() - checked > LOCK_CHECK_INTERVAL:
                locked = is_locked(folder, without_locks=True)
                self._locks[folder] = (time.monotonic(), locked)
            return locked


class Sweeps:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[Path, tuple[Stamp | None, SweepSummary | None]] = {}

    def of(self, folder: Path, sweep_id: str) -> SweepSummary | None:
        """None where its file cannot be read."""
        stamp = file_stamp(folder / SWEEP)
        cached = self._cache.get(folder)
        if cached is None or cached[0] != stamp:
            summary = None
            with suppress(OSError, ValueError):
                page = sweep_page(self.root, folder, sweep_id)
                summary = SweepSummary(id=page.id, title=page.title, cells=page.cells, done=page.done)
            cached = self._cache[folder] = (stamp, summary)
        return cached[1]


def sweep_page(root: Path, folder: Path, sweep_id: str) -> SweepPage:
    """Raises OSError or ValueError where its file cannot be read."""
    sweep = json_safe(read_object(root, folder / SWEEP, MAX_SWEEP_BYTES))
    cells, pick = dicts_in(sweep.get("cells")), as_dict(sweep.get("pick"))
    prefix = "" if sweep_id == "." else f"{sweep_id}/"
    rows = []
    for cell in cells:
        name = cell.get("folder")
        has_run = isinstance(name, str) and "/" not in name and manifest_path(folder / name).is_file()
        rows.append({**cell, "run": f"{prefix}{name}" if has_run else None})
    return SweepPage(
        id=sweep_id,
        title=as_text(sweep.get("title")) or as_text(folder.name),
        keys=[as_text(key) for key in as_list(sweep.get("varied"))],
        rows=rows,
        pick=pick["setting"] if isinstance(pick.get("setting"), str) else None,
        why=as_text(pick.get("why")),
        default=sweep["default"] if isinstance(sweep.get("default"), str) else None,
        done=sum(cell.get("status") in ("done", "halted") for cell in cells),
        cells=len(cells),
    )
