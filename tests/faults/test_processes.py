"""One of several processes is killed, stopped, hangs, fails, or cannot write: the others end in words, nothing is left
running, and the run resumes from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from outdo.runs import checkpoint
from support.launches import ranks, start, with_children_killed

pytestmark = pytest.mark.slow
WORDS = ["-m", "outdo", "train", "sft_steps=60", "eval_size=8", "eval_samples=2", "per_device_train_batch_size=32"]
WORDS += ["save_steps=1", "output_dir=run", "parallel.timeout=15", "doctor=quiet", "max_steps=500"]
WORDS += ["lr_scheduler_type=constant", "warmup_steps=0"]
AT = {"start": "processes; writing to", "warm-up": "warm-up 12/", "evaluation": "before GRPO", "training": "3 steps"}
END = 60.0  # seconds in which a launch must be over; torchrun itself waits 30 for a process that does not react


class Launch:
    """A launch, what it printed, and its processes."""

    def __init__(self, folder: Path, size: int, *more: str) -> None:
        self.folder, self.lines = folder, list[str]()
        self.process = start(size, *WORDS, *more, cwd=folder)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.ranks: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self.process.stdout
        self.lines.extend(self.process.stdout)

    @property
    def printed(self) -> str:
        return "".join(list(self.lines))

    def wait_for(self, text: str, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not self._has_come_to(text):
            assert time.monotonic() < deadline and self.process.poll() is None, self.printed
            time.sleep(0.01)
        self.ranks = ranks(self.process)

    def _has_come_to(self, text: str) -> bool:
        """It has printed that, or done so many steps."""
        number, _, unit = text.partition(" ")
        if unit != "steps":
            return text in self.printed
        rows = self.folder / "run" / "metrics.jsonl"
        return rows.exists() and len(rows.read_text().splitlines()) >= int(number)

    def wait(self) -> int:
        """The exit status. Fails where it hangs, or where a process is left."""
        try:
            status = self.process.wait(END)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs: {self.printed}") from None
        _, alive = psutil.wait_procs(self.ranks.values(), timeout=35)
        assert not alive
        self._reader.join()
        return status

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "run" / "run.json").read_text())

    def newest(self) -> str:
        folders = checkpoint.existing(self.folder / "run" / "checkpoints")
        valid = [folder.name for folder in folders if not checkpoint.corruption(folder)]
        assert len(valid) == len(folders), "a checkpoint that is there is valid"
        return valid[-1] if valid else ""


@pytest.fixture
def launch(tmp_path: Path) -> Any:
    made: list[Launch] = []

    def begin(size: int, *more: str) -> Launch:
        made.append(Launch(tmp_path, size, *more))
        return made[-1]

    yield begin
    for one in made:
        with_children_killed(one.process)
        for process in one.ranks.values():
            if process.is_running():
                process.kill()


def resumes(folder: Path, outdo: Callable[..., Any], steps: int) -> None:
    done = outdo("train", "--resume", "run", f"max_steps={steps}")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))


BLOCKS = """
import os, signal, time
import outdo

class Block(outdo.Callback):
    everywhere = True
    def on_step_end(self, run, done):
        if done == 2 and os.environ["RANK"] == "1":
            time.sleep(1)
            {end}
        while done == 2:
            time.sleep(1)
"""


@pytest.mark.parametrize("phase", AT)
def test_a_process_is_killed(launch: Any, tmp_path: Path, outdo: Callable[..., Any], phase: str) -> None:
    run = launch(2, f"parallel.sharding={'full' if phase == 'training' else 'none'}")
    run.wait_for(AT[phase])
    run.ranks[1].kill()
    assert run.wait() == 1
    assert f"process 1 (pid {run.ranks[1].pid}) of 2 ended without a word" in run.printed
    assert run.manifest()["status"] in ("stopped", "failed")
    if phase == "training":
        assert run.newest() >= "step-000001" and "resume from the last checkpoint" in run.printed
        resumes(tmp_path, outdo, 6)


def test_the_first_process_is_killed(launch: Any, tmp_path: Path, outdo: Callable[..., Any]) -> None:
    run = launch(2, "parallel.sharding=grads")
    run.wait_for(AT["training"])
    run.ranks[0].kill()
    assert run.wait() == 1
    assert "process 0" in run.printed and "ended without a word" in run.printed
    resumes(tmp_path, outdo, 6)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_torchrun_is_stopped(launch: Any, tmp_path: Path, outdo: Callable[..., Any], number: int) -> None:
    """The processes learn of it, agree where to stop, and save."""
    run = launch(2, "parallel.sharding=full")
    run.wait_for(AT["training"])
    os.kill(run.process.pid, number)
    assert run.wait() in (1, -number)
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert run.manifest()["status"] == "stopped" and run.manifest()["why"].startswith("SIGTERM")
    assert run.newest() == checkpoint.name_of(done)
    resumes(tmp_path, outdo, done + 1)


def test_interrupted_in_a_terminal(launch: Any, tmp_path: Path) -> None:
    """Ctrl-C reaches torchrun and every process, and torchrun passes it on."""
    run = launch(2)
    run.wait_for(AT["training"])
    os.killpg(run.process.pid, signal.SIGINT)
    run.wait()
    assert run.manifest()["why"].startswith("SIGINT") and "resume with: torchrun --nproc-per-node 2" in run.printed


def test_a_process_hangs_in_a_callback(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("""
import os, time
import outdo

