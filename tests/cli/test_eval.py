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
from outdo.evals.from_recipe import KEYS, EvalPlan, override_plan, plans_from_recipe
from outdo.evals.held_out import Evaluation, GradedAnswers
from outdo.evals.report import EvalResult, short_names
from outdo.models.load import load_policy, save_policy
from outdo.recipe.schema import Recipe
from outdo.tasks.sources import SOURCE_KEYS
from support.basics import group_of, prompt_of

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
SHORT = ("-n", "5", "--max-completion-length", "6", "--device", "cpu")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for seed in (1, 2):
        save_policy(load_policy("tiny", device="cpu", seed=seed), tmp_path / f"m{seed}")
    return tmp_path


def test_two_models_two_tasks_and_retention(outdo: Outdo, models: Path) -> None:
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
    assert "tokens of p.jsonl" in done.stdout and "nats per token against the base" in done.stdout
    rows = [json.loads(line) for line in (models / "answers.jsonl").read_text().splitlines()]
    problems = {(row["task"], row["id"]) for row in rows}
    assert len(rows) == 2 * len(problems) * 4 and {row["kind"] for row in rows} == {"greedy", "sampled"}
    assert all(row["verdict"] in ("right", "wrong") and 1 <= row["tokens"] <= 6 for row in rows)
    same = [row["id"] for row in rows if row["model"] == "m1"] == [row["id"] for row in rows if row["model"] == "m2"]
    assert same


def test_run_as_model_and_json(outdo: Outdo, models: Path) -> None:
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


def make_run(models: Path, **keys: Any) -> None:
    """m1 becomes the model of a run with these keys."""
    recipe = Recipe(max_completion_length=6, **keys).model_dump()
    (models / "run").mkdir(exist_ok=True)
    shutil.copytree(models / "m1", models / "run" / "model", dirs_exist_ok=True)
    (models / "run" / "run.json").write_text(json.dumps({"status": "done", "recipe": recipe}))


def test_run_is_evaluated_as_trained(outdo: Outdo, models: Path) -> None:
    make_run(models, task_args={"digits": 1, "ops": "+"}, temperature=0.5)
    for name in ("run", "run/model"):
        done = outdo("eval", name, "--out", "a.jsonl", "--force", "-n", "5", "--samples", "1")
        assert done.returncode == 0 and "at temperature 0.5" in done.stdout, done.stderr
        words = (
            f"{name} --task arithmetic --task-arg digits=1 --task-arg ops=+ --max-completion-length 6 --temperature 0.5"
        )
        assert f"evaluated as the run was: outdo eval {words}\n" in done.stderr
        rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
        assert {len(row["prompt"]) for row in rows} == {3} and all(row["tokens"] <= 6 for row in rows)
    (models / "runs").mkdir()
    (models / "run").rename(models / "runs" / "short")
    assert "--task-arg digits=1" in outdo("eval", "short", "-n", "2", "--samples", "0").stderr
    (models / "runs" / "short").rename(models / "run")
    done = outdo("eval", "m2", "run", "--temperature", "0.7", "-n", "2", "--samples", "1")  # what is given goes first
    assert "at temperature 0.7" in done.stdout and "--task-arg digits=1" in done.stderr
    done = outdo("eval", "run", "--task", "countdown", "-n", "2", "--samples", "0", "--max-completion-length", "4")
    assert "countdown test" in done.stdout and "evaluated as" not in done.stderr


