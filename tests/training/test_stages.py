"""Stages of one recipe: each from the model of the one before, in a folder of its own, resumed after a kill."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from rich.console import Console

from outdo import api
from outdo.errors import Halted, RecipeError
from outdo.evals.held_out import Evaluation, evaluate_prompts
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs.files import is_locked
from outdo.runs.held_out import read_answers
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_rows
from outdo.runs.writer import RunWriter
from outdo.training import evaluation
from outdo.training.console import PlainLines
from outdo.training.interrupts import Interrupted
from outdo.training.stages import prefixed, prior_evals, read_stages
from outdo.training.start import finished_result
from support.basics import ROOT
from support.harness import Forks

Outdo = Callable[..., "CompletedProcess[str]"]
STAGES = [{"stage": "sft", "epochs": 6}, {"stage": "grpo"}, {"stage": "harvest", "samples": 4}, {"stage": "sft"}]


def stages_of(*stages: dict[str, Any], **keys: Any) -> list[Any]:
    return read_stages(load_recipe(None, {"stages": list(stages), **keys}))


def test_keys_of_a_stage_go_over_the_common_ones() -> None:
    first, grpo, harvest, last = stages_of(
        {"stage": "sft", "epochs": 3, "learning_rate": 1e-4, "from": "previous"},
        {"stage": "grpo", "learning_rate": 1e-5, "max_steps": 7},
        {"stage": "harvest", "samples": 16, "temperature": 0.7},
        {"stage": "sft", "steps": 5},
        sft_learning_rate=0.5,
        max_steps=9,
        seed=4,
    )
    assert [s.name for s in (first, grpo, harvest, last)] == ["01-sft", "02-grpo", "03-harvest", "04-sft"]
    assert (first.recipe.sft_epochs, first.recipe.sft_steps, first.recipe.sft_learning_rate) == (3, 0, 1e-4)
    assert (grpo.recipe.learning_rate, grpo.recipe.max_steps, grpo.recipe.sft_steps) == (1e-5, 7, 0)  # no warm-up here
    assert (harvest.recipe.harvest_samples, harvest.recipe.temperature, harvest.recipe.seed) == (16, 0.7, 4)
    assert (last.recipe.sft_steps, last.recipe.sft_learning_rate) == (5, 0.5)
    assert [s.start for s in (first, grpo, harvest, last)] == ["previous", "previous", "previous", "first"]
    assert prefixed("sft", {"dataset_name": "a", "batch_size": 2, "num_train_epochs": 2, "seed": 1}) == {
        "dataset_name": "a", "sft_batch_size": 2, "sft_epochs": 2, "seed": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ({"stage": "rl"}, "stage 1: stage='rl' is not one of sft, grpo, harvest"),
        ({}, "stage=None is not one of"),
        ({"stage": "sft", "epoch": 2}, "stage 1, sft: .*did you mean"),
        ({"stage": "grpo", "num_generations": 7}, "stage 1, grpo: num_generations=7"),
        ({"stage": "grpo", "output_dir": "x"}, "output_dir belongs to the whole recipe"),
        ({"stage": "grpo", "from": "second"}, "from='second' is not one of first, previous"),
    ],
)
def test_a_stage_that_cannot_be_is_named(stage: dict[str, Any], part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        stages_of(stage)


def test_a_key_of_one_stage_on_the_command_line() -> None:
    recipe = load_recipe(ROOT / "recipes" / "stages_arithmetic.yaml", ["stages.2.max_steps=3", "stages.1.steps=5"])
    first, grpo, *_ = read_stages(recipe)
    assert (first.recipe.sft_steps, grpo.recipe.max_steps, grpo.recipe.sft_batch_size) == (5, 3, 32)
    with pytest.raises(RecipeError, match="N from 1 to 4"):
        load_recipe(ROOT / "recipes" / "stages_arithmetic.yaml", ["stages.5.max_steps=3"])


@pytest.mark.parametrize(
    ("kind", "go_on", "asked"),
    [
        ("harvest", api.train, "grpo"),
        ("harvest", api.sft, "sft"),
        ("grpo", api.sft, "sft"),
        ("grpo", api.harvest, "harvest"),
        ("sft", api.harvest, "harvest"),
    ],
)
def test_a_run_does_not_go_on_as_another_kind(kind: str, go_on: Any, asked: str, tmp_path: Path) -> None:
    """Not by GRPO from the start in a harvest's folder, nor with lessons from GRPO's checkpoint."""
    RunWriter.create(tmp_path / "run", load_recipe().model_dump(mode="json"), {"kind": kind}).close()
    with pytest.raises(RecipeError, match=f"of kind {kind}, not {asked}: resume it with"):
        go_on(resume=tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        (RecipeError("no such key"), "failed", "no such key"),
        (Halted("all broken"), "stopped", "all broken"),
        (Interrupted(15), "stopped", "SIGTERM"),
        (ZeroDivisionError("by 0"), "failed", "ZeroDivisionError: by 0"),
    ],
)
def test_whatever_ends_a_run_is_written_down(error: BaseException, status: str, why: str, tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", {}, {"kind": "stages"})
    with pytest.raises(type(error)), run.until_done():
        raise error
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.why) == (status, why)
    assert not is_locked(tmp_path / "run")


def desk(folder: Path) -> None:
    """Something that a tiny model learns in a second: whatever is asked, the answer is 7."""
    rows = [{"prompt": f"{i}?", "completion": "<answer>7</answer>", "answer": "7"} for i in range(40)]
    (folder / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"model_name_or_path": "tiny", "dataset_name": "shown.jsonl", "reward_funcs": ["numeric"], "device": "cpu"}
    keys |= {"max_completion_length": 24, "eval_samples": 0, "eval_size": 4, "num_generations": 2, "max_steps": 2}
    keys |= {"sft": {"batch_size": 4, "learning_rate": 3e-3}, "harvest": {"size": 8}, "stages": STAGES}
    (folder / "recipe.yaml").write_text(json.dumps(keys))  # YAML too


def same(one: Path, other: Path) -> None:
    evals = ("02-grpo/evals.jsonl", "04-sft/evals.jsonl")
    for name in ("01-sft/sft.jsonl", "02-grpo/groups/steps-000000.jsonl", "03-harvest/demonstrations.jsonl", *evals):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert (one / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()


def test_four_stages_one_after_the_other(outdo: Outdo, tmp_path: Path) -> None:
    desk(tmp_path)
    done = outdo("train", "recipe.yaml", "output_dir=steady")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "steady"
    manifests = [
        json.loads((run / name / "run.json").read_text()) for name in ("01-sft", "02-grpo", "03-harvest", "04-sft")
    ]
    assert [m["status"] for m in manifests] == ["done"] * 4
    models = [m["recipe"]["model_name_or_path"] for m in manifests]
    assert models == ["tiny", "steady/01-sft/model", "steady/02-grpo/model", "tiny"]
    assert manifests[3]["recipe"]["sft_dataset_name"] == "steady/03-harvest/demonstrations.jsonl"
    assert manifests[3]["recipe"]["sft_epochs"] == 1 and manifests[1]["recipe"]["sft_epochs"] == 0
    assert all(name in done.stdout.rpartition("after")[2] for name in ("01-sft", "02-grpo", "03-harvest", "04-sft"))
    assert (run / "model").resolve() == (run / "04-sft" / "model").resolve()
    other = outdo("train", "--resume", "steady", "seed=5")
    assert other.returncode == 2 and "seed was 0 and is 5" in other.stderr
    again = outdo("train", "--resume", "steady")
    assert again.returncode == 0 and again.stdout.count("done before") == 4


def rows_at(folder: Path, which: int) -> list[dict[str, Any]]:
    """Rows of a stage's first look or its last, without their step."""
    rows = list(read_rows(folder / "evals.jsonl"))
    step = (0, max(row["step"] for row in rows))[which]
    return [{key: row[key] for key in row if key != "step"} for row in rows if row["step"] == step]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits that models were asked, as they are asked."""
    seen: list[str] = []

    def counted(prompts: Any, split: str, *rest: Any) -> Evaluation:
        seen.append(split)
        return evaluate_prompts(prompts, split, *rest)

    monkeypatch.setattr(evaluation, "evaluate_prompts", counted)
    return seen


def test_a_model_is_measured_once_also_where_it_ends_one_stage_and_begins_the_next(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    desk(tmp_path)
    said = io.StringIO()
    reporter = PlainLines(Console(file=said, width=200))
    stages = [*STAGES[:3], {"stage": "sft", "epochs": 1}, {"stage": "grpo", "max_steps": 1, "eval_size": 3}]
    run = api.train("recipe.yaml", output_dir="run", eval_samples=2, stages=stages, reporter=reporter).folder
    # Before and after the first; after the second, and the fourth, which starts from the first model again; before
    # and after the last, which looks at fewer problems.
    assert asked == ["test"] * 6
    sft, grpo, again, last = (run / name for name in ("01-sft", "02-grpo", "04-sft", "05-grpo"))
    assert rows_at(grpo, 0) == rows_at(sft, -1) != rows_at(sft, 0)
    assert rows_at(again, 0) == rows_at(sft, 0)
    points = (sft, list(read_answers(sft))[-1]["step"]), (grpo, 0)
    answers = [{row["key"]: row["text"] for row in read_answers(*point)} for point in points]
    assert answers[0] == answers[1] and len(answers[0]) == 4, "the answers are carried over too"
    assert [row["n"] for row in rows_at(last, 0)] == [3]
    assert [row["n"] for row in rows_at(again, -1)] == [4] and "pass@2" in rows_at(grpo, 0)[0]
    assert said.getvalue().count("carried over from 01-sft: ") == 2 == said.getvalue().count("carried over")
    shutil.rmtree(again)
    shutil.rmtree(last)  # as if it had been killed after the harvest
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"status": "running"}))
    asked.clear()
    api.train(resume=run, reporter=reporter)
    assert asked == ["test"] * 3 and rows_at(again, 0) == rows_at(sft, 0)


def stage_done(folder: Path, recipe: Recipe, kind: str, rates: Sequence[float]) -> Path:
    run = RunWriter.create(folder, recipe.model_dump(mode="json"), {"kind": kind})
    for step, rate in enumerate(rates):
        run.record_eval(Evaluation("test", 4, rate, 0.0, 1.0, problems="them").row(step))
    run.finish("done")
    run.close()
    return folder


def known_rate(recipe: Recipe, kind: str, *earlier: Path) -> tuple[str, float] | None:
    prior = prior_evals(recipe.model_dump(mode="json"), kind, [finished_result(one, recipe) for one in earlier])
    return prior and (prior.run, prior.evaluations[0].success_rate)


def test_what_is_known_of_a_model_is_of_that_model(tmp_path: Path) -> None:
    base = load_recipe(None, {"model_name_or_path": "tiny", "sft_steps": 0})
    warm = base.model_copy(update={"sft_steps": 5})
    first = stage_done(tmp_path / "1", warm, "sft", [0.1, 0.2])
    trained = base.model_copy(update={"model_name_or_path": str(first / "model")})
    second = stage_done(tmp_path / "2", trained, "grpo", [0.2, 0.3, 0.4])
    reaped = base.model_copy(update={"model_name_or_path": str(second / "model")})
    third = stage_done(tmp_path / "3", reaped, "harvest", [])
    for model, found in (
        ("tiny", ("1", 0.1)),
        (str(first / "model"), ("2", 0.2)),
        (str(tmp_path / "3" / ".." / "2" / "model"), ("2", 0.4)),
        (str(third / "model"), None),
        ("smollm2", None),
    ):
        assert known_rate(base.model_copy(update={"model_name_or_path": model}), "grpo", first, second, third) == found
    assert known_rate(warm, "sft", first) == ("1", 0.1)
    assert known_rate(warm, "grpo", first) is None  # it is looked at after its warm-up
    warmed = stage_done(tmp_path / "4", warm, "grpo", [0.5, 0.6])
    assert known_rate(base, "grpo", warmed) is None
    after = warm.model_copy(update={"model_name_or_path": str(warmed / "model")})
    assert known_rate(after, "sft", warmed) == ("4", 0.6)
    four = base.model_copy(update={"load_in_4bit": True})
    fifth = stage_done(tmp_path / "5", four, "grpo", [0.7, 0.8])
    assert known_rate(four, "grpo", fifth) == ("5", 0.7)
    assert known_rate(four.model_copy(update={"model_name_or_path": str(fifth / "model")}), "grpo", fifth) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("dtype", "bfloat16"),
        ("sampler", "hf"),
        ("temperature", 0.5),
        ("max_completion_length", 9),
        ("stop", ["."]),
        ("eval_samples", 3),
        ("eval_ks", [2]),
        ("system_prompt", "Be brief."),
        ("task_args", {"digits": 3}),
        ("dataset_name", "countdown"),
        ("reward_funcs", ["exact"]),
        ("learning_rate", None),
    ],
)
def test_what_is_known_of_a_model_was_asked_in_the_same_way(key: str, value: Any, tmp_path: Path) -> None:
    base = load_recipe(None, {"sft_steps": 0})
    done = stage_done(tmp_path / "1", base, "grpo", [0.1, 0.2])
    here = base.model_copy(update={key: value} if value else {"learning_rate": 0.5, "max_steps": 7, "beta": 0.3})
    assert known_rate(here, "grpo", done) == (None if value else ("1", 0.1))


@pytest.mark.slow
def test_a_kill_in_any_of_the_stages(outdo: Outdo, forks: Forks, tmp_path: Path) -> None:
    desk(tmp_path)
    assert outdo("train", "recipe.yaml", "output_dir=steady").returncode == 0
    faults = [("imitate", 9), ("update", 2), ("pick", 3), ("imitate", 1)]  # one in each stage
    for point, nth in faults:
        fault = {"point": point, "nth": nth, "action": "kill"}
        words = ("train", "recipe.yaml", "output_dir=run", "resume=auto")
        assert forks.start(words, tmp_path, tmp_path / "log", tmp_path / "log", [fault]).wait() == -9, point
    done = outdo("train", "--resume", "run")
    assert done.returncode == 0 and done.stdout.count("done before") == 3, done.stderr
    same(tmp_path / "run", tmp_path / "steady")
