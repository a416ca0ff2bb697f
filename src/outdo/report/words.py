"""A run in words: what came of it, and how to do it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from typing import Any

import yaml

from outdo.dash.shapes import RunPage, Success
from outdo.report.story import DEFAULTS, Story

APART = ("output_dir", "resume")  # keys that say where, not what


def verdict(story: Story) -> str:
    """In a sentence or two: success before and after, and what it took."""
    told = [_change(story), _cost(story)]
    said = " ".join(part for part in told if part)
    return said or "Nothing was measured yet."


def _change(story: Story) -> str:
    before, after = story.page.summary.before, story.page.summary.after
    if before and after and before.success is not None and after.success is not None:
        return f"Held-out success ({after.split}) {_moved(before, after)}."
    if before and before.success is not None:
        return f"Held-out success ({before.split}) was {rate(before)} before the first step; it was not measured again."
    for numbers, name, what in (
        (story.metrics, "reward_mean", "The reward"),
        (story.sft, "held_out_loss", "The loss on held-out examples"),
        (story.sft, "loss", "The loss"),
    ):
        series = numbers.series.get(name)
        known = [value for value in series.mean if value is not None] if series else []
        if len(known) > 1:
            return f"{what} went from {known[0]:.3g} to {known[-1]:.3g}."
    return ""


def _moved(before: Success, after: Success) -> str:
    """Whether it moved at all is a matter of the intervals."""
    ends = f"from {rate(before)} to {rate(after)}"
    assert before.success is not None and after.success is not None
    if None in (before.low, before.high, after.low, after.high):
        return f"went {ends}"
    if (after.low or 0.0) > (before.high or 0.0):
        return f"rose {ends}"
    if (after.high or 0.0) < (before.low or 0.0):
        return f"fell {ends}"
    return f"went {ends}, which the intervals do not tell apart"


def rate(found: Success) -> str:
    ends = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.success:.3f}{ends}"


def _cost(story: Story) -> str:
    page = story.page
    parts = [f"{page.summary.steps:,} step{'' if page.summary.steps == 1 else 's'}"] if page.summary.steps else []
    if seconds := lasted(page):
        parts.append(duration(seconds))
    if page.tokens:
        parts.append(f"{page.tokens:,} sampled tokens in {page.answers:,} answers")
    return f"It took {', '.join(parts)}." if parts else ""


def lasted(page: RunPage) -> float | None:
    """Seconds from the start to the end; of its steps where it has no end."""
    try:
        ends = [datetime.fromisoformat(text or "") for text in (page.summary.started, page.summary.ended)]
        return (ends[1] - ends[0]).total_seconds()
    except (ValueError, TypeError):
        return page.seconds or None


def when(text: str | None) -> str:
    """A moment as people write it; as it stands where it is none."""
    try:
        return datetime.fromisoformat(text or "").strftime("%-d %B %Y, %H:%M")
    except ValueError:
        return text or ""


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def again(kind: str, recipe: Mapping[str, Any]) -> str:
    """The command that makes the same run: the recipe over what the command starts from."""
    base = {**DEFAULTS, **(_tiny() if recipe.get("model_name_or_path") == "tiny" else {})}
    keys = {key: value for key, value in recipe.items() if key not in APART and value != base.get(key)}
    command = {"sft": "sft", "harvest": "harvest"}.get(kind, "train")
    return shlex.join(["outdo", command, *(f"{key}={typed(value)}" for key, value in keys.items())])


def _tiny() -> dict[str, Any]:
    """What a run of the tiny model starts from."""
    return dict(yaml.safe_load(resources.files("outdo.recipe").joinpath("default.yaml").read_text(encoding="utf-8")))