def test_code_and_several_tasks_are_refused(outdo: Outdo, models: Path) -> None:
    (models / "mine.py").write_text("open('ran', 'w')\ndef task(): ...\n")
    for key, name in (
        ("dataset_name", "mine.py:task"),
        ("reward_funcs", "mine.py:task"),
        ("reward_funcs", "mine.task"),
    ):
        make_run(models, **{key: [name] if key == "reward_funcs" else name})
        done = outdo("eval", "run")
        shown = name.replace("mine.task", "mine:task")  # TRL's form of a name
        assert done.returncode == 2 and f"trained with code, {shown}: if you trust it" in done.stderr, done.stderr
        assert not (models / "ran").exists()
    address = {"llm_judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "HOME"}}
    make_run(models, reward_funcs=["llm_judge"], reward_args=address)
    words = ("--reward", "llm_judge", "reward_args.llm_judge.base_url=http://127.0.0.1:9/v1")
    done = outdo("eval", "run", *words)
    assert done.returncode == 2 and "add reward_args.llm_judge.api_key_env=HOME" in done.stderr, done.stderr
    make_run(models, dataset_mixture=[{"dataset_name": "arithmetic"}, {"dataset_name": "p.jsonl"}])
    done = outdo("eval", "run")
    assert done.returncode == 2 and "several tasks" in done.stderr
    assert "outdo eval run --task arithmetic" in done.stderr and "outdo eval run --task p.jsonl" in done.stderr


def test_user_can_name_the_code(outdo: Outdo, models: Path) -> None:
    """A reward given by the user replaces the run's own code, which is then not executed."""
    (models / "mine.py").write_text("open('ran', 'w')\ndef score(): ...\n")
    (models / "p.jsonl").write_text("".join(json.dumps({"prompt": f"{i}", "answer": i}) + "\n" for i in range(40)))
    make_run(models, dataset_name="p.jsonl", reward_funcs=["mine.py:score"])
    done = outdo("eval", "run", "--reward", "numeric", "-n", "2", "--samples", "0")
    assert done.returncode == 0 and "p.jsonl test" in done.stdout and not (models / "ran").exists(), done.stderr


def test_another_reward_or_task_of_a_run(outdo: Outdo, models: Path) -> None:
    """Code of the run is trusted where it, or its file, is named; what is missing is named. Other data gets the run's
    reward and settings."""
    (models / "mine.py").write_text(
        "from outdo import Prompt, task\n"
        "@task(rewards=[])\n"
        "def few(split, seed):\n"
        "    yield from (Prompt(f'{split} {i}', ({'role': 'user', 'content': f'{i}'},), i) for i in range(3))\n"
        "def half(completions, **columns):\n"
        "    return [0.5] * len(completions)\n"
    )
    make_run(models, dataset_name="mine.py:few", reward_funcs=["mine.py:half"])
    done = outdo("eval", "run", "--reward", "numeric", "-n", "2", "--samples", "0")
    assert done.returncode == 2 and "if you trust it, add --task mine.py:few" in done.stderr, done.stderr
    done = outdo("eval", "run", "--reward", "mine.py:half", "-n", "2", "--samples", "1", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["success_rate"], row["reward_mean"], row["judge"]) == (0.0, 0.5, "mine.py:half") and row["entropy_mean"]
    assert "2 in test" in done.stderr and "full marks of half are 0.5" in done.stderr
    (models / "p.jsonl").write_text("".join(json.dumps({"prompt": f"{i}", "answer": i}) + "\n" for i in range(40)))
    make_run(models, dataset_name="p.jsonl", reward_funcs=["numeric"], temperature=0.5)
    (models / "q.jsonl").write_text((models / "p.jsonl").read_text())
    words = ("--task", "q.jsonl", "-n", "2", "--samples", "1", "--pass-threshold", "0")
    done = outdo("eval", "run", *words)
    assert done.returncode == 0 and "at temperature 0.5" in done.stdout and "1.000 [" in done.stdout, done.stderr
    assert "with the run's settings: outdo eval run --task q.jsonl --reward numeric" in done.stderr


def test_run_in_stages(outdo: Outdo, models: Path) -> None:
    """The task is that of the stage that the model is from."""
    make_run(models, dataset_name="countdown")
    (models / "run").rename(models / "02-grpo")
    (models / "run").mkdir()
    (models / "02-grpo").rename(models / "run" / "02-grpo")
    (models / "run" / "model").symlink_to("02-grpo/model")
    recipe = Recipe(stages=[{"stage": "grpo"}]).model_dump()
    (models / "run" / "run.json").write_text(json.dumps({"status": "done", "kind": "stages", "recipe": recipe}))
    for name in ("run", "run/model"):
        assert "countdown test" in outdo("eval", name, "-n", "2", "--samples", "0").stdout


def test_rollout_sampling_of_a_run(outdo: Outdo, models: Path) -> None:
    """top_p and top_k of the rollouts are used by eval_sampling=rollout alone."""
    keys = ("-n", "2", "--samples", "1", "--device", "cpu")
    make_run(models, top_p=0.9, top_k=7)
    assert "1 samples at temperature 1\n" in outdo("eval", "run", *keys).stdout
    done = outdo("eval", "run", *keys, "eval_sampling=rollout")
    assert "at temperature 1, top_p 0.9, top_k 7\n" in done.stdout and "--top-p 0.9 --top-k 7" in done.stderr
    make_run(models, top_p=0.9, eval_sampling="rollout")
    done = outdo("eval", "run", *keys, "top_p=0.8", "--min-p", "0.1", "--json")
    found = json.loads(done.stdout)
    assert (found["settings"]["top_p"], found["settings"]["min_p"]) == (0.8, 0.1)
    assert (found["results"][0]["top_p"], found["results"][0]["min_p"]) == (0.8, 0.1)


def test_keys_of_a_recipe(outdo: Outdo, models: Path) -> None:
    make_run(models, task_args={"digits": 1, "ops": "+"})
    keys = ("eval_size=3", "eval_samples=2", "eval_ks=2", "max_new_tokens=5", "device=cpu", "task_args.ops=-")
    done = outdo("eval", "eval_split=ood", "run", *keys, "--json", "--out", "a.jsonl")
    assert done.returncode == 0 and "max_new_tokens is max_completion_length" in done.stderr, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["n"], row["split"]) == (3, "ood") and "pass@2" in row and "pass@1" not in row
    rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
    assert all("-" in row["prompt"] and row["tokens"] <= 5 for row in rows)
    (models / "lr=2").mkdir()  # a folder, since it exists and lr is no key of ours
    assert "lr=2" in outdo("eval", "lr=2").stderr


