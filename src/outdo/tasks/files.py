"""Reads the rows of one file: JSON Lines, a JSON list, CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from outdo.errors import TaskError, no_such_file
from outdo.untrusted import parse as limits

INSTALL = "pip install 'outdo[data]'"
MAX_CELL = 2**31 - 1  # characters of a cell
MAX_LINE = 64 << 20  # characters of a row
MAX_UNPACKED = 4 << 30  # bytes


class Line(NamedTuple):
    """One row, and its location for messages."""

    where: str
    row: dict[str, Any]


def find_reader(name: str) -> Callable[[Path], Iterator[Line]] | None:
    """The reader of a file of that name; None where the type is not supported."""
    return next((reader for ending, reader in READERS.items() if name.endswith(ending)), None)


def _text(path: Path) -> str:
    try:
        if path.suffix != ".gz":
            return path.read_bytes().decode("utf-8-sig")
        with gzip.open(path) as file:  # a small file may unpack to any size
            data = file.read(MAX_UNPACKED + 1)
        if len(data) > MAX_UNPACKED:
            raise TaskError(f"dataset_name={path}: unpacks to more than {MAX_UNPACKED >> 30} GB: unpack it yourself")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise TaskError(f"dataset_name={path}: {no_such_file(path)}") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TaskError(f"dataset_name={path}: cannot be read: {error}") from None


def _json_lines(path: Path) -> Iterator[Line]:
    for number, line in enumerate(_text(path).split("\n"), 1):  # splitlines() would also split inside texts
        if len(line) > MAX_LINE:
            raise TaskError(f"{path}, line {number}: has {len(line):,} characters; at most {MAX_LINE:,} are read")
        if line.strip():
            yield _line(f"{path}, line {number}", parse_json(line, f"{path}, line {number}"))


def _json_list(path: Path) -> Iterator[Line]:
    try:
        rows = _load_json(_text(path), str(path))
    except TaskError as error:
        if not str(error).endswith("Extra data"):
            raise
        yield from _json_lines(path)  # under the name that files of the hub often have
        return
    if not isinstance(rows, list):
        raise TaskError(f"{path}: contains a {type(rows).__name__}; a .json data set is a list of objects")
    for number, row in enumerate(rows, 1):
        yield _line(f"{path}, row {number}", _refuse_surrogates(row, f"{path}, row {number}"))


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises TaskError."""
    return parse_json(_text(path), str(path))


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
        return limits.parse_json(text, unique_keys)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON: {error.msg}") from None
    except ValueError as error:  # a doubled key, or a limit
        raise TaskError(f"{where}: {error}") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads(object_pairs_hook=…). Raises ValueError for a key that is given twice: Python keeps the last."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{double!r} is given twice: remove one of them")
    return row


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


def _table(path: Path) -> Iterator[Line]:
    """A table as text: its first line names the columns, an empty cell is a missing value, and every other is text."""
    text = _text(path)
    head = text.partition("\n")[0]
    separator = "\t" if path.name.endswith((".tsv", ".tsv.gz")) else max(",;\t", key=head.count)
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    columns: list[str] = []
    start = 1  # of the row, which may have several lines
    try:
        for cells in reader:
            where, start = f"{path}, line {start}", reader.line_num + 1
            if not columns:
                columns = [cell.strip() for cell in cells]
                if double := next((name for name in columns if columns.count(name) > 1), None):
                    raise TaskError(f"{where}: the column {double!r} is given twice: rename one of them")
                continue
            if not cells:
                continue
            if len(cells) != len(columns):
                raise TaskError(
                    f"{where}: has {len(cells)} cells, and the first line names {len(columns)} columns "
                    f"({', '.join(columns)}): put a text that contains {separator!r} in quotes"
                )
            yield Line(where, {name: cell or None for name, cell in zip(columns, cells, strict=True)})
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num}: not a table: {error}") from None


READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_list,
    ".csv": _table,
    ".csv.gz": _table,
    ".tsv": _table,
    ".parquet": _parquet,
}
