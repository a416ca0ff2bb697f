"""Files that grow, are cut back, are corrupt or are not files: read in pieces, once, and without blocking."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from outdo.runs import index, run_reader, tail, values
from outdo.runs.index import GroupIndex, GroupReader
from outdo.runs.manifest import read_manifest
from outdo.runs.run_reader import MetricsFile, RunCache, RunReader
from outdo.runs.table import Frame, Table, bin_starts, downsample, last_of_bins, rounded
from outdo.runs.tail import Tail
from outdo.runs.values import json_safe, parse_object, parse_rows
from support.folders import append, make_run


def lines_of(file: Tail) -> tuple[list[bytes], bool]:
    """All new lines, and whether the file was restarted."""
    lines: list[bytes] = []
    restarted = False
    while True:
        update = file.read()
        restarted |= update.restarted
        lines = update.lines if update.restarted else [*lines, *update.lines]
        if not update.more:
            return lines, restarted


def test_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    file = Tail(tmp_path, path)
    assert lines_of(file) == ([], False)
    append(path, b"one\ntw")
    assert lines_of(file) == ([b"one"], False)
    assert lines_of(file) == ([], False)
    append(path, b"o\nthree\n")
    assert lines_of(file) == ([b"two", b"three"], False)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    file = Tail(tmp_path, path)
    append(path, b"one\ntwo\nthree\n")
    lines_of(file)
    os.truncate(path, 4)
    assert lines_of(file) == ([b"one"], True)
    append(path, b"2\n")
    assert lines_of(file) == ([b"2"], False)


def test_truncated_and_regrown_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    file = Tail(tmp_path, path)
    append(path, b"one\ntwo\n")
    lines_of(file)
    os.truncate(path, 4)
    append(path, b"TWO\nthree\n")
    assert lines_of(file) == ([b"one", b"TWO", b"three"], True)


def test_too_long_line_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK_BYTES", 64)
    path = tmp_path / "metrics.jsonl"
    numbers = MetricsFile(tmp_path, path)
    append(path, {"step": 0, "x": 1.0}, b"y" * 1000 + b"\n", {"step": 1, "x": 2.0})
    assert numbers.frame().get("x").tolist() == [1.0, 2.0]
    assert "too long" in numbers.problems()[0]


def test_invalid_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, {"step": 0, "x": 1.0}, b"{half\n", b"[1]\n", b'{"step": 1}, {"step": 2}\n', b"\xff\xfe\n")
    append(path, {"step": 3, "x": 4.0})
    numbers = MetricsFile(tmp_path, path)
    frame = numbers.frame()
    assert frame.steps.tolist() == [0, 3] and frame.get("x").tolist() == [1.0, 4.0]
    assert numbers.problems() == ["skipped 4 lines of metrics.jsonl that are not JSON rows"]


@pytest.mark.parametrize("what", ["pipe", "folder", "link out"])
def test_irregular_file_is_reported_without_blocking(what: str, tmp_path: Path) -> None:
    root, path = tmp_path / "runs", tmp_path / "runs" / "metrics.jsonl"
    root.mkdir()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        append(tmp_path / "secret", {"step": 0, "x": 1.0})
        path.symlink_to(tmp_path / "secret")
    numbers = MetricsFile(root, path)
    assert len(numbers.frame()) == 0
    assert "metrics.jsonl" in numbers.problems()[0]


def test_json_safe() -> None:
    row = parse_object(rb'{"a": NaN, "b": [Infinity, 1e400], "c": "\ud800x", "d": 123456789012345678901234567890}')
    assert row is not None
    assert json_safe(row) == {"a": None, "b": [None, None], "c": "�x", "d": 1.2345678901234568e29}
    assert json_safe({"n": 10**400, "\ud800": True}) == {"n": None, "�": True}
    assert parse_object(b"[" * 100_000) is None
    row = parse_object(b'{"n": ' + b"9" * 6000 + b"}")  # more digits than Python turns back into text
    assert row is None or json_safe(row) == {"n": None}
    deep = json_safe(_nested(500))
    for _ in range(values.MAX_DEPTH - 1):
        deep = deep[0]
    assert deep == [None]


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def test_two_objects_on_a_line_are_invalid() -> None:
    assert parse_rows([b'{"a": 1}', b'{"b": 2}, {"c": 3}', b"", b'{"d": 4}']) == ([{"a": 1}, {"d": 4}], 1)


def test_columns_are_nan_without_a_number() -> None:
    table = Table()
    table.add([{"step": 0, "a": 1, "b": "2"}, {"step": 1, "a": None}, {"step": 2, "a": math.inf, "c": 10**400}])
    table.add([{"step": 3, "c": 5, "d": True}, {"step": "x"}, {"step": 1e300}])
    frame = table.frame()
    assert frame.steps.tolist() == [0, 1, 2, 3] and table.invalid == 2
    assert [str(x) for x in frame.get("a")] == ["1.0", "nan", "nan", "nan"]
    assert [str(x) for x in frame.get("c")] == ["nan", "nan", "nan", "5.0"]
    assert not np.isfinite(frame.get("b")).any() and not np.isfinite(frame.get("d")).any()


def test_frame_is_a_snapshot() -> None:
    table = Table()
    table.add([{"step": i, "x": float(i)} for i in range(60)])
    frame = table.frame()
    table.add([{"step": i, "x": 100.0, "y": 1.0} for i in range(60, 300)])
    assert len(frame) == 60 and frame.get("x").max() == 59.0
    assert table.frame().get("x").tolist()[59:61] == [59.0, 100.0]


def test_table_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.runs.table.MAX_CELLS", 30)
    table = Table()
    table.add([{"step": 0, "x": 1.0}])
    table.add([{"step": i, "x": 1.0} for i in range(1, 40)])
    assert len(table.frame()) == 15 and table.dropped == 25
    many = Table()
    monkeypatch.setattr("outdo.runs.table.MAX_COLUMNS", 3)
    many.add([{"step": 0, **{f"n{i}": 1.0 for i in range(9)}}])
    assert len(many.frame().columns) == 3


def test_downsample() -> None:
    column = np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan, 0.0, -2.0])
    starts = bin_starts(8, 4)
    assert starts is not None and starts.tolist() == [0, 2, 4, 6]
    points = downsample(column, starts)
    assert points.low is not None and points.high is not None
    assert [str(x) for x in points.mean] == ["2.0", "5.0", "nan", "-1.0"]
    assert [str(x) for x in points.low] == ["1.0", "5.0", "nan", "-2.0"]
    assert [str(x) for x in points.high] == ["3.0", "5.0", "nan", "0.0"]
    assert last_of_bins(np.arange(8), starts).tolist() == [1, 3, 5, 7]
    assert bin_starts(4, 4) is None and downsample(column, None).low is None


def test_rounded_to_six_digits() -> None:
    values = rounded(np.array([0.0, 1 / 3, -1234567.0, 1e-300, np.nan, 5e-324, 1.7e308]))
    assert values[:4].tolist() == [0.0, 0.333333, -1234570.0, 1e-300]
    assert np.isnan(values[4]) and values[5] >= 0 and values[6] == pytest.approx(1.7e308)


def test_rows_between_steps_in_any_order() -> None:
    frame = Frame(np.array([5, 1, 3, 9]), {"x": np.array([50.0, 10.0, 30.0, 90.0])})
    assert frame.between(2, 5).get("x").tolist() == [50.0, 30.0]
    assert frame.between(None, 1).steps.tolist() == [1]


def test_group_index_follows_appends_and_rewinds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, ended=None)
    offsets = run.offsets()
    groups = GroupIndex(tmp_path, tmp_path / "run")
    locations, problems = groups.at(1)
    assert problems == [] and [location.step for location in locations] == [1, 1]
    with GroupReader(tmp_path) as reader:
        assert [reader.row(location)["prompt_id"] for location in locations] == ["1+1", "17*3"]
    path = tmp_path / "run" / "groups" / "steps-000000.jsonl"
    append(path, b'{"step": 4, "prompt_id": "half')
    assert groups.at(4) == ([], [])
    append(path, b'", "completions": []}\n', b'{"prompt_id": "other order", "step": 4}\n', b"{nonsense\n")
    locations, problems = groups.at(4)
    assert len(locations) == 2 and "1 lines of groups/" in problems[0]
    run.rewind(offsets)
    assert groups.at(4) == ([], []) and len(groups.at(3)[0]) == 2
    run.close()


def test_group_index_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=5)

    def locations() -> list[tuple[int, int, int]]:
        groups = GroupIndex(tmp_path, tmp_path / "run")
        return [(at.step, at.offset, at.length) for step in range(1, 6) for at in groups.at(step)[0]]

    expected = locations()
    for size in (17, 100, 701):
        monkeypatch.setattr(index, "CHUNK_BYTES", size)
        assert locations() == expected, size


def test_too_long_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=1)
    path = tmp_path / "run" / "groups" / "steps-000000.jsonl"
    append(path, {"step": 1, "prompt_id": "long", "completions": [{"text": "x" * 5000}]})
    monkeypatch.setattr(index, "MAX_LINE_BYTES", 3000)
    locations, _ = GroupIndex(tmp_path, tmp_path / "run").at(1)
    assert len(locations) == 3
    with GroupReader(tmp_path) as reader, pytest.raises(ValueError, match="is not read"):
        reader.row(locations[2])


def test_steps_without_reading_groups(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=230)
    (tmp_path / "run" / "groups" / "steps-000100.jsonl").unlink()
    reader = RunReader(tmp_path, tmp_path / "run")
    assert reader.steps() == [*range(1, 100), *range(200, 231)]
    assert reader.groups.num_groups == 0
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert reader.steps() == [*range(1, 100), *range(200, 231)]


def test_run_cache_drops_the_least_recent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        make_run(tmp_path / name, steps=2)
    monkeypatch.setattr(run_reader, "MAX_READERS", 2)
    cache = RunCache(tmp_path)
    a, b = cache.reader(tmp_path / "a"), cache.reader(tmp_path / "b")
    assert cache.reader(tmp_path / "a") is a
    cache.reader(tmp_path / "c")
    assert cache.reader(tmp_path / "a") is a and cache.reader(tmp_path / "b") is not b
    a.metrics.frame()
    monkeypatch.setattr(run_reader, "MAX_CELLS", 10)  # memory counts, not the number of runs
    assert cache.reader(tmp_path / "b") is not b and cache.reader(tmp_path / "a") is not a


def test_too_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=250)
    monkeypatch.setattr(index, "MAX_GROUPS", 150)
    groups = GroupIndex(tmp_path, tmp_path / "run").all()
    assert groups.steps_N.tolist() == [step for step in range(1, 76) for _ in range(2)] + [
        100 + i // 2 for i in range(150)
    ]
    assert groups.problems() == ["groups/ has more than 150 groups: only the first are read"]
    location = groups.location(151)
    assert location.path.name == "steps-000100.jsonl" and location.step == 100


def test_old_manifest_has_num_parameters(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=1)
    path = tmp_path / "run" / "run.json"
    manifest = json.loads(path.read_text())
    manifest.pop("num_parameters", None)
    path.write_text(json.dumps({**manifest, "parameters": 1234}))
    facts, problems = RunReader(tmp_path, tmp_path / "run").manifest()
    assert facts["num_parameters"] == 1234 and "parameters" not in facts and problems == []
    assert read_manifest(tmp_path / "run").num_parameters == 1234
