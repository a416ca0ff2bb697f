"""Findings as text for the console: a block each, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from outdo.doctor.finding import Finding
from outdo.doctor.playbook import PLAYBOOK

STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold green"}
INDENT = 12


def show(findings: Sequence[Finding], console: Console) -> None:
    width = max(40, min(console.width, 80))
    for index, finding in enumerate(findings):
        if index:
            console.print()
        when = "" if finding.severity == "info" else f"  {finding.severity}, since step {finding.step}"
        console.print(Text.assemble((finding.code, STYLE[finding.severity]), when), soft_wrap=True)
        for line in lines(finding, width):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def lines(finding: Finding, width: int) -> Iterator[str]:
    """The block under a finding's code."""
    entry = PLAYBOOK[finding.code]
    yield from _field("", entry.what, width)
    for index, evidence in enumerate(finding.evidence):
        yield from _field("" if index else "evidence", evidence.describe(), width)
    if finding.unjudged:
        yield from _field("unjudged", f"for lack of signals: {', '.join(finding.unjudged)}", width)
    if finding.severity == "info":
        return
    yield from _field("why", entry.why, width)
    yield from _field("do", entry.do.replace("`", ""), width)
    if finding.change and finding.change.is_known:
        yield f"  {'change':<{INDENT - 2}}{finding.change.pair()}"  # not wrapped, to be copied
        yield from _field("", f"({finding.change.describe()})", width)
    elif finding.change:
        yield from _field("change", finding.change.describe(), width)
    if finding.expect:
        yield from _field("expect", finding.expect.describe(), width)
    if finding.also:
        yield from _field("also seen", f"explained by it: {', '.join(finding.also)}", width)
    if finding.unrecoverable:
        yield from _field("final", "no later step of this run can undo it", width)
    yield f"  {'page':<{INDENT - 2}}{finding.page}"


def note(finding: Finding) -> str:
    """One line, for a run in progress."""
    change = f"; try {finding.change.pair()}" if finding.change else ""
    also = f"; also seen, explained by it: {', '.join(finding.also)}" if finding.also else ""
    return f"  doctor: {finding.code} since step {finding.step} ({finding.evidence[0].describe()}){change}{also}"


def _field(name: str, text: str, width: int) -> Iterator[str]:
    plain = "".join(c if c.isprintable() else " " for c in text)  # answers may contain terminal control sequences
    for index, line in enumerate(textwrap.wrap(plain, width - INDENT) or [""]):
        yield f"  {'' if index else name:<{INDENT - 2}}{line}"
