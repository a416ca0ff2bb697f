"""When a run saves, which checkpoints it keeps, and which weights its model has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from outdo import train
from outdo.errors import RecipeError, TaskError
from outdo.evals.held_out import Evaluation
from outdo.recipe.load import load_recipe
from outdo.runs.manifest import read_manifest
from outdo.training import evaluation
from outdo.training.best import best_of, deciding_number
from outdo.training.resume import read_state
from support.fakes import QuietReporter

SMALL: dict[str, Any] = {
    **{"sft_steps": 0, "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 8, "eval_split": "test"},
    **{"max_completion_length": 6, "eval_size": 2, "eval_samples": 0, "device": "cpu", "kl_limit": None},
    **{"lr_scheduler_type": "constant", "reward_funcs": "numeric,overlong", "learning_rate": 1e-3, "doctor": "quiet"},
}
WEIGHTS = "model.safetensors"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The success rates that evaluations come to, one after the other."""
    rates: list[float] = []

    def evaluate(prompts: Any, split: str, *rest: Any) -> Evaluation:
        return Evaluation(split, len(prompts), rates.pop(0), 0.0, 1.0)

    monkeypatch.setattr(evaluation, "evaluate_prompts", evaluate)
    yield rates
    assert not rates


def run(tmp_path: Path, **keys: Any) -> Any:
    return train(reporter=QuietReporter(), output_dir=str(tmp_path / "run"), **{**SMALL, **keys})


def saved(tmp_path: Path) -> list[int]:
    return [int(path.name[-6:]) for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]


def test_the_model_is_the_best_checkpoint(tmp_path: Path, scripted: list[float]) -> None:
    scripted += [0.1, 0.2, 0.9, 0.3, 0.4]
    result = run(tmp_path, eval_steps=1, save_strategy="no", save_total_limit=1, load_best_model_at_end=True)
    folder = tmp_path / "run"
    assert result.best.step == 2 and read_manifest(folder).best == {"step": 2, "metric": "success_rate", "value": 0.9}
    assert saved(tmp_path) == [2, 4]
    model, best, last = (load_file(folder / name / WEIGHTS) for name in ("model", *_checkpoints(2, 4)))
    assert all((model[name] == best[name]).all() for name in model)
    assert any((model[name] != last[name]).any() for name in model)
    # Resumed for longer, it goes on from the last step, and the best stays the best.
    scripted += [0.5, 0.6]
    longer = train(resume=folder, max_steps=6, reporter=QuietReporter())
    assert longer.best.step == 2 and saved(tmp_path) == [2, 6]
    assert read_state(folder / _checkpoints(6)[0])["step"] == 6


def _checkpoints(*steps: int) -> list[str]:
    return [f"checkpoints/step-{step:06d}" for step in steps]


def test_lower_may_be_better_and_the_last_the_best(tmp_path: Path, scripted: list[float]) -> None:
    scripted += [0.5, 0.4, 0.1]
    keys = {"load_best_model_at_end": True, "greater_is_better": False, "metric_for_best_model": "eval_success"}
    result = run(tmp_path, eval_steps=2, save_total_limit=None, save_steps=1, **keys)
    assert result.best.step == 4 and saved(tmp_path) == [0, 1, 2, 3, 4]
    assert read_manifest(tmp_path / "run").best["step"] == 4


def test_save_at_the_best_alone(tmp_path: Path, scripted: list[float]) -> None:
    scripted += [0.1, 0.3, 0.2, 0.3, 0.0]
    result = run(tmp_path, eval_steps=1, save_strategy="best", save_total_limit=None)
    assert saved(tmp_path) == [0, 1, 3, 4] and result.best is None  # of equals the last; the end is always saved


def test_epochs(tmp_path: Path, scripted: list[float]) -> None:
    """Seven prompts, two a step: epochs end in steps 4, 7 and 11."""
    rows = [{"prompt": f"{i}+{i}", "answer": 2 * i, "split": "train"} for i in range(7)]
    rows.append({"prompt": "9+9", "answer": 18, "split": "test"})
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scripted += [0.1, 0.2, 0.3, 0.4, 0.5]
    epochs = {"save_strategy": "epoch", "eval_strategy": "epoch", "max_steps": 12, "save_total_limit": None}
    run(tmp_path, dataset_name=str(tmp_path / "sums.jsonl"), task_args={}, **epochs)
    assert saved(tmp_path) == [0, 4, 7, 11, 12]
    with pytest.raises(TaskError, match="save_steps"):
        run(tmp_path / "other", save_strategy="epoch")


def test_what_decides() -> None:
    rows = [{"step": s, "split": "test", "success_rate": v, "pass@1": 1 - v} for s, v in ((0, 0.2), (5, 0.8), (9, 0.8))]
    by = {key: load_recipe(None, {"metric_for_best_model": key}) for key in (None, "pass@1", "eval_pass@1", "loudness")}
    assert best_of(rows, "test", by[None]).step == 9 and best_of(rows, "test", by[None], {0, 5}).step == 5
    assert best_of(rows, "test", by["pass@1"]).step == best_of(rows, "test", by["eval_pass@1"]).step == 0
    mixed = [
        {"step": s, "split": f"test/{n}", "success_rate": v}
        for s, n, v in ((1, "a", 1), (1, "b", 0), (2, "a", 0.6), (2, "b", 0.6))
    ]
    assert best_of(mixed, "test", by[None]).step == 2
    assert deciding_number(rows[0], "success") == ("success_rate", 0.2)
    with pytest.raises(RecipeError, match="pass@1"):
        best_of(rows, "test", by["loudness"])


def test_refused_without_evaluations() -> None:
    for keys in ({"load_best_model_at_end": True}, {"save_strategy": "best"}):
        with pytest.raises(RecipeError, match="eval_steps"):
            load_recipe(None, keys)
        load_recipe(None, {**keys, "eval_strategy": "epoch"})
