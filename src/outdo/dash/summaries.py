"""Summaries of all runs, each read again when its files change."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from outdo.doctor.summary import RunSummary, summarize
from outdo.runs.files import is_locked
from outdo.runs.run_reader import Stamps, run_stamps

LOCK_CHECK_INTERVAL = 2.0  # seconds between two checks of one lock
MAX_SUMMARIES = 5000


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
            cached = (stamps, summarize(self.root, folder, run_id))
            with self._lock:
                if len(self._cache) >= MAX_SUMMARIES:
                    self._cache.clear()
                self._cache[folder] = cached
        summary = cached[1]
        if summary.status == "running" and not self._is_locked(folder):
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
