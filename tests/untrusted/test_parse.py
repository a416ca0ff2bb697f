"""Limits on JSON and YAML of strangers: refused at once, in words; ordinary values pass unchanged."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from outdo.errors import PlaceError, RecipeError, TaskError
from outdo.recipe.parse import parse_overrides, parse_value, read_yaml
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_rows
from outdo.tasks.files import find_reader
from outdo.untrusted.parse import MAX_DEPTH, is_deep, parse_json, parse_yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
BOMBS = {
    "aliases": LAUGHS,
    "alias of mappings": "a: &a {x: 1}\n"
    + "".join(f"b{i}: &b{i} {{<<: *a, y: [{'*a, ' * 9999}]}}\n" for i in range(3)),
    "merges": "a0: &a0 {k: v}\n"
    + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9)),
    "itself": "a: &a [*a]",
    "brackets": "a: " + "[" * 5000 + "]" * 5000,
    "open brackets": "a: " + "[" * 5000,
    "braces": "a: " + "{a: " * 5000 + "}" * 5000,
    "block": "\n".join(" " * i + "a:" for i in range(500)),
    "keys": "? " * 5000 + "a",
    "digits": "a: " + "9" * 100_000,
    "hex": "a: 0x" + "f" * 100_000,
    "binary": "a: 0b" + "1" * 100_000,
    "sexagesimal": "a: 1" + ":59" * 30_000,
    "float": "a: 1." + "1" * 100_000,
    "tagged": "a: !!int '" + "9" * 100_000 + "'",
    "size": "a: " + "x" * 10_000_000,
    "python": "a: !!python/object/apply:os.system [true]",
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs(tmp_path: Path, name: str) -> None:
    path, start = tmp_path / "r.yaml", time.process_time()
    path.write_text(BOMBS[name])
    with pytest.raises(RecipeError):
        read_yaml(path)
    assert time.process_time() - start < 5


def test_values_of_the_command_line() -> None:
    for text in ("[" * 5000 + "]" * 5000, "{a: " * 4000, "9" * 100_000, "-" + "9" * 100_000):
        with pytest.raises(RecipeError):
            parse_overrides([f"max_steps={text}"])
    for text in ("plain: text", "a # b", "0x" + "f" * 99, "it's", "", "*x", "&a"):
        assert parse_value(text) in (text, None)
    assert parse_value("[1, {a: 2.5}]") == [1, {"a": 2.5}] and parse_value("1e-5") in (1e-5, "1e-5")
    assert parse_value("12") == 12 and parse_value("null") is None and parse_value("true") is True


def test_yaml_that_passes() -> None:
    text = "a: &x [1, 2]\nb: *x\nc: {d: *x}\ne: 2024-01-01\nf: 1_000\ng: -1.5e-3\n"
    assert parse_yaml(text) == yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError):
        parse_yaml("a: 1\na: 2\n")


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 900, 5_000, 200_000])
def test_json_depth(tmp_path: Path, levels: int) -> None:
    deep = "[" * levels + "]" * levels
    objects = '{"a":' * levels + "1" + "}" * levels
    for text in (deep, objects):
        with pytest.raises(ValueError, match="nested"):
            parse_json(text)
    with pytest.raises(PlaceError):
        read_manifest(_run(tmp_path, f'{{"status": "done", "recipe": {{"x": {deep}}}}}'))
    (tmp_path / "d.jsonl").write_text(f'{{"prompt": "1", "x": {deep}}}\n')
    reader = find_reader("d.jsonl")
    assert reader
    with pytest.raises(TaskError):
        list(reader(tmp_path / "d.jsonl"))
    skipped: list[str] = []
    assert not list(read_rows(tmp_path / "d.jsonl", skipped)) and len(skipped) == 1


def _run(folder: Path, text: str) -> Path:
    (folder / "run.json").write_text(text)
    return folder


@pytest.mark.parametrize("digits", [301, 4_299, 100_000])
def test_json_digits(tmp_path: Path, digits: int) -> None:
    for value in ("9" * digits, "-" + "9" * digits):
        with pytest.raises(ValueError, match="digits"):
            parse_json(f'{{"a": [{value}]}}')
        with pytest.raises(PlaceError):
            read_manifest(_run(tmp_path, f'{{"status": "done", "recipe": {{"max_steps": {value}}}}}'))


def test_json_that_passes() -> None:
    values: list[Any] = [{"a": [1, -2.5, None, True, "[" * 500]}, [[[]]] * 200, "9" * 1000, 10**299, 1e308]
    for value in values:
        assert parse_json(json.dumps(value)) == value
    level: Any = 0
    for _ in range(MAX_DEPTH):
        level = [level]
    assert parse_json(json.dumps(level)) == level and not is_deep(level) and is_deep([level])


def test_row_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is too long is skipped, and those after it are read."""
    monkeypatch.setattr("outdo.runs.reader.MAX_LINE", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"b": "' + "x" * 5000 + '"}\n{"c": 1}\n{"growing": 1}')
    skipped: list[str] = []
    assert list(read_rows(path, skipped)) == [{"a": 1}, {"c": 1}] and skipped == [f"{path}: line 2"]
