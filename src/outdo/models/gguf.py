"""GGUF files, the form that llama.cpp keeps models in: read into full weights by transformers.

What can be told from the head of a file is told from there, in a moment: whether it is one, whether it is whole, of
what kind it is and how large. The weights come out in float32, with what their quantisation has cost them. That takes
transformers half a minute for a small model, so they are kept as an ordinary folder and read from there the next time.
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
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_gguf_pytorch_utils,
)

from outdo.errors import ModelError
from outdo.models.renderer import keep_spaces
from outdo.runs.files import write_folder

MAGIC = b"GGUF"
INSTALL = "pip install 'outdo[gguf]'"
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
ROOM = 4  # full weights are kept where so many times their size is free
LEAST = 3 / 16  # bytes of a weight: a bit and a half
_MOST = 2**24  # entries of anything in a head; more is no head


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    architecture: str
    shapes: dict[str, tuple[int, ...]]  # by tensor, the last axis first
    values: dict[str, Any]  # its plain values; lists are left out

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def number(self, name: str, default: int = 0) -> int:
        """A value of its architecture, such as block_count."""
        value = self.values.get(f"{self.architecture}.{name}", default)
        return value if isinstance(value, int) else default


def read_header(path: Path) -> Header:
    """Raises ModelError where it is no GGUF file, or not a whole one."""
    try:
        with path.open("rb") as file:
            return _header(file, path)
    except (OSError, struct.error, UnicodeDecodeError, OverflowError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: a broken GGUF file: its head cannot be read ({error}); get it again") from None


def cache_folder(path: Path) -> Path:
    """The folder where a file's full weights are kept: in OUTDO_CACHE, or where caches are. It may not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    facts = path.stat()
    key = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns} {transformers.__version__}"
    name = f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return Path(os.environ.get("OUTDO_CACHE") or Path(base) / "outdo") / "gguf" / name


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in full weights, free of any sign of quantisation, and its tokenizer."""
    folder = cache_folder(path)
    options = {"local_files_only": True, "trust_remote_code": False}
    if (folder / "config.json").is_file():
        with suppress(Exception):  # whatever is wrong with it, the file itself is there
            tokenizer = keep_spaces(AutoTokenizer.from_pretrained(folder, **options))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", use_safetensors=True, **options)
            return model, tokenizer
    model, tokenizer = _converted(path)

    def write(aside: Path) -> None:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)

    with suppress(OSError, SafetensorError):  # a disk that is full costs the next time, not this one
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free > ROOM * model.num_parameters() * model.dtype.itemsize:
            write_folder(folder, write)
    return model, tokenizer


def _converted(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    kind = read_header(path).architecture
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(f"{path}: reading GGUF needs the package {' and '.join(missing)}: {INSTALL}")
    # The whole path: a bare name would be looked for in the working folder first.
    options = {"gguf_file": str(path.resolve()), "local_files_only": True, "trust_remote_code": False}
    packed = getattr(transformers, "GgufConfig", None)  # newer ones may leave weights as they are packed
    dense = {"quantization_config": packed(dequantize=True)} if packed else {}
    try:
        tokenizer = keep_spaces(AutoTokenizer.from_pretrained(str(path.parent), **options))
        with _told(path):
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype="auto", **options, **dense)
    except Exception as error:  # transformers raises many kinds; all mean that this file cannot be had
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{path}: a GGUF of the kind {kind!r}, which transformers cannot read: {reason:.200}. Give the model as a "
            "Hugging Face folder instead"
        ) from error
    for part in (model, model.config):  # else it would refuse to be trained and saved
        for name in ("quantization_config", "hf_quantizer", "quantization_method", "is_quantized"):
            if hasattr(part, name):
                delattr(part, name)
    return model, tokenizer


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A line on standard error in place of transformers' bar, which takes no notice of `disable_progress_bar`."""

    def told(tensors: Sequence[Any], **how: Any) -> Sequence[Any]:
        words = (
            f"{path.name}: reading {len(tensors)} tensors into full weights; the next time from {cache_folder(path)}"
        )
        print(words, file=sys.stderr, flush=True)
        return tensors

    bar = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    modeling_gguf_pytorch_utils.tqdm = told
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = bar


def _header(file: IO[bytes], path: Path) -> Header:
    if file.read(4) != MAGIC:
        raise ModelError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}")
    version, num_tensors, num_values = _unpack(file, "IQQ")
    if version not in (2, 3) or max(num_tensors, num_values) > _MOST:
        raise ModelError(f"{path}: a GGUF file of version {version}, where 2 and 3 are known: get a newer one")
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
        end = max(end, offset + LEAST * math.prod(shapes[name]))
    header = Header(str(values.get("general.architecture", "unknown")), shapes, values)
    if path.stat().st_size - file.tell() < end:
        raise ModelError(f"{path}: the file ends before its {header.parameters:,} weights do: get it again")
    return header


def _unpack(file: IO[bytes], form: str) -> tuple[Any, ...]:
    form = "<" + form
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _text(file: IO[bytes]) -> str:
    (length,) = _unpack(file, "Q")
    if length > _MOST:
        raise ValueError(f"a text of {length} bytes")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("it ends in the middle")
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
    elif count > _MOST:
        raise ValueError(f"a list of {count}")
    else:
        for _ in range(count):
            _value(file, inner)
    return None
