"""The report as one file: styles, script and numbers. Its content security policy lets it load nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from outdo.report import page
from outdo.report.charts import as_data, grpo_charts, sft_charts
from outdo.report.cost import cost
from outdo.report.facts import RunFacts, read_facts
from outdo.report.held_out import held_out_answers
from outdo.report.html import Raw, el, joined
from outdo.runs.files import disk_errors, write_atomic
from outdo.runs.layout import report_path
from outdo.runs.values import as_dict

SCRIPTS = ("web/scale.js", "web/draw.js", "web/chart.js", "page.js")  # in the order of their imports


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of a run, in progress or ended. Raises RunError where there is no run or no place."""
    path = out or report_path(folder)
    text = report_page(read_facts(folder))
    with disk_errors(path, "name another place with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    return path


def try_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Writes the report at the end of a run. A failure is reported, and does not fail the run."""
    try:
        write_report(folder)
    except Exception as error:
        with suppress(OSError):
            notify(f"  warning: no report: {error}; retry with outdo report {shlex.quote(str(folder))}")


def report_page(facts: RunFacts) -> str:
    charts, supervised = grpo_charts(facts), sft_charts(facts)
    steps, sft_steps = facts.metrics.steps, facts.sft.steps
    grpo_axes = {"steps": steps, "time": facts.metrics.time, "tokens": facts.metrics.tokens}
    axes = {"grpo": grpo_axes, "sft": {"steps": sft_steps}}
    data = {"axes": axes, "charts": as_data([*charts, *supervised])}
    versions = as_dict(facts.page.facts.get("versions"))
    body = el(
        "main",
        page.head(facts),
        page.stages(facts),
        page.findings(facts),
        page.evaluation(facts),
        held_out_answers(facts.changes),
        page.curves(charts, supervised, facts.page.summary.kind == "sft"),
        page.answers(facts),
        page.time_spent(facts),
        cost(facts.page),
        page.recipe(facts),
        page.repeat(facts),
        el("footer", f"Written by outdo {versions.get('outdo', '')}", class_="dim"),
    )
    style, script = _file("page.css"), _script()
    data_tag = _tag("script", _embedded(data), ' type="application/json" id="data"')
    parts = [
        Raw("<!doctype html>"),
        Raw('<html lang="en">'),
        el("head", _policy(style, script), el("title", f"{facts.name}: report"), _tag("style", style)),
        el("body", body, data_tag, _tag("script", script, ' type="module"')),
        Raw("</html>"),
    ]
    return "\n".join(parts) + "\n"


def _policy(style: str, script: str) -> Raw:
    """Only the styles and the script of this file may be used, by their hashes."""
    own = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    rule = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    policy = Raw(f'<meta http-equiv="Content-Security-Policy" content="{rule}">')
    named = {"viewport": "width=device-width, initial-scale=1", "referrer": "no-referrer", "color-scheme": "light dark"}
    return joined([el("meta", charset="utf-8"), policy, [el("meta", name=k, content=v) for k, v in named.items()]])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _tag(name: str, text: str, attributes: str = "") -> Raw:
    """Unescaped text, which must not end the tag."""
    assert f"</{name}" not in text.lower()
    return Raw(f"<{name}{attributes}>{text}</{name}>")


def _embedded(data: Any) -> str:
    """JSON that is safe inside a page: NaN is null, and no character starts a tag."""
    return json.dumps(_finite(data), separators=(",", ":")).translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"})


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _file(name: str) -> str:
    return resources.files("outdo.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """The chart scripts and the page's own, as one module."""
    lines = [line for name in SCRIPTS for line in _file(name).splitlines() if not line.startswith("import ")]
    return "\n".join(line.removeprefix("export ") for line in lines)
