"""Finds a run by what a user calls it: its folder, a folder inside it, its name under runs/, or the start of that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from outdo.errors import PlaceError, did_you_mean
from outdo.runs import layout
from outdo.runs.foreign.sources import search
from outdo.runs.foreign.translate import renew, source_of, translated
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


def try_find_viewable(name: str | Path) -> Path | None:
    """The folder of a run of ours, or that of another trainer's run as viewers read it (`foreign/`); None where there
    is none. Raises PlaceError where several fit."""
    if (found := try_find_run(name)) is not None:
        return found
    path = Path(name).expanduser()
    if not path.exists():
        return None
    path = Path(os.path.realpath(path))
    root = path if path.is_dir() else path.parent
    if (folder := _translated(root, path)) is not None:
        return folder
    below = search(path) if path.is_dir() else []
    if len(below) > 1:
        listed = ", ".join(str(each.relative_to(path)) for each in below[:MAX_LISTED])
        more = f" and {len(below) - MAX_LISTED} more" if len(below) > MAX_LISTED else ""
        raise PlaceError(f"{name} holds {len(below)} runs of other trainers, {listed}{more}: name one of them")
    return _translated(path, below[0]) if below else None


def _translated(root: Path, path: Path) -> Path | None:
    folder = translated(root, path)
    if folder is not None:
        renew(folder, with_answers=True)
    return folder


def find_viewable(name: str | Path) -> Path:
    """The same. Raises PlaceError where there is none."""
    return try_find_viewable(name) or find_run(name)


def place_beside(folder: Path, name: str) -> Path:
    """Where a file about a run is written: in its folder; of another trainer's run in the folder that it was read from,
    or beside the file."""
    source = source_of(folder)
    if source is None:
        return folder / name
    return source / name if source.is_dir() else source.with_name(f"{source.stem}-{name}")


def shown_name(folder: Path) -> str:
    """What a run is called in tables: its folder, or where it was read from."""
    source = source_of(folder)
    if source is None:
        return str(folder)
    near = os.path.relpath(source)
    return str(source) if near.startswith("..") else near


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
