"""What a run cost: device time, tokens, and money where the recipe has a price; of a run with stages, all of them."""

from __future__ import annotations

from pathlib import Path

from outdo.doctor.summary import RunPage
from outdo.report.facts import read_page
from outdo.report.html import Raw, el, table
from outdo.report.sentences import format_duration
from outdo.runs.run_reader import RunReader
from outdo.runs.values import as_int


def read_cost(folder: Path) -> RunPage:
    """The page of a run, with the cost of its stages."""
    folder = folder.resolve()
    return read_page(RunReader(folder, folder))[0]


def describe_cost(page: RunPage) -> str:
    """In a line; empty where nothing was measured."""
    figures = [f"{name} {value}" if name.startswith("price") else f"{value} {name}" for name, value in _figures(page)]
    return ", ".join(figures)


def cost(page: RunPage) -> Raw | None:
    """The section of a report."""
    figures = _figures(page)
    if not figures:
        return None
    rows = [[name, value] for name, value in figures]
    note = (
        "Device time is that of every process that worked on the run, from the loading of the model to its end, times "
        "the number of devices; time between a stop and a resume is not counted. Tokens are of the steps that count, "
        "without evaluations; those trained on include SFT, and count once per pass."
    )
    hint = None if page.price is not None else " Set price_per_hour to see it in money."
    body = table([], rows, "narrow")
    return el("section", el("h2", "Cost"), body, el("p", note, hint, class_="dim"), id="cost")


def _figures(page: RunPage) -> list[tuple[str, str]]:
    devices = as_int(page.facts.get("world_size")) or 1
    used = page.device_seconds
    figures = []
    if used:
        on = f"on {devices} devices" if devices > 1 else "on 1 device"
        figures.append((f"device-seconds ({format_duration(used / devices)} {on})", f"{used:,.0f}"))
    if page.tokens:
        figures.append(("tokens sampled", f"{page.tokens:,}"))
    if page.trained_tokens:
        figures.append(("tokens trained on", f"{page.trained_tokens:,}"))
    if page.price is not None:
        rate = page.recipe.get("price_per_hour")
        figures.append((f"price (at {rate:g} per device-hour)", format_price(page.price)))
    return figures


def format_price(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.3g}"
