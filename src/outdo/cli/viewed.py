"""The runs that a viewer's command names: ours, and those of other trainers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def find_viewed(names: Sequence[str | Path]) -> list[Path]:
    """Their folders. Prints what of another trainer's files could not be read. Raises PlaceError where there is no run,
    or several fit."""
    from outdo.runs.find import find_viewable

    folders = [find_viewable(name) for name in names]
    for folder in folders:
        print_notes(folder)
    return folders


def print_notes(folder: Path) -> None:
    from outdo.errors import PlaceError
    from outdo.runs.manifest import read_manifest
    from outdo.runs.values import as_list

    try:
        manifest = read_manifest(folder)
    except PlaceError:
        return
    for note in as_list(manifest.notes) if manifest.trainer else ():
        print(f"{manifest.source}: {note}", file=sys.stderr)
