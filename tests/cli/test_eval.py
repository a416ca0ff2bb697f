"""`outdo eval` in real processes: several models in one table, answers kept, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outdo.cli.evaluate import _show
from outdo.evals.held_out import Answers, Evaluation
from outdo.evals.report import Result, short_names
from outdo.models.load import load_policy, save_policy
from outdo.recipe.schema import Recipe
from support.basics import group_of, prompt_of

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
    assert done.returncode == 2 and "no valid checkpoint yet" in done.stderr


def of_a_run(models: Path, **keys: Any) -> None:
    """m1 becomes the model of a run with these keys."""
    recipe = Recipe(max_completion_length=6, **keys).model_dump()
    (models / "run").mkdir(exist_ok=True)
    shutil.copytree(models / "m1", models / "run" / "model", dirs_exist_ok=True)
    (models / "run" / "run.json").write_text(json.dumps({"status": "done", "recipe": recipe}))


def test_a_run_is_asked_what_it_was_trained_on(outdo: Outdo, models: Path) -> None:
    of_a_run(models, task_args={"digits": 1, "ops": "+"}, temperature=0.5)
    for name in ("run", "run/model"):
        done = outdo("eval", name, "--out", "a.jsonl", "--force", "-n", "5", "--samples", "1")
        assert done.returncode == 0 and "at temperature 0.5" in done.stdout, done.stderr
        words = (
            f"{name} --task arithmetic --task-arg digits=1 --task-arg ops=+ --max-completion-length 6 --temperature 0.5"
        )
        assert f"asked as the run was: outdo eval {words}\n" in done.stderr
        rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
        assert {len(row["prompt"]) for row in rows} == {3} and all(row["tokens"] <= 6 for row in rows)
    (models / "runs").mkdir()
    (models / "run").rename(models / "runs" / "short")
    assert "--task-arg digits=1" in outdo("eval", "short", "-n", "2", "--samples", "0").stderr
    (models / "runs" / "short").rename(models / "run")
    done = outdo("eval", "m2", "run", "--temperature", "0.7", "-n", "2", "--samples", "1")  # what is given goes first
    assert "at temperature 0.7" in done.stdout and "--task-arg digits=1" in done.stderr
    done = outdo("eval", "run", "--task", "countdown", "-n", "2", "--samples", "0", "--max-completion-length", "4")
    assert "countdown test" in done.stdout and "asked as" not in done.stderr


def test_a_run_s_own_code_is_not_run_and_several_tasks_are_named(outdo: Outdo, models: Path) -> None:
    (models / "mine.py").write_text("open('ran', 'w')\ndef task(): ...\n")
    for keys in ({"dataset_name": "mine.py:task"}, {"reward_funcs": ["mine.py:task"]}):
        of_a_run(models, **keys)
        done = outdo("eval", "run")
        assert done.returncode == 2 and "trained with code, mine.py:task: if you trust it" in done.stderr, done.stderr
        assert not (models / "ran").exists()
    of_a_run(models, dataset_mixture=[{"dataset_name": "arithmetic"}, {"dataset_name": "p.jsonl"}])
    done = outdo("eval", "run")
    assert done.returncode == 2 and "several tasks" in done.stderr
    assert "outdo eval run --task arithmetic" in done.stderr and "outdo eval run --task p.jsonl" in done.stderr


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
        (("m1", "--task", ""), "--task is empty"),
        (("nowhere/at/all",), "does not exist"),
    ],
)
def test_what_cannot_be_is_refused(outdo: Outdo, words: tuple[str, ...], part: str) -> None:
    done = outdo("eval", *words)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_what_cannot_be_is_said_before_the_first_model_is_asked(outdo: Outdo, models: Path) -> None:
    (models / "kept.jsonl").write_text("answers of yesterday\n")
    wrong = ((("nowhere/at/all",), "does not exist"), ((), "kept.jsonl: is there already"))
    for words, part in (*wrong, (("--out", "no/such.jsonl"), "there is no folder no")):
        done = outdo("eval", "m1", "--out", "kept.jsonl", *words, "-n", "5000", "--samples", "50")
        assert done.returncode == 2 and part in done.stderr, done.stderr
    assert (models / "kept.jsonl").read_text() == "answers of yesterday\n"


def test_problems_that_do_not_fit_are_left_out_and_said(outdo: Outdo, models: Path) -> None:
    rows = [{"prompt": "1" * (600 if i % 4 == 0 else 3) + f"+{i}", "answer": "2", "split": "test"} for i in range(8)]
    rows.append({"prompt": "1+1", "answer": "2", "split": "train"})
    (models / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("eval", "m1", "--task", "p.jsonl", "--reward", "numeric", "--samples", "0", *SHORT[2:], "--size", "all")
    done = outdo(*words)
    assert done.returncode == 0 and "p.jsonl test, 6 problems" in done.stdout, done.stderr
    assert "m1: 2 problems are too long for it, and were not asked" in done.stdout
    assert json.loads(outdo(*words, "--json").stdout)["results"][0]["too_long"] == 2
    (models / "p.jsonl").write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[-1]) + "\n")
    done = outdo(*words)
    assert done.returncode == 2 and "none of 1 test problems fits the model's 512 tokens" in done.stderr


def test_a_name_that_is_long_is_shortened_in_the_table(outdo: Outdo, models: Path) -> None:
    far = models / "a" / "folder" / "that is [rather] far" / "run-of-monday" / "model"
    shutil.copytree(models / "m1", far)
    done = outdo("eval", "m1", str(far), "--samples", "0", *SHORT)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["run-of-monday", "0.000", "[0.000,", "0.434]"] in lines
    assert ["run-of-monday", "success", "+0.000", "[-0.434,", "+0.434]", "within", "noise"] in lines


def test_no_number_is_cut_in_a_narrow_window(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    found = Evaluation("test", 5, 0.2, 0.036, 0.624, {1: 0.3, 8: 0.9}, pass_interval={1: (0.1, 0.5), 8: (0.6, 1.0)})
    answers = Answers((group_of(prompt_of("1"), (1,), [(2,)], [0.0]),))
    _show([Result("one", "sums", found, answers), Result("[two]", "sums", found, answers)], [], "greedy only", None)
    said = capsys.readouterr().out
    for line in (
        "one    success  0.200 [0.036, 0.624]",
        "       pass@8   0.900 [0.600, 1.000]",
        " [two]  success  0.200",
    ):
        assert line in said, said


def test_answers_that_could_not_be_judged_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    answers = Answers((group_of(prompt_of("1"), (1,), [(2,)], [0.0]),))
    for lost, words in ((0, ""), (53, "one: 53 sampled answers could not be judged, and are left out")):
        found = Evaluation("test", 5, 0.2, 0.036, 0.624, {1: 0.8}, pass_interval={1: (0.1, 0.9)}, broken_sampled=lost)
        _show([Result("one", "sums", found, answers)], [], "2 samples at temperature 1", None)
        said = capsys.readouterr().out
        assert words in said and ("judged" in said) == bool(lost), said


def test_names_tell_models_apart() -> None:
    long = "/somewhere/on/this/machine/runs"
    names = short_names(["m1", f"{long}/first/model", f"{long}/second/model", f"{long}/old/first", "x" * 30 + "-0412"])
    assert list(names.values()) == ["m1", "runs/first", "second", "old/first", "xxxxxxxxxxx…xxxxxxx-0412"]
    alike = ["y" * 20 + a + "z" * 20 for a in "ab"]
    assert list(short_names(alike).values()) == alike


def test_arguments_for_one_of_the_tasks(outdo: Outdo, models: Path) -> None:
    words = ("--task", "arithmetic,countdown", "--task-arg", "arithmetic.digits=1", "--json", "--samples", "0")
    done = outdo("eval", "m1", *words, *SHORT, "--out", "a.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
    assert max(len(row["prompt"]) for row in rows if row["task"] == "arithmetic") == 3
