"""What checkpoints cost and how soon a run goes on: `python -m bench.saving`.

Trains the default for 50 steps with the default `save_steps`, and adds up the time that training waits for a save (the
copies) and the time that the disk takes beside it. Then goes on with it in a new process, from its start to its first
new step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import facts, line
from outdo.api import train
from outdo.session import Session


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
    Session._save = timed(Session._save, waited)  # type: ignore[method-assign]
    Session._write = timed(Session._write, beside)  # type: ignore[method-assign]
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
        words = [sys.executable, "-m", "outdo", "train", "--resume", str(run), "max_steps=51"]
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        for text in process.stdout:
            if "going on" in text or text.startswith("  step"):
                print(f"{time.perf_counter() - start:.1f} s after the start: {text.strip()[:60]}")
        process.wait()


if __name__ == "__main__":
    main()