def test_recipe_and_command_agree() -> None:
    """The plan of the default recipe is the command's default."""
    plan = override_plan(EvalPlan(), Recipe(), set(KEYS) - set(SOURCE_KEYS))
    assert plan == EvalPlan() == plans_from_recipe(Recipe(), ["test", "ood"])[0]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("eval_size=3",), "name a model"),
        (("m1", "eval_sise=3"), "did you mean 'eval_size'"),
        (("m1", "learning_rate=3"), "learning_rate= has no effect"),
        (("m1", "temperature=0.5", "--temperature", "0.5"), "--temperature and temperature="),
        (("m1", "eval_ks=2", "--k", "2"), "--k and eval_ks="),
        (("m1", "task_args.digits=2", "--task-arg", "digits=2"), "--task-arg digits"),
        (("m1", "--k", "11"), "k from 1 to eval_samples=10"),
        (("m1", "--k", "one"), "expected an integer"),
        (("m1", "-n", "many"), "--size many"),
        (("m1", "--retention"), "--base"),
        (("m1", "--text", "x"), "--retention"),
        (("m1", "--dtype", "int8"), "bfloat16"),
        (("m1", "--top-p", "0"), "top_p"),
        (("m1", "--split", "tset"), "no split 'tset'"),
        (("m1", "--size", "all"), "endlessly"),
        (("m1", "--task", "arithmetik"), "'arithmetic'"),
        (("m1", "--reward", "numerik"), "'numeric'"),
        (("m1", "--task", "gsm8k"), "data_dir"),
        (("m1", "--task", ""), "--task is empty"),
        (("nowhere/at/all",), "does not exist"),
    ],
)
def test_bad_input(outdo: Outdo, words: tuple[str, ...], part: str) -> None:
    done = outdo("eval", *words)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_bad_input_before_the_first_model(outdo: Outdo, models: Path) -> None:
    (models / "kept.jsonl").write_text("answers of yesterday\n")
    wrong = ((("nowhere/at/all",), "does not exist"), ((), "kept.jsonl: already exists"))
    for words, part in (*wrong, (("--out", "no/such.jsonl"), "there is no folder no")):
        done = outdo("eval", "m1", "--out", "kept.jsonl", *words, "-n", "5000", "--samples", "50")
        assert done.returncode == 2 and part in done.stderr, done.stderr
    assert (models / "kept.jsonl").read_text() == "answers of yesterday\n"


