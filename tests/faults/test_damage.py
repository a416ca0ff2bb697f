"""Checkpoints that are damaged, disks that fail, numbers that are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.test_stops import fault
from support.harness import SHORT, Bench, rows, same


@pytest.fixture(scope="module")
def stopped(bench: Bench) -> Path:
    """A run that was killed after its checkpoints of steps 2 and 4."""
    assert bench.train("stopped", faults=[fault("update", 6, "saved")]) == -9
    folder = bench.folder / "stopped"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir())[-2:] == ["step-000002", "step-000004"]
    return folder


FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json", "rollouts.jsonl", "config.json"]


@pytest.mark.parametrize("name", [*FILES, "tokenizer.json"])
@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(way, marks=pytest.mark.slow) for way in ("truncated", "missing"))]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    bench: Bench, steady: Path, stopped: Path, name: str, damage: str
) -> None:
    run = bench.folder / f"{damage}-{name.replace('.', '-')}"
    shutil.copytree(stopped, run)
    path = run / "checkpoints" / "step-000004" / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        if not data:
            pytest.skip("an empty file cannot be cut")
        path.write_bytes(data[: len(data) // 2])
    else:
        if not data:
            pytest.skip("an empty file has no bits")
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    bench.said()
    assert bench.train(run.name) == 0
    said = bench.said()
    assert "skipped" in said and name in said and "resumed after step 2" in said and "Traceback" not in said
    same(run, steady)


def test_all_checkpoints_damaged(bench: Bench, steady: Path, stopped: Path) -> None:
    run = bench.folder / "none-left"
    shutil.copytree(stopped, run)
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    files = ["metrics.jsonl", "evals.jsonl", "groups/steps-000000.jsonl"]
    had = {name: (run / name).read_bytes() for name in files}
    assert all(had.values())
    for words in (["train", "--resume", run.name], ["train", "--resume", run.name]):  # nor the second time
        bench.said()
        assert bench.start(*words).wait() == 2
        said = bench.said()
        assert "cannot be resumed" in said and "--force" in said and "restarted" not in said
        assert {name: (run / name).read_bytes() for name in files} == had
        assert (run / "checkpoints" / "step-000004").is_dir()
    assert bench.start("train", "--resume", run.name, "--force").wait() == 0
    assert "restarted from the beginning; its rows so far were moved to none-left/before-1" in bench.said()
    assert {name: (run / "before-1" / name).read_bytes() for name in files} == had
    assert (run / "before-1" / "checkpoints" / "step-000004").is_dir()
    same(run, steady)


def test_steps_without_a_checkpoint_are_not_erased(bench: Bench, steady: Path, stopped: Path) -> None:
    """Such as those of a process that was killed while it wrote the first one."""
    run = bench.folder / "none-yet"
    shutil.copytree(stopped, run)
    shutil.rmtree(run / "checkpoints")
    had = (run / "metrics.jsonl").read_bytes()
    bench.said()
    assert bench.train(run.name) == 0
    assert (
        "no checkpoint yet: restarted from the beginning; its rows so far were moved to none-yet/before-1"
        in bench.said()
    )
    assert had and (run / "before-1" / "metrics.jsonl").read_bytes() == had
    same(run, steady)


def test_rows_that_are_gone_make_a_checkpoint_useless(bench: Bench, steady: Path, stopped: Path) -> None:
    run = bench.folder / "rows-gone"
    shutil.copytree(stopped, run)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[: metrics.stat().st_size // 2])
    bench.said()
    assert bench.train(run.name) == 0
    assert "metrics.jsonl is shorter than it was" in bench.said()
    same(run, steady)


def test_a_damaged_reference_is_refused(bench: Bench, stopped: Path) -> None:
    run = bench.folder / "no-reference"
    shutil.copytree(stopped, run)
    path = next((run / "reference").rglob("weights.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    bench.said()
    assert bench.train(run.name) == 1
    said = bench.said()
    assert "weights.safetensors is corrupt" in said and "Traceback" not in said


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"recipe": 3}', "\0" * 50])
def test_a_run_that_cannot_be_read(bench: Bench, text: str) -> None:
    run = bench.folder / f"bad-{abs(hash(text))}"
    run.mkdir()
    (run / "run.json").write_text(text)
    bench.said()
    assert bench.start("train", "--resume", str(run)).wait() in (1, 2)
    said = bench.said()
    assert "Traceback" not in said and "This error was not expected" not in said and run.name in said


@pytest.mark.parametrize("action", ["full", "denied"])
@pytest.mark.parametrize("point", ["save", "save weights", "save optimizer", "flush", "save rollouts"])
def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    bench: Bench, steady: Path, point: str, action: str
) -> None:
    name = f"disk-{point}-{action}".replace(" ", "-")
    nth = {"flush": 20, "save": 3, "save optimizer": 3}.get(point, 2)  # past the reference, which must be there
    bench.said()
    assert bench.train(name, faults=[fault(point, nth, action)]) == 0
    assert "warning: no checkpoint of step" in bench.said()
    same(bench.folder / name, steady)


@pytest.mark.parametrize("action", ["full", "denied"])
@pytest.mark.parametrize("nth", [3, 6, 13])
def test_rows_that_cannot_be_written_end_the_run_with_1_and_it_can_go_on(
    bench: Bench, steady: Path, nth: int, action: str
) -> None:
    name = f"rows-{nth}-{action}"
    bench.said()
    assert bench.train(name, faults=[fault("append", nth, action)]) == 1
    assert "Traceback" not in bench.said()
    assert bench.train(name) == 0, bench.said()
    same(bench.folder / name, steady)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 40 MB: room for two checkpoints and the model."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True, check=False)
    if os.geteuid() or done.returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_fills_up_meanwhile(bench: Bench, small_disk: Path) -> None:
    bench.said()
    run = small_disk / "run"
    process = bench.start("train", *SHORT, "max_steps=9000", f"output_dir={run}", "resume=never")
    for _ in range(6000):
        if (run / "metrics.jsonl").exists():
            break
        time.sleep(0.01)
    with pytest.raises(OSError, match="No space left"), (small_disk / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    status, said = process.wait(), bench.said()
    assert status == 1 and "No space left" in said and "Traceback" not in said
    for folder in (run / "checkpoints").glob("step-*"):
        assert (folder / "manifest.json").exists()


def test_a_disk_that_is_too_small_is_refused_before_anything_is_trained(bench: Bench, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(20 * 2**20))
    bench.said()
    assert bench.train(str(small_disk / "run"), "resume=never") == 2
    said = bench.said()
    assert "has 2" in said and "checkpoints of 12.8 MB" in said and "output_dir" in said
    assert not (small_disk / "run").exists()


@pytest.mark.parametrize("point", ["loss", "clip"])
def test_a_number_that_is_none_is_not_applied_and_counted(bench: Bench, point: str) -> None:
    name = f"nan-{point}"
    nth = {"clip": 4}.get(point, 2)  # the warm-up clips twice
    assert bench.train(name, faults=[fault(point, nth, "nan")]) == 0, bench.said()
    skipped = [row["skipped_updates"] for row in rows(bench.folder / name / "metrics.jsonl")]
    assert skipped == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("point", ["loss", "clip"])
def test_several_in_a_row_halt_with_3_and_keep_the_batch(bench: Bench, point: str) -> None:
    name = f"nans-{point}"
    bench.said()
    assert bench.train(name, faults=[fault(point, 2, "nan", always=True)]) == 3
    run = bench.folder / name
    assert "non-finite" in bench.said()
    assert json.loads((run / "run.json").read_text())["status"] == "stopped"
    (kept,) = run.glob("halted-step-*.jsonl")
    assert len(kept.read_text().splitlines()) == 4
    weights = (run / "model" / "model.safetensors").stat().st_size
    assert weights > 10**6


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "key", "way"), [("lower_rate", "lr", -1), ("raise_beta", "beta", 1)])
def test_the_guard_that_was_asked_for_acts_and_is_remembered(bench: Bench, guard: str, key: str, way: int) -> None:
    name = f"guard-{guard}"
    words = (f"kl_guard={guard}", "kl_limit=1e-9", "max_steps=8")
    bench.said()
    assert bench.train(name, *words, faults=[fault("update", 7, "kill")]) == -9
    assert bench.train(name, *words) == 0
    assert "guard: KL" in bench.said()
    values = [row[key] for row in rows(bench.folder / name / "metrics.jsonl")]
    assert (values[6] - values[2]) * way > 0
    assert bench.train(f"{name}-steady", *words) == 0
    assert rows(bench.folder / name / "metrics.jsonl") == rows(bench.folder / f"{name}-steady" / "metrics.jsonl")
