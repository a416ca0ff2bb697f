"""Any model that can be loaded, as one Hugging Face folder; and from there as GGUF, by llama.cpp's own converter.

That converter is a script of llama.cpp's, which some systems install with it. No package on PyPI carries it: where it
is not on the PATH, that is said before any work is done.
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
    """What was written. Nothing is written over, and what cannot be done is refused before anything is."""
    if dtype not in ("float32", "bfloat16"):
        raise ModelError(f"--dtype {dtype}: float32 or bfloat16")
    if not out.name.strip("."):
        raise ModelError(f"--out {out}: is this folder or one above it; choose a new folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"--out {out}: is there already; choose a new folder")
    if gguf is not None and gguf.exists():
        raise ModelError(f"--gguf {gguf}: is there already; choose a new file")
    converter = _converter(out, gguf) if gguf is not None else ""
    policy = load_policy(name, dtype=dtype, device="cpu")
    try:
        write_folder(out, lambda folder: save_policy(policy, folder))
    except OSError as error:
        raise ModelError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    if gguf is None:
        return [out]
    words = [converter, str(out), "--outfile", str(gguf)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode or not gguf.is_file():
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ModelError(f"{out} is written, and {CONVERTER} made no GGUF of it: {said:.300}")
    return [out, gguf]


def _converter(out: Path, gguf: Path) -> str:
    if found := shutil.which(CONVERTER):
        return found
    raise ModelError(
        f"--gguf: llama.cpp's {CONVERTER} is not on the PATH, and no package on PyPI carries it. Export without "
        "--gguf, get llama.cpp (https://github.com/ggml-org/llama.cpp), and there run: "
        f"python {CONVERTER} {out} --outfile {gguf}"
    )
