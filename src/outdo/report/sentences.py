"""A run in sentences: its result, and the command that repeats it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib import resources
from typing import Any

import yaml

from outdo.doctor.summary import RunPage, Success
from outdo.report.facts import DEFAULTS, RunFacts
from outdo.runs import usage

NOT_REPEATED = ("output_dir", "resume")  # keys about the folder, not about the run


def describe_result(facts: RunFacts) -> str:
    """One or two sentences: success before and after, and the cost."""
    return " ".join(filter(None, [_change(facts), _cost(facts)])) or "Nothing was measured yet."


def _change(facts: RunFacts) -> str:
    before, after = facts.page.summary.before, facts.page.summary.after
    if before and after:
        return " ".join([f"Held-out success ({after.split}) {_moved(before, after)}.", *_beside(facts)])
    if before:
        rate = f"{format_rate(before)} before the first step"
        return f"Held-out success ({before.split}) was {rate}; it was not measured again."
    for curves, name, title in (
        (facts.metrics, "reward_mean", "The reward"),
        (facts.sft, "held_out_loss", "The loss on held-out examples"),
        (facts.sft, "loss", "The loss"),
    ):
        series = curves.series.get(name)
        values = [value for value in series.mean if value is not None] if series else []
        if len(values) > 1:
            return f"{title} went from {values[0]:.3g} to {values[-1]:.3g}."
    return ""


def _beside(facts: RunFacts) -> Iterator[str]:
    """Sampled success, the mean reward where it says more, and the other splits."""
    before, after = facts.page.summary.before, facts.page.summary.after
    for name, field in (("Sampled success (pass@1)", "sampled"), ("The mean reward", "reward")):
        ends = [getattr(each, field) for each in (before, after)]
        if None not in ends:
            yield f"{name} went from {ends[0]:.3f} to {ends[1]:.3f}."
    for change in facts.page.summary.splits[1:]:
        if change.before and change.after:
            yield f"Success on {change.split} {_moved(change.before, change.after)}."


def _moved(before: Success, after: Success) -> str:
    """A rise or a fall only where the intervals do not overlap."""
    ends = f"from {format_rate(before)} to {format_rate(after)}"
    if None in (before.low, before.high, after.low, after.high):
        return f"went {ends}"
    if (after.low or 0.0) > (before.high or 0.0):
        return f"rose {ends}"
    if (after.high or 0.0) < (before.low or 0.0):
        return f"fell {ends}"
    return f"went {ends}; the intervals overlap"


def format_ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def format_tile(rate: Success) -> str:
    """The interval, and what stands beside greedy success."""
    beside = {"sampled": rate.sampled, "reward": rate.reward}
    parts = [f"{name} {value:.3f}" for name, value in beside.items() if value is not None]
    return ", ".join(filter(None, [format_ends(rate.low, rate.high), *parts]))


def format_rate(rate: Success) -> str:
    return f"{rate.success:.3f} {format_ends(rate.low, rate.high)}".rstrip()


def _cost(facts: RunFacts) -> str:
    page = facts.page
    parts = [f"{page.summary.steps:,} step{'' if page.summary.steps == 1 else 's'}"] if page.summary.steps else []
    if seconds := duration(page):
        parts.append(format_duration(seconds))
    if page.tokens:
        parts.append(f"{page.tokens:,} sampled tokens in {page.answers:,} answers")
    return f"It took {', '.join(parts)}." if parts else ""


def duration(page: RunPage) -> float | None:
    """Seconds that it was running, without the time between a stop and a resume; of a run of an older version, from its
    start to its end."""
    if seconds := usage.running_seconds(page.facts):
        return seconds
    try:
        ends = [datetime.fromisoformat(text or "") for text in (page.summary.started, page.summary.ended)]
        return (ends[1] - ends[0]).total_seconds()
    except (ValueError, TypeError):
        return page.seconds or None


def format_date(text: str | None) -> str:
    """A date for people; unchanged where it cannot be parsed."""
    try:
        return datetime.fromisoformat(text or "").strftime("%-d %B %Y, %H:%M")
    except ValueError:
        return text or ""


def format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f} s"
    total = round(seconds)
    hours, minutes = total // 3600, total % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total % 60} s" if minutes else f"{total} s"


def format_value(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def repeat_command(kind: str, recipe: Mapping[str, Any]) -> str:
    """The command that repeats the run: the keys that differ from the command's defaults."""
    base = dict(DEFAULTS)
    if recipe.get("model_name_or_path") == "tiny":  # it has a default recipe of its own
        base |= yaml.safe_load(resources.files("outdo.recipe").joinpath("default.yaml").read_text(encoding="utf-8"))
    keys = {key: value for key, value in recipe.items() if key not in NOT_REPEATED and value != base.get(key)}
    command = {"sft": "sft", "harvest": "harvest"}.get(kind, "train")
    return shlex.join(["outdo", command, *(f"{key}={format_value(value)}" for key, value in keys.items())])
