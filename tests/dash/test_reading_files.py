"""Files that grow, are cut back, are broken, or are no files: read in pieces, once, and without hanging."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from outdo.dash import blocks, book, files
from outdo.dash.blocks import Index, Reader
from outdo.dash.book import Book, Numbers, Shelf
from outdo.dash.files import Tail, parsed, parsed_all, plain
from outdo.dash.table import Frame, Table, last_of, rounded, shrunk, starts
from support.folders import append, make_run


def lines_of(tail: Tail) -> tuple[list[bytes], bool]:
    """All that is new, and whether it was begun again."""
    found: list[bytes] = []
    again = False
    while True:
        news = tail.read()
        again |= news.again
        found = news.lines if news.again else [*found, *news.lines]
        if not news.more:
            return found, again


def test_a_line_is_handed_on_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = Tail(tmp_path, path)
    assert lines_of(tail) == ([], False)
    append(path, b"one\ntw")
    assert lines_of(tail) == ([b"one"], False)
    assert lines_of(tail) == ([], False)
    append(path, b"o\nthree\n")
    assert lines_of(tail) == ([b"two", b"three"], False)


def test_a_file_that_was_cut_back_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = Tail(tmp_path, path)
    append(path, b"one\ntwo\nthree\n")
    lines_of(tail)
    os.truncate(path, 4)
    assert lines_of(tail) == ([b"one"], True)
    append(path, b"2\n")
    assert lines_of(tail) == ([b"2"], False)


def test_one_that_was_cut_back_and_grew_past_where_it_was_is_noticed_too(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = Tail(tmp_path, path)
    append(path, b"one\ntwo\n")
    lines_of(tail)
    os.truncate(path, 4)
    append(path, b"TWO\nthree\n")
    assert lines_of(tail) == ([b"one", b"TWO", b"three"], True)


def test_a_line_without_end_is_passed_over_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK", 64)
    path = tmp_path / "metrics.jsonl"
    numbers = Numbers(tmp_path, path)
    append(path, {"step": 0, "x": 1.0}, b"y" * 1000 + b"\n", {"step": 1, "x": 2.0})
    assert numbers.frame().get("x").tolist() == [1.0, 2.0]
    assert "too long" in numbers.trouble()[0]


def test_lines_that_are_no_rows_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, {"step": 0, "x": 1.0}, b"{half\n", b"[1]\n", b'{"step": 1}, {"step": 2}\n', b"\xff\xfe\n")
    append(path, {"step": 3, "x": 4.0})
    numbers = Numbers(tmp_path, path)
    frame = numbers.frame()
    assert frame.steps.tolist() == [0, 3] and frame.get("x").tolist() == [1.0, 4.0]
    assert numbers.trouble() == ["4 lines of metrics.jsonl are no rows: they are passed over"]


@pytest.mark.parametrize("what", ["pipe", "folder", "link out"])
def test_what_is_no_file_here_is_said_and_never_waited_for(what: str, tmp_path: Path) -> None:
    root, path = tmp_path / "runs", tmp_path / "runs" / "metrics.jsonl"
    root.mkdir()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        append(tmp_path / "secret", {"step": 0, "x": 1.0})
        path.symlink_to(tmp_path / "secret")
    numbers = Numbers(root, path)
    assert len(numbers.frame()) == 0
    assert "metrics.jsonl" in numbers.trouble()[0]


def test_what_json_cannot_carry_is_taken_out() -> None:
    row = parsed(rb'{"a": NaN, "b": [Infinity, 1e400], "c": "\ud800x", "d": 123456789012345678901234567890}')
    assert row is not None
    assert plain(row) == {"a": None, "b": [None, None], "c": "�x", "d": 1.2345678901234568e29}
    assert plain({"n": 10**400, "\ud800": True}) == {"n": None, "�": True}
    assert parsed(b"[" * 100_000) is None
    row = parsed(b'{"n": ' + b"9" * 6000 + b"}")  # more digits than Python turns back into text
    assert row is None or plain(row) == {"n": None}
    deep = plain(_nested(500))
    for _ in range(files.DEPTH - 1):
        deep = deep[0]
    assert deep == [None]


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def test_joined_lines_are_not_taken_for_other_rows() -> None:
    assert parsed_all([b'{"a": 1}', b'{"b": 2}, {"c": 3}', b"", b'{"d": 4}']) == ([{"a": 1}, {"d": 4}], 1)


def test_columns_have_nothing_where_a_row_has_no_number() -> None:
    table = Table()
    table.add([{"step": 0, "a": 1, "b": "2"}, {"step": 1, "a": None}, {"step": 2, "a": math.inf, "c": 10**400}])
    table.add([{"step": 3, "c": 5, "d": True}, {"step": "x"}, {"step": 1e300}])
    frame = table.frame()
    assert frame.steps.tolist() == [0, 1, 2, 3] and table.broken == 2
    assert [str(x) for x in frame.get("a")] == ["1.0", "nan", "nan", "nan"]
    assert [str(x) for x in frame.get("c")] == ["nan", "nan", "nan", "5.0"]
    assert not np.isfinite(frame.get("b")).any() and not np.isfinite(frame.get("d")).any()


def test_a_frame_does_not_change_when_rows_are_added() -> None:
    table = Table()
    table.add([{"step": i, "x": float(i)} for i in range(60)])
    frame = table.frame()
    table.add([{"step": i, "x": 100.0, "y": 1.0} for i in range(60, 300)])
    assert len(frame) == 60 and frame.get("x").max() == 59.0
    assert table.frame().get("x").tolist()[59:61] == [59.0, 100.0]


def test_a_table_stops_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.dash.table.CELLS", 30)
    table = Table()
    table.add([{"step": 0, "x": 1.0}])
    table.add([{"step": i, "x": 1.0} for i in range(1, 40)])
    assert len(table.frame()) == 15 and table.left_out == 25
    many = Table()
    monkeypatch.setattr("outdo.dash.table.NAMES", 3)
    many.add([{"step": 0, **{f"n{i}": 1.0 for i in range(9)}}])
    assert len(many.frame().columns) == 3


def test_points_are_means_with_the_least_and_most_of_their_rows() -> None:
    column = np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan, 0.0, -2.0])
    begin = starts(8, 4)
    assert begin is not None and begin.tolist() == [0, 2, 4, 6]
    points = shrunk(column, begin)
    assert points.low is not None and points.high is not None
    assert [str(x) for x in points.mean] == ["2.0", "5.0", "nan", "-1.0"]
    assert [str(x) for x in points.low] == ["1.0", "5.0", "nan", "-2.0"]
    assert [str(x) for x in points.high] == ["3.0", "5.0", "nan", "0.0"]
    assert last_of(np.arange(8), begin).tolist() == [1, 3, 5, 7]
    assert starts(4, 4) is None and shrunk(column, None).low is None


def test_numbers_are_sent_with_six_digits() -> None:
    found = rounded(np.array([0.0, 1 / 3, -1234567.0, 1e-300, np.nan, 5e-324, 1.7e308]))
    assert found[:4].tolist() == [0.0, 0.333333, -1234570.0, 1e-300]
    assert np.isnan(found[4]) and found[5] >= 0 and found[6] == pytest.approx(1.7e308)


def test_rows_between_two_steps_are_found_whatever_their_order() -> None:
    frame = Frame(np.array([5, 1, 3, 9]), {"x": np.array([50.0, 10.0, 30.0, 90.0])})
    assert frame.between(2, 5).get("x").tolist() == [50.0, 30.0]
    assert frame.between(None, 1).steps.tolist() == [1]


def test_groups_are_found_by_their_beginnings_and_again_after_a_rewind(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, ended=None)
    offsets = run.offsets()
    index = Index(tmp_path, tmp_path / "run")
    places, trouble = index.at(1)
    assert trouble == [] and [place.step for place in places] == [1, 1]
    with Reader(tmp_path) as reader:
        assert [reader.row(place)["prompt_id"] for place in places] == ["1+1", "17*3"]
    path = tmp_path / "run" / "groups" / "steps-000000.jsonl"
    append(path, b'{"step": 3, "prompt_id": "half')
    assert index.at(3) == ([], [])
    append(path, b'", "completions": []}\n', b'{"prompt_id": "other order", "step": 3}\n', b"{nonsense\n")
    places, trouble = index.at(3)
    assert len(places) == 2 and "1 lines of groups/" in trouble[0]
    run.rewind(offsets)
    assert index.at(3) == ([], []) and len(index.at(2)[0]) == 2
    run.close()


def test_a_group_is_found_across_the_pieces_that_a_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", steps=5)
    whole = [(p.step, p.offset, p.length) for step in range(5) for p in Index(tmp_path, tmp_path / "run").at(step)[0]]
    for size in (17, 100, 701):
        monkeypatch.setattr(blocks, "CHUNK", size)
        index = Index(tmp_path, tmp_path / "run")
        assert [(p.step, p.offset, p.length) for step in range(5) for p in index.at(step)[0]] == whole, size


def test_a_group_that_is_too_long_is_said_and_the_others_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=1)
    path = tmp_path / "run" / "groups" / "steps-000000.jsonl"
    append(path, {"step": 0, "prompt_id": "long", "completions": [{"text": "x" * 5000}]})
    monkeypatch.setattr(blocks, "LONGEST", 3000)
    index = Index(tmp_path, tmp_path / "run")
    places, _ = index.at(0)
    assert len(places) == 3
    with Reader(tmp_path) as reader, pytest.raises(ValueError, match="is not read"):
        reader.row(places[2])


def test_steps_with_answers_are_told_without_reading_them(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=230)
    (tmp_path / "run" / "groups" / "steps-000100.jsonl").unlink()
    book = Book(tmp_path, tmp_path / "run")
    assert book.steps() == [*range(100), *range(200, 230)]
    assert book.index.rows == 0
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert book.steps() == [*range(100), *range(200, 230)]


def test_the_shelf_lets_go_of_what_was_looked_at_longest_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        make_run(tmp_path / name, steps=2)
    monkeypatch.setattr(book, "BOOKS", 2)
    shelf = Shelf(tmp_path)
    a, b = shelf.book(tmp_path / "a"), shelf.book(tmp_path / "b")
    assert shelf.book(tmp_path / "a") is a
    shelf.book(tmp_path / "c")
    assert shelf.book(tmp_path / "a") is a and shelf.book(tmp_path / "b") is not b
    a.metrics.frame()
    monkeypatch.setattr(book, "CELLS", 10)  # what is read counts, not how many runs there are
    assert shelf.book(tmp_path / "b") is not b and shelf.book(tmp_path / "a") is not a


def test_more_groups_than_are_kept_in_mind_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=250)
    monkeypatch.setattr(blocks, "MOST_ROWS", 150)
    whole = Index(tmp_path, tmp_path / "run").all()
    assert whole.steps_N.tolist() == [step for step in range(75) for _ in range(2)] + [100 + i // 2 for i in range(150)]
    assert whole.trouble() == ["groups/ has more than 150 groups: the first are looked at"]
    assert whole.place(151).path.name == "steps-000100.jsonl" and whole.place(151).step == 100
