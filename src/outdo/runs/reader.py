"""Reading a run's rows. A run may still be writing: a last line without its end is left for the next read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from outdo.errors import RunError
from outdo.runs.layout import EVALS, FINDINGS, MANIFEST, METRICS, SFT, group_files
from outdo.untrusted.parse import parse_json

MAX_LINE = 64 << 20  # characters
JsonRow = dict[str, Any]
Skipped = list[str]  # where lines were skipped that are no JSON rows; without one, such a line raises RunError


def _read(name: str, folder: Path, skipped: Skipped | None = None) -> Iterator[JsonRow]:
    return read_rows(folder / name, skipped)


read_metrics = partial(_read, METRICS)  # a row per step
read_evals = partial(_read, EVALS)  # a row per evaluation of a split
read_sft = partial(_read, SFT)  # a row per supervised update, and per measurement of the held-out loss
read_findings = partial(_read, FINDINGS)  # what the doctor reported while the run was going


def read_groups(folder: Path, skipped: Skipped | None = None) -> Iterator[JsonRow]:
    """The answers, a group a row, in the order of their steps."""
    return (row for path in group_files(folder) for row in read_rows(path, skipped))


def held_out_losses(folder: Path) -> dict[int, float]:
    """Of a supervised run, by step."""
    return {row["step"]: row["held_out_loss"] for row in read_sft(folder) if "held_out_loss" in row}


def run_folders(parent: Path) -> list[Path]:
    """The folders in `parent` that hold a run, newest first."""
    manifests = sorted(parent.glob(f"*/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in manifests]


def read_rows(path: Path, skipped: Skipped | None = None) -> Iterator[JsonRow]:
    """The rows of a JSON Lines file. A line that is none raises RunError, or is noted in `skipped`."""
    if not path.is_file():  # a pipe or a device might never end
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(_lines(file), 1):
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            elif skipped is None:
                raise RunError(f"{path}: line {number} is not a JSON row: {line[:60]!r}; remove it")
            else:
                skipped.append(f"{path}: line {number}")


def _lines(file: IO[str]) -> Iterator[str]:
    """The complete lines; one that is too long is cut, so that it is no row."""
    while line := file.readline(MAX_LINE):
        end = line
        while end and not end.endswith("\n"):
            end = file.readline(MAX_LINE)
        if end:
            yield line


def describe_skipped(skipped: Sequence[str]) -> str:
    more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    lines = "1 line that is not a JSON row" if len(skipped) == 1 else f"{len(skipped)} lines that are not JSON rows"
    return f"skipped {lines}: {', '.join(skipped[:3])}{more}"
