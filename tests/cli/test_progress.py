"""Progress goes to standard error, in a line now and then where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from outdo.cli import progress
from outdo.training.console import PlainLines


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.progress_bar("m on t", 2000) as advance:
        for _ in range(8):
            advance(250)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert not shown.out and 1 <= len(lines) < 8 and lines[0].startswith("m on t: ") and lines[0].endswith("of 2,000")


def test_eta_after_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("outdo.training.console.time.monotonic", lambda: now)
    out = io.StringIO()
    reporter = PlainLines(Console(file=out, width=300))
    reporter.begin("GRPO")
    for step in range(91, 96):  # ten seconds each
        now += 10
        reporter.step(step, 100, {})
    assert [line.rpartition("ETA ")[2] for line in out.getvalue().splitlines()[1:]] == ["0:50"]
