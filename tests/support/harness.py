"""A bench to break runs on: start one in a child process, disturb it, go on, compare with one that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MEASURED = ("tokens_per_s", "memory")  # of the machine, not of the run

# Six steps of a tiny model whose answers differ in length, so that every step moves the weights.
SHORT = [
    *("sft_steps=2", "sft_batch_size=4", "max_steps=6", "num_generations=4", "per_device_train_batch_size=16"),
    *("max_completion_length=8", "reward_funcs=numeric,overlong", "reward_weights=[1.0,1.0]", "beta=0.01"),
    *("kl_limit=null", "eval_size=2", "eval_samples=1", "eval_steps=3", "save_steps=2", "device=cpu", "resume=auto"),
    "learning_rate=1e-4",
]


@dataclass
class Child:
    pid: int
    forks: Forks

    def wait(self) -> int:
        return int(self.forks.process.stdout.readline())  # type: ignore[union-attr]


class Forks:
    """Starts `outdo …` in processes that are forked from one where everything is imported (`zygote.py`)."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, words: Sequence[str], folder: Path, out: Path, err: Path, faults: Sequence[Any] = ()) -> Child:
        job = {"words": words, "folder": str(folder), "stdout": str(out), "stderr": str(err), "faults": list(faults)}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Child(int(self.process.stdout.readline()), self)

    def run(self, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as aside:
            out, err = Path(aside, "out"), Path(aside, "err")
            status = self.start(words, folder, out, err).wait()
            return subprocess.CompletedProcess(["outdo", *words], status, out.read_text(), err.read_text())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Bench:
    """Starts runs in one folder. `said` is what they printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.forks = folder, folder / "log.txt", Forks()

    def start(self, *words: str, faults: Sequence[Any] = ()) -> Child:
        return self.forks.start(words, self.folder, self.log, self.log, faults)

    def train(self, name: str, *words: str, faults: Sequence[Any] = ()) -> int:
        """One process, to its end: the exit status."""
        return self.start("train", *SHORT, *words, f"output_dir={name}", faults=faults).wait()

    def said(self) -> str:
        """What was printed since it was last asked."""
        text = self.log.read_text() if self.log.exists() else ""
        self.log.write_text("")
        return text

    def close(self) -> None:
        self.forks.close()


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("faults"))
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def steady(bench: Bench) -> Path:
    """A run that nothing happened to."""
    assert bench.train("steady") == 0, bench.said()
    return bench.folder / "steady"


def rows(path: Path) -> list[dict[str, Any]]:
    """Without what depends on the clock."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k not in MEASURED} for row in found]


def same(run: Path, steady: Path) -> None:
    """Bit-equal: the weights, the answers, the numbers; no step missing, none twice."""
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert rows(run / name) == rows(steady / name), name
    for path in [*(steady / "groups").iterdir(), *(steady / "held_out").iterdir()]:
        assert (run / path.relative_to(steady)).read_bytes() == path.read_bytes(), path.name
    assert (run / "model" / "model.safetensors").read_bytes() == (steady / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def disturbed(bench: Bench, steady: Path, request: pytest.FixtureRequest) -> Callable[..., list[int]]:
    """Runs with faults, one process after the other, until it is done; then it must be as if nothing had happened."""

    def run(*faults: dict[str, Any], words: tuple[str, ...] = ()) -> list[int]:
        name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
        statuses = []
        for fault in [*faults, None]:
            statuses.append(bench.train(name, *words, faults=[fault] if fault else []))
            if statuses[-1] == 0:
                break
        same(bench.folder / name, steady)
        return statuses

    return run
