"""Files that a command writes its results to: what cannot be is refused before the work, not after it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from outdo.errors import RecipeError


def refuse_folder(path: Path, option: str = "--out") -> None:
    """Raises RecipeError where there is a folder in the place of the file."""
    if path.is_dir():
        raise RecipeError(f"{option} {path}: is a folder; name a file")


def refuse_other(path: Path, kinds: Mapping[str, tuple[bytes, ...]], option: str = "--out") -> None:
    """Raises RecipeError where the file's ending is none of these, or a file is there that does not begin so: it is
    written anew where it was made so before, and nothing else is written over."""
    refuse_folder(path, option)
    begins = kinds.get(path.suffix.lower())
    if begins is None:
        raise RecipeError(f"{option} {path}: must end in {' or '.join(kinds)}")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.read(4096).lstrip().startswith(begins):
                raise RecipeError(f"{option} {path}: is there already, and outdo did not write it; name another file")


def refuse_file(path: Path, option: str = "--out", *, over: bool) -> None:
    """Raises RecipeError where no file can be written; and where there is one, unless it may be written `over`."""
    refuse_folder(path, option)
    if not path.parent.is_dir():
        raise RecipeError(f"{option} {path}: cannot be written: there is no folder {path.parent}; make it first")
    if path.is_file() and not over:
        raise RecipeError(f"{option} {path}: is there already; name another file, or write over it with --force")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RecipeError(f"{option} {path}: cannot be written; name another file")
