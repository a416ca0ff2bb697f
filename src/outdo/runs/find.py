"""Finds a run by what a user calls it: its folder, a folder inside it, its name under runs/, or the start of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outdo.errors import PlaceError, did_you_mean
from outdo.runs import layout
from outdo.runs.manifest import holds_run, read_manifest

RUNS = Path("runs")
MAX_LISTED = 5  # runs in a message


def find_run(name: str | Path) -> Path:
    """The run's folder. Raises PlaceError where there is none, or several begin with the name."""
    if (found := try_find_run(name)) is not None:
        return found
    folder = Path(name)
    if not folder.exists() and (near := did_you_mean(str(name), run_names(), "; did you mean {}?")):
        raise PlaceError(f"{name}: there is no such run, neither as a folder nor in {RUNS}/{near}")
    read_manifest(folder)  # raises, with the reason
    return folder


def try_find_run(name: str | Path) -> Path | None:
    """The run's folder; None where there is none. Raises PlaceError where several begin with the name."""
    folder = Path(name).expanduser()
    if holds_run(folder):
        return folder
    if folder.exists() and (outer := _outer_run(folder)):
        return outer
    if folder.is_absolute() or ".." in folder.parts or not folder.name:
        return None
    if holds_run(RUNS / folder):
        return RUNS / folder
    return _by_prefix(folder.name) if folder.parent in (Path(), RUNS) and not folder.exists() else None


def run_names() -> list[str]:
    """The names of the runs in runs/, newest last."""
    return sorted(_runs())


def _runs() -> Iterator[str]:
    if RUNS.is_dir():
        yield from (entry.name for entry in RUNS.iterdir() if holds_run(entry))


def _by_prefix(prefix: str) -> Path | None:
    names = [name for name in run_names() if name.startswith(prefix)]
    if len(names) > 1:
        listed = ", ".join(names[-MAX_LISTED:])
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        raise PlaceError(f"{prefix}: {len(names)} runs in {RUNS}/ begin with it, {listed}{more}: give more of the name")
    return RUNS / names[0] if names else None


def _outer_run(folder: Path) -> Path | None:
    """The run that a model or a checkpoint lies in."""
    within = folder if folder.name in layout.SUBFOLDERS else folder.parent
    run = within.parent
    return run if within.name in layout.SUBFOLDERS and holds_run(run) else None
