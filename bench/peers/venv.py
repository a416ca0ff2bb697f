"""Peers' own Python environments, made on first use under `.bench/`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_with(package: str) -> Path:
    """The Python of an environment that has `package` and this interpreter's own version of torch."""
    folder = ROOT / ".bench" / f"{package.partition('[')[0]}-venv"  # without its extras
    python, done = folder / "bin" / "python", folder / ".done"
    if done.exists():
        return python
    print(f"making {folder.relative_to(ROOT)}: torch and {package}, once; this takes minutes", flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that did not get to its end
    torch = "torch==" + version("torch").partition("+")[0]
    for command in (
        [sys.executable, "-m", "venv", folder],
        [python, "-m", "pip", "install", "--quiet", torch],
        [python, "-m", "pip", "install", "--quiet", package],
    ):
        words = list(map(str, command))
        if subprocess.run(words, check=False).returncode:
            raise SystemExit(f"could not make an environment for {package}: {' '.join(words)} failed (see above)")
    done.touch()
    return python
