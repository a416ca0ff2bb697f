"""Callbacks: what they see of a run, and how they steer it. Real runs of the tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outdo import Callback, EarlyStopping, sft, train
from outdo.errors import Halted, OutdoError, RecipeError
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_evals, read_metrics, read_sft
from support.fakes import QuietReporter

SMALL: dict[str, Any] = {
    **{"sft_steps": 2, "sft_batch_size": 4, "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 8},
    **{"max_completion_length": 6, "eval_size": 2, "eval_samples": 0, "device": "cpu", "kl_limit": None},
    **{"lr_scheduler_type": "constant", "reward_funcs": "numeric,overlong", "learning_rate": 1e-4},
}


def run(tmp_path: Path, *callbacks: Callback, **keys: Any) -> Any:
    return train(
        reporter=QuietReporter(), callbacks=list(callbacks), output_dir=str(tmp_path / "run"), **{**SMALL, **keys}
    )


class Log(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_start(self, run: Any) -> None:
        self.events.append(("start", run.done))

    def on_sft_step(self, run: Any, row: Any) -> None:
        self.events.append(("sft", row["step"]))

    def on_step(self, run: Any, step: int, metrics: Any, groups: Sequence[Any]) -> None:
        assert metrics["reward_mean"] is not None and len(groups) == 2 and groups[0].advantages
        self.events.append(("step", step))

    def on_step_end(self, run: Any, done: int) -> None:
        self.events.append(("step_end", done))

    def on_eval(self, run: Any, step: int, evaluations: Sequence[Any]) -> None:
        self.events.append(("eval", step))

    def on_save(self, run: Any, step: int, folder: Path) -> None:
        assert (folder / "manifest.json").exists()
        self.events.append(("save", step))

    def on_end(self, run: Any, status: str, why: str) -> None:
        self.events.append(("end", status))


def test_order_of_events(tmp_path: Path) -> None:
    log = Log()
    run(tmp_path, log, eval_steps=2, max_steps=3, save_steps=2)
    events = [event for event in log.events if event[0] != "save"]
    assert events == [
        *[("sft", 1), ("sft", 2), ("eval", 0), ("start", 0)],
        *[("step", 1), ("step_end", 1), ("step", 2), ("eval", 2), ("step_end", 2), ("step", 3), ("step_end", 3)],
        *[("eval", 3), ("end", "done")],
    ]
    assert [step for name, step in log.events if name == "save"] == [0, 0, 2, 3]


class At(Callback):
    """Does something at one step."""

    def __init__(self, step: int, action: Any) -> None:
        self.at, self.action = step, action

    def on_step(self, run: Any, step: int, metrics: Any, groups: Sequence[Any]) -> None:
        if step == self.at:
            self.action(run)


def test_halt_keeps_the_model(tmp_path: Path) -> None:
    log = Log()
    with pytest.raises(Halted, match="enough"):
        run(tmp_path, At(2, lambda run: run.halt("enough")), log)
    assert ("end", "stopped") in log.events and ("step", 2) in log.events and ("step_end", 2) not in log.events
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "stopped" and manifest.why == "enough"
    assert len(list(read_metrics(tmp_path / "run"))) == 2 and (tmp_path / "run" / "model" / "config.json").exists()
    assert ("eval", 2) in log.events and ("save", 2) in log.events
    result = train(resume=tmp_path / "run", reporter=QuietReporter())
    assert [row["step"] for row in read_metrics(result.folder)] == [1, 2, 3, 4]


def test_finish_early_is_a_finished_run(tmp_path: Path) -> None:
    result = run(tmp_path, At(2, lambda run: run.finish_early("solved")))
    manifest = read_manifest(result.folder)
    assert (manifest.status, manifest.why) == ("done", "solved") and result.after
    assert [row["step"] for row in read_evals(result.folder) if row["split"] == "test"] == [0, 2]


def test_rate_is_scaled_from_the_next_step_on(tmp_path: Path) -> None:
    result = run(tmp_path, At(2, lambda run: run.learner.scale_rate(0.5)))
    assert [row["lr"] for row in read_metrics(result.folder)] == [1e-4, 1e-4, 5e-5, 5e-5]


def test_what_a_callback_raises_names_it(tmp_path: Path) -> None:
    with pytest.raises(OutdoError, match=r"callback .*At failed in on_step: ZeroDivisionError"):
        run(tmp_path, At(2, lambda run: 1 / 0))
    assert read_manifest(tmp_path / "run").status == "failed"


def test_by_name_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from outdo import Callback\n"
        "class Stop(Callback):\n"
        "    def on_step(self, run, step, metrics, groups):\n"
        "        run.finish_early('by name')\n"
        "def no_callback(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    result = train(reporter=QuietReporter(), output_dir="run", callbacks=["mine.py:Stop"], **SMALL)
    assert read_manifest(result.folder).why == "by name"
    for name in ("mine.py:no_callback", "mine.py:nothing", "early_stoping"):
        with pytest.raises(RecipeError):
            train(reporter=QuietReporter(), callbacks=[name], **SMALL)


def test_early_stopping_is_exact_over_a_resume(tmp_path: Path) -> None:
    stopping = EarlyStopping(patience=2)
    result = run(tmp_path, stopping, eval_steps=1, max_steps=8)
    assert read_manifest(result.folder).status == "done"
    done = max(row["step"] for row in read_metrics(result.folder))
    assert done == 3, "nothing improves on the first evaluation"
    assert stopping.state() == {"best": 0.0, "since": 2, "metric": "success"}
    again = EarlyStopping(patience=2)
    again.load_state(stopping.state())
    assert (again.best, again.since) == (0.0, 2)


def test_finish_early_measures_the_final_splits(tmp_path: Path) -> None:
    stop = At(2, lambda run: run.finish_early("solved"))
    result = run(tmp_path, stop, eval_steps=2, eval_split=["test"], final_eval_split=["ood"])
    assert [(row["step"], row["split"]) for row in read_evals(result.folder)] == [(0, "test"), (2, "test"), (2, "ood")]
    assert [one.split for one in result.after] == ["test", "ood"]
    again = train(resume=result.folder, reporter=QuietReporter())
    assert [one.split for one in again.after] == ["test", "ood"], "there is nothing to do, and the result is the same"


def test_halt_in_supervised_training(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_sft_step(self, run: Any, row: Any) -> None:
            if row["step"] == 2:
                run.halt("enough")

    with pytest.raises(Halted, match="enough"):
        sft(reporter=QuietReporter(), callbacks=[Stop()], output_dir=str(tmp_path / "run"), **{**SMALL, "sft_steps": 5})
    assert len(list(read_sft(tmp_path / "run"))) == 2
    assert read_manifest(tmp_path / "run").why == "enough" and (tmp_path / "run" / "model" / "config.json").exists()
    with pytest.raises(Halted, match="enough"):
        train(reporter=QuietReporter(), callbacks=[Stop()], output_dir=str(tmp_path / "grpo"), **SMALL)
    assert read_manifest(tmp_path / "grpo").why == "enough" and (tmp_path / "grpo" / "checkpoints").exists()


class StopSFT(Callback):
    def on_sft_step(self, run: Any, row: Any) -> None:
        if row["step"] == 2:
            run.finish_early("enough")


def test_finish_early_in_supervised_training(tmp_path: Path) -> None:
    keys = {**SMALL, "sft_steps": 5, "output_dir": str(tmp_path / "run")}
    result = sft(reporter=QuietReporter(), callbacks=StopSFT(), **keys)
    manifest = read_manifest(result.folder)
    assert (manifest.status, manifest.why) == ("done", "enough")
    assert len(list(read_sft(result.folder))) == 2 and [one.split for one in result.after] == ["test", "ood"]
    assert {row["step"] for row in read_evals(result.folder)} == {0, 2}


def test_finish_early_in_the_warm_up_ends_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, StopSFT(), sft_steps=5)
    assert read_manifest(result.folder).why == "enough"
    assert len(list(read_sft(result.folder))) == 2 and not list(read_metrics(result.folder))
    assert [one.problems for one in result.after] == [one.problems for one in result.before] and result.after


def test_early_stopping_by_keys(tmp_path: Path) -> None:
    result = run(tmp_path, early_stopping_patience=1, early_stopping_threshold=0.5, eval_steps=1, max_steps=8)
    assert max(row["step"] for row in read_metrics(result.folder)) == 2
    with pytest.raises(RecipeError, match="eval_steps"):
        train(reporter=QuietReporter(), callbacks="early_stopping", **SMALL)


def test_two_callbacks_of_one_class_keep_their_own_state(tmp_path: Path) -> None:
    class Count(Callback):
        def __init__(self, start: int) -> None:
            self.count = start

        def on_step(self, run: Any, step: int, metrics: Any, groups: Sequence[Any]) -> None:
            self.count += 1

        def state(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state(self, state: Any) -> None:
            self.count = state["count"]

    folder = run(tmp_path, Count(0), Count(10), max_steps=2).folder
    ones, tens = Count(0), Count(0)
    train(resume=folder, reporter=QuietReporter(), callbacks=[ones, tens], max_steps=3)
    assert (ones.count, tens.count) == (3, 13)
