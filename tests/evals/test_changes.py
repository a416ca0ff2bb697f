"""Which held-out answers changed, and whether two evaluations may be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outdo.errors import RunError
from outdo.evals.changes import compare_answers
from outdo.metrics.estimate import mcnemar
from outdo.runs.writer import RunWriter
from support.folders import RECIPE, held_out, make_run


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 0.0625), (2, 10, 2 * (1 + 12 + 66) / 4096)]
)
def test_mcnemar_by_hand(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == mcnemar(lost, gained) == pytest.approx(p)


def test_mcnemar_of_many_changes() -> None:
    assert mcnemar(520, 480) == pytest.approx(mcnemar(521, 480), abs=0.02)  # exact, and the approximation
    assert mcnemar(9000, 1000) < 1e-300 and mcnemar(5000, 5000) == 1.0


def write(folder: Path, answers: Any, row: dict[str, Any] | None = None, **recipe: Any) -> Path:
    """A run with one evaluation, after one step."""
    run = RunWriter.create(folder, RECIPE | recipe, {"reward_files": recipe.get("files")})
    run.record_answers(1, "test", answers)
    run.record_eval({"step": 1, "split": "test", "n": 2, "success_rate": 0.5, "low": 0.1, "high": 0.9, **(row or {})})
    run.finish("done")
    run.close()
    return folder


def test_one_run_before_and_after(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    changes = compare_answers(tmp_path / "run")
    assert (changes.before.step, changes.after.step, changes.n) == (0, 30, 6)
    assert [(change.id, change.kind) for change in changes.changes] == [
        *(("1+2", "gained"), ("2+2", "lost"), ("3+2", "both"), ("4+2", "neither"), ("5+2", "gained")),
        ("6+2", "unjudged"),
    ]
    assert changes.p_value == mcnemar(2, 1)
    with pytest.raises(RunError, match="no held-out answers of the split 'ood'"):
        compare_answers(tmp_path / "run", split="ood")


def test_only_the_same_problems(tmp_path: Path) -> None:
    first = write(tmp_path / "a", held_out({"1+1": 0.0, "2+2": 1.0, "3+3": 1.0}))
    second = write(tmp_path / "b", held_out({"1+1": 1.0, "2+2": 0.0, "4+4": 1.0}))
    path = second / "held_out" / "step-000001.jsonl"
    assert path.read_text().count(held_out({"2+2": 1.0})[0].key) == 1
    path.write_text(path.read_text().replace(held_out({"2+2": 1.0})[0].key, "0" * 16))  # another prompt of the same id
    changes = compare_answers(first, second)
    assert [(change.id, change.kind) for change in changes.changes] == [("1+1", "gained")]
    assert changes.only_one == 4
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text((first / "run.json").read_text())
    with pytest.raises(RunError, match="old has no held-out answers"):
        compare_answers(first, tmp_path / "old")


@pytest.mark.parametrize(
    ("one", "two", "rows", "comparable", "words"),
    [
        ({}, {}, ({}, {}), True, ""),
        ({"reward_funcs": ["numeric"]}, {"reward_funcs": ["exact"]}, ({}, {}), False, "judged by numeric in the first"),
        ({"reward_weights": [1.0]}, {"reward_weights": [2.0]}, ({}, {}), True, "compare success, not the reward"),
        ({}, {}, ({"judge": "numeric"}, {"judge": "maths"}), False, "by maths in the second"),
        ({}, {}, ({"judge": "f"}, {"judge": "f", "pass_threshold": 0.5}), False, "f from 0.5 on"),
        ({"files": {"r.py": "1"}}, {"files": {"r.py": "2"}}, ({}, {}), False, "the reward file r.py differs"),
    ],
)
def test_other_rewards(one: Any, two: Any, rows: Any, comparable: bool, words: str, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, recipe, row, reward in zip(folders, (one, two), rows, (0.0, 1.0), strict=True):
        write(folder, held_out({"1+1": reward}), row, **recipe)
    changes = compare_answers(*folders)
    assert changes.counts["gained"] == 1 and (changes.p_value is not None) == comparable
    assert ("not comparable" in changes.describe()) != comparable
    assert words in " ".join(changes.notes) and bool(changes.notes) == bool(words)
