"""The page of docs/results that compares our numbers with TRL's has every case. TRL itself is not needed."""

from __future__ import annotations

import re

from support.basics import ROOT
from support.trl_cases import ADVANTAGE_CASES, LOSS_CASES

PAGE = ROOT / "docs" / "results" / "trl_numbers.md"


def test_every_case_is_on_the_page() -> None:
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text().partition("## Where")[0], re.MULTILINE)
    heads = ("case", "---", "advantages")
    assert [row for row in rows if row not in heads] == [one.name for one in (*LOSS_CASES, *ADVANTAGE_CASES)]


def test_names_are_unique() -> None:
    names = [one.name for one in (*LOSS_CASES, *ADVANTAGE_CASES)]
    assert len(set(names)) == len(names)
