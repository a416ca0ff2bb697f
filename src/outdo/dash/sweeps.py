"""Sweeps as their sweep.json tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outdo.dash.files import Sign, plain, read_object, sign_of, text_of
from outdo.dash.shapes import SweepPage, SweepSummary


class Sweeps:
    """Sweeps in a line, each read again when its file changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: dict[Path, tuple[Sign | None, SweepSummary | None]] = {}

    def of(self, folder: Path, name: str) -> SweepSummary | None:
        """None where its file cannot be read."""
        sign = sign_of(folder / "sweep.json")
        kept = self._kept.get(folder)
        if kept is None or kept[0] != sign:
            kept = self._kept[folder] = (sign, self._read(folder, name))
        return kept[1]

    def _read(self, folder: Path, name: str) -> SweepSummary | None:
        try:
            page = sweep_page(self.root, folder, name)
        except (OSError, ValueError):
            return None
        return SweepSummary(id=page.id, title=page.title, cells=page.cells, done=page.done)


def sweep_page(root: Path, folder: Path, name: str) -> SweepPage:
    """What is in sweep.json. Raises OSError or ValueError where it cannot be read."""
    told = plain(read_object(root, folder / "sweep.json", most=32 << 20))
    cells = [cell for cell in told.get("cells", ()) if isinstance(cell, dict)] if _is_list(told.get("cells")) else []
    pick = told.get("pick") if isinstance(told.get("pick"), dict) else {}
    varied = told.get("varied") if _is_list(told.get("varied")) else []
    here = "" if name == "." else f"{name}/"
    rows = []
    for cell in cells:
        inside = cell.get("folder")
        there = isinstance(inside, str) and "/" not in inside and (folder / inside / "run.json").is_file()
        rows.append({**cell, "run": f"{here}{inside}" if there else None})
    return SweepPage(
        id=name,
        title=text_of(told.get("title")) or text_of(folder.name),
        keys=[text_of(key) for key in varied],
        rows=rows,
        pick=pick["setting"] if isinstance(pick.get("setting"), str) else None,
        why=text_of(pick.get("why")),
        default=told["default"] if isinstance(told.get("default"), str) else None,
        done=sum(cell.get("status") in ("done", "halted") for cell in cells),
        cells=len(cells),
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
