"""The sections of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outdo.doctor.report import FindingRecord
from outdo.metrics.estimate import format_share
from outdo.report import sentences, svg, turns
from outdo.report.charts import Chart
from outdo.report.examples import Example, pick_answers
from outdo.report.facts import RunFacts
from outdo.report.html import Raw, el, escaped, table
from outdo.runs.groups import AnswerRecord, GroupRecord
from outdo.runs.layout import report_path
from outdo.runs.reader import JsonRow
from outdo.runs.turns import describe_turns
from outdo.runs.values import as_dict, as_float, as_int

MAX_ANSWER_CHARS = 1200
MAX_EVALS = 300  # rows of the table
MAX_PROBLEMS = 8
SECTIONS = {"reward": "Reward", "policy": "Policy", "groups": "Groups", "length": "Length", "turns": "Turns"}
FOLDED_SECTIONS = {"optimizer": "Optimizer", "machine": "Machine"}
AXES = ("steps", "time", "tokens")
GLYPHS = "●■▲◆▼✚○□"
PHASES = {"rollout": "sampling", "grade": "grading", "update": "updates", "save": "saving", "other": "other"}


def section(title: str, *children: Any, id_: str) -> Raw:
    return el("section", el("h2", title), *children, id=id_)


def head(facts: RunFacts) -> Raw:
    """The title, the result, and what could not be read."""
    summary = facts.page.summary
    subject = f"{summary.model} on {summary.task}" if summary.task else summary.model
    device = str(facts.page.facts.get("device") or "")
    line = [
        f"a run of {summary.trainer}" if summary.trainer else "",
        subject,
        f"{summary.kind}, {summary.status}",
        sentences.format_date(summary.started),
        device,
    ]
    whys = [summary.why, *facts.problems[:MAX_PROBLEMS]]
    return el(
        "header",
        el("h1", facts.name),
        el("p", " · ".join(filter(None, line)), class_="dim"),
        el("p", sentences.describe_result(facts), class_="verdict"),
        [el("p", why, class_="why") for why in whys if why],
        _tiles(facts),
    )


def _tiles(facts: RunFacts) -> Raw:
    page, summary, seconds = facts.page, facts.page.summary, sentences.duration(facts.page)
    ends = {"success before": summary.before, "success after": summary.after}
    tiles = [
        *((name, f"{at.success:.3f}", sentences.format_tile(at)) for name, at in ends.items() if at),
        ("steps", f"{summary.steps:,}", f"of {summary.max_steps:,}" if summary.max_steps else ""),
        ("time", sentences.format_duration(seconds), "") if seconds else None,
        ("tokens", f"{page.tokens:,}", f"{page.answers:,} answers") if page.tokens else None,
    ]
    return el("dl", [el("div", el("dt", t[0]), el("dd", t[1], el("small", t[2]))) for t in tiles if t], class_="tiles")


def findings(facts: RunFacts) -> Raw | None:
    shown = [_finding(finding) for finding in facts.findings]
    return section("The doctor's findings", shown, id_="findings") if shown else None


def _finding(finding: FindingRecord) -> Raw:
    since = "" if finding.severity == "info" else f"{finding.severity}, since step {finding.step}"
    since += "; it no longer holds" if finding.past else ""
    change = finding.change.override if finding.change else ""
    return el(
        "article",
        el("h3", finding.code, el("small", since)),
        el("p", finding.what),
        el("ul", [el("li", line) for line in finding.evidence.split("\n") if line]),
        el("p", el("b", "Change "), el("code", change)) if change else None,
        el("p", el("b", "Expect "), finding.expect.words) if finding.expect else None,
        el("p", el("b", "Also seen, explained by it "), ", ".join(finding.also)) if finding.also else None,
        el("p", el("b", "Do "), _with_code(finding.do)) if finding.do and finding.severity != "info" else None,
        class_=f"finding {finding.severity if finding.severity in ('critical', 'warning') else 'info'}",
    )


def _with_code(text: str) -> Raw:
    parts = re.split(r"`([^`]*)`", text)
    return Raw("".join(el("code", part) if i % 2 else escaped(part) for i, part in enumerate(parts)))


def evaluation(facts: RunFacts) -> Raw | None:
    rows = [row for row in facts.eval_rows if isinstance(row.get("split"), str) and as_int(row.get("step")) is not None]
    if not rows:
        return None
    ks = sorted({int(key[5:]) for row in rows for key in row if re.fullmatch(r"pass@\d{1,6}", key)})
    partial = any(_has_partial_credit(row) for row in rows)
    rewards = ["reward [95%]", "sampled reward [95%]"] if partial else []
    titles = ["held out", "step", "problems", "success [95%]", *(f"pass@{k} [95%]" for k in ks), *rewards]
    splits = list(dict.fromkeys(row["split"] for row in rows))
    rows.sort(key=lambda row: (splits.index(row["split"]), row["step"]))
    steps = {split: [row["step"] for row in rows if row["split"] == split] for split in splits}
    ends = [row for row in rows if row["step"] in (min(steps[row["split"]]), max(steps[row["split"]]))]
    shown, full = (table(titles, [_eval_cells(row, ks, partial) for row in each]) for each in (ends, rows[:MAX_EVALS]))
    folded = el("details", el("summary", f"all {len(rows)} evaluations"), full) if len(ends) < len(rows) else None
    note = "Problems that are not in training. Success is of one greedy answer to each; pass@k is of sampled answers."
    if facts.page.summary.trainer:
        note = f"Problems that are not in training. Success is as {facts.page.summary.trainer} logged it."
    note += " Rewards are those of the reward that decides success." if partial else ""
    return section("Evaluation", shown, folded, el("p", note, class_="dim"), id_="evaluation")


def _has_partial_credit(row: JsonRow) -> bool:
    reward, success = as_float(row.get("reward_mean")), as_float(row.get("success_rate"))
    return reward is not None and success is not None and abs(reward - success) > 1e-5


def _eval_cells(row: JsonRow, ks: Sequence[int], partial: bool) -> list[Any]:
    names = [("success_rate", "low", "high"), *((f"pass@{k}", f"pass@{k}_low", f"pass@{k}_high") for k in ks)]
    for name in ("reward", "sampled_reward") if partial else ():
        names.append((f"{name}_mean", f"{name}_low", f"{name}_high"))
    cells = [_interval(*(as_float(row.get(name)) for name in each)) for each in names]
    return [row["split"], row["step"], as_int(row.get("n")) or "–", *cells]


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return "–" if value is None else f"{format_share(value)} {sentences.format_ends(low, high)}".rstrip()


def curves(charts: Sequence[Chart], supervised: Sequence[Chart], is_supervised: bool) -> Raw | None:
    """Drawn by the script; the pictures are for print and for browsers without scripts."""
    if not charts and not supervised:
        return None
    numbered = list(enumerate([*charts, *supervised]))
    grpo, sft = numbered[: len(charts)], numbered[len(charts) :]
    parts = [_charts(title, grpo, name) for name, title in SECTIONS.items()]
    parts += [
        el("details", el("summary", title), _charts("", grpo, name))
        for name, title in FOLDED_SECTIONS.items()
        if any(chart.signal.section == name for _, chart in grpo)
    ]
    sft_part = _charts("", sft, *SECTIONS, *FOLDED_SECTIONS)
    if sft and grpo and not is_supervised:
        sft_part = el("details", el("summary", "Warm-up"), sft_part)
    axes = el("label", "over ", el("select", [el("option", axis, value=axis) for axis in AXES], id="axis"))
    smooth = el("label", el("input", type="checkbox", id="smooth", checked=True), " smoothed")
    hint = el("span", "drag to zoom, double-click to reset", class_="dim")
    controls = el("p", axes if grpo else None, smooth, hint, class_="controls")
    return section("Curves", controls, parts, sft_part, id_="curves")


def _charts(title: str, charts: Sequence[tuple[int, Chart]], *sections: str) -> Raw | None:
    figures = [_figure(i, chart) for i, chart in charts if chart.signal.section in sections]
    return el("div", el("h3", title) if title else None, el("div", figures, class_="grid")) if figures else None


def _figure(index: int, chart: Chart) -> Raw:
    names = [(line.style, line.name) for line in chart.lines]
    names += list(dict.fromkeys((point["style"], point["name"]) for point in chart.points))
    legend = [_legend(style, name) for style, name in names]
    signal = chart.signal
    good = [el("b", "Good: "), _with_code(signal.good), ". "] if signal.good else []
    bad = [el("b", "Bad: "), _with_code(signal.bad), "."] if signal.bad else []
    return el(
        "figure",
        el("figcaption", el("b", signal.title), el("span", signal.unit, class_="dim"), el("span", class_="read")),
        el("div", class_="plot", data_chart=index),
        el("div", svg.draw_chart(chart), class_="static"),
        el("p", legend, class_="legend") if len(names) > 1 else None,
        el("p", _with_code(signal.what[:1].upper() + signal.what[1:]), ". ", good, bad, class_="dim what"),
    )


def answers(facts: RunFacts) -> Raw | None:
    if not facts.examples:
        return None
    is_paired = any(example.before and example.after for example in facts.examples)
    note = "The same prompts early and late." if is_paired else "Prompts of the first and the last recorded step."
    examples = [_example(example) for example in facts.examples]
    sides = [side for example in facts.examples for side in (example.before, example.after) if side]
    means = turns.legend() if any(answer.turns for side in sides for answer in side.answers) else None
    return section("Training answers, early and late", el("p", note, class_="dim"), means, examples, id_="answers")


def _example(example: Example) -> Raw:
    group = example.before or example.after
    assert group
    expected = "" if group.answer in (None, "") else f"expected: {_cut(str(group.answer), 200)}"
    sides = [side for side in (example.before, example.after) if side]
    return el(
        "article",
        el("pre", _cut(group.prompt), class_="prompt", dir="auto"),
        el("p", expected, class_="dim") if expected else None,
        el("div", [_side(side) for side in sides], class_="sides" if len(sides) > 1 else None),
        class_="example",
    )


def _side(group: GroupRecord) -> Raw:
    graded = len(group.answers) - group.broken
    title = f"step {group.step}: {group.right} of {graded} right"
    title += f", {group.broken} broken" if group.broken else ""
    return el("div", el("h4", title), [_answer(answer) for answer in pick_answers(group.answers)])


def _answer(answer: AnswerRecord) -> Raw:
    reward = "–" if answer.reward is None else f"{answer.reward:.3g}"
    advantage = "" if not answer.advantage else f", advantage {answer.advantage:+.2f}"
    kind = answer.verdict if answer.verdict in ("right", "wrong") else "broken"
    described = describe_turns(answer, answer.length)
    line = f" · reward {reward}{advantage}" + (f" · {described}" if described else "")
    text = el("pre", _cut(answer.text), " … (cut)" if answer.cut else None, dir="auto")
    return el(
        "div",
        el("p", el("b", answer.verdict or "no verdict"), line, class_="verdict-line"),
        turns.turns(answer, answer.cut) if answer.turns else text,
        el("p", _cut(answer.reason, 300), class_="dim") if answer.reason else None,
        class_=f"answer {kind}",
    )


def _cut(text: str, limit: int = MAX_ANSWER_CHARS) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def time_spent(facts: RunFacts) -> Raw | None:
    phases = [(PHASES.get(name, name), seconds) for name, seconds in facts.page.phases.items() if seconds > 0]
    total = sum(seconds for _, seconds in phases)
    if not total:
        return None
    rows = []
    for i, (name, seconds) in enumerate(phases):
        share = f"{seconds / total:.0%}" if seconds / total >= 0.01 else "under 1%"
        rows.append([_legend(i, name), sentences.format_duration(seconds), share])
    speed = f"{facts.page.tokens / total:,.0f} sampled tokens/s over all steps." if facts.page.tokens else ""
    phase_table = table(["phase", "time", "share"], rows, "narrow")
    parts = (svg.draw_shares(phases), phase_table, el("p", speed, class_="dim"))
    return section("Where the time went", *parts, id_="time")


def _legend(style: int, name: str) -> Raw:
    return el("span", el("i", GLYPHS[style], class_=f"t{style}"), " ", name)


def recipe(facts: RunFacts) -> Raw:
    changed, all_keys = (
        [[el("code", key), el("code", sentences.format_value(value))] for key, value in keys.items()]
        for keys in (facts.changed, facts.page.recipe)
    )
    if facts.page.summary.trainer:
        known = table([], all_keys, "narrow keys") if all_keys else el("p", "Its files name no setting.", class_="dim")
        return section("Settings", el("p", "Those that its files show:", class_="dim"), known, id_="recipe")
    return section(
        "Recipe",
        el("p", "Changed from the defaults:" if changed else "All keys have their defaults.", class_="dim"),
        table([], changed, "narrow keys") if changed else None,
        el("details", el("summary", f"all {len(all_keys)} keys"), table([], all_keys, "narrow keys")),
        id_="recipe",
    )


def repeat(facts: RunFacts) -> Raw:
    manifest = facts.page.facts
    rows = [[name, str(value)] for name, value in as_dict(manifest.get("versions")).items()]
    if isinstance(git := manifest.get("git"), dict):
        rows.append(["commit", f"{git.get('commit')}{', with changes' if git.get('changed') else ''}"])
    rows += [
        [name.replace("_", " "), f"{manifest[name]:,}" if isinstance(manifest[name], int) else str(manifest[name])]
        for name in ("device", "num_parameters", "data")
        if manifest.get(name)
    ]
    if facts.page.summary.trainer:
        return section("Source", el("p", str(manifest.get("source"))), id_="again")
    command = el("pre", sentences.repeat_command(facts.page.summary.kind, facts.page.recipe), class_="command")
    return section("Repeat this run", command, table([], rows, "narrow") if rows else None, id_="again")


def stages(facts: RunFacts) -> Raw | None:
    if not facts.stages:
        return None
    rows = [
        [
            el("a", stage.name, href=str(report_path(Path(stage.name)))),
            stage.status,
            f"{stage.steps:,}",
            *(sentences.format_rate(rate) if rate else "–" for rate in (stage.before, stage.after)),
        ]
        for stage in facts.stages
    ]
    return section("Stages", table(["stage", "status", "steps", "success before", "success after"], rows), id_="stages")
