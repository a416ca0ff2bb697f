"""A history from a run's folder, live or finished, or from a file of another trainer's metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outdo.doctor.answers import read_answers
from outdo.doctor.history import History, from_rows
from outdo.doctor.printed import printed_rows, step_blocks
from outdo.doctor.signals import finite
from outdo.errors import RecipeError
from outdo.runs.foreign.names import CORE_SIGNALS, canonical_values, is_read
from outdo.runs.layout import MANIFEST
from outdo.runs.manifest import holds_run, read_manifest
from outdo.runs.reader import JsonRow, read_evals, read_metrics
from outdo.untrusted.parse import parse_json

STANDARD_INPUT = Path("/dev/stdin")
EXPECTED = "a run's folder, or CSV, JSON or JSON Lines with a row per step, or a trainer's printed steps"


def read_history(path: Path) -> History:
    """Raises RecipeError where there is nothing to diagnose in it. Lines that are not JSON rows are skipped. `-` is
    standard input."""
    path = STANDARD_INPUT if str(path) == "-" else _trainer_state(path) or path
    if path.is_dir():
        return run_history(path)
    if not (path.is_file() or _is_open_pipe(path)):
        raise RecipeError(f"{path} {'is no file' if path.exists() else 'does not exist'}: give {EXPECTED}")
    rows, skipped = _rows(path)
    history = from_rows(rows)
    ignored = tuple(name for name in history.columns if not is_read(name))
    if not CORE_SIGNALS & history.columns.keys():
        columns = ", ".join(list(history.columns)[:8]) or "no numbers"
        names = "reward_mean, reward, kl, entropy, critic/score/mean"
        raise RecipeError(f"{path} has no known signal (it has {columns}): name the columns as in {names}")
    return replace(history, recipe=_settings(history), skipped=tuple(skipped), ignored=ignored)


def _is_open_pipe(path: Path) -> bool:
    """Whether it is a pipe that this process has open: another one may have no writer, and opening it would wait."""
    return path.is_fifo() and (path == STANDARD_INPUT or path.parent == Path("/dev/fd"))


def _trainer_state(folder: Path) -> Path | None:
    """The log of transformers in a checkpoint's folder, or in the newest checkpoint of a run."""
    if holds_run(folder):
        return None
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    newest = sorted(checkpoints, key=lambda path: int(path.name.partition("-")[2]), reverse=True)
    return next((state for place in (folder, *newest) if (state := place / "trainer_state.json").is_file()), None)


def run_history(folder: Path) -> History:
    """The history of a run's folder, with its answers."""
    if not holds_run(folder):
        raise RecipeError(f"{folder} holds no run (it has no {MANIFEST}): give {EXPECTED}")
    manifest = read_manifest(folder)
    if manifest.kind == "stages":
        raise RecipeError(f"{folder} has stages, each a run of its own: name a GRPO stage, such as {folder}/02-grpo")
    if manifest.kind != "grpo":
        raise RecipeError(f"{folder} is a run of kind {manifest.kind}: the doctor diagnoses GRPO runs")
    skipped: list[str] = []
    rows, evals = list(read_metrics(folder, skipped)), list(read_evals(folder, skipped))
    history = from_rows(rows, evals, manifest.recipe, read_answers(folder, skipped))
    ended = manifest.why if manifest.status in ("stopped", "failed") and not manifest.trainer else ""
    ignored = tuple(name for name in history.columns if not is_read(name)) if manifest.trainer else ()
    return replace(history, skipped=tuple(skipped), ended=ended, ignored=ignored)


def _settings(history: History) -> dict[str, Any]:
    """Keys of another trainer's recipe that its curves show."""
    columns = {"learning_rate": "lr", "beta": "beta"}
    return {key: float(np.max(finite(history[name]))) for key, name in columns.items() if history.has(name, least=1)}


def _rows(path: Path) -> tuple[list[JsonRow], list[str]]:
    """The rows of a file, and the lines that were skipped. Of two ways to read a text, the one with more rows wins."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error}): give {EXPECTED}") from None
    if not text.strip():
        raise RecipeError(f"{path} is empty: give {EXPECTED}")
    is_json = text.lstrip()[0] in "[{"
    if is_json and (document := _json_document(path, text)) is not None:
        return document, []
    rows, skipped = _json_lines(path, text)
    printed = printed_rows(text)
    if rows and len(rows) >= len(printed):
        return rows, skipped
    if printed:
        return printed, []
    if is_json and (blocks := step_blocks(text)):  # [Step 3/60] reward: …
        return blocks, []
    if is_json:
        raise RecipeError(f"{path}: none of its lines is a JSON row: {text.lstrip()[:60]!r}: give {EXPECTED}")
    if "\ufffd" in text:
        raise RecipeError(f"{path} cannot be read (it is not UTF-8): give {EXPECTED}")
    table = _csv_rows(path, text)
    if any(CORE_SIGNALS & canonical_values(row).keys() for row in table[:50]):
        return table, []
    return step_blocks(text) or table, []


def _csv_rows(path: Path, text: str) -> list[JsonRow]:
    """Separated by commas, tabs or semicolons; with semicolons, a decimal comma becomes a point."""
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    try:
        rows = list(csv.DictReader(io.StringIO(text.lstrip(), newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise RecipeError(f"{path} is not valid CSV ({error}): give {EXPECTED}") from None
    point = (",", ".") if delimiter == ";" else (",", ",")
    return [{key: value.replace(*point) for key, value in row.items() if key and value} for row in rows]


def _json_document(path: Path, text: str) -> list[JsonRow] | None:
    """A list of rows, or the trainer_state.json of transformers. None where the text is not one JSON value."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    rows = value.get("log_history", [value]) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecipeError(f"{path}: expected an object for each step: give {EXPECTED}")
    return [_flat(row) for row in rows]


def _json_lines(path: Path, text: str) -> tuple[list[JsonRow], list[str]]:
    """The rows, and the lines that are none. A last line without a newline may still be growing: it is ignored."""
    lines = text.split("\n")
    rows, skipped = [], []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(_flat(row))
        elif line.strip() and number < len(lines):
            skipped.append(f"{path}: line {number}")
    return rows, skipped


def _flat(row: Mapping[str, Any]) -> JsonRow:
    """verl's file logger puts the numbers under `data`."""
    inner = row.get("data")
    return {key: row[key] for key in row if key != "data"} | inner if isinstance(inner, dict) else {**row}