def test_problems_too_long(outdo: Outdo, models: Path) -> None:
    rows = [{"prompt": "1" * (600 if i % 4 == 0 else 3) + f"+{i}", "answer": "2", "split": "test"} for i in range(8)]
    rows.append({"prompt": "1+1", "answer": "2", "split": "train"})
    (models / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("eval", "m1", "--task", "p.jsonl", "--reward", "numeric", "--samples", "0", *SHORT[2:], "--size", "all")
    done = outdo(*words)
    assert done.returncode == 0 and "p.jsonl test, 6 problems" in done.stdout, done.stderr
    assert "m1: skipped 2 problems that are too long" in done.stdout
    assert json.loads(outdo(*words, "--json").stdout)["results"][0]["too_long"] == 2
    (models / "p.jsonl").write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[-1]) + "\n")
    done = outdo(*words)
    assert done.returncode == 2 and "none of 1 test problems fits the model's 512 tokens" in done.stderr


def test_long_names_in_the_table(outdo: Outdo, models: Path) -> None:
    far = models / "a" / "folder" / "that is [rather] far" / "run-of-monday" / "model"
    shutil.copytree(models / "m1", far)
    done = outdo("eval", "m1", str(far), "--samples", "0", *SHORT)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["run-of-monday", "0.000", "[0.000,", "0.434]"] in lines
    assert ["run-of-monday", "success", "+0.000", "[-0.434,", "+0.434]", "within", "noise"] in lines


def test_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    found = Evaluation("test", 5, 0.2, 0.036, 0.624, {1: 0.3, 8: 0.9}, pass_interval={1: (0.1, 0.5), 8: (0.6, 1.0)})
    answers = GradedAnswers((group_of(prompt_of("1"), (1,), [(2,)], [0.0]),))
    _show(
        [EvalResult("one", "sums", found, answers), EvalResult("[two]", "sums", found, answers)],
        [],
        "greedy only",
        None,
    )
    shown = capsys.readouterr().out
    for line in (
        "one    success  0.200 [0.036, 0.624]",
        "       pass@8   0.900 [0.600, 1.000]",
        " [two]  success  0.200",
    ):
        assert line in shown, shown


def test_unjudged_answers_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    answers = GradedAnswers((group_of(prompt_of("1"), (1,), [(2,)], [0.0]),))
    for lost, words in ((0, ""), (53, "one: 53 sampled answers could not be judged and are left out")):
        found = Evaluation("test", 5, 0.2, 0.036, 0.624, {1: 0.8}, pass_interval={1: (0.1, 0.9)}, broken_sampled=lost)
        _show([EvalResult("one", "sums", found, answers)], [], "2 samples at temperature 1", None)
        shown = capsys.readouterr().out
        assert words in shown and ("judged" in shown) == bool(lost), shown


def test_short_names_are_distinct() -> None:
    long = "/somewhere/on/this/machine/runs"
    names = short_names(["m1", f"{long}/first/model", f"{long}/second/model", f"{long}/old/first", "x" * 30 + "-0412"])
    assert list(names.values()) == ["m1", "runs/first", "second", "old/first", "xxxxxxxxxxx…xxxxxxx-0412"]
    alike = ["y" * 20 + a + "z" * 20 for a in "ab"]
    assert list(short_names(alike).values()) == alike


def test_arguments_for_one_task(outdo: Outdo, models: Path) -> None:
    words = ("--task", "arithmetic,countdown", "--task-arg", "arithmetic.digits=1", "--json", "--samples", "0")
    done = outdo("eval", "m1", *words, *SHORT, "--out", "a.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (models / "a.jsonl").read_text().splitlines()]
    assert max(len(row["prompt"]) for row in rows if row["task"] == "arithmetic") == 3
