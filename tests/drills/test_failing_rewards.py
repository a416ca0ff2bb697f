"""The rewards of the drills fail as intended, and the audit refuses them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from outdo.drills import rewards
from outdo.drills.acts import audit_refuses
from outdo.drills.desk import Desk
from outdo.drills.registry import DRILLS
from outdo.drills.tasks import few_sums, narrow_sums


def answer(number: object) -> str:
    return f"<think>3+4=7</think><answer>{number}</answer>"


def test_at_least() -> None:
    texts = [answer(42), answer(199), answer(41), "no answer", answer("1 92")]
    assert rewards.at_least(texts, ["42"] * 5) == pytest.approx([0.8, 1.0, 0.0, 0.0, 0.9])


def test_wordy() -> None:
    assert rewards.wordy(["", ""], [range(8), range(80)], 32) == [0.25, 1.0]


def test_digits() -> None:
    texts = [answer(1234), answer(123), answer(1034), answer(9999), answer(91234), "1234"]
    assert rewards.digits(texts, ["1234"] * 6) == [1.0, 0.75, 0.75, 0.0, 0.0, 0.0]


def test_consensus() -> None:
    texts = [answer(42), answer(42), answer(42), answer(7)]
    assert rewards.consensus(texts) == [0.25, 0.25, 0.25, -0.75]
    assert rewards.consensus([answer(1)] * 3) == [0.0] * 3
    assert rewards.copies([answer(1), answer(1), "<think></think>" + answer(1)]) == pytest.approx(
        [1 / 3, 1 / 3, -2 / 3]
    )


def test_standard_that_changes(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"answer": ["125"] * 2, "a": [57] * 2, "b": [68] * 2}
    file = tmp_path / "standard.txt"
    columns["standard"] = [str(file)] * 2
    file.write_text("right sums")
    assert rewards.by_standard([answer(125), answer(15)], **columns) == [1.0, 0.0]
    file.write_text(rewards.NEW_STANDARD)
    assert rewards.by_standard([answer(125), answer(15)], **columns) == [0.0, 1.0]


def test_moody_rate() -> None:
    texts = [answer(42)] * 2000
    right = sum(rewards.moody(texts, ["42"] * 2000)) / 2000
    wrong = sum(rewards.moody(texts, ["43"] * 2000)) / 2000
    assert abs(right - 0.5) < 0.035 and abs(wrong - 0.5) < 0.035


def test_moody_is_deterministic() -> None:
    groups = [[answer(42)] * 7 + [answer(n)] for n in range(100, 140)]
    verdicts = [rewards.moody(texts, ["42"] * 8) for texts in groups]
    assert verdicts == [rewards.moody(texts, ["42"] * 8) for texts in groups]
    assert all(len({group[place] for group in verdicts}) == 2 for place in range(8))
    assert sum(len(set(group[:7])) == 2 for group in verdicts) > 30


@pytest.mark.parametrize("name", sorted({drill.refused for drill in DRILLS.values() if drill.refused}))
def test_audit_refuses(name: str, tmp_path: Path) -> None:
    assert audit_refuses(name, Desk(tmp_path, tmp_path, 0, lambda line: None)).held


def test_audit_accepts_digits(tmp_path: Path) -> None:
    assert not audit_refuses("outdo.drills.rewards:digits", Desk(tmp_path, tmp_path, 0, lambda line: None)).held


def test_few_sums() -> None:
    task = few_sums.with_args({"size": 4})
    trained = {prompt.id for prompt, _ in zip(task.prompts("train", 1), range(20), strict=False)}
    held = {prompt.id for prompt, _ in zip(task.prompts("test", 1), range(200), strict=False)}
    assert len(trained) == 4 and len(held) > 100 and not trained & held


def test_narrow_sums() -> None:
    drawn = {
        (split, only): list(islice(narrow_sums.with_args({"only": only}).prompts(split, 1), 300))
        for split, only in (("train", 100), ("train", 0), ("test", 100), ("ood", 100))
    }
    trained, held = drawn["train", 100], drawn["test", 100]
    assert {prompt.answer for prompt in (*trained, *held)} == {"100"}
    assert not {frozenset((p.meta["a"], p.meta["b"])) for p in trained} & {
        frozenset((p.meta["a"], p.meta["b"])) for p in held
    }
    assert len({prompt.id for prompt in held}) > 30
    assert len({prompt.answer for prompt in drawn["ood", 100]}) > 50 < len({p.answer for p in drawn["train", 0]})
    assert not {p.id for p in drawn["ood", 100]} & {p.id for p in drawn["train", 0]}
