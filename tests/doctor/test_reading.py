"""Histories from other trainers' files and from answers."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outdo.doctor.answers import summarize_answers
from outdo.doctor.history import from_rows
from outdo.doctor.read import read_history
from outdo.doctor.rules import diagnose
from outdo.doctor.watch import Watch
from outdo.errors import OutdoError, RecipeError
from outdo.rewards.compose import find_rewards, grade
from outdo.types import Group, Prompt, Trajectory

TRL = {
    "reward": 0.4,
    "reward_std": 0.2,
    "kl": 0.01,
    "entropy": 0.6,
    "completions/mean_length": 120.0,
    "completions/clipped_ratio": 0.02,
    "clip_ratio/region_mean": 0.001,
    "frac_reward_zero_std": 0.25,
    "learning_rate": 1e-6,
    "grad_norm": 0.3,
    "rewards/accuracy_reward/mean": 0.35,
    "rewards/format_reward/mean": 0.9,
    "sampling/sampling_logp_difference/mean": 0.01,
}
VERL = {
    "critic/rewards/mean": 0.4,
    "actor/entropy": 0.6,
    "actor/ppo_kl": 0.0004,
    "actor/kl_loss": 0.01,
    "actor/pg_clipfrac": 0.002,
    "actor/grad_norm": 0.3,
    "actor/lr": 1e-6,
    "response_length/mean": 300.0,
    "response_length/clip_ratio": 0.03,
    "val-core/gsm8k/acc/mean@1": 0.5,
}


def noisy(row: dict[str, float], n: int = 50, **over: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = [{"step": 10 * i, **{k: v * (1 + rng.normal(0, 0.03)) for k, v in row.items()}} for i in range(n)]
    for key, curve in over.items():
        for one, value in zip(rows, curve, strict=True):
            one[key] = float(value)
    return rows


def test_trl_and_verl_names() -> None:
    history = from_rows([{"step": 1, **TRL}, {"step": 2, "eval_success_rate": 0.5, "eval_loss": 1.0}])
    row = {name: float(curve[0]) for name, curve in history.columns.items()}
    assert row["reward_mean"] == 0.4 and row["informative"] == 0.75 and row["lr"] == 1e-6 and row["clipfrac"] == 0.001
    assert row["success_rate"] == row["reward/accuracy_reward"] == 0.35 and row["reward/format_reward"] == 0.9
    assert row["len_mean"] == 120 and row["mismatch_logp"] == 0.01 and "reward" not in row
    assert history.held[0].success == 0.5 and history.held[0].step == 2
    verl = from_rows([{"step": 1, **VERL}])
    assert {"reward_mean", "entropy_mean", "step_kl", "kl_mean", "clipfrac", "len_mean", "truncated"} <= set(
        verl.columns
    )
    assert verl.held[0].success == 0.5


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"log_history": rows, "epoch": 1}))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["log.csv", "trainer_state.json", "log.jsonl"])
def test_file_formats(tmp_path: Path, name: str) -> None:
    ill = noisy(TRL, kl=np.linspace(0.001, 0.6, 50))
    (finding, *_) = diagnose(read_history(write(tmp_path / name, ill)))
    assert finding.code == "kl_blowup" and finding.step % 10 == 0
    assert finding.change and finding.change.pair() == "raise beta 4×, at least to 0.04"
    well = noisy(
        TRL, **{"rewards/accuracy_reward/mean": np.linspace(0.3, 0.6, 50), "reward": np.linspace(0.3, 0.7, 50)}
    )
    assert diagnose(read_history(write(tmp_path / name, well)))[0].code == "healthy"


def test_verl_data_field(tmp_path: Path) -> None:
    rows = [{"step": i, "data": {**VERL, "actor/pg_clipfrac": 0.6}} for i in range(30)]
    assert diagnose(read_history(write(tmp_path / "verl.jsonl", rows)))[0].code == "steps_too_big"


def test_growing_file(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", noisy(TRL))
    with path.open("a") as file:
        file.write('{"step": 500, "rew')
    assert len(read_history(path)) == 50


def test_skipped_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", noisy(TRL))
    rows = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([b"garbage", *rows[:20], b"[1]", b"", b"\xff\x00", *rows[20:], b"{'reward': 1}", b""]))
    history = read_history(path)
    assert len(history) == 50 and history.skipped == tuple(f"{path}: line {number}" for number in (1, 22, 24, 55))
    path.write_bytes(b"garbage\n[1]\n\xff\x00\n")
    with pytest.raises(RecipeError, match="not UTF-8"):
        read_history(path)
    path.write_bytes(b"{garbage\n3\n")
    with pytest.raises(RecipeError, match=r"JSON row: '\{garbage"):
        read_history(path)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"step": 1}\nno\n{"step": 2}\n', "[1, 2]", "\x00\x01", "[" * 9000])
def test_empty_or_foreign_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(RecipeError, match="log"):
        read_history(path)


def group(step: int, prompt: str, *answers: tuple[str, float, str]) -> dict[str, Any]:
    return {
        "step": step,
        "prompt_id": prompt,
        "messages": [{"role": "user", "content": prompt}],
        "completions": [
            {"text": t, "reward": r, "verdict": v, "num_tokens": len(t), "finish": "stop", "reason": ""}
            for t, r, v in answers
        ],
    }


def test_two_verdicts() -> None:
    torn = [group(i, f"{i}+1", ("2", 1.0, "right"), ("2", 0.0, "wrong"), ("3", 0.0, "wrong")) for i in range(9)]
    found = summarize_answers(torn)
    assert (found.repeated, found.differing) == (9, 9) and "'2' was" in found.example
    sound = [group(i, f"{i}+1", ("2", 1.0, "right"), ("2", 1.0, "right"), ("3", 0.0, "wrong")) for i in range(9)]
    assert summarize_answers(sound).differing == 0
    rows = noisy({"reward_mean": 0.4, "reward_std": 0.5, "entropy_mean": 0.5, "kl_mean": 0.02})
    assert diagnose(from_rows(rows, answers=found))[0].code == "inconsistent_grader"
    assert diagnose(from_rows(rows, answers=summarize_answers(sound)))[0].code == "healthy"


def test_group_relative_reward() -> None:
    """`length` pays the same answer by how long the others of its group are."""
    rewards = rewards_by_group(30)
    assert len({a["reward"] for row in rewards for a in row["completions"] if a["verdict"] == "right"}) > 3
    found = summarize_answers(rewards)
    assert found.repeated > 10 and found.differing == 0


def rewards_by_group(steps: int) -> list[dict[str, Any]]:
    """Groups as `numeric` and `length` pay them, of answers that come up again and again."""
    rng = random.Random(0)
    rewards = find_rewards(["numeric", "length"], [1.0, 0.5], "numeric", 64)
    rows = []
    for step in range(steps):
        prompt = Prompt(f"q{step % 3}", ({"role": "user", "content": "q"},), "7")
        said = [(rng.choice([4, 8, 12, 20]), rng.choice([7, 8])) for _ in range(8)]
        answers = [
            Trajectory.single(tuple(range(k)), (0.0,) * k, f"{'x ' * k}<answer>{n}</answer>", "stop", 0)
            for k, n in said
        ]
        grades = grade(Group(prompt, (1,), tuple(answers)), rewards).grades
        rows.append(
            group(
                step, prompt.id, *((a.text, g.reward or 0.0, g.verdict) for a, g in zip(answers, grades, strict=True))
            )
        )
    return rows


def test_two_verdicts_across_steps() -> None:
    changed = [group(i, f"p{i % 4}", ("2", *((1.0, "right") if i < 8 else (0.0, "wrong")))) for i in range(16)]
    found = summarize_answers(changed)
    assert (found.repeated, found.differing) == (4, 4) and found.example == "'2' was right 2 times, wrong 2 times"
    paid = [group(i, "p", ("2", 0.5, "wrong"), ("2", 0.7, "wrong")) for i in range(2)]
    assert summarize_answers(paid).example == "'2' was wrong (0.5) 1 times, wrong (0.7) 1 times"


def test_gained() -> None:
    early = [group(i, f"p{i}", (f"the sum is {i}", 0.2, "wrong"), ("no idea", 0.1, "wrong")) for i in range(20)]
    late = [group(90 + i, f"p{i}", (f"as an expert {i}", 1.0, "wrong"), ("x", 0.1, "wrong")) for i in range(20)]
    first, *_ = gained = summarize_answers(early + late).gained
    assert "'as an expert' is in 100%" in first and "from 0%" in first
    assert any("reward 1, and is wrong" in line for line in gained)


def test_watch_reports_once(tmp_path: Path) -> None:
    rows = noisy({"reward_mean": 0.4, "kl_mean": 0.01}, 60, kl_mean=np.linspace(0, 1, 60))
    rows = [{**row, "step": i} for i, row in enumerate(rows)]
    watch = Watch(tmp_path, {"learning_rate": 1e-5})
    told = [(row["step"], finding) for row in rows for finding in watch.step(row)]
    assert [finding.code for _, finding in told] == ["kl_blowup"] and told[0][0] < 30
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:40]))
    step, finding = told[0]
    (tmp_path / "findings.jsonl").write_text(json.dumps({"seen": step, **finding.row()}) + "\n")
    again = Watch(tmp_path, {})
    assert [finding for row in rows[40:] for finding in again.step(row)] == []


def test_watch_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("outdo.doctor.watch.diagnose", lambda history: looked.append(len(history)) or [])
    watch = Watch(tmp_path, {})
    for i in range(2000):
        watch.step({"step": i, "reward_mean": 0.5})
    assert looked[:4] == [5, 10, 15, 20]
    gaps = np.diff([n for n in looked if n > 200])
    assert gaps.min() >= 10 and gaps[-1] >= 80 and len(looked) < 90


HOSTILE = {
    "metrics.jsonl": ["5\n", "[]\n", "[" * 20000 + "\n", '{"step": "x", "reward_mean": {}}\n', "\x00\n"],
    "evals.jsonl": ['{"split": 3, "success_rate": "high", "step": null}\n', '{"success_rate": 7, "n": 0}\n', "null\n"],
    "groups/steps-000000.jsonl": ['{"completions": 3}\n', "{}\n", '{"completions": [{"verdict": "right"}]}\n'],
    "run.json": ["[]", "{}", '{"recipe": {}, "status": "odd"}', "[" * 20000],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in HOSTILE.items() for text in texts])
def test_hostile_folder(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "groups").mkdir()
    (tmp_path / "run.json").write_text('{"recipe": {}, "status": "done"}')
    (tmp_path / name).write_text(text)
    try:
        assert diagnose(read_history(tmp_path))[0].code == "too_early"
    except OutdoError as error:
        assert str(tmp_path) in str(error)


def test_skipped_lines_in_folder(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"recipe": {}, "status": "done"}')
    rows = [json.dumps({"step": step, "kl_mean": 0.1 * step}) for step in range(4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows[:3], "garbage{", rows[3]]) + "\n")
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "steps-000000.jsonl").write_text("garbage{\n")
    history = read_history(tmp_path)
    assert list(history["kl_mean"]) == [0.0, 0.1, 0.2, pytest.approx(0.3)]
    assert [words.rpartition("/")[2] for words in history.skipped] == [
        "metrics.jsonl: line 4",
        "steps-000000.jsonl: line 1",
    ]


def test_pipes(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "evals.jsonl", "groups/steps-000000.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    (tmp_path / "run.json").write_text('{"recipe": {}, "status": "running"}')
    assert diagnose(read_history(tmp_path))[0].code == "too_early"
    (tmp_path / "run.json").unlink()
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(OutdoError, match="no file"):
        read_history(tmp_path)
    with pytest.raises(RecipeError, match="no file"):
        read_history(tmp_path / "run.json")
