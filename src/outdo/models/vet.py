"""What a model's folder must not have: weights as pickles, files elsewhere, code. Checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outdo.errors import ModelError
from outdo.untrusted.parse import parse_json, read_bounded

WEIGHTS, INDEX = ".safetensors", ".index.json"
MAX_CONFIG, MAX_INDEX = 16 << 20, 256 << 20  # bytes
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
ATTENTION = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal")


def refuse_unsafe_folder(name: str, folder: Path) -> None:
    """Raises ModelError, which names the file."""
    for file in (folder / config for config in CONFIGS):
        if file.exists():
            refuse_unsafe_config(name, file)
    for index in sorted(folder.glob(f"*{INDEX}")):
        refuse_unsafe_index(name, index)
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"model {name}: has both config.json and adapter_config.json: keep the adapter in a folder of its own"
        )
    for file in folder.glob(f"*{WEIGHTS}"):
        if not file.is_file():
            raise ModelError(f"model {name}: {file.name} is not a regular file")


def refuse_unsafe_index(name: str, path: Path) -> None:
    """An index maps weights to files beside it. That of PyTorch's pickles is never used, and may lie there."""
    files = _read(name, path, MAX_INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise ModelError(f"model {name}: {path.name} has no weight_map")
    for file in set(map(str, files.values())):
        if Path(file).name != file or file in (".", "..") or "\\" in file:
            raise ModelError(f"model {name}: {path.name} names {file!r:.80}, which is not a file of its folder")
        if path.name.endswith(WEIGHTS + INDEX) and not file.endswith(WEIGHTS):
            raise ModelError(f"model {name}: {path.name} names {file!r:.80}: weights are read as safetensors only")


def refuse_unsafe_config(name: str, path: Path) -> None:
    config = _read(name, path, MAX_CONFIG)
    for key, value in _pairs(config):
        if key in ATTENTION and "/" in str(value):
            raise ModelError(f"model {name}: {path.name}: {key}={value!r:.80} is code of the hub, which is never run")
        if key == "transformers_weights" and value is not None:
            text = str(value)
            if Path(text).name != text or not text.endswith((WEIGHTS, WEIGHTS + INDEX)):
                raise ModelError(f"model {name}: {path.name}: {key}={value!r:.80} is not a safetensors file beside it")


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of nested mappings, with its value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key, each
            yield from _pairs(each)
    elif isinstance(value, list):
        for each in value:
            yield from _pairs(each)


def _read(name: str, path: Path, max_bytes: int) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"model {name}: {path.name} is not a regular file")
    try:
        value = parse_json(read_bounded(path, max_bytes).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"model {name}: cannot be loaded: {path.name}: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise ModelError(f"model {name}: cannot be loaded: {path.name} is not a JSON object")
    return value
