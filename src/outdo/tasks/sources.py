"""Reads the rows of a data set by split, from a file, a folder or the hub. Code in a data set is never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.host import hub_answers
from outdo.tasks.files import INSTALL, READERS, Line, find_reader
from outdo.tasks.splits import HELD_OUT

UNSPLIT = ""  # name of the only split of a source without splits
SPLIT_NAMES = ("train", "test", "validation", "valid", "val", "dev", "eval")  # that files of a folder have
_SHARD = re.compile(r"(.+?)[-_]\d{5}-of-\d{5}")  # train-00000-of-00002, as the hub names files

Splits = dict[str, list[Line]]


@dataclass(frozen=True)
class Source:
    """A recipe's keys about its data."""

    name: str
    config: str | None = None  # of a hub data set that has several
    train_split: str = "train"
    test_split: str = "test"
    columns: dict[str, str] = field(default_factory=dict)  # our name: the data's name
    eval_fraction: float = HELD_OUT  # of the rows is held out where the data has no test split


# The recipe's names of these fields.
SOURCE_KEYS = {f"dataset_{name}": name for name in ("config", "train_split", "test_split")} | {
    name: name for name in ("columns", "eval_fraction")
}


def is_source(name: str) -> bool:
    """Whether a `dataset_name` means data, not a task by name."""
    if ":" in name or name.startswith("reasoning_gym/") or name.endswith(".py"):
        return False
    path = Path(name).expanduser()
    exists = path.is_dir() or (bool(path.suffix) and path.is_file())
    return bool(find_reader(name)) or exists or name.startswith((".", "/", "~")) or "/" in name


def read(source: Source) -> Splits:
    """All rows. Raises TaskError, which names the file and the line."""
    path = Path(source.name).expanduser()
    if reader := find_reader(source.name):
        return {UNSPLIT: list(reader(path))}
    if path.is_dir():
        return _folder(path, source)
    if path.is_file():
        raise TaskError(
            f"dataset_name={source.name}: unsupported file type {path.suffix or '(none)'}; supported are "
            f"{', '.join(READERS)}, with a `prompt` in each row, and folders of those"
        )
    if source.name.startswith((".", "/", "~")) or source.name.count("/") != 1:
        raise TaskError(f"dataset_name={source.name}: no such file or folder")
    return _hub(source)


def _folder(path: Path, source: Source) -> Splits:
    """A folder that `datasets` saved, or one with files for each split: train.jsonl, test-00000-of-00002.parquet. Files
    that are not named after splits are one data set together."""
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        datasets = _datasets(str(path))
        with _explain_failure(str(path), "is the folder complete?"):
            return _splits(datasets.load_from_disk(str(path)), str(path))
    files = [file for file in sorted(path.iterdir()) if file.is_file() and find_reader(file.name)]
    if not files and (path / "data").is_dir():  # as the hub lays out a repository
        return _folder(path / "data", source)
    splits: Splits = {}
    for file in files:
        reader = find_reader(file.name)
        assert reader
        splits.setdefault(_split_of(file), []).extend(reader(file))
    if not splits:
        raise TaskError(
            f"dataset_name={path}: this folder has neither a data set saved by `datasets` nor files such as "
            f"train.jsonl; supported are {', '.join(READERS)}"
        )
    if splits.keys().isdisjoint((*SPLIT_NAMES, source.train_split, source.test_split)):
        return {UNSPLIT: [line for lines in splits.values() for line in lines]}
    return splits


def _split_of(file: Path) -> str:
    name = file.name.partition(".")[0]
    shard = _SHARD.fullmatch(name)
    return shard[1] if shard else name


def _hub(source: Source) -> Splits:
    name = source.name
    online = hub_answers()
    try:
        datasets = _datasets(name)
    except TaskError as error:
        if online:
            raise
        raise TaskError(f"{_offline(name)}. ({error})") from None
    with _explain_failure(name, "is the name right, and does it need dataset_config?" if online else _offline(name)):
        before = datasets.config.HF_HUB_OFFLINE
        datasets.config.HF_HUB_OFFLINE = before or not online  # offline, it may still be in the cache
        try:
            return _splits(datasets.load_dataset(name, source.config), name)
        finally:
            datasets.config.HF_HUB_OFFLINE = before


def _offline(name: str) -> str:
    return (
        f"dataset_name={name}: no such file or folder, and the hub cannot be reached. Without a network, use a .jsonl "
        "file, a folder saved by `datasets` (save_to_disk), or a task (outdo tasks)"
    )


def _datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise TaskError(f"dataset_name={name} needs the package datasets ({error}): {INSTALL}") from None
    datasets.disable_progress_bars()
    return datasets


@contextmanager
def _explain_failure(name: str, hint: str) -> Iterator[None]:
    """Re-raises any error of `datasets` as TaskError: the user must choose another data set."""
    try:
        yield
    except TaskError:
        raise
    except Exception as error:
        if hint.startswith("dataset_name="):  # offline: its own message does not help
            raise TaskError(hint) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(f"dataset_name={name} cannot be loaded ({hint}): {reason}") from error


def _splits(loaded: Any, name: str) -> Splits:
    tables = dict(loaded) if isinstance(loaded, dict) else {UNSPLIT: loaded}
    return {
        str(split): [Line(f"{name} {split}, row {n}", row) for n, row in enumerate(table.to_list(), 1)]
        for split, table in tables.items()
    }
