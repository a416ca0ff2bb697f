"""Every signal that is measured is in the catalogue, and the page about signals is written from it."""

from __future__ import annotations

import re

from outdo.metrics import limits
from outdo.metrics.catalogue import CATALOGUE, as_table
from outdo.metrics.measure import Clock, measure
from support.basics import ROOT, group_of, prompt_of


def test_every_measured_signal_has_a_chart() -> None:
    clock = Clock()
    with clock("update"):
        pass
    group = group_of(prompt_of("1+1"), [1], [[2, 3]], [1.0])
    row = measure([group], [], {}, clock, audit="numeric")
    names = {name for signal in CATALOGUE for name in signal.names}
    stems = tuple(name[:-1] for name in names if name.endswith("/*"))
    assert stems == () or all(stem.endswith("/") for stem in stems)
    missing = [name for name in row if name not in names and not name.startswith(stems)]
    assert missing == []
    assert {"reward/numeric", "time/update", "audit_reward_mean"} <= row.keys()


def test_one_chart_per_signal_with_the_doctors_bands() -> None:
    names = [name for signal in CATALOGUE for name in signal.names]
    assert len(names) == len(set(names))
    bands = {signal.name: signal.bad_band for signal in CATALOGUE}
    assert bands["kl_mean"] == (limits.KL_LIMIT, None) and bands["truncated"] == (limits.TRUNCATED, None)
    assert bands["group_diversity"] is None  # few distinct answers are no fault where they are right
    for signal in CATALOGUE:
        for low, high in filter(None, (signal.good_band, signal.bad_band)):
            assert low is None or high is None or low < high, signal.name


def test_docs_have_the_catalogue() -> None:
    page = (ROOT / "docs" / "runs.md").read_text()
    found = re.search(r"## The signals\n\n(\|.*?)\n\n## ", page, re.DOTALL)
    assert found and found[1] + "\n" == as_table(), "run `make docs`"
