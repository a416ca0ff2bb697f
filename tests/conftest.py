"""Shared pieces: a tiny policy that is made once, and a way to run the command line as a user does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before outdo sees Triton

os.environ["OUTDO_CACHE"] = tempfile.mkdtemp(prefix="outdo-cache-")

from dash.browser import browser  # noqa: F401  (a fixture of tests/dash and tests/report)
from faults.harness import Forks, bench, disturbed, steady  # noqa: F401  (fixtures of tests/faults)
from outdo.errors import GraderError
from outdo.grade.sandbox import require_sandbox
from outdo.models.load import Policy, load_policy
from outdo.types import Completion, Grade, Group, Prompt

# A job in the background of a script ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
QUICK = [
    "sft_steps=3",
    "sft_batch_size=8",
    "max_steps=2",
    "eval_size=4",
    "eval_samples=2",
    "per_device_train_batch_size=16",
]


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["OUTDO_CACHE"], ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the sandbox are skipped where there is none, except where that must not be."""
    if item.get_closest_marker("sandbox") and not os.environ.get("OUTDO_NEEDS_SANDBOX"):
        try:
            require_sandbox()
        except GraderError as error:
            pytest.skip(str(error))


@pytest.fixture
def policy() -> Policy:
    """A fresh tiny policy with random weights."""
    return load_policy("tiny", device="cpu", seed=3)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts processes of `outdo` at once: importing everything anew takes seconds each time."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def outdo(tmp_path: Path, forks: Forks) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `outdo …` in a process and a folder of its own."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.run(words, tmp_path)

    return run


def prompt_of(text: str, answer: str = "0", **meta: object) -> Prompt:
    return Prompt(text, ({"role": "user", "content": text},), answer, meta)


def group_of(
    prompt: Prompt, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]], rewards: Sequence[float]
) -> Group:
    """A graded group with made-up log-probabilities."""
    generator = torch.Generator().manual_seed(len(prompt_ids))
    completions = tuple(
        Completion(tuple(ids), tuple((-torch.rand(len(ids), generator=generator) - 0.5).tolist()), str(ids), "stop", 0)
        for ids in answers
    )
    grades = tuple(Grade(r, "right" if r >= 1 else "wrong", {"numeric": r}) for r in rewards)
    return Group(prompt, tuple(prompt_ids), completions, grades)
