"""Files that a command writes its results to: an unusable one is refused before the work, not after it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError
from outdo.runs.files import write_atomic


def refuse_folder(path: Path, option: str = "--out") -> None:
    """Raises RecipeError where the path is a folder."""
    if path.is_dir():
        raise RecipeError(f"{option} {path}: is a folder; name a file")


def refuse_foreign(path: Path, kinds: Mapping[str, tuple[bytes, ...]], option: str = "--out") -> None:
    """Raises RecipeError where the suffix is not among `kinds`, or a file exists that does not start with the bytes of
    its kind: an earlier output may be overwritten, and nothing else."""
    refuse_folder(path, option)
    prefixes = kinds.get(path.suffix.lower())
    if prefixes is None:
        raise RecipeError(f"{option} {path}: must end in {' or '.join(kinds)}")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.read(4096).lstrip().startswith(prefixes):
                raise RecipeError(f"{option} {path}: already exists and was not written by outdo; name another file")


def refuse_file(path: Path, option: str = "--out", *, over: bool) -> None:
    """Raises RecipeError where no file can be written, or one exists and `over` does not allow to overwrite it."""
    refuse_folder(path, option)
    if not path.parent.is_dir():
        raise RecipeError(f"{option} {path}: cannot be written: there is no folder {path.parent}; make it first")
    if path.is_file() and not over:
        raise RecipeError(f"{option} {path}: already exists; name another file, or overwrite it with --force")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RecipeError(f"{option} {path}: cannot be written; name another file")


def write_picture(figure: Any, out: Path, dpi: int = 110) -> None:
    """Writes a figure of matplotlib in the format of the file's suffix. Raises ValueError where there is none such, and
    OSError."""
    picture = io.BytesIO()
    figure.savefig(picture, format=out.suffix.removeprefix(".").lower() or "png", dpi=dpi)
    write_atomic(out, picture.getvalue())
