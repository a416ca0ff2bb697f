"""Starts several processes as a user does: torchrun, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from support.basics import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(size: int, *words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """torchrun with so many processes, in a session of its own."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [*TORCHRUN, str(size), *words],
        cwd=cwd,
        env={**os.environ, **own, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def torchrun(size: int, *words: str, cwd: Path, seconds: float = 240) -> tuple[int, str]:
    """Exit status and all that was printed. Nothing is left running."""
    process = start(size, *words, cwd=cwd)
    try:
        text, _ = process.communicate(timeout=seconds)
    finally:
        with_children_killed(process)
    return process.returncode, text


def train(size: int, *words: str, cwd: Path, seconds: float = 240) -> tuple[int, str]:
    """`torchrun -m outdo train …`"""
    return torchrun(size, "-m", "outdo", "train", *words, cwd=cwd, seconds=seconds)


def ranks(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The processes of a launch, by rank."""
    found = {}
    for child in psutil.Process(process.pid).children():
        try:
            if rank := child.environ().get("RANK"):
                found[int(rank)] = child
        except psutil.Error:
            pass
    return found


def with_children_killed(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
