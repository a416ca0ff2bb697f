"""A run's steps and a small curve of them, from a few short reads however long the run is."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import numpy as np

from outdo.runs.layout import row_path
from outdo.runs.reader import JsonRow
from outdo.runs.safe_open import open_regular
from outdo.runs.table import bin_starts, downsample, numbers
from outdo.runs.values import as_int, parse_rows

POINTS = 48
SHORT_BYTES = 128 << 10  # of a file that is read completely
SAMPLE_BYTES = 16 << 10  # read per point of a longer one
LAST_ROW_BYTES = 1 << 20
SAMPLE_ROWS = 8  # that such a point is the mean of, at most


def sparkline(root: Path, folder: Path, kind: str) -> tuple[int, list[float | None], list[str]]:
    """The number of steps done, the reward (of a supervised run, the loss) in a few points, and problems."""
    path, name = row_path(folder, kind), "loss" if kind == "sft" else "reward_mean"
    try:
        with open_regular(root, path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > SHORT_BYTES:
                return _num_steps(_last_row(file, size)), _sampled(file, size, name), []
            lines = os.pread(file.fileno(), size, 0).split(b"\n")[:-1]
    except FileNotFoundError:
        return 0, [], []
    except OSError as error:
        return 0, [], [f"{path.name} cannot be read: {error.strerror or error}"]
    rows = [row for row in parse_rows(lines)[0] if name in row]
    values = numbers([row.get(name) for row in rows])
    points = downsample(values, bin_starts(len(values), POINTS)).mean.tolist()
    return _num_steps(rows[-1] if rows else {}), [None if math.isnan(value) else value for value in points], []


def _num_steps(row: JsonRow) -> int:
    step = as_int(row.get("step"))
    return max(0, step or 0)


def _lines(file: io.FileIO, length: int, offset: int) -> list[bytes]:
    """The complete lines of a part of a file: the first and the last are cut."""
    return os.pread(file.fileno(), length, offset).split(b"\n")[1:-1]


def _last_row(file: io.FileIO, size: int) -> JsonRow:
    for length in (SAMPLE_BYTES, LAST_ROW_BYTES):
        if rows := parse_rows(_lines(file, length, max(0, size - length))[-1:])[0]:
            return rows[-1]
    return {}


def _sampled(file: io.FileIO, size: int, name: str) -> list[float | None]:
    """Means of a few rows at even distances."""
    points: list[float | None] = []
    for i in range(POINTS):
        lines = _lines(file, SAMPLE_BYTES, (size - SAMPLE_BYTES) * i // (POINTS - 1))
        lines = lines[-SAMPLE_ROWS:] if i == POINTS - 1 else lines[:SAMPLE_ROWS]  # the last point is the end of the run
        values = numbers([row.get(name) for row in parse_rows(lines)[0]])
        finite = values[np.isfinite(values)]
        points.append(float(f"{finite.mean():.6g}") if len(finite) else None)
    return points
