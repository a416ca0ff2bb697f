"""Progress goes to standard error, in a line now and then where there is no terminal."""

from __future__ import annotations

import pytest

from outdo.cli import progress


def test_lines_are_rare_and_not_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.counting("m on t", 2000) as tell:
        for _ in range(8):
            tell(250)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert not shown.out and 1 <= len(lines) < 8 and lines[0].startswith("m on t: ") and lines[0].endswith("of 2,000")
