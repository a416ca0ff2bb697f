"""What checkpoints cost and how soon a run resumes: `python -m bench.saving`.

Trains the default for 50 steps with the default `save_steps`, and adds up the time that training waits for a save (the
copies) and the time that the disk takes beside it. Then resumes it in a new process, from its start to its first
new step; and does both again with a `metrics.jsonl` of a million rows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import facts, line
from outdo.api import train
from outdo.runs import checkpoint
from outdo.runs.writer import RunWriter
from outdo.training.checkpointing import Checkpointer
from outdo.training.run import TrainingRun

ROWS = 1_000_000


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    return wrapper


def main() -> None:
    print(line(facts()))
    waited: list[float] = []
    beside: list[float] = []
    TrainingRun.save = timed(TrainingRun.save, waited)  # type: ignore[method-assign]
    Checkpointer._write = timed(Checkpointer._write, beside)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        start = time.perf_counter()
        train(
            max_steps=50,
            sft_steps=100,
            eval_size=8,
            eval_samples=0,
            output_dir=str(run),
            lr_scheduler_type="constant",
            kl_limit=None,
        )
        wall = time.perf_counter() - start
        print(f"{len(waited)} saves in {wall:.1f} s: training waited {sum(waited):.3f} s ({sum(waited) / wall:.2%}),")
        print(f"the disk took {sum(beside):.3f} s beside it ({sum(beside) / wall:.2%})")
        resume(run, 51)
        many_rows(run)
        resume(run, 52)


def resume(run: Path, steps: int) -> None:
    """A new process resumes it: from its start to its first new step."""
    words = [sys.executable, "-m", "outdo", "train", "--resume", str(run), f"max_steps={steps}"]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for text in process.stdout:
        if "resumed" in text or text.startswith("  step"):
            print(f"{time.perf_counter() - start:.1f} s after the start: {text.strip()[:60]}")
    process.wait()


def many_rows(folder: Path) -> None:
    """Makes a million rows of the run's, notes them in its newest checkpoint, and times the run folder alone."""
    metrics = folder / "metrics.jsonl"
    last = metrics.read_bytes().splitlines(keepends=True)[-1]
    metrics.write_bytes(metrics.read_bytes() + last * (ROWS - metrics.read_bytes().count(b"\n")))
    newest = checkpoint.existing(folder / "checkpoints")[-1]
    start = time.perf_counter()
    run = RunWriter.reopen(folder)
    offsets = run.offsets()
    assert not run.truncated_file(offsets)
    run.record_step(ROWS, {"reward_mean": 0.5}, [])
    run.rewind(offsets)
    run.record_step(ROWS, {"reward_mean": 0.5}, [])
    run.rewind(offsets)
    run.close()
    size = metrics.stat().st_size
    print(f"{ROWS:,} rows, {size / 1e6:.0f} MB: opened, rewound and appended to in {time.perf_counter() - start:.3f} s")

    def write(aside: Path) -> None:
        shutil.copytree(newest, aside, dirs_exist_ok=True)
        (aside / checkpoint.HASHES).unlink()
        state = json.loads((aside / "state.json").read_text())
        (aside / "state.json").write_text(json.dumps({**state, "offsets": offsets}))

    checkpoint.save(folder / "checkpoints", checkpoint.step_of(newest), write)


if __name__ == "__main__":
    main()
