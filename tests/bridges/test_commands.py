"""The commands of docs/backends.md that need TRL and nothing else."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.basics import ROOT

pytest.importorskip("trl")

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCK.findall((ROOT / "docs" / "backends.md").read_text()) for line in block.splitlines()]
ELSEWHERE = ("unsloth", "backend_python", "use_vllm")  # another environment, or a GPU
QUICK = ["max_steps=2", "sft_steps=5", "eval_size=4", "eval_samples=0", "per_device_train_batch_size=32"]


@pytest.mark.parametrize("line", [line for line in LINES if not any(word in line for word in ELSEWHERE)])
def test_command(line: str, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    words = [sys.executable, "-m", *shlex.split(line), *QUICK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_all_are_listed() -> None:
    assert len(LINES) == 6
