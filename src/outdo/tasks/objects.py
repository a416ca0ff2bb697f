"""Data given from Python as an object, such as a list of rows, a `datasets.Dataset` or a pandas frame.

A run keeps the rows in its folder, so that it is resumed, evaluated and examined from there. They are therefore what a
file would give: numbers of numpy become numbers, missing values null, dates text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from typing import Any

from outdo.errors import TaskError
from outdo.tasks.data import table_of
from outdo.tasks.files import Line, parse_json
from outdo.tasks.sources import UNSPLIT, Source, Splits, read
from outdo.tasks.task import Task, task_of_table
from outdo.types import Prompt

NAME = "dataset"  # of a task that was given as rows
FORMS = "a list of rows ({'prompt': …, 'answer': …}), a datasets.Dataset, a pandas frame or a path"


def given_data(train: Any, test: Any = None) -> Splits:
    """The rows of `train_dataset` and `eval_dataset`. Raises TaskError, which names the row."""
    splits = _splits(train, "train_dataset")
    if test is None:
        return splits
    if UNSPLIT in splits:
        splits = {"train": splits[UNSPLIT]}
    rows = _splits(test, "eval_dataset")
    return {**splits, "test": rows.get(UNSPLIT) or rows.get("test") or next(iter(rows.values()))}


def data_task(splits: Splits, source: Source, system_prompt: str | None = None) -> Task:
    """The task of given rows."""
    return replace(task_of_table(source.name, table_of(splits, source)), system_prompt=system_prompt)


def eval_task(data: Any, split: str, system_prompt: str | None = None) -> Task:
    """All rows of the data as that one split, for an evaluation alone; of data with splits, the one of that name."""
    splits = _splits(data, "task")
    lines = splits.get(split) or [line for each in splits.values() for line in each]
    return data_task({"train": lines, split: lines}, Source(NAME), system_prompt)


def is_data(given: Any) -> bool:
    """Whether it is data and not a task or the name of one."""
    return isinstance(given, (list, tuple, Mapping)) or any(hasattr(given, name) for name in _READERS)


def as_files(splits: Splits) -> dict[str, str]:
    """The files that `sources.read` gives the same rows from: one for each split, or one alone."""
    return {
        f"{split or 'rows'}.jsonl": "".join(json.dumps(line.row, ensure_ascii=False) + "\n" for line in lines)
        for split, lines in splits.items()
    }


_READERS = {  # how a table gives its rows, by the attribute that it is known by
    "iloc": lambda table: table.to_dict("records"),  # pandas
    "to_dicts": lambda table: table.to_dicts(),  # polars
    "to_pylist": lambda table: table.to_pylist(),  # pyarrow
    "to_list": lambda table: table.to_list(),  # datasets
}


def _splits(data: Any, key: str) -> Splits:
    if isinstance(data, (str, Path)):
        return read(Source(str(data)))
    if isinstance(data, Mapping):
        if all(is_data(part) and not _is_column(part) for part in data.values()):  # a DatasetDict
            return {str(split): _lines(part, f"{key}[{split!r}]") for split, part in data.items()}
        columns = {name: list(values) for name, values in data.items()}
        if len({len(values) for values in columns.values()}) != 1:
            raise TaskError(f"{key}: a mapping of columns, and they have different lengths")
        data = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {UNSPLIT: _lines(data, key)}


def _is_column(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and not all(isinstance(one, (Mapping, Prompt)) for one in values)


def _lines(data: Any, key: str) -> list[Line]:
    rows = next((rows_of(data) for name, rows_of in _READERS.items() if hasattr(data, name)), data)
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise TaskError(f"{key} is a {type(data).__name__}: expected {FORMS}")
    lines = [_line(row, f"{key}, row {number}") for number, row in enumerate(rows, 1)]
    if not lines:
        raise TaskError(f"{key} has no rows")
    return lines


def _line(row: Any, where: str) -> Line:
    if isinstance(row, Prompt):
        row = {"messages": list(row.messages), "answer": row.answer, "id": row.id, **row.meta}
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: is a {type(row).__name__}; expected {FORMS}")
    plain = {str(name): _plain(value, f"{where}, column {name!r}") for name, value in row.items()}
    return Line(where, parse_json(json.dumps(plain), where))


def _plain(value: Any, where: str) -> Any:
    """The value as JSON has it. Raises TaskError where it has none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each, where) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, where) for each in value]
    if hasattr(value, "tolist"):  # of numpy and torch
        return _plain(value.tolist(), where)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # how pandas writes a missing value
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TaskError(
        f"{where}: is a {type(value).__name__}, which cannot be kept in the run's folder: use text or numbers"
    )
