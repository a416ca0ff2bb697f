"""`outdo sweep` and `outdo compare` as a user runs them: real runs of the tiny model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.basics import ROOT
from support.harness import Forks

Outdo = Callable[..., subprocess.CompletedProcess[str]]
SHORT = [
    *("sft_steps=0", "num_generations=4", "per_device_train_batch_size=8", "max_completion_length=4", "save_steps=1"),
    *("eval_size=6", "eval_samples=2", "eval_split=test", "beta=0.01"),
]
WHOLE = [*SHORT, "max_steps=2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A grid of two rates and two seeds, run once."""
    folder = tmp_path_factory.mktemp("swept")
    words = ["sweep", *WHOLE, "learning_rate=1e-4,1e-3", "seed=0,1", "--out", "grid", "--parallel", "2"]
    return folder, forks.run(words, folder)


def rows_of(folder: Path) -> dict[str, dict[str, object]]:
    found = json.loads((folder / "sweep.json").read_text())
    return {row["name"]: row for row in found["cells"]}


def test_cells_are_runs(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = swept
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder / "grid")
    assert list(rows) == [f"learning-rate-{rate}-seed-{seed}" for rate in ("1e-4", "1e-3") for seed in (0, 1)]
    for name, row in rows.items():
        run = folder / "grid" / f"cell-{name}"
        recipe = json.loads((run / "run.json").read_text())["recipe"]
        assert recipe["learning_rate"] == row["keys"]["learning_rate"] and recipe["seed"] == row["keys"]["seed"]  # type: ignore[index]
        last = [json.loads(line) for line in (run / "evals.jsonl").open()][-1]
        assert row["status"] == "done" and row["success_rate"] == last["success_rate"] and row["n"] == 6
        assert row["verdicts"] == last["verdicts"] and row["low"] == pytest.approx(last["low"], abs=1e-6)
        steps = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        assert row["kl_mean"] == pytest.approx(sum(step["kl_mean"] for step in steps) / 2)
        assert row["seconds"] == pytest.approx(sum(step["time/step"] for step in steps))
    assert len(re.findall(r"^\[\d/4\] .* ETA \d+ (?:s|min)$", done.stdout, re.MULTILINE)) == 4
    assert (folder / "grid" / "sweep.png").stat().st_size > 1000


def test_repeat_and_other_sweep(swept: tuple[Path, subprocess.CompletedProcess[str]], forks: Forks) -> None:
    folder, _ = swept
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    words = ["sweep", *WHOLE, "learning_rate=1e-4,1e-3", "seed=0,1", "--out", "grid"]
    again = forks.run([*words, "--report", "page.md", "--json"], folder)
    assert again.returncode == 0 and "4 of 4 cells are already done" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")} == before
    assert json.loads(again.stdout)["pick"] == json.loads((folder / "grid" / "sweep.json").read_text())["pick"]
    page = (folder / "page.md").read_text()
    assert page.count("| learning_rate=") == 2 and "4 of 4 ended" in page and (folder / "page.png").exists()
    for changed, part in (
        (["sweep", *WHOLE, "learning_rate=1e-4,1e-3", "seed=0,1", "temperature=0.9"], "temperature was 1.0 and is 0.9"),
        (["sweep", *WHOLE, "learning_rate=1e-4,1e-3"], "it has a cell"),
    ):
        refused = forks.run([*changed, "--out", "grid"], folder)
        assert refused.returncode == 2 and "holds another sweep" in refused.stderr and part in refused.stderr
    (folder / "full").mkdir()
    (folder / "full" / "x").write_text("x")
    refused = forks.run([*words[:-1], "full"], folder)
    assert refused.returncode == 2 and "holds no sweep" in refused.stderr


