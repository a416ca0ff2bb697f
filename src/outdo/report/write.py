"""One file that holds everything: its looks, its script and its numbers. A policy lets no other thing in or out."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from outdo.report import page
from outdo.report.charts import as_data, charts_of, supervised_of
from outdo.report.html import Raw, el, escaped, joined
from outdo.report.story import Story, read_story
from outdo.runs.files import disk_errors

CHARTS = ("scale.js", "draw.js", "chart.js")  # of the dashboard, in the order in which they need each other


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The report of a run's folder, live or ended. Raises RunError where there is no run, or it cannot be written."""
    path = out or folder / "report.html"
    text = report_page(read_story(folder))
    aside = path.with_name(f".{path.name}.tmp")
    with disk_errors(path, "name another place with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)
    return path


def try_report(folder: Path, say: Callable[[str], None]) -> None:
    """At the end of a run, of whatever there is. It is no reason for a run to fail."""
    try:
        write_report(folder)
    except Exception as error:
        with suppress(OSError):
            say(f"  warning: no report: {error}; outdo report {shlex.quote(str(folder))} tries again")


def report_page(story: Story) -> str:
    charts, supervised = charts_of(story), supervised_of(story)
    data = {
        "axes": {
            "grpo": {
                "steps": [step + 1 for step in story.metrics.steps],
                "time": story.metrics.time,
                "tokens": story.metrics.tokens,
            },
            "sft": {"steps": [step + 1 for step in story.sft.steps]},
        },
        "charts": as_data([*charts, *supervised]),
    }
    body = el(
        "main",
        page.head(story),
        page.stages(story),
        page.findings(story),
        page.evaluation(story),
        page.curves(charts, supervised, story.page.summary.kind == "sft"),
        page.answers(story),
        page.spent(story),
        page.recipe(story),
        page.repeat(story),
        el("footer", f"Written by outdo {_version(story)}", class_="dim"),
    )
    style, script = _file("report", "page.css"), _script()
    parts = [
        Raw("<!doctype html>"),
        Raw('<html lang="en">'),
        el("head", _policy(style, script), el("title", f"{story.name}: report"), _tag("style", style)),
        el(
            "body",
            body,
            _tag("script", _quoted(data), ' type="application/json" id="data"'),
            _tag("script", script, ' type="module"'),
        ),
        Raw("</html>"),
    ]
    return "\n".join(parts) + "\n"


def _policy(style: str, script: str) -> Raw:
    """Nothing may be loaded or run but what is here, by its hash."""
    own = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    rule = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    return joined(
        [
            el("meta", charset="utf-8"),
            Raw(f'<meta http-equiv="Content-Security-Policy" content="{rule}">'),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="referrer", content="no-referrer"),
            el("meta", name="color-scheme", content="light dark"),
        ]
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _tag(name: str, text: str, attributes: str = "") -> Raw:
    """Text as it is: what would end the tag is not in it."""
    assert f"</{name}" not in text.lower()
    return Raw(f"<{name}{attributes}>{text}</{name}>")


def _quoted(data: Any) -> str:
    """JSON that is safe inside a page: NaN is null, and no sign begins a tag."""
    return (
        json.dumps(_finite(data), separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _file(room: str, name: str) -> str:
    return resources.files("outdo").joinpath(room, name).read_text(encoding="utf-8")


def _script() -> str:
    """The dashboard's charts and this page's own lines, as one module."""
    texts = [_file("dash/web", name) for name in CHARTS] + [_file("report", "page.js")]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("import ")]
    return "\n".join(line.removeprefix("export ") for line in lines)


def _version(story: Story) -> Raw:
    versions = story.page.facts.get("versions")
    return escaped(str(versions.get("outdo", "")) if isinstance(versions, dict) else "")
