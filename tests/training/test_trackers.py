"""Trackers: what the real tools store of a run, that nothing is sent twice, and that none can harm a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from outdo.doctor.finding import Change, Evidence, Finding
from outdo.errors import RecipeError
from outdo.evals.held_out import Evaluation
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs.manifest import holds_run
from outdo.runs.writer import RunWriter
from outdo.training import tracker_backends, trackers
from outdo.training.trackers import (
    TRACKERS,
    Tracker,
    Trackers,
    eval_values,
    sample_answers,
    select_trackers,
    step_values,
)
from support.folders import group, numbers
from support.harness import Bench, same

RECIPE = Recipe(max_steps=4, run_name="a run: «one»", project="my project", reward_funcs=["numeric"])
EVAL = {"split": "test/a", "n": 10, "success_rate": 0.5, "low": 0.2, "high": 0.8, "pass@10": 0.75, "problems": "ab"}
EVAL |= {"temperature": 1.0, "broken": 0}


def follow(folder: Path, names: Sequence[str], steps: range, completed: bool = True) -> list[str]:
    """Tracks a run, new or resumed; returns the messages."""
    messages: list[str] = []
    recipe = RECIPE.model_copy(update={"report_to": list(names)})
    keys = recipe.model_dump(mode="json")
    run = RunWriter.reopen(folder) if holds_run(folder) else RunWriter.create(folder, keys, {"kind": "grpo"})
    tracked, itself = Trackers.of(run, recipe, messages.append), cast(Any, None)  # a tracker does not look at the run
    for step in range(2):
        tracked.on_sft_step(itself, {"step": step + 1, "loss": 2.0 - step, "lr": 1e-3})
    tracked.on_eval(itself, 0, [Evaluation.of(EVAL)])
    for step in steps:
        groups = [group("1+1", ["<b>`2`</b>", "no"], [1.0, 0.0])]
        tracked.on_step(itself, step + 1, numbers(step, step / 10, kl_mean=None), groups)
    evidence = (Evidence("kl_mean", 0.01, 0.5),)
    tracked.on_finding(itself, 1, Finding("kl_blowup", "critical", 1, evidence, Change("beta", 0.0, 0.04)))
    tracked.on_eval(itself, steps.stop, [Evaluation.of(EVAL)])
    tracked.on_end(itself, "done" if completed else "stopped", "")
    run.close()
    return messages


def check(found: list[tuple[str, int, float]]) -> None:
    """Four steps, the second and third of which were computed twice, each sent once."""
    rewards = sorted((step, value) for name, step, value in found if name == "train/reward_mean")
    assert [step for step, _ in rewards] == [1, 2, 3, 4]
    assert [value for _, value in rewards] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert sorted(step for name, step, _ in found if name == "sft/loss") == [1, 2]
    assert sorted((s, v) for n, s, v in found if n == "eval/test/a/pass_at_10") == [(0, 0.75), (3, 0.75), (4, 0.75)]
    names = {name for name, _, _ in found}
    assert {"time/rollout", "train/reward/numeric", "eval/test/a/success_rate"} <= names
    assert not {name for name in names if "kl_mean" in name}, "what was not measured is not sent"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy."""
    monkeypatch.setattr(trackers, "CLOSE_TIMEOUT", 120.0)


def needs(*packages: str) -> Any:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: pip install 'outdo[track]'")


# --- the tools themselves


@needs("tensorboard")
def test_tensorboard(tmp_path: Path, patient: None) -> None:
    assert follow(tmp_path / "run", ["tensorboard"], range(3)) == []
    assert follow(tmp_path / "run", ["tensorboard"], range(1, 4)) == []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "run/tensorboard"))
    read.Reload()
    check([(tag, e.step, e.value) for tag in read.Tags()["scalars"] for e in read.Scalars(tag)])
    texts = {tag: [e.tensor_proto.string_val[0].decode() for e in read.Tensors(tag)] for tag in read.Tags()["tensors"]}
    assert "max_steps: 4" in texts["recipe"][0] and len(texts["recipe"]) == 1
    assert "try beta=0.04" in texts["findings/kl_blowup"][0] and len(texts["findings/kl_blowup"]) == 1
    assert "````" not in texts["answers"][0] and "\n<b>`2`</b>\n" in texts["answers"][0]