def test_compare(swept: tuple[Path, subprocess.CompletedProcess[str]], forks: Forks) -> None:
    folder, _ = swept
    runs = [f"grid/cell-learning-rate-{rate}-seed-0" for rate in ("1e-4", "1e-3")]
    said = forks.run(["compare", *runs], folder)
    assert said.returncode == 0 and re.search(r"learning_rate +0.0001 +0.001", said.stdout)
    assert "within noise" in said.stdout and "not paired" not in said.stdout
    found = json.loads(forks.run(["compare", *runs, "--json"], folder).stdout)
    assert list(found["differing"]) == ["learning_rate"] and found["differences"][0]["paired"] is True
    rows = [run["success_rate"] for run in found["runs"]]
    assert found["differences"][0]["difference"] == pytest.approx(rows[1] - rows[0])
    assert found["answers"][0]["split"] == "test" and sum(found["answers"][0]["counts"].values()) > 0
    of_models = forks.run(["compare", *(f"{run}/model" for run in runs), "--json"], folder)
    assert json.loads(of_models.stdout) == found, of_models.stderr
    said = forks.run(["compare", *runs, "--answers"], folder)
    assert re.search(r"held-out answers \(test, \d+ problems\).*\n +\d+ gained, \d+ lost", said.stdout), said.stderr
    said = forks.run(["compare", "--answers=1", runs[0]], folder)
    assert said.returncode == 0 and "before training → after step" in said.stdout
    for words, part in (
        ([runs[0]], "nothing to compare with"),
        ([runs[0], "grid"], "holds a sweep, not a run: name its cells"),
        ([runs[0], "nowhere"], "nowhere holds no run"),
        ([runs[0], runs[0]], "named twice"),
        ([runs[0], f"{runs[0]}/model"], "named twice"),
    ):
        bad = forks.run(["compare", *words], folder)
        assert bad.returncode == 2 and part in bad.stderr and "Traceback" not in bad.stderr
    old = folder / "old"
    shutil.copytree(folder / runs[1], old)
    kept = [json.loads(line) for line in (old / "evals.jsonl").open()]
    bare = [{key: v for key, v in row.items() if key not in ("verdicts", "problems")} for row in kept]
    (old / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    assert "the difference is not paired" in forks.run(["compare", runs[0], "old"], folder).stdout
    (old / "evals.jsonl").unlink()
    assert "no held-out evaluation" in forks.run(["compare", runs[0], "old"], folder).stdout


DIES = """
import os
from outdo import Prompt, task

@task(rewards=["numeric"])
def sums(split, seed):
    for i in range(1000):
        if i == 20:
            os.kill(os.getpid(), 9)
        yield Prompt(f"{split} {i}", ({"role": "user", "content": f"{i}+1"},), str(i + 1))
"""
RECIPE = """
per_device_train_batch_size: 16
num_generations: 4
max_completion_length: 8
reward_funcs: [numeric, overlong]
beta: 0.01
learning_rate: 1.0e-4
max_steps: 5
eval_size: 6
eval_samples: 0
eval_split: [test]
sft_batch_size: 4
sweep:
  prepare: {sft_steps: 2, eval_size: 1}
  cells:
    plain: {max_steps: 1}
    wild: {learning_rate: 0.1, kl_limit: 1.0e-9}
    lost: {dataset_name: "dies.py:sums"}
"""


def test_halted_failed_prepare(tmp_path: Path, outdo: Outdo) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    (tmp_path / "r.yaml").write_text(RECIPE)
    done = outdo("sweep", "r.yaml", "--out", "s")
    rows = rows_of(tmp_path / "s")
    assert done.returncode == 1 and "1 of 3 cells failed" in done.stderr and "cell-lost.log" in done.stderr, (
        done.stderr + done.stdout
    )
    assert rows["plain"]["status"] == "done" and rows["wild"]["status"] == "halted"
    assert "kl_limit" in str(rows["wild"]["why"])
    assert (rows["lost"]["status"], rows["lost"]["why"]) == ("failed", "killed by SIGKILL")
    recipe = json.loads((tmp_path / "s" / "cell-plain" / "run.json").read_text())["recipe"]
    assert recipe["model_name_or_path"] == str(tmp_path / "s" / "prepare" / "model") and recipe["sft_steps"] == 0
    assert json.loads((tmp_path / "s" / "prepare" / "run.json").read_text())["kind"] == "sft"
    pick = json.loads((tmp_path / "s" / "sweep.json").read_text())["pick"]
    assert pick["setting"] in ("plain", None)


@pytest.mark.slow
def test_stop_and_resume(tmp_path: Path, forks: Forks) -> None:
    words = ["sweep", *SHORT, "max_steps=16", "seed=0,1", "--out", "s", "--parallel", "2"]
    out, err = tmp_path / "out", tmp_path / "err"
    child = forks.start(words, tmp_path, out, err)
    runs = [tmp_path / "s" / f"cell-the-recipe-seed-{seed}" for seed in (0, 1)]
    until = time.monotonic() + 60
    while not all((run / "metrics.jsonl").exists() for run in runs) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 130 and "the same command resumes s" in err.read_text()
    for run in runs:
        manifest = json.loads((run / "run.json").read_text())
        assert manifest["status"] == "done" or manifest["why"].startswith("SIGTERM after step")
    assert any(row["status"] == "stopped" for row in rows_of(tmp_path / "s").values())
    done = forks.run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    for run in runs:
        manifest = json.loads((run / "run.json").read_text())
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").open()]
        assert manifest["status"] == "done" and steps == list(range(1, 17))
    assert any(json.loads((run / "run.json").read_text()).get("resumed") for run in runs)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["beta=0,1", "dataset_name=arithmetik"], "cell beta-0: "),
        (["beta=0,1", "reward_funcs=nummeric"], "cell beta-0: "),
        (["beta=0,1", "--only", "beta=2"], "the settings are beta=0, beta=1"),
        (["missing.yaml"], "no such recipe"),
    ],
)
def test_bad_input(words: list[str], part: str, tmp_path: Path, outdo: Outdo) -> None:
    done = outdo("sweep", *words)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_sweep_recipe_is_not_trained(tmp_path: Path, outdo: Outdo) -> None:
    done = outdo("train", str(ROOT / "recipes" / "ablation_variants.yaml"))
    assert done.returncode == 2 and "outdo sweep FILE" in done.stderr
    listed = outdo("sweep", str(ROOT / "recipes" / "ablation_variants.yaml"), "--dry-run")
    assert listed.returncode == 0 and "120 cells" in listed.stdout and not (tmp_path / "runs").exists()
