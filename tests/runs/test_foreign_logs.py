"""Real event files of TensorBoard and real logs of W&B, and lines as verl and prime-rl write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outdo.runs.foreign.events import masked_crc
from outdo.runs.foreign.names import COMPLEMENTS, NAMES, canonical_name
from support.foreign import again, events, groups, manifest, prime_row, rows, verl_row, view, wandb_run, write_lines

ARGS = json.dumps({"learning_rate": 0.5, "num_generations": 8, "output_dir": "/secret", "unknown": 1})


def trl_values(step: int) -> dict[str, float]:
    return {
        "train/reward": step / 4,
        "train/frac_reward_zero_std": 0.25,
        "train/completions/mean_length": 7.0,
        "train/rewards/accuracy_reward/mean": 0.5,
        "train/step_time": 2.0,
    }


def test_event_file(tmp_path: Path) -> None:
    events(tmp_path / "logs", ((step, trl_values(step)) for step in (1, 2, 3)), {"args": ARGS})
    folder = view(tmp_path / "logs")
    expected = {"reward_mean": 0.25, "informative": 0.75, "len_mean": 7.0, "reward/accuracy_reward": 0.5}
    assert rows(folder)[0] == {"step": 1, **expected, "time/step": 2.0}
    assert [row["reward_mean"] for row in rows(folder)] == [0.25, 0.5, 0.75]
    found = manifest(folder)
    assert (found["trainer"], found["status"], found["notes"]) == ("TRL", "running", [])
    assert found["recipe"] == {"learning_rate": 0.5, "num_generations": 8, "reward_funcs": ["accuracy_reward"]}


def test_event_file_of_verl(tmp_path: Path) -> None:
    path = events(tmp_path / "logs", [(step, verl_row(step)["data"]) for step in (1, 2)])
    for each in (path, tmp_path / "logs"):
        folder = view(each)
        assert manifest(folder)["trainer"] == "verl"
        assert rows(folder)[1]["reward_mean"] == 0.375


def test_event_file_that_grows(tmp_path: Path) -> None:
    """As a viewer sees it: rows are appended, also where a record was cut in two."""
    path = events(tmp_path / "logs", ((step, trl_values(step)) for step in range(1, 6)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    folder = view(tmp_path / "logs")
    before = (folder / "metrics.jsonl").read_bytes()
    path.write_bytes(data)
    again(folder)
    assert len(rows(folder)) == 5
    complete = before[: before.rstrip(b"\n").rfind(b"\n") + 1]
    assert (folder / "metrics.jsonl").read_bytes().startswith(complete)
    inode = (folder / "metrics.jsonl").stat().st_ino
    more = events(tmp_path / "more", [(6, trl_values(6))]).read_bytes()
    path.write_bytes(data + more)
    again(folder)
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4, 5, 6]
    assert (folder / "metrics.jsonl").stat().st_ino == inode, "appended, not replaced"


def test_a_resumed_run(tmp_path: Path) -> None:
    """A second event file starts at an earlier step: its values count, and later steps of the first are gone."""
    events(tmp_path / "logs", ((step, {"reward": 1.0}) for step in range(1, 10)))
    events(tmp_path / "logs", ((step, {"reward": 2.0}) for step in (4, 5)))
    assert [row["reward_mean"] for row in rows(view(tmp_path / "logs"))] == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_checksum() -> None:
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


LOGGED: list[dict[str, Any]] = [
    *({**trl_values(step), "train/global_step": step} for step in range(1, 301)),
    {"eval/rewards/accuracy_reward/mean": 0.75, "train/global_step": 300},
]
CONFIG = {
    "learning_rate": 0.5,
    "beta": 0.125,
    "_name_or_path": "some/model",
    "output_dir": "/secret",
    "actor_rollout_ref": {"rollout": {"n": 16}},  # as verl has it
}


def test_wandb_offline(tmp_path: Path) -> None:
    source = wandb_run(tmp_path, LOGGED, CONFIG)
    folder = view(source)
    assert [row["reward_mean"] for row in rows(folder)] == [step / 4 for step in range(1, 301)]
    assert rows(folder, "evals.jsonl") == [{"step": 300, "split": "eval", "success_rate": 0.75}]
    found = manifest(folder)
    assert (found["trainer"], found["status"], found["title"], found["notes"]) == ("TRL", "done", "named", [])
    settings = {"learning_rate": 0.5, "beta": 0.125, "num_generations": 16, "model_name_or_path": "some/model"}
    assert found["recipe"] == {**settings, "reward_funcs": ["accuracy_reward"]}
    assert found["started"] and found["ended"]
    assert view(tmp_path) == view(tmp_path), "the project's folder has one run"


def test_wandb_that_failed_and_that_was_cut(tmp_path: Path) -> None:
    source = wandb_run(tmp_path, LOGGED, CONFIG, exit_code=3)
    (path,) = source.glob("*.wandb")
    folder = view(source)
    assert manifest(folder)["status"] == "failed"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    again(folder)
    assert manifest(folder)["status"] == "running"
    kept = len(rows(folder))
    assert 0 < kept < 300
    path.write_bytes(data)
    again(folder)
    assert len(rows(folder)) == 300
    damaged = bytearray(data)
    damaged[40_000] ^= 0xFF  # in the second block
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    copy.write_bytes(damaged)
    folder = view(copy)
    assert 100 < len(rows(folder)) < 300
    assert any("corrupt" in note for note in manifest(folder)["notes"])


def test_verl_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "exp.jsonl", (verl_row(step) for step in (1, 2, 3)))
    folder = view(path)
    expected = {
        **{"step": 2, "reward_mean": 0.375, "kl_mean": 0.02, "entropy_mean": 0.5, "loss": -0.02, "clipfrac": 0.125},
        **{"step_kl": 0.001, "grad_norm": 0.3, "lr": 1e-6, "adv_mean": 0.0, "len_mean": 128.0, "truncated": 0.0625},
        **{"memory": 2.0**31, "time/step": 4.0, "time/rollout": 2.5, "time/grade": 0.5},
    }
    found = rows(folder)[1]
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert manifest(folder)["trainer"] == "verl"


def test_verl_held_out(tmp_path: Path) -> None:
    """Success only where its name says so; a mean reward is none."""
    held = {"val-core/math/acc/mean@4": 0.5, "val-core/essay/reward/mean@1": 0.75}
    path = write_lines(tmp_path / "exp.jsonl", [verl_row(0, **held), verl_row(1)])
    assert rows(view(path), "evals.jsonl") == [{"step": 0, "split": "math", "success_rate": 0.5}]
    assert rows(view(path))[0]["val-core/essay/reward/mean@1"] == 0.75


def test_verl_rollouts(tmp_path: Path) -> None:
    write_lines(tmp_path / "run" / "metrics.jsonl", (verl_row(step) for step in (1, 2)))
    for step in (1, 2):
        answers = [
            {"input": f"user\n{i // 2}?", "output": f"= {i}", "gts": str(i), "score": i / 4, "step": step, "acc": i % 2}
            for i in range(4)
        ]
        write_lines(tmp_path / "run" / "rollouts" / f"{step}.jsonl", answers)
        write_lines(tmp_path / "run" / "val_data" / f"{step}.jsonl", answers[:1])
    folder = view(tmp_path / "run")
    first, second = (row for row in groups(folder) if row["step"] == 2)
    assert first["messages"] == [{"role": "user", "content": "user\n0?"}] and second["answer"] == "2"
    assert [(a["text"], a["reward"], a["verdict"]) for a in second["completions"]] == [
        ("= 2", 0.5, "wrong"),
        ("= 3", 0.75, "right"),
    ]
    assert [row["success_rate"] for row in rows(folder)] == [0.5, 0.5]
    alone = view(tmp_path / "run" / "rollouts")
    assert rows(alone)[0] == pytest.approx(
        {"step": 1, "reward_mean": 0.375, "reward_std": 0.279508, "informative": 1.0, "success_rate": 0.5}
        | {"reward/acc": 0.5}
    )


def test_prime_rl(tmp_path: Path) -> None:
    write_lines(tmp_path / "out" / "metrics.jsonl", (prime_row(step) for step in (1, 2)))
    rollout = {
        "example_id": 3,
        "prompt": [{"role": "user", "content": "1+1?"}],
        "completion": [{"role": "assistant", "content": "2"}],
        "answer": "2",
        "reward": 1.0,
        "advantage": 0.5,
        "metrics": {"correct_answer": 1.0},
    }
    write_lines(tmp_path / "out" / "rollouts" / "step_1" / "train_rollouts.jsonl", [rollout, {**rollout, "reward": 0}])
    folder = view(tmp_path / "out")
    expected = {
        **{"step": 2, "reward_mean": 0.2, "all_wrong": 0.5, "all_right": 0.125, "informative": 0.375},
        **{"len_mean": 64.0, "truncated": 0.25, "tokens": 4096.0, "time/step": 3.0},
    }
    assert {name: rows(folder)[1][name] for name in expected} == expected
    assert not [name for name in rows(folder)[1] if name.startswith("reward/")], "an extreme is no part"
    assert manifest(folder)["trainer"] == "prime-rl"
    (group,) = groups(folder)
    assert [(a["text"], a["reward"], a["advantage"], a["verdict"]) for a in group["completions"]] == [
        ("2", 1.0, 0.5, "right"),
        ("2", 0.0, 0.5, "right"),
    ]


def test_every_name_of_the_table_is_ours() -> None:
    for ours, theirs in NAMES.items():
        for name in theirs:
            assert canonical_name(name)[:2] == (ours, name in COMPLEMENTS), name
