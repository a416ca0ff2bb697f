"""A history from a run's folder, live or finished, or from a file of another trainer's metrics."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outdo.diagnose.answers import read_answers
from outdo.diagnose.history import Answers, History, from_rows
from outdo.diagnose.names import NAMES
from outdo.errors import RecipeError
from outdo.run import read_rows, read_run

KNOWN = {"reward_mean", "success_rate", "entropy_mean", "kl_mean", "len_mean", "informative", "grad_norm", "truncated"}
HINT = "a run's folder, or CSV, JSON or JSON Lines with a row a step, under outdo's names, TRL's or verl's"


def read_history(path: Path) -> History:
    """Raises RecipeError where there is nothing to diagnose in it."""
    if path.is_dir():
        return run_history(path)
    if not path.is_file():
        raise RecipeError(f"{path} is not there: give {HINT}")
    rows = _rows(path)
    history = from_rows(rows, recipe=_settings(rows))
    if not KNOWN & history.columns.keys():
        has = ", ".join(list(history.columns)[:8]) or "no numbers"
        some = ", ".join(["reward_mean", *list(NAMES)[:3], "critic/rewards/mean"])
        raise RecipeError(f"{path} has no signal that is known (it has {has}): name the columns as in {some}")
    return history


def run_history(folder: Path, look: bool = True) -> History:
    """Of a run's folder; with its answers where they are to be looked at."""
    if not (folder / "run.json").exists():
        raise RecipeError(f"{folder} holds no run (it has no run.json): give {HINT}")
    manifest = read_run(folder)
    if manifest.get("kind", "grpo") != "grpo":
        raise RecipeError(f"{folder} is a run of the kind {manifest['kind']}: the doctor knows GRPO runs")
    rows, evals = (list(read_rows(folder / name)) for name in ("metrics.jsonl", "evals.jsonl"))
    return from_rows(rows, evals, manifest["recipe"], read_answers(folder) if look else Answers())


def _settings(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows of another trainer tell of its recipe: the rate."""
    rates = [rate for row in rows for name in ("learning_rate", "lr", "actor/lr") if (rate := _float(row.get(name)))]
    return {"learning_rate": max(rates)} if rates else {}


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read ({error}): give {HINT}") from None
    if not text.strip():
        raise RecipeError(f"{path} is empty: give {HINT}")
    if text.lstrip()[0] in "[{":
        return _json_rows(path, text)
    try:
        rows = list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise RecipeError(f"{path} is no CSV ({error}): give {HINT}") from None
    return [{str(key): value for key, value in row.items() if key is not None} for row in rows]


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    """JSON Lines; or one JSON value: a list of rows, or the trainer_state.json of transformers."""
    try:
        whole = json.loads(text)
        rows = whole.get("log_history", [whole]) if isinstance(whole, dict) else whole
    except (ValueError, RecursionError):
        rows = _lines(path, text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecipeError(f"{path}: expected an object for each step: give {HINT}")
    return [_flat(row) for row in rows]


def _lines(path: Path, text: str) -> list[Any]:
    """A last line without its end may still be growing."""
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except (ValueError, RecursionError):
            if number < len(lines) or not rows:
                raise RecipeError(f"{path}: line {number} is no JSON: {line[:60]!r}") from None
    return rows


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """verl's file logger puts the numbers under `data`."""
    inner = row.get("data")
    return (
        {**{key: value for key, value in row.items() if key != "data"}, **inner} if isinstance(inner, dict) else {**row}
    )
