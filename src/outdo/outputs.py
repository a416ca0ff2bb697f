"""Files that a command writes its results to: what cannot be is refused before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from outdo.errors import RecipeError


def refuse_folder(path: Path, option: str = "--out") -> None:
    """Raises RecipeError where there is a folder in the place of the file."""
    if path.is_dir():
        raise RecipeError(f"{option} {path}: is a folder; name a file")


def refuse_file(path: Path, option: str = "--out", *, over: bool) -> None:
    """Raises RecipeError where no file can be written; and where there is one, unless it may be written `over`."""
    refuse_folder(path, option)
    if not path.parent.is_dir():
        raise RecipeError(f"{option} {path}: cannot be written: there is no folder {path.parent}; make it first")
    if path.is_file() and not over:
        raise RecipeError(f"{option} {path}: is there already; name another file, or write over it with --force")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RecipeError(f"{option} {path}: cannot be written; name another file")
