"""Runs side by side, as `outdo compare` has them, from what the index already knows."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outdo.dash.blocks import Place, Reader
from outdo.dash.book import Book
from outdo.dash.files import Row, as_float, as_int, plain
from outdo.dash.findings import findings_of
from outdo.dash.shapes import Compared, Key, RunSummary
from outdo.dash.summary import total
from outdo.sweeps.compare import Side, against, describe_sides, differing, is_paired
from outdo.sweeps.rows import LOOKED_AT, NOTHING, SIGNALS, TAIL, held_out, mean_of, outcome, troubles

NOISE_BYTES = 48 << 20  # of answers that are read for the noise of advantages


def compared(sides: Sequence[tuple[Book, RunSummary]]) -> Compared:
    """The rows of `outdo compare`. What a run's files do not give is null."""
    made, trouble = [], list[str]()
    for book, summary in sides:
        row, wrong = row_of(book, summary)
        recipe = book.manifest()[0].get("recipe")
        made.append(Side(summary.id, recipe if isinstance(recipe, dict) else {}, row))
        trouble += [f"{summary.id}: {line}" for line in wrong]
    first = made[0]
    gaps = [(side, gap) for side in made[1:] if (gap := against(side, first))]
    return Compared(
        runs=[side.name for side in made],
        keys=[Key(key=key, values=plain(values)) for key, values in differing(made).items()],
        rows=[{"run": side.name, **plain(side.row)} for side in made],
        differences=[
            {"run": side.name, "against": first.name, "difference": gap.value, "low": gap.low, "high": gap.high}
            | {"noise": gap.is_noise, "paired": is_paired(side, first)}
            for side, gap in gaps
        ],
        notes=describe_sides(made),
        trouble=trouble,
    )


def row_of(book: Book, summary: RunSummary) -> tuple[dict[str, Any], list[str]]:
    """One run's row, and what could not be read for it."""
    manifest, _ = book.manifest()
    frame = book.metrics.frame()
    near = sorted({*range(min(TAIL, len(frame))), *range(max(0, len(frame) - TAIL), len(frame))})
    ends = frame.rows(near)
    trouble = list(summary.trouble)
    seconds, tokens = total(frame, "time/step"), total(frame, "tokens")
    try:
        held = held_out([row for row in book.evals.all() if _is_sound(row)])
    except (KeyError, TypeError, ValueError, ArithmeticError):
        trouble.append("evals.jsonl is not as a run writes it")
        held = held_out([])
    row: dict[str, Any] = {
        **_outcome(book.folder, manifest, summary),
        "steps": len(frame),
        **held,
        **{name: mean_of(ends[-TAIL:], name) for name in SIGNALS},
        "tokens_per_s": tokens / seconds if tokens and seconds else None,
        "seconds": seconds or None,
        "adv_noise": advantage_noise(book),
    }
    found = [one for one in findings_of(book).findings if not one.past and one.code not in NOTHING]
    row["findings"] = [one.code for one in found]
    grave = [f"the doctor says {one.code}" for one in found if one.severity == "critical"]
    recipe = manifest.get("recipe")
    try:
        ill = troubles(row, ends, recipe if isinstance(recipe, dict) else {})
    except (TypeError, ValueError):
        ill = ["its recipe is not as a run writes it"]
    row["troubles"] = [*ill, *grave]
    return row, trouble


def _outcome(folder: Path, manifest: Row, summary: RunSummary) -> dict[str, Any]:
    """As `outdo compare` says it, without taking the lock of a run that goes on."""
    if summary.status in ("running", "lost", "unreadable"):
        status = {"running": "running", "lost": "stopped", "unreadable": "failed"}[summary.status]
        return {"status": status, "why": summary.why}
    return outcome(folder, str(manifest.get("status")), str(manifest.get("why") or ""))


def _is_sound(row: Row) -> bool:
    success, n, step = as_float(row.get("success_rate")), as_int(row.get("n")), as_int(row.get("step"))
    return success is not None and 0 <= success <= 1 and n is not None and n > 0 and step is not None and "split" in row


def advantage_noise(book: Book) -> float | None:
    """The same as `outdo.sweeps.rows.advantage_noise`, of the first groups of the run."""
    blocks = (book.index.block(first, path) for first, path in book.index.files().items())
    places = (place for block in blocks for place in block.places())
    errors: list[float] = []
    spent = 0
    with Reader(book.root) as reader:
        for place in itertools.islice(places, LOOKED_AT):
            spent += place.length
            if spent > NOISE_BYTES:
                break
            errors += _error(reader, place)
    return statistics.fmean(errors) ** 0.5 if errors else None


def _error(reader: Reader, place: Place) -> list[float]:
    """The variance of a group's mean; nothing where there is none."""
    try:
        told = reader.row(place).get("completions")
    except (OSError, ValueError):
        return []
    answers = [answer for answer in told if isinstance(answer, dict)] if isinstance(told, list) else []
    each = [as_float(answer.get("reward")) for answer in answers]
    rewards = np.array([reward for reward in each if reward is not None])
    with np.errstate(all="ignore"):
        error = float(np.var(rewards, ddof=1)) / len(rewards) if len(rewards) > 1 else float("nan")
    return [error] if np.isfinite(error) else []
