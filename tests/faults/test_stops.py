"""Runs that are killed or interrupted, at every phase: resumed, they are bit-equal to one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from outdo.training import interrupts
from support.harness import SHORT, Bench, rows, same

Disturbed = Callable[..., list[int]]


def fault(point: str, nth: int, action: str, **more: object) -> dict[str, object]:
    return {"point": point, "nth": nth, "action": action, **more}


# Where a process is killed: each phase, at the start and in the middle, and each write of a save.
KILLED = [
    ("rollout", 9), ("grade", 40), ("update", 4), ("one update|after", 4), ("record", 3), ("append", 14),
    ("evaluate", 3), ("save", 2), ("save weights", 3), ("save optimizer", 3), ("flush", 15), ("rename", 3),
    ("rename|after", 4),
]  # fmt: skip
KILLED_TOO = [
    ("rollout", 1), ("grade", 3), ("advantages", 3), ("update", 1), ("clip", 5), ("record|after", 3), ("append", 2),
    ("append|after", 5), ("manifest", 2), ("evaluate", 1), ("evaluate|after", 4), ("save", 1), ("save weights", 1),
    ("save optimizer", 1), ("save rollouts", 2), ("flush", 1), ("flush", 25), ("rename", 1), ("rename|after", 3),
    ("prune", 1), ("prune", 3),
]  # fmt: skip
SLOW = [pytest.param(*values, marks=pytest.mark.slow) for values in KILLED_TOO]
STOPS = [("term", 143), pytest.param("int", 130, marks=pytest.mark.slow)]


WARM_UP = "sft_steps=8"


@pytest.fixture(scope="module")
def steady_warm_up(bench: Bench) -> Path:
    assert bench.train("steady-warm-up", WARM_UP) == 0, bench.said()
    return bench.folder / "steady-warm-up"


@pytest.mark.parametrize(("point", "nth"), [*KILLED, *SLOW], ids=str)
def test_killed_at_a_named_point(disturbed: Disturbed, point: str, nth: int) -> None:
    statuses = disturbed(fault(point, nth, "kill"))
    assert statuses == [-9, 0]


@pytest.mark.parametrize("point", ["rollout", "grade", "update", "one update|after", "record", "evaluate", "save"])
@pytest.mark.parametrize(("action", "status"), STOPS)
def test_told_to_stop(bench: Bench, disturbed: Disturbed, point: str, action: str, status: int) -> None:
    bench.said()
    nth = {"rollout": 7, "grade": 16}.get(point, 3)
    assert disturbed(fault(point, nth, action)) == [status, 0]
    said = bench.said()
    assert "Traceback" not in said and "--resume" in said and "resumed after step" in said


@pytest.mark.parametrize("point", ["rollout", "update", "record", "save"])
def test_told_twice(disturbed: Disturbed, point: str) -> None:
    assert disturbed(fault(point, 3, "twice")) == [143, 0]


def test_killed_before_there_is_a_checkpoint(bench: Bench, disturbed: Disturbed) -> None:
    bench.said()
    assert disturbed(fault("imitate", 2, "kill")) == [-9, 0]
    assert "has no checkpoint yet: restarted" in bench.said()


def test_stopped_in_the_warm_up(bench: Bench, disturbed: Disturbed) -> None:
    bench.said()
    assert disturbed(fault("imitate|after", 1, "term")) == [143, 0]
    assert "resumed in the warm-up, after update 1 of 2" in bench.said()


@pytest.mark.parametrize(("point", "nth"), [("imitate|after", 7), ("save weights", 3), ("rename|after", 5)], ids=str)
def test_killed_in_the_warm_up(bench: Bench, steady_warm_up: Path, point: str, nth: int) -> None:
    """With a checkpoint after every update: it resumes there, and the weights are those of a run left alone."""
    name = f"warm-up-{point.partition('|')[0].replace(' ', '-')}"
    faults = [fault("sft saves", 0, "often"), fault(point, nth, "kill")]
    assert bench.train(name, WARM_UP, faults=faults) == -9
    bench.said()
    assert bench.train(name, WARM_UP) == 0, bench.said()
    said = bench.said()
    assert "resumed in the warm-up, after update" in said and "restarted" not in said
    same(bench.folder / name, steady_warm_up)
    assert rows(bench.folder / name / "sft.jsonl") == rows(steady_warm_up / "sft.jsonl")


def test_warm_up_on_a_full_disk(bench: Bench, steady_warm_up: Path) -> None:
    """Costs checkpoints, not the run."""
    bench.said()
    faults = [fault("sft saves", 0, "often"), fault("save weights", 2, "full")]
    assert bench.train("warm-up-full", WARM_UP, faults=faults) == 0
    assert "no checkpoint of step 0" in bench.said()
    same(bench.folder / "warm-up-full", steady_warm_up)


@pytest.mark.parametrize(("point", "action", "status"), [("evaluate", "term", 143), ("prune", "kill", -9)])
def test_a_warm_up_that_is_done_is_not_done_again(
    bench: Bench, disturbed: Disturbed, point: str, action: str, status: int
) -> None:
    """Killed where its checkpoint has just been written, before anything was evaluated to the end."""
    bench.said()
    assert disturbed(fault(point, 1, action)) == [status, 0]
    said = bench.said()
    assert "resumed after step 0" in said and said.count("warm-up: SFT") == 1


def test_stopped_again_and_again(disturbed: Disturbed) -> None:
    faults = [fault("rollout", 3, "term"), fault("update", 1, "kill"), fault("grade", 2, "term")]
    assert disturbed(*faults, fault("rollout", 1, "term"), fault("record", 1, "kill"))[-1] == 0


def test_told_to_stop_while_it_grades_it_keeps_what_was_sampled(bench: Bench, steady: Path) -> None:
    """The rollouts are in the checkpoint, and are not made again."""
    assert bench.train("kept", faults=[fault("advantages", 3, "term")]) == 143
    newest = sorted((bench.folder / "kept" / "checkpoints").iterdir())[-1]
    assert newest.name == "step-000002"
    assert len((newest / "rollouts.jsonl").read_text().splitlines()) == 4
    sampled = bench.train("kept", faults=[fault("rollout", 1, "kill")])  # the next rollout is that of the step after
    assert sampled == -9
    assert [row["step"] for row in rows(bench.folder / "kept" / "metrics.jsonl")][:3] == [1, 2, 3]
    assert bench.train("kept") == 0
    same(bench.folder / "kept", steady)


def test_told_to_stop_while_the_reference_is_written(bench: Bench, disturbed: Disturbed) -> None:
    assert disturbed(fault("save", 1, "term")) == [143, 0]


def test_killed_while_a_checkpoint_is_replaced(bench: Bench, steady: Path) -> None:
    """The same step is saved again with its rollouts; between the two renames there is nothing by its name."""
    assert bench.train("swap", faults=[fault("advantages", 3, "term"), fault("rename", 8, "kill")]) in (-9, 143)
    assert bench.train("swap") == 0, bench.said()
    same(bench.folder / "swap", steady)


def test_a_recipe_that_is_not_the_default_resumes_as_it_was(bench: Bench) -> None:
    words = ("task_args.digits=1", "curriculum_steps=2", "curriculum_args.ops=+")
    assert bench.train("other-task", *words, faults=[fault("update", 4, "kill")]) == -9
    bench.said()
    assert bench.start("train", "--resume", str(bench.folder / "other-task")).wait() == 0
    assert "changed since" not in bench.said()
    assert bench.train("other-steady", *words) == 0
    same(bench.folder / "other-task", bench.folder / "other-steady")


def test_fewer_steps_than_were_done_are_refused(bench: Bench) -> None:
    words = ("lr_scheduler_type=constant",)
    assert bench.train("fewer", *words, faults=[fault("update", 6, "saved")]) == -9
    assert bench.start("train", "--resume", str(bench.folder / "fewer"), "max_steps=3").wait() == 2
    assert "has done 4 steps already" in bench.said()
    assert bench.start("train", "--resume", str(bench.folder / "fewer"), "steps=7").wait() == 0, bench.said()
    assert [row["step"] for row in rows(bench.folder / "fewer" / "metrics.jsonl")] == list(range(1, 8))


def test_a_run_with_nothing_left_to_do_says_so(bench: Bench, steady: Path) -> None:
    before = (steady / "metrics.jsonl").read_bytes()
    bench.said()
    assert bench.start("train", "--resume", str(steady)).wait() == 0
    assert "nothing to do" in bench.said()
    assert (steady / "metrics.jsonl").read_bytes() == before


def test_a_second_process_on_the_same_folder_is_refused(bench: Bench) -> None:
    first = bench.start("train", *SHORT, "max_steps=9000", "output_dir=shared")
    folder = bench.folder / "shared"
    while not (folder / "run.json").exists():
        time.sleep(0.05)
    other = Bench(bench.folder)
    try:
        for words in (("resume=auto",), ("resume=never",)):
            assert other.start("train", *SHORT, *words, "max_steps=9000", "output_dir=shared").wait() == 2
        said = other.said()
    finally:
        psutil.Process(first.pid).terminate()
        assert first.wait() == 143
        other.close()
    assert f"process {first.pid}" in said and "already holds a run" in said


def test_what_changed_is_named_and_refused_where_it_matters(bench: Bench) -> None:
    assert bench.train("changed", faults=[fault("update", 4, "saved")]) == -9
    run = str(bench.folder / "changed")
    bench.said()
    for key in ("learning_rate=0.5", "num_generations=8", "task_args.digits=1", "seed=3", "max_steps=9"):
        assert bench.start("train", "--resume", run, key).wait() == 2, key
        said = bench.said()
        assert key.partition("=")[0].partition(".")[0] in said and "--force" in said and "Traceback" not in said
    assert bench.start("train", "--resume", run, "save_steps=1", "eval_size=1").wait() == 0, bench.said()
    forced = bench.start("train", "--resume", run, "--force", "learning_rate=0.5", "max_steps=7").wait()
    assert forced == 0 and "changed since: learning_rate was 0.0001 and is 0.5" in bench.said()
    assert [row["step"] for row in rows(bench.folder / "changed" / "metrics.jsonl")] == list(range(1, 8))


def test_another_folder_is_refused_and_another_device_is_named(bench: Bench) -> None:
    assert bench.train("moved", "max_steps=3", faults=[fault("update", 3, "saved")]) == -9
    run = bench.folder / "moved"
    bench.said()
    assert bench.start("train", "--resume", "moved", "output_dir=elsewhere").wait() == 2
    assert "not in output_dir=elsewhere" in bench.said() and not (bench.folder / "elsewhere").exists()
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "device": "cuda:0"}))
    assert bench.start("train", "--resume", "moved", f"output_dir={run}").wait() == 0
    assert "changed since: device was cuda:0 and is cpu" in bench.said()
    assert json.loads((run / "run.json").read_text())["device"] == "cpu"


def test_what_could_not_be_saved_is_not_offered(bench: Bench) -> None:
    """Interrupted, and the disk is full: the step that was not saved is not offered."""
    faults = [fault("update", 4, "term"), fault("save", 5, "full", always=True)]
    bench.said()
    assert bench.train("unsaved", faults=faults) == 143
    said = bench.said()
    assert "resume with" not in said and "step 4 could not be saved" in said
    assert bench.train("unsaved") == 0
    assert "resumed after step 2" in bench.said()


def test_signals_that_were_ignored_stay_so() -> None:
    """A job in the background of a shell ignores SIGINT, and is still stopped by SIGTERM."""
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts.listen() as undivided, undivided():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with pytest.raises(interrupts.Interrupted, match="SIGTERM"), interrupts.listen():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_retention_by_count_and_by_the_best_evaluation(bench: Bench) -> None:
    words = ("save_steps=1", "save_total_limit=2", "eval_steps=1", "max_steps=6")
    assert bench.train("kept-few", *words) == 0, bench.said()
    steps = {int(path.name.rpartition("-")[2]) for path in (bench.folder / "kept-few" / "checkpoints").iterdir()}
    evals = [row for row in rows(bench.folder / "kept-few" / "evals.jsonl") if row["split"] == "test"]
    best = max(evals, key=lambda row: (row["success_rate"], row["step"]))["step"]
    assert {5, 6} <= steps and len(steps) <= 3 and (best in steps)


@pytest.mark.slow
def test_killed_at_thirty_random_moments(bench: Bench, steady: Path) -> None:
    """One run, killed thirty times: each process gets a little further, or not."""
    rng = random.Random(0)
    kills = 0
    for turn in range(200):
        child = bench.start("train", *SHORT, "output_dir=random")
        time.sleep(rng.uniform(0.1, 2.0))
        if kills < 30 and psutil.pid_exists(child.pid):
            psutil.Process(child.pid).kill()
        status = child.wait()
        kills += status == -9
        if status == 0:
            same(bench.folder / "random", steady)
            if kills >= 30:
                break
            (bench.folder / "random").rename(bench.folder / f"random-{turn}")
    assert kills >= 30
    print(f"{kills} kills")


@pytest.mark.slow
def test_two_hundred_steps_with_a_fault_about_every_ten(bench: Bench) -> None:
    long = ("max_steps=200", "eval_steps=50", "save_steps=5")
    assert bench.train("long-steady", *long) == 0, bench.said()
    rng = random.Random(1)
    points = ["rollout", "grade", "update", "one update|after", "record", "append", "save weights", "flush", "rename"]
    injected = 0
    for _ in range(100):
        point = rng.choice(points)
        per_step = {"grade": 4, "flush": 2, "append": 2, "save weights": 0.2, "rename": 0.2}.get(point, 1)
        nth = max(1, int(rng.uniform(0.2, 1.3) * 10 * per_step))
        action = rng.choice(["kill", "kill", "term", "int"])
        status = bench.train("long", *long, faults=[fault(point, nth, action)])
        injected += status != 0
        if status == 0:
            break
    assert status == 0, bench.said()
    same(bench.folder / "long", bench.folder / "long-steady")
    assert injected >= 15
    print(f"{injected} faults in 200 steps")
    assert json.loads((bench.folder / "long" / "run.json").read_text())["resumed"]
