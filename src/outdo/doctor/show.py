"""Findings for people: a block each, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from outdo.doctor.finding import Finding
from outdo.doctor.words import PLAYBOOK

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
    """The block under a finding's name."""
    entry = PLAYBOOK[finding.code]
    yield from _part("", entry.what, width)
    for index, sign in enumerate(finding.evidence):
        yield from _part("" if index else "evidence", sign.words(), width)
    if finding.severity == "info":
        return
    yield from _part("why", entry.why, width)
    yield from _part("do", entry.do.replace("`", ""), width)
    if finding.change:
        yield f"  {'change':<{INDENT - 2}}{finding.change.pair()}"  # whole, to be copied
        yield from _part("", f"({finding.change.words()})", width)
    if finding.expect:
        yield from _part("expect", finding.expect.words(), width)
    yield f"  {'page':<{INDENT - 2}}{finding.page}"


def note(finding: Finding) -> str:
    """One line, for a run that goes on."""
    change = f"; try {finding.change.pair()}" if finding.change else ""
    return f"  doctor: {finding.code} since step {finding.step} ({finding.evidence[0].words()}){change}"


def _part(name: str, text: str, width: int) -> Iterator[str]:
    plain = "".join(c if c.isprintable() else " " for c in text)  # answers and names may hold what moves a cursor
    for index, line in enumerate(textwrap.wrap(plain, width - INDENT) or [""]):
        yield f"  {'' if index else name:<{INDENT - 2}}{line}"