class Hang(outdo.Callback):
    everywhere = True
    def on_step_end(self, run, done):
        if os.environ["RANK"] == "1" and done == 2:
            while True:
                time.sleep(1)
""")
    run = launch(2, "callbacks=own.py:Hang")
    run.wait_for("2 steps")
    started = time.monotonic()
    assert run.wait() == 1
    assert f"process 1 (pid {run.ranks[1].pid}) of 2 is still busy" in run.printed
    assert time.monotonic() - started < 15 + 35  # the timeout, and torchrun's patience
    assert run.newest() >= "step-000001"


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('no such thing')"])
def test_the_first_process_is_blocked(launch: Any, tmp_path: Path, end: str) -> None:
    """As in an exchange on a GPU, while the other one is killed, or fails: it does not come back to notice."""
    (tmp_path / "own.py").write_text(BLOCKS.format(end=end))
    run = launch(2, "callbacks=own.py:Block", "parallel.timeout=300")
    run.wait_for("2 steps")
    started = time.monotonic()
    assert run.wait() == 1 and time.monotonic() - started < 28  # before torchrun kills it
    assert "process 1" in run.manifest()["why"] and run.manifest()["status"] == "stopped"


def test_a_process_raises(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("""
import os
import outdo

class Fail(outdo.Callback):
    everywhere = True
    def on_step_end(self, run, done):
        if os.environ["RANK"] == "1" and done == 2:
            raise ValueError("no such thing")
""")
    run = launch(2, "callbacks=own.py:Fail")
    run.wait_for("2 steps")
    assert run.wait() == 1
    said = [line for line in run.printed.splitlines() if line.startswith("outdo: ")]
    assert len(said) == 1 and "no such thing" in said[0], run.printed
    assert run.manifest()["status"] in ("stopped", "failed")


def test_a_reward_raises_in_one(launch: Any, tmp_path: Path) -> None:
    """Its answers are broken, as in one process; where all are, the run halts with that in all."""
    (tmp_path / "own.py").write_text("""
import os

def judge(completions, **columns):
    if os.environ["RANK"] == "1":
        raise ValueError("cannot judge")
    return [1.0] * len(completions)
""")
    run = launch(2, "reward_funcs=own.py:judge", "reward_audit=false", "eval_samples=0", "broken_limit=0.3")
    run.wait_for("cannot judge")
    assert run.wait() == 1 and "could not be judged" in run.printed
    assert len([line for line in run.printed.splitlines() if line.startswith("outdo: ")]) == 1


def test_one_disk_is_full(launch: Any, tmp_path: Path) -> None:
    """A shard that cannot be written costs a checkpoint, not the run."""
    (tmp_path / "own.py").write_text("""
import os, resource, signal
import outdo

class Full(outdo.Callback):
    everywhere = True
    def on_step_end(self, run, done):
        if os.environ["RANK"] == "1" and done in (2, 4):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1) if done == 2 else (-1, -1))
""")
    run = launch(2, "callbacks=own.py:Full", "parallel.sharding=grads", "max_steps=6")
    run.wait_for("6 steps")
    assert run.wait() == 0, run.printed
    assert "warning: no checkpoint of step" in run.printed
    assert run.newest() == "step-000006"


def test_half_a_checkpoint(launch: Any, tmp_path: Path, outdo: Callable[..., Any]) -> None:
    """What only some of the processes have written is not taken for a checkpoint."""
    run = launch(2, "parallel.sharding=grads", "max_steps=3")
    assert run.wait() == 0
    newest = tmp_path / "run" / "checkpoints" / "step-000003"
    half = newest.with_name("step-000004")
    half.mkdir()
    (half / "optimizer").mkdir()
    shard = next((newest / "optimizer").iterdir())
    (half / "optimizer" / shard.name).write_bytes(shard.read_bytes())
    done = outdo("train", "--resume", "run", "max_steps=5")
    assert done.returncode == 0 and "skipped" in done.stdout and "resumed after step 3" in done.stdout