@pytest.mark.slow
@needs("wandb")
def test_wandb_offline(tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    messages = follow(tmp_path / "run", ["wandb"], range(3), completed=False)
    assert len(messages) == 1 and "no key or no network" in messages[0] and "wandb sync" in messages[0]
    follow(tmp_path / "run", ["wandb"], range(1, 4))
    files = sorted((tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({path.name for path in files}) == 1, "two sessions of one run"
    records = [record for path in files for record in complete_records(path)]
    found = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = row.get("step", row.get("sft/step"))
            found += [(name, step, value) for name, value in row.items() if isinstance(value, (int, float))]
            assert "answers" not in row or row["answers"]["ncols"] == 6
    check([row for row in found if not row[0].startswith("_") and not row[0].endswith("step")])
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {run.display_name for run in runs} == {"a run: «one»"} and {run.project for run in runs} == {"my project"}
    assert any("kl_blowup" in run.tags for run in runs) and any("try beta=0.04" in run.notes for run in runs)


def complete_records(path: Path) -> list[Any]:
    """wandb's own process writes the file, and may still do so after a run is finished."""
    end = time.monotonic() + 60
    while True:
        records = list(wandb_records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < end, "the file never came to its end"
        time.sleep(0.2)


def wandb_records(path: Path) -> Iterator[Any]:
    """The file is a LevelDB log: blocks of 32 KiB, in them pieces with a checksum, a length and a kind."""
    from wandb.proto import wandb_internal_pb2

    data, at, piece = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + length > len(data):  # still being written
            return
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            yield record
            piece = b""


@pytest.mark.slow
@needs("mlflow", "sqlalchemy")
def test_mlflow(tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert follow(tmp_path / "run", ["mlflow"], range(3), completed=False) == []
    assert follow(tmp_path / "run", ["mlflow"], range(1, 4)) == []
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("my project")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    history = [each for name in run.data.metrics for each in client.get_metric_history(run.info.run_id, name)]
    check([(each.key, each.step, each.value) for each in history])
    assert run.info.run_name == "a run: «one»" and run.info.status == "FINISHED"
    assert run.data.params["max_steps"] == "4" and run.data.params["reward_funcs"] == '["numeric"]'
    assert "try beta=0.04" in run.data.tags["finding.kl_blowup"]
    kept = client.list_artifacts(run.info.run_id, "answers")
    assert [file.path for file in kept] == [f"answers/step-00000{step}.md" for step in (1, 2, 3, 4)]


@pytest.mark.slow
@needs("trackio")
def test_trackio(tmp_path: Path) -> None:
    """In a process of its own: trackio reads its variables when it is imported."""
    here = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
    code = f"""
import sys
from pathlib import Path
import test_trackers as t
t.trackers.CLOSE_TIMEOUT = 120
folder = Path({str(tmp_path)!r}) / "run"
messages = t.follow(folder, ["trackio"], range(3), completed=False) + t.follow(folder, ["trackio"], range(1, 4))
assert messages == [], messages
import trackio
from trackio.sqlite_storage import SQLiteStorage
(run,) = trackio.Api().runs("my project")
rows = SQLiteStorage.get_logs("my project", run.name, run_id=run.id)
t.check([(n, row["step"], v) for row in rows for n, v in row.items() if isinstance(v, (int, float)) and n != "step"])
assert run.config["max_steps"] == 4, run.config
(alert,) = run.alerts()
assert alert["title"] == "kl_blowup" and "try beta=0.04" in alert["text"]
tables = [row["answers"] for row in rows if "answers" in row]
assert len(tables) == 4 and "<b>`2`</b>" in str(tables[0]), tables
"""
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": here, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


# --- a run is never harmed


@needs("tensorboard")
@pytest.mark.slow
def test_tracked_run_is_identical(bench: Bench, steady: Path) -> None:
    """Killed in its fifth step, after the checkpoint of its fourth; the fifth is computed again, and sent once."""
    fault = {"point": "record", "nth": 6, "action": "kill"}
    words = ("report_to=tensorboard",)
    statuses = [bench.train("tracked", *words, faults=[fault]), bench.train("tracked", *words)]
    assert statuses[-1] == 0, bench.said()
    same(bench.folder / "tracked", steady)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(bench.folder / "tracked/tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("train/reward_mean")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in read.Scalars("eval/test/success_rate")] == [0, 3, 6]
    assert "recipe" in read.Tags()["tensors"] and "sft/loss" in read.Tags()["scalars"]


class FaultyTool:
    """Fails or hangs where it is opened, used, or closed."""

    where: ClassVar[str] = ""
    how: ClassVar[str] = ""
    steps: ClassVar[list[int]]
    go: ClassVar[threading.Event]

    def __init__(self, subject: tracker_backends.Subject) -> None:
        self._do("open")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._do("numbers")
        self.steps.append(step)

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finding(self, step: int, code: str, text: str) -> None: ...

    def close(self, completed: bool) -> None:
        self._do("close")

    def _do(self, where: str) -> None:
        if where == self.where:
            if self.how == "slow":
                time.sleep(0.05)
            elif self.how == "hang":
                self.go.wait(60)
            elif self.how == "exit":
                sys.exit("no key")
            else:
                raise OSError("the server is gone\nreally")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyTool]]:
    class Case(FaultyTool):
        steps: ClassVar[list[int]] = []
        go: ClassVar[threading.Event] = threading.Event()

    monkeypatch.setitem(TRACKERS, "wandb", Tracker("json", "faulty", Case))
    monkeypatch.setattr(trackers, "CLOSE_TIMEOUT", 0.4)
    yield Case
    Case.go.set()


@pytest.mark.parametrize("where", ["open", "numbers", "close"])
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_failing_tool(faulty: type[FaultyTool], tmp_path: Path, where: str, how: str) -> None:
    faulty.where, faulty.how = where, how
    messages = follow(tmp_path / "run", ["wandb"], range(50))
    assert len(messages) == 1 and "wandb failed and is disabled" in messages[0] and "\n" not in messages[0]


@pytest.mark.parametrize("where", ["open", "numbers", "close"])
def test_hanging_tool(faulty: type[FaultyTool], tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 20)
    faulty.where, faulty.how = where, "hang"
    start = time.monotonic()
    messages = follow(tmp_path / "run", ["wandb"], range(50 if where != "close" else 5))
    assert time.monotonic() - start < 5
    behind = sum("20 rows behind" in line for line in messages)
    assert behind == (where != "close") and "is abandoned" in messages[-1] and len(messages) == behind + 1


def test_slow_tool(faulty: type[FaultyTool], tmp_path: Path) -> None:
    faulty.where, faulty.how = "numbers", "slow"
    assert follow(tmp_path / "run", ["wandb"], range(20)) == []
    assert len(faulty.steps) == 24, "longer than the timeout, and all sent"


def test_stored_rows_are_sent(faulty: type[FaultyTool], tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE.model_dump(mode="json"), {})
    for step in range(3):
        run.record_step(step + 1, numbers(step), [])
    run.close()
    follow(tmp_path / "run", ["wandb"], range(2, 5))
    assert faulty.steps == [1, 2, 3, 1, 2, 0, 4, 5, 5], "three steps of its files; then the warm-up and the rest"


# --- which trackers, and what is sent


def test_report_to() -> None:
    for value, meant in (
        ("none", []),
        (None, []),
        ([], []),
        ("tensorboard", ["tensorboard"]),
        ("wandb, mlflow", ["wandb", "mlflow"]),
        (["trackio", "none"], ["trackio"]),
        ("all", ["all"]),
    ):
        assert load_recipe(None, {"report_to": value}).report_to == meant
    with pytest.raises(RecipeError, match=r"'comet_ml' is not one of tensorboard"):
        load_recipe(None, {"report_to": "comet_ml"})
    assert load_recipe(None, {"wandb_project": "mine", "run_name": "x"}).project == "mine"


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name in ("wandb", "mlflow") else True)
    assert select_trackers(["all"]) == ["tensorboard", "trackio"]
    assert select_trackers(["trackio", "trackio"]) == ["trackio"]
    with pytest.raises(RecipeError, match="wandb is not installed: pip install wandb mlflow"):
        select_trackers(["tensorboard", "wandb", "mlflow"])


def test_unknown_tracker(outdo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    for words in (("train", "--dry-run"), ("train",), ("sft",)):
        done = outdo(*words, "report_to=comet_ml")
        assert done.returncode == 2 and "tensorboard, wandb" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_names_and_samples() -> None:
    row = {"reward_mean": 0.5, "reward/a:b": 1, "kl_mean": None, "time/step": 2.0, "loss": float("nan")}
    assert step_values(row) == {"train/reward_mean": 0.5, "train/reward/a_b": 1.0, "time/step": 2.0}
    assert eval_values({"step": 3, **EVAL})["eval/test/a/pass_at_10"] == 0.75
    groups = [group(f"{i}", ["x" * 5000, "no", "mid", "?"], [1.0, 0.0, 0.5, None]) for i in range(9)]
    rows = sample_answers(groups)
    assert len(rows) == 8 and [row["reward"] for row in rows[:2]] == [1.0, 0.0] and len(rows[0]["answer"]) == 1000
    assert tracker_backends.fenced("a ```` b").startswith("`````\n")


def test_wandb_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        tracker_backends.wandb_mode({"WANDB_MODE": "online"}) == "online"
        and tracker_backends.wandb_mode({}) == "offline"
    )
    assert tracker_backends.wandb_mode({"WANDB_API_KEY": "k", "WANDB_BASE_URL": "http://127.0.0.1:9"}) == "offline"
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert tracker_backends.wandb_mode({"WANDB_API_KEY": "k", "WANDB_BASE_URL": there}) == "online"


def test_no_trackers(tmp_path: Path) -> None:
    assert follow(tmp_path / "run", [], range(2)) == []
    assert not (tmp_path / "run/trackers").exists()
    assert "tracked" not in json.loads((tmp_path / "run/run.json").read_text())
    code = "import sys, outdo.training.trackers as t; print([name for name in t.TRACKERS if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
