"""`outdo eval` in real processes: several models in one table, answers kept, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.models.load import load_policy, save_policy

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
SHORT = ("-n", "5", "--max-completion-length", "6", "--device", "cpu")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for seed in (1, 2):
        save_policy(load_policy("tiny", device="cpu", seed=seed), tmp_path / f"m{seed}")
    return tmp_path


def test_two_models_two_tasks_and_what_was_forgotten(outdo: Outdo, models: Path) -> None:
    (models / "p.jsonl").write_text("".join(json.dumps({"prompt": f"{i}", "answer": i}) + "\n" for i in range(40)))
    words = (
        "--task",
        "arithmetic",
        "--also",
        "p.jsonl",
        "--reward",
        "numeric",
        "--retention",
        "--text",
        "p.jsonl",
        "--samples",
        "3",
    )
    done = outdo("eval", "m1", "m2", *words, "--k", "1,2", *SHORT, "--out", "answers.jsonl")
    assert done.returncode == 0, done.stderr
    for part in ("arithmetic test, 5 problems, 3 samples at temperature 1", "pass@2 [95%]", "against m1"):
        assert part in done.stdout, done.stdout
    assert "within noise" in done.stdout and "p.jsonl test" in done.stdout
    assert "tokens of p.jsonl" in done.stdout and "nats a token against the base" in done.stdout
    rows = [json.loads(line) for line in (models / "answers.jsonl").read_text().splitlines()]
    problems = {(row["task"], row["id"]) for row in rows}
    assert len(rows) == 2 * len(problems) * 4 and {row["kind"] for row in rows} == {"greedy", "sampled"}
    assert all(row["verdict"] in ("right", "wrong") and 1 <= row["tokens"] <= 6 for row in rows)
    same = [row["id"] for row in rows if row["model"] == "m1"] == [row["id"] for row in rows if row["model"] == "m2"]
    assert same


def test_a_run_stands_for_its_model_and_json_is_alone_on_standard_output(outdo: Outdo, models: Path) -> None:
    (models / "run").mkdir()
    (models / "m1").rename(models / "run" / "model")
    (models / "run" / "run.json").write_text("{}")
    done = outdo("eval", "run", "--base", "m2", "--json", "--samples", "0", *SHORT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["model"] for row in found["results"]] == ["m2", "run"] and found["results"][0]["n"] == 5
    assert found["differences"][0]["against"] == "m2" and found["differences"][0]["noise"]
    alone = outdo("eval", "run/model", "--json", "--samples", "0", *SHORT)
    assert json.loads(alone.stdout)["results"][0]["low"] == found["results"][1]["low"]
    (models / "run" / "model").rename(models / "m1")
    done = outdo("eval", "run", *SHORT)
    assert done.returncode == 2 and "no model and no checkpoint yet" in done.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("m1", "--k", "11"), "k from 1 to samples=10"),
        (("m1", "--k", "one"), "whole number"),
        (("m1", "-n", "many"), "--size many"),
        (("m1", "--retention"), "--base"),
        (("m1", "--text", "x"), "--retention"),
        (("m1", "--dtype", "int8"), "float32 or bfloat16"),
        (("m1", "--top-p", "0"), "top_p"),
        (("m1", "--split", "tset"), "no split 'tset'"),
        (("m1", "--size", "all"), "without end"),
        (("m1", "--task", "arithmetik"), "'arithmetic'"),
        (("m1", "--reward", "numerik"), "'numeric'"),
        (("m1", "--task", "gsm8k"), "data_dir"),
        (("nowhere/at/all",), "does not exist"),
    ],
)
def test_what_cannot_be_is_refused(outdo: Outdo, words: tuple[str, ...], part: str) -> None:
    done = outdo("eval", *words)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_file_that_cannot_be_written_is_said_before_anything_is_loaded(outdo: Outdo) -> None:
    done = outdo("eval", "nowhere/at/all", "--out", "no/such/folder.jsonl")
    assert done.returncode == 1 and "cannot write no/such/folder.jsonl" in done.stderr


def test_arguments_for_one_of_the_tasks(outdo: Outdo, models: Path) -> None:
    words = ("--task", "arithmetic,countdown", "--task-arg", "arithmetic.digits=1", "--json", "--samples", "0")
    done = outdo("eval", "m1", *words, *SHORT, "--out", "a.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
    assert max(len(row["prompt"]) for row in rows if row["task"] == "arithmetic") == 3
