"""The sections of a report, each from the story."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outdo.dash.files import as_float, as_int
from outdo.dash.shapes import Answer, Finding, Group
from outdo.evals.estimate import format_share
from outdo.report import svg
from outdo.report.charts import Chart
from outdo.report.examples import Example, telling
from outdo.report.html import Raw, el, escaped, table
from outdo.report.story import Story
from outdo.report.words import again, duration, lasted, rate, typed, verdict, when

SHOWN = 1200  # characters of an answer
EVALS = 300  # rows of the table of evaluations
NAMES = {"reward": "Reward", "policy": "Policy", "groups": "Groups", "length": "Length"}
FOLDED = {"optimizer": "Optimizer", "machine": "Machine"}
GLYPHS = "●■▲◆▼✚○□"
PHASES = {"rollout": "sampling", "grade": "grading", "update": "updates", "save": "saving", "other": "other"}


def section(title: str, *children: Any, id_: str) -> Raw:
    return el("section", el("h2", title), *children, id=id_)


def head(story: Story) -> Raw:
    """The title, the verdict, and what is not as it should be."""
    summary = story.page.summary
    what = f"{summary.model} on {summary.task}" if summary.task else summary.model
    device = str(story.page.facts.get("device") or "")
    facts = [what, f"{summary.kind}, {summary.status}", when(summary.started), device]
    why = el("p", summary.why, class_="why") if summary.why else None
    trouble = [el("p", line, class_="why") for line in story.trouble[:8]]
    return el(
        "header",
        el("h1", story.name),
        el("p", " · ".join(part for part in facts if part), class_="dim"),
        el("p", verdict(story), class_="verdict"),
        why,
        trouble,
        _tiles(story),
    )


def _tiles(story: Story) -> Raw:
    page, before, after = story.page, story.page.summary.before, story.page.summary.after
    seconds = lasted(page)
    tiles = [
        ("success before", f"{before.success:.3f}", _ends(before)) if before and before.success is not None else None,
        ("success after", f"{after.success:.3f}", _ends(after)) if after and after.success is not None else None,
        ("steps", f"{page.summary.steps:,}", f"of {page.summary.max_steps:,}" if page.summary.max_steps else ""),
        ("time", duration(seconds), "") if seconds else None,
        ("tokens", f"{page.tokens:,}", f"{page.answers:,} answers") if page.tokens else None,
    ]
    return el("dl", [el("div", el("dt", t[0]), el("dd", t[1], el("small", t[2]))) for t in tiles if t], class_="tiles")


def _ends(found: Any) -> str:
    return "" if found.low is None else f"[{found.low:.2f}, {found.high:.2f}]"


def findings(story: Story) -> Raw | None:
    if not story.findings:
        return None
    return section("What the doctor says", [_finding(one) for one in story.findings], id_="findings")


def _finding(one: Finding) -> Raw:
    when = "" if one.severity == "info" else f"{one.severity}, since step {one.step}"
    when += "; it no longer holds" if one.past else ""
    change = one.change.override if one.change else ""
    return el(
        "article",
        el("h3", one.code, el("small", when)),
        el("p", one.what),
        el("ul", [el("li", line) for line in one.evidence.split("\n") if line]),
        el("p", el("b", "Change "), el("code", change)) if change else None,
        el("p", el("b", "Expect "), one.expect.words) if one.expect else None,
        el("p", el("b", "Do "), _with_code(one.do)) if one.do and one.severity != "info" else None,
        class_=f"finding {one.severity if one.severity in ('critical', 'warning', 'info') else 'info'}",
    )


def _with_code(text: str) -> Raw:
    """Words between backticks as code."""
    parts = re.split(r"`([^`]*)`", text)
    return Raw("".join(el("code", part) if i % 2 else escaped(part) for i, part in enumerate(parts)))


def evaluation(story: Story) -> Raw | None:
    rows = [row for row in story.rows if isinstance(row.get("split"), str) and as_int(row.get("step")) is not None]
    if not rows:
        return None
    ks = sorted({int(key[5:]) for row in rows for key in row if re.fullmatch(r"pass@\d{1,6}", key)})
    titles = ["held out", "step", "problems", "success [95%]", *(f"pass@{k} [95%]" for k in ks)]
    splits = list(dict.fromkeys(row["split"] for row in rows))
    rows.sort(key=lambda row: (splits.index(row["split"]), row["step"]))
    ends = [row for row in rows if _is_end(row, rows)]
    whole = None
    if len(ends) < len(rows):
        listed = table(titles, [_evaluated(row, ks) for row in rows[:EVALS]])
        whole = el("details", el("summary", f"all {len(rows)} evaluations"), listed)
    note = "Problems that training never saw. Success is that of one greedy answer to each; pass@k is of sampled ones."
    return section(
        "Evaluation",
        table(titles, [_evaluated(row, ks) for row in ends]),
        whole,
        el("p", note, class_="dim"),
        id_="evaluation",
    )


def _is_end(row: Any, rows: Sequence[Any]) -> bool:
    """The first and the last of its split."""
    steps = [other["step"] for other in rows if other["split"] == row["split"]]
    return row["step"] in (min(steps), max(steps))


def _evaluated(row: Any, ks: Sequence[int]) -> list[Any]:
    success = _interval(as_float(row.get("success_rate")), as_float(row.get("low")), as_float(row.get("high")))
    passes = [_interval(*(as_float(row.get(f"pass@{k}{end}")) for end in ("", "_low", "_high"))) for k in ks]
    return [row["split"], row["step"], as_int(row.get("n")) or "–", success, *passes]


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    ends = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return format_share(value) + (ends if value is not None else "")


def curves(charts: Sequence[Chart], supervised: Sequence[Chart], is_supervised: bool) -> Raw | None:
    """Drawn by the script; the pictures are for paper, and for those who run none."""
    if not charts and not supervised:
        return None
    numbered = list(enumerate([*charts, *supervised]))
    grpo, sft = numbered[: len(charts)], numbered[len(charts) :]
    parts = [_charts(title, grpo, name) for name, title in NAMES.items()]
    parts += [
        el("details", el("summary", title), _charts("", grpo, name))
        for name, title in FOLDED.items()
        if _any(grpo, name)
    ]
    taught = _charts("", sft, *NAMES, *FOLDED)
    if sft and grpo and not is_supervised:
        taught = el("details", el("summary", "Warm-up"), taught)
    controls = el(
        "p",
        el("label", "over ", el("select", [el("option", name, value=value) for name, value in AXES], id="axis"))
        if grpo
        else None,
        el("label", el("input", type="checkbox", id="smooth", checked=True), " smoothed"),
        el("span", "drag to zoom, double-click to see all", class_="dim"),
        class_="controls",
    )
    return section("Curves", controls, parts, taught if sft else None, id_="curves")


AXES = (("steps", "steps"), ("time", "time"), ("tokens", "tokens"))


def _any(charts: Sequence[tuple[int, Chart]], name: str) -> bool:
    return any(chart.signal.section == name for _, chart in charts)


def _charts(title: str, charts: Sequence[tuple[int, Chart]], *sections: str) -> Raw | None:
    ours = [(i, chart) for i, chart in charts if chart.signal.section in sections]
    if not ours:
        return None
    return el("div", el("h3", title) if title else None, el("div", [_figure(i, c) for i, c in ours], class_="grid"))


def _figure(index: int, chart: Chart) -> Raw:
    names = [(line.style, line.name) for line in chart.lines]
    names += list(dict.fromkeys((point["style"], point["name"]) for point in chart.points))
    shown = [el("span", el("i", GLYPHS[style], class_=f"t{style}"), " ", name) for style, name in names]
    signal = chart.signal
    good = [el("b", "Good: "), _with_code(signal.good), ". "] if signal.good else []
    bad = [el("b", "Bad: "), _with_code(signal.bad), "."] if signal.bad else []
    return el(
        "figure",
        el("figcaption", el("b", signal.title), el("span", signal.unit, class_="dim"), el("span", class_="read")),
        el("div", class_="plot", data_chart=index),
        el("div", svg.drawn(chart), class_="static"),
        el("p", shown, class_="legend") if len(names) > 1 else None,
        el("p", _with_code(signal.what[:1].upper() + signal.what[1:]), ". ", good, bad, class_="dim what"),
    )


def answers(story: Story) -> Raw | None:
    if not story.examples:
        return None
    same = any(one.before and one.after for one in story.examples)
    how = "The same prompts early and late." if same else "Prompts of the first and of the last step that is kept."
    return section(
        "Answers before and after", el("p", how, class_="dim"), [_example(e) for e in story.examples], id_="answers"
    )


def _example(one: Example) -> Raw:
    group = one.before or one.after
    assert group
    expected = "" if group.answer in (None, "") else f"expected: {_cut(str(group.answer), 200)}"
    sides = [side for side in (one.before, one.after) if side]
    return el(
        "article",
        el("pre", _cut(group.prompt), class_="prompt", dir="auto"),
        el("p", expected, class_="dim") if expected else None,
        el("div", [_side(side) for side in sides], class_="sides" if len(sides) > 1 else None),
        class_="example",
    )


def _side(group: Group) -> Raw:
    judged = len(group.answers) - group.broken
    title = f"step {group.step + 1}: {group.right} of {judged} right"
    title += f", {group.broken} not judged" if group.broken else ""
    return el("div", el("h4", title), [_answer(answer) for answer in telling(group.answers)])


def _answer(answer: Answer) -> Raw:
    reward = "–" if answer.reward is None else f"{answer.reward:.3g}"
    gain = "" if not answer.advantage else f", advantage {answer.advantage:+.2f}"
    kind = answer.verdict if answer.verdict in ("right", "wrong") else "broken"
    return el(
        "div",
        el("p", el("b", answer.verdict or "not judged"), f" · reward {reward}{gain}", class_="verdict-line"),
        el("pre", _cut(answer.text), " … (cut)" if answer.cut else None, dir="auto"),
        el("p", _cut(answer.reason, 300), class_="dim") if answer.reason else None,
        class_=f"answer {kind}",
    )


def _cut(text: str, limit: int = SHOWN) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def spent(story: Story) -> Raw | None:
    phases = [(PHASES.get(name, name), seconds) for name, seconds in story.page.phases.items() if seconds > 0]
    whole = sum(seconds for _, seconds in phases)
    if not whole:
        return None
    rows = [
        [el("span", el("i", GLYPHS[i], class_=f"t{i}"), " ", name), duration(seconds), _share(seconds / whole)]
        for i, (name, seconds) in enumerate(phases)
    ]
    speed = f"{story.page.tokens / whole:,.0f} sampled tokens a second over all steps." if story.page.tokens else ""
    return section(
        "Where the time went",
        svg.shares(phases),
        table(["of the steps", "time", "share"], rows, "narrow"),
        el("p", speed, class_="dim"),
        id_="time",
    )


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "under 1%"


def recipe(story: Story) -> Raw:
    changed = [[el("code", key), el("code", typed(value))] for key, value in story.changed.items()]
    whole = [[el("code", key), el("code", typed(value))] for key, value in story.recipe.items()]
    return section(
        "Recipe",
        el("p", "What is not as it comes:", class_="dim")
        if changed
        else el("p", "All keys are as they come.", class_="dim"),
        table([], changed, "narrow keys") if changed else None,
        el("details", el("summary", f"all {len(whole)} keys"), table([], whole, "narrow keys")),
        id_="recipe",
    )


def repeat(story: Story) -> Raw:
    facts = story.page.facts
    versions = facts.get("versions")
    rows = [[name, str(value)] for name, value in versions.items()] if isinstance(versions, dict) else []
    git = facts.get("git")
    if isinstance(git, dict):
        rows.append(["commit", f"{git.get('commit')}{', with changes' if git.get('changed') else ''}"])
    rows += [
        [name.replace("_", " "), f"{facts[name]:,}" if isinstance(facts[name], int) else str(facts[name])]
        for name in ("device", "num_parameters", "data")
        if facts.get(name)
    ]
    return section(
        "Doing it again",
        el("pre", again(story.page.summary.kind, story.recipe), class_="command"),
        table([], rows, "narrow") if rows else None,
        id_="again",
    )


def stages(story: Story) -> Raw | None:
    if not story.stages:
        return None
    rows = [
        [
            el("a", one.name, href=f"{one.name}/report.html"),
            one.status,
            f"{one.steps:,}",
            *(rate(found) if found and found.success is not None else "–" for found in (one.before, one.after)),
        ]
        for one in story.stages
    ]
    return section("Stages", table(["stage", "status", "steps", "success before", "success after"], rows), id_="stages")
