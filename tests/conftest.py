"""Shared pieces: a tiny policy that is made once, and a way to run the command line as a user does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before outdo sees Triton

os.environ["OUTDO_CACHE"] = tempfile.mkdtemp(prefix="outdo-cache-")
os.environ["XDG_STATE_HOME"] = os.environ["OUTDO_CACHE"]  # what this user has run

from outdo.errors import SandboxError
from outdo.models.load import Policy, load_policy
from outdo.sandbox.execute import require_sandbox
from support.browser import browser  # noqa: F401  (a fixture of tests/dash and tests/report)
from support.harness import Forks, bench, disturbed, steady  # noqa: F401  (fixtures of tests/faults)

# A job in the background of a script ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["OUTDO_CACHE"], ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the sandbox are skipped where there is none, except where that must not be."""
    if item.get_closest_marker("sandbox") and not os.environ.get("OUTDO_NEEDS_SANDBOX"):
        try:
            require_sandbox()
        except SandboxError as error:
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
