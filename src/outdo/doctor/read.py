"""A history from a run's folder, live or finished, or from a file of another trainer's metrics."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outdo.doctor.answers import read_answers
from outdo.doctor.history import Answers, History, from_rows
from outdo.doctor.names import KNOWN, NAMES
from outdo.doctor.printed import printed_rows
from outdo.doctor.signals import known
from outdo.errors import RecipeError
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_rows

Row = dict[str, Any]

HINT = "a run's folder, or CSV, JSON or JSON Lines with a row a step, under outdo's names, TRL's or verl's"


def read_history(path: Path) -> History:
    """Raises RecipeError where there is nothing to diagnose in it. Lines that are no rows are passed over."""
    path = _state_in(path) or path
    if path.is_dir():
        return run_history(path)
    if not path.is_file():
        raise RecipeError(f"{path} is {'no file' if path.exists() else 'not there'}: give {HINT}")
    rows, passed = _rows(path)
    history = from_rows(rows)
    if not KNOWN & history.columns.keys():
        has = ", ".join(list(history.columns)[:8]) or "no numbers"
        some = ", ".join(["reward_mean", *list(NAMES)[:3], "critic/score/mean"])
        raise RecipeError(f"{path} has no signal that is known (it has {has}): name the columns as in {some}")
    return replace(history, recipe=_settings(history), passed=tuple(passed))


def _state_in(folder: Path) -> Path | None:
    """The log of transformers in the folder of a checkpoint, or in the newest one of a run."""
    if (folder / "run.json").exists():
        return None
    steps = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    newest = sorted(steps, key=lambda path: int(path.name.partition("-")[2]), reverse=True)
    return next((state for place in (folder, *newest) if (state := place / "trainer_state.json").is_file()), None)


def run_history(folder: Path, look: bool = True) -> History:
    """Of a run's folder; with its answers where they are to be looked at."""
    if not (folder / "run.json").exists():
        raise RecipeError(f"{folder} holds no run (it has no run.json): give {HINT}")
    manifest = read_manifest(folder)
    if manifest.kind == "stages":
        raise RecipeError(f"{folder} has stages, each a run of its own: name one of GRPO, such as {folder}/02-grpo")
    if manifest.kind != "grpo":
        raise RecipeError(f"{folder} is a run of the kind {manifest.kind}: the doctor knows GRPO runs")
    passed: list[str] = []
    rows, evals = (list(read_rows(folder / name, passed)) for name in ("metrics.jsonl", "evals.jsonl"))
    answers = read_answers(folder, passed) if look else Answers()
    return replace(from_rows(rows, evals, manifest.recipe, answers), passed=tuple(passed))


def _settings(history: History) -> dict[str, Any]:
    """What the curves of another trainer tell of its recipe."""
    told = {"learning_rate": "lr", "beta": "beta"}
    return {key: float(np.max(known(history[name]))) for key, name in told.items() if history.has(name, least=1)}


def _rows(path: Path) -> tuple[list[Row], list[str]]:
    """And the lines among them that are none. Where a text can be read in two ways, that with more rows is right."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error}): give {HINT}") from None
    if not text.strip():
        raise RecipeError(f"{path} is empty: give {HINT}")
    is_json = text.lstrip()[0] in "[{"
    if is_json and (whole := _whole(path, text)) is not None:
        return whole, []
    rows, passed = _lines(path, text)
    printed = printed_rows(text)
    if rows and len(rows) >= len(printed):
        return rows, passed
    if printed:
        return printed, []
    if is_json:
        raise RecipeError(f"{path}: no line of it is a JSON row: {text.lstrip()[:60]!r}: give {HINT}")
    if "\ufffd" in text:
        raise RecipeError(f"{path} cannot be read (it is not UTF-8): give {HINT}")
    return _csv_rows(path, text), []


def _csv_rows(path: Path, text: str) -> list[Row]:
    """Between commas, tabs or semicolons; with these, a decimal comma is one."""
    between = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    try:
        rows = list(csv.DictReader(io.StringIO(text.lstrip(), newline=""), delimiter=between))
    except csv.Error as error:
        raise RecipeError(f"{path} is no CSV ({error}): give {HINT}") from None
    point = (",", ".") if between == ";" else (",", ",")
    return [{key: value.replace(*point) for key, value in row.items() if key and value} for row in rows]


def _whole(path: Path, text: str) -> list[Row] | None:
    """One JSON value: a list of rows, or the trainer_state.json of transformers. None where the text is none."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return None
    rows = whole.get("log_history", [whole]) if isinstance(whole, dict) else whole
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecipeError(f"{path}: expected an object for each step: give {HINT}")
    return [_flat(row) for row in rows]


def _lines(path: Path, text: str) -> tuple[list[Row], list[str]]:
    """JSON Lines, and which of them are no rows. A last line without its end may still be growing."""
    lines = text.split("\n")
    rows, passed = [], []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(_flat(row))
        elif line.strip() and number < len(lines):
            passed.append(f"{path}: line {number}")
    return rows, passed


def _flat(row: Mapping[str, Any]) -> Row:
    """verl's file logger puts the numbers under `data`."""
    inner = row.get("data")
    return (
        {**{key: value for key, value in row.items() if key != "data"}, **inner} if isinstance(inner, dict) else {**row}
    )
