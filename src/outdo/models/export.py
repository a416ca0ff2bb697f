"""Writes any model that can be loaded as one Hugging Face folder, and from there as GGUF, by llama.cpp's own converter:
a script that no package on PyPI contains. Where it is not on the PATH, the export is refused before any work is done.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from outdo.errors import ModelError
from outdo.models.load import load_policy, save_policy
from outdo.runs.files import write_folder

CONVERTER = "convert_hf_to_gguf.py"


def export_model(name: str, out: Path, gguf: Path | None = None, dtype: str = "float32") -> list[Path]:
    """Returns the written paths. Nothing is overwritten; what cannot work is refused before anything is written."""
    if dtype not in ("float32", "bfloat16"):
        raise ModelError(f"--dtype {dtype}: use float32 or bfloat16")
    if not out.name.strip("."):
        raise ModelError(f"--out {out}: is the working folder or a parent of it; choose a new folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"--out {out}: already exists; choose a new folder")
    if gguf is not None and gguf.exists():
        raise ModelError(f"--gguf {gguf}: already exists; choose a new file")
    converter = _converter(out, gguf) if gguf is not None else ""
    policy = load_policy(name, dtype=dtype, device="cpu")
    try:
        write_folder(out, lambda folder: save_policy(policy, folder))
    except OSError as error:
        raise ModelError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    if gguf is None:
        return [out]
    command = [converter, str(out), "--outfile", str(gguf)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not gguf.is_file():
        reason = (done.stderr.strip().splitlines() or ["it printed no error"])[-1]
        raise ModelError(f"{out} was written, but {CONVERTER} failed to convert it: {reason:.300}")
    return [out, gguf]


def _converter(out: Path, gguf: Path) -> str:
    if path := shutil.which(CONVERTER):
        return path
    raise ModelError(
        f"--gguf: llama.cpp's {CONVERTER} is not on the PATH, and no package on PyPI contains it. Export without "
        "--gguf, clone llama.cpp (https://github.com/ggml-org/llama.cpp), and run there: "
        f"python {CONVERTER} {out} --outfile {gguf}"
    )
