"""Reads the rows of a data set by split, from a file, a folder or the hub. Code in a data set is never run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from outdo.errors import TaskError, no_such_file
from outdo.parallel.host import hub_answers
from outdo.tasks.splits import HELD_OUT

UNSPLIT = ""  # name of the only split of a source without splits
INSTALL = "pip install 'outdo[data]'"


class Line(NamedTuple):
    """One row, and its location for messages."""

    where: str
    row: dict[str, Any]


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
    return bool(_reader(name)) or exists or name.startswith((".", "/", "~")) or "/" in name


def read(source: Source) -> Splits:
    """All rows. Raises TaskError, which names the file and the line."""
    path = Path(source.name).expanduser()
    if reader := _reader(source.name):
        return {UNSPLIT: list(reader(path))}
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        raise TaskError(
            f"dataset_name={source.name}: unsupported file type {path.suffix or '(none)'}; supported are "
            f"{', '.join(READERS)}, with a `prompt` in each row, and folders of those"
        )
    if source.name.startswith((".", "/", "~")) or source.name.count("/") != 1:
        raise TaskError(f"dataset_name={source.name}: no such file or folder")
    return _hub(source)


def _reader(name: str) -> Callable[[Path], Iterator[Line]] | None:
    return next((reader for ending, reader in READERS.items() if name.endswith(ending)), None)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise TaskError(f"dataset_name={path}: {no_such_file(path)}") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TaskError(f"dataset_name={path}: cannot be read: {error}") from None


def _json_lines(path: Path) -> Iterator[Line]:
    for number, line in enumerate(_text(path).split("\n"), 1):  # splitlines() would also split inside texts
        if line.strip():
            yield _line(f"{path}, line {number}", parse_json(line, f"{path}, line {number}"))


def _json_list(path: Path) -> Iterator[Line]:
    rows = _load_json(_text(path), str(path))
    if not isinstance(rows, list):
        raise TaskError(f"{path}: contains a {type(rows).__name__}; a .json data set is a list of objects")
    for number, row in enumerate(rows, 1):
        yield _line(f"{path}, row {number}", _refuse_surrogates(row, f"{path}, row {number}"))


def parse_json(text: str, where: str) -> Any:
    """The JSON value. Raises TaskError, which names the location."""
    return _refuse_surrogates(_load_json(text, where), where)


def _refuse_surrogates(value: Any, where: str) -> Any:
    """The value itself. JSON may contain a lone surrogate, which no tokenizer can encode and no file can store."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(error.object[error.start]):04x}"
        raise TaskError(
            f"{where}: contains {surrogate}, a lone surrogate: half of a character that was cut in two. Restore the "
            "character or remove it"
        ) from None
    except RecursionError:
        raise TaskError(f"{where}: not JSON: nested too deeply") from None
    return value


def _load_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TaskError(f"{where}: not JSON: {getattr(error, 'msg', 'nested too deeply')}") from None


def _line(where: str, row: Any) -> Line:
    if not isinstance(row, dict):
        raise TaskError(f"{where}: a row must be an object, this is a {type(row).__name__}")
    return Line(where, row)


def _parquet(path: Path) -> Iterator[Line]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        raise TaskError(f"dataset_name={path}: reading parquet needs pyarrow: {INSTALL}") from None
    try:
        rows = read_table(path).to_pylist()
    except FileNotFoundError:
        raise TaskError(f"dataset_name={path}: {no_such_file(path)}") from None
    except (OSError, ArrowException) as error:
        raise TaskError(f"dataset_name={path}: cannot be read: {str(error).splitlines()[0]}") from None
    for number, row in enumerate(rows, 1):
        yield Line(f"{path}, row {number}", row)


READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".json": _json_list,
    ".parquet": _parquet,
}


def _folder(path: Path) -> Splits:
    """A folder that `datasets` saved, or one with a file for each split: train.jsonl, test.jsonl."""
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        datasets = _datasets(str(path))
        with _explain_failure(str(path), "is the folder complete?"):
            return _splits(datasets.load_from_disk(str(path)), str(path))
    splits = {
        file.name.partition(".")[0]: list(reader(file))
        for file in sorted(path.iterdir())
        if file.is_file() and (reader := _reader(file.name))
    }
    if not splits:
        raise TaskError(
            f"dataset_name={path}: this folder has neither a data set saved by `datasets` nor files such as train.jsonl"
        )
    return splits


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
