"""The exchange of results and errors between processes."""

from __future__ import annotations

import json
from pathlib import Path

from support.basics import ROOT
from support.launches import torchrun


def test_errors_of_one_are_errors_of_all(tmp_path: Path) -> None:
    status, printed = torchrun(2, str(ROOT / "tests/support/world_cases.py"), str(tmp_path), cwd=tmp_path, seconds=60)
    assert status == 0, printed
    for rank in (0, 1):
        assert json.loads((tmp_path / f"rank-{rank}.json").read_text()) == {
            "ranks": "[0, 1]",
            "first": "0",
            "raised by the second": f"{('ProcessFailed', 'KeyError')[rank]}, in all",
            "a halt of its own class": f"{('OwnHalt', 'Halted')[rank]}, in all",
            "not to be pickled": f"{('ProcessFailed', 'TypeError')[rank]}, in all",
            "an exchange of the first alone": "RunError, in all",
            "after all that": "[2, 2]",
        }
