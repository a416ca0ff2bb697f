"""A real output folder of TRL's GRPOTrainer as a run of ours."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from outdo.errors import PlaceError
from outdo.runs.find import find_run, find_viewable, place_beside, try_find_viewable
from support.foreign import STEPS, again, groups, manifest, rows, trl_run, view

EVALUATED = [4, 8]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return trl_run(tmp_path / "theirs")


def logged(source: Path) -> list[dict[str, float]]:
    state = json.loads((source / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [row for row in state["log_history"] if "reward" in row]


def test_metrics_under_our_names(source: Path) -> None:
    for ours, theirs in zip(rows(view(source)), logged(source), strict=True):
        assert ours["step"] == theirs["step"]
        pairs = {
            "reward_mean": theirs["reward"],
            "reward_std": theirs["reward_std"],
            "reward/wordy_reward": theirs["rewards/wordy_reward/mean"],
            "kl_mean": theirs["kl"],
            "entropy_mean": theirs["entropy"],
            "len_mean": theirs["completions/mean_length"],
            "truncated": theirs["completions/clipped_ratio"],
            "clipfrac": theirs["clip_ratio/region_mean"],
            "informative": 1 - theirs["frac_reward_zero_std"],
            "time/step": theirs["step_time"],
            "lr": theirs["learning_rate"],
        }
        assert {name: ours[name] for name in pairs} == pytest.approx(pairs, rel=1e-5)
        assert "tokens" not in ours, "TRL counts prompts too"


def test_success_is_known_from_the_answers(source: Path) -> None:
    folder = view(source)
    for row, theirs in zip(rows(folder), logged(source), strict=True):
        if row["step"] not in EVALUATED:
            assert row["success_rate"] == pytest.approx(theirs["rewards/accuracy_reward/mean"], rel=1e-5)
    assert {answer["verdict"] for row in groups(folder) for answer in row["completions"]} == {"right", "wrong"}
    shutil.rmtree(source / "completions")
    again(folder)
    assert not any("success_rate" in row for row in rows(folder))


def test_groups(source: Path) -> None:
    written = pq.read_table(source / "completions" / "completions_00003.parquet").to_pylist()
    found = [row for row in groups(view(source)) if row["step"] == 3]
    answers = [answer for row in found for answer in row["completions"]]
    assert [len(row["completions"]) for row in found] == [4, 4]
    assert [row["messages"][0]["content"] for row in found] == list(dict.fromkeys(row["prompt"] for row in written))
    for ours, theirs in zip(answers, written, strict=True):
        assert ours["text"] == theirs["completion"]
        assert ours["advantage"] == pytest.approx(theirs["advantage"])
        assert ours["parts"] == pytest.approx({name: theirs[name] for name in ("accuracy_reward", "wordy_reward")})
        assert ours["reward"] == pytest.approx(theirs["accuracy_reward"] + 0.5 * theirs["wordy_reward"])
        assert ours["num_tokens"] is None and ours["finish"] == ""


def test_answers_of_an_evaluation(source: Path) -> None:
    """TRL writes them over those of the step: they are not taken for answers of training."""
    folder = view(source)
    assert [row["step"] for row in rows(folder) if "success_rate" not in row] == EVALUATED
    assert {row["step"] for row in groups(folder)} == set(range(1, STEPS)) - {*EVALUATED}
    (note,) = manifest(folder)["notes"]
    assert "2 steps" in note


def test_settings_and_status(source: Path) -> None:
    found = manifest(view(source))
    assert (found["status"], found["trainer"], found["source"]) == ("done", "TRL", str(source))
    settings = {"beta": 0.04, "num_generations": 4, "learning_rate": 0.01, "reward_weights": [1.0, 0.5]}
    assert {name: found["recipe"][name] for name in settings} == settings
    assert found["recipe"]["reward_funcs"] == ["accuracy_reward", "wordy_reward"]
    assert "output_dir" not in found["recipe"] and "model_name_or_path" not in found["recipe"]


def test_held_out(source: Path) -> None:
    state = json.loads((source / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    held = {r["step"]: r["eval_rewards/accuracy_reward/mean"] for r in state["log_history"] if "eval_reward" in r}
    found = {row["step"]: row["success_rate"] for row in rows(view(source), "evals.jsonl")}
    assert found == pytest.approx(held)
    assert list(found) == [4, 8]


def test_weights_that_are_unknown(source: Path) -> None:
    """Without TensorBoard's file nothing says the weights, and the logged reward is not the sum of its parts."""
    shutil.rmtree(source / "runs")
    folder = view(source)
    assert {answer["reward"] for row in groups(folder) for answer in row["completions"]} == {None}
    assert rows(folder)[0]["reward_mean"] == pytest.approx(logged(source)[0]["reward"])


def test_a_run_in_progress(tmp_path: Path) -> None:
    """Before the first checkpoint there are event files and answers; answers alone give what they say."""
    source = trl_run(tmp_path / "theirs")
    for step in range(4, STEPS + 1):
        (source / "completions" / f"completions_{step:05d}.parquet").unlink()
    for name in ("checkpoint-8", "runs"):
        shutil.rmtree(source / name)
    os.utime(source / "completions" / "completions_00003.parquet")
    folder = view(source)
    assert manifest(folder)["status"] == "running"
    assert [row["step"] for row in rows(folder)] == [1, 2, 3]
    assert set(rows(folder)[0]) == {"step", "reward/accuracy_reward", "reward/wordy_reward", "success_rate"}
    trl_run(tmp_path / "rest")
    shutil.copy(tmp_path / "rest" / "completions" / "completions_00004.parquet", source / "completions")
    again(folder)
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    assert groups(folder)[-1]["step"] == 4
    shutil.copytree(tmp_path / "rest" / "checkpoint-8", source / "checkpoint-8")
    again(folder)
    assert len(rows(folder)) == STEPS
    assert manifest(folder)["status"] == "done"


def test_which_folders_hold_one(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PlaceError):
        find_run(source)  # what trains, exports or chats takes runs of ours only
    assert manifest(find_viewable(tmp_path))["source"] == str(source), "the only one below"
    assert find_viewable(source) == find_viewable(source), "translated once"
    assert try_find_viewable(tmp_path / "nothing") is None
    assert place_beside(view(source), "report.html") == source / "report.html"
    checkpoint = source / f"checkpoint-{STEPS}"
    assert len(rows(view(checkpoint))) == len(rows(view(checkpoint / "trainer_state.json"))) == STEPS
    trl_run(tmp_path / "more")
    with pytest.raises(PlaceError, match="2 runs"):
        find_viewable(tmp_path)


def test_a_source_that_goes_away(source: Path) -> None:
    folder = view(source)
    shutil.rmtree(source)
    again(folder)
    assert not (folder / "run.json").exists()


def test_a_run_that_was_continued(source: Path) -> None:
    """The folder's own state is of the first training; a later checkpoint is further."""
    checkpoint = source / f"checkpoint-{STEPS}"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    early = {
        **state,
        "global_step": 4,
        "max_steps": 4,
        "log_history": [r for r in state["log_history"] if r["step"] < 5],
    }
    (source / "trainer_state.json").write_text(json.dumps(early))
    shutil.rmtree(source / "runs")
    folder = view(source)
    assert len(rows(folder)) == STEPS and manifest(folder)["recipe"]["max_steps"] == STEPS
