"""GGUF files, llama.cpp's format: converted to full weights by transformers.

The header alone says whether a file is GGUF, complete, of which architecture and how large. The weights are converted
to float32 and keep their quantization error. That takes transformers half a minute for a small model, so they are
cached as an ordinary folder and loaded from there the next time.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers import modeling_gguf_pytorch_utils as gguf_utils

from outdo.errors import ModelError
from outdo.models.renderer import keep_spaces
from outdo.runs.files import write_folder

MAGIC = b"GGUF"
INSTALL = "pip install 'outdo[gguf]'"
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
FREE_FACTOR = 4  # full weights are cached where this many times their size is free
MIN_WEIGHT_BYTES = 3 / 16  # a bit and a half
_MAX_ENTRIES = 2**24  # of anything in a header; more means a corrupt one


@dataclass(frozen=True)
class Header:
    architecture: str
    shapes: dict[str, tuple[int, ...]]  # of each tensor, last axis first
    values: dict[str, Any]  # its scalar values; lists are left out

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def number(self, name: str, default: int = 0) -> int:
        """An integer of its architecture, such as block_count."""
        value = self.values.get(f"{self.architecture}.{name}", default)
        return value if isinstance(value, int) else default


def read_header(path: Path) -> Header:
    """Raises ModelError where the file is not GGUF, or incomplete."""
    try:
        with path.open("rb") as file:
            return _header(file, path)
    except (OSError, struct.error, UnicodeDecodeError, OverflowError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: corrupt GGUF file: its header cannot be read ({error}); download it again") from None


def cache_folder(path: Path) -> Path:
    """Where a file's full weights are cached: in OUTDO_CACHE, or the user's cache folder. It may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {transformers.__version__}"
    name = f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return Path(os.environ.get("OUTDO_CACHE") or Path(base) / "outdo") / "gguf" / name


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in full weights, without any trace of quantization, and its tokenizer."""
    folder = cache_folder(path)
    options = {"local_files_only": True, "trust_remote_code": False}
    if (folder / "config.json").is_file():
        with suppress(Exception):  # whatever is wrong with the cache, the file itself can be converted again
            tokenizer = keep_spaces(AutoTokenizer.from_pretrained(folder, **options))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", use_safetensors=True, **options)
            return model, tokenizer
    model, tokenizer = _converted(path)

    def write(into: Path) -> None:
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)

    with suppress(OSError, SafetensorError):  # without a cache the next load converts again
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free > FREE_FACTOR * model.num_parameters() * model.dtype.itemsize:
            write_folder(folder, write)
    return model, tokenizer


def _converted(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    architecture = read_header(path).architecture
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(f"{path}: reading GGUF needs the package {' and '.join(missing)}: {INSTALL}")
    # The full path: transformers would search a bare name in the working folder first.
    options = {"gguf_file": str(path.resolve()), "local_files_only": True, "trust_remote_code": False}
    packed = getattr(transformers, "GgufConfig", None)  # newer versions may leave weights quantized
    dense = {"quantization_config": packed(dequantize=True)} if packed else {}
    try:
        tokenizer = keep_spaces(AutoTokenizer.from_pretrained(str(path.parent), **options))
        with _announced(path):
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype="auto", **options, **dense)
    except Exception as error:  # transformers raises many kinds; all mean that this file cannot be loaded
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{path}: transformers cannot read a GGUF of architecture {architecture!r}: {reason:.200}. Give the model "
            "as a Hugging Face folder instead"
        ) from error
    for part in (model, model.config):  # else the model refuses to be trained and saved
        for name in ("quantization_config", "hf_quantizer", "quantization_method", "is_quantized"):
            if hasattr(part, name):
                delattr(part, name)
    return model, tokenizer


@contextmanager
def _announced(path: Path) -> Iterator[None]:
    """Prints a line to standard error in place of transformers' bar, which ignores `disable_progress_bar`."""

    def announce(tensors: Sequence[Any], **options: Any) -> Sequence[Any]:
        line = f"{path.name}: converting {len(tensors)} tensors to full weights; cached in {cache_folder(path)}"
        print(line, file=sys.stderr, flush=True)
        return tensors

    bar = getattr(gguf_utils, "tqdm", None)
    gguf_utils.tqdm = announce
    try:
        yield
    finally:
        gguf_utils.tqdm = bar


def _header(file: IO[bytes], path: Path) -> Header:
    if file.read(4) != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it does not start with {MAGIC.decode()}")
    version, num_tensors, num_values = _unpack(file, "IQQ")
    if version not in (2, 3) or max(num_tensors, num_values) > _MAX_ENTRIES:
        raise ModelError(f"{path}: GGUF version {version} is not supported, only 2 and 3: get a newer file")
    values = {}
    for _ in range(num_values):
        key = _text(file)
        value = _value(file, *_unpack(file, "I"))
        if value is not None:
            values[key] = value
    shapes, end = {}, 0.0
    for _ in range(num_tensors):
        name = _text(file)
        (num_axes,) = _unpack(file, "I")
        shapes[name] = _unpack(file, f"{min(num_axes, 8)}Q")
        _, offset = _unpack(file, "IQ")
        end = max(end, offset + MIN_WEIGHT_BYTES * math.prod(shapes[name]))
    header = Header(str(values.get("general.architecture", "unknown")), shapes, values)
    if path.stat().st_size - file.tell() < end:
        raise ModelError(f"{path}: truncated: it ends before its {header.parameters:,} weights do; download it again")
    return header


def _unpack(file: IO[bytes], fmt: str) -> tuple[Any, ...]:
    fmt = "<" + fmt
    return struct.unpack(fmt, file.read(struct.calcsize(fmt)))


def _text(file: IO[bytes]) -> str:
    (length,) = _unpack(file, "Q")
    if length > _MAX_ENTRIES:
        raise ValueError(f"a text of {length} bytes")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("the file is truncated")
    return data.decode("utf-8", errors="replace")


def _value(file: IO[bytes], kind: int) -> Any:
    if kind in _FIXED:
        return _unpack(file, _FIXED[kind])[0]
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        raise ValueError(f"a value of type {kind}")
    inner, count = _unpack(file, "IQ")
    if inner in _FIXED:
        file.seek(count * struct.calcsize("<" + _FIXED[inner]), 1)
    elif count > _MAX_ENTRIES:
        raise ValueError(f"a list of {count}")
    else:
        for _ in range(count):
            _value(file, inner)
    return None
