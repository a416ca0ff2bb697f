"""Files of other trainers that are corrupt, hostile or unusual: what can be read is read, and a note names the rest."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import OutdoError
from outdo.runs.find import find_viewable, try_find_viewable
from outdo.runs.foreign import dumps
from outdo.runs.foreign.events import masked_crc
from outdo.runs.foreign.wire import fields
from support.foreign import again, events, groups, manifest, rows, trl_run, verl_row, view, write_lines


def state(folder: Path, history: list[Any], **more: Any) -> Path:
    path = folder / "checkpoint-3" / "trainer_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"log_history": history, "global_step": 3, "max_steps": 3, **more}))
    return folder


def test_a_state_that_is_cut_off(tmp_path: Path) -> None:
    source = trl_run(tmp_path / "theirs")
    path = source / "checkpoint-8" / "trainer_state.json"
    path.write_text(path.read_text()[:2000])
    folder = view(source)
    assert len(rows(folder)) == 8, "the event file has them"
    assert any("trainer_state.json" in note for note in manifest(folder)["notes"])


def test_numbers_that_are_none(tmp_path: Path) -> None:
    history = [
        {"step": 1, "reward": "NaN", "kl": float("nan"), "loss": float("inf"), "entropy": None, "learning_rate": "0.5"},
        {"step": 2, "reward": 10**400, "kl": True, "loss": [1], "entropy": {"x": 1}},
        {"step": "3", "reward": 0.5},
        {"step": -4, "reward": 0.5},
        {"step": 1e300, "reward": 0.5},
        "no row",
    ]
    folder = view(state(tmp_path / "out", history))
    first = rows(folder)[0]
    assert first["lr"] == 0.5 and all(value != value for value in (first["reward_mean"], first["kl_mean"]))
    assert "entropy_mean" not in first
    assert [row["reward_mean"] for row in rows(folder) if row["reward_mean"] == row["reward_mean"]][:1] == [0.5]


def test_steps_that_go_back(tmp_path: Path) -> None:
    history = [{"step": step, "reward": 1.0} for step in (1, 2, 3, 4)]
    history += [{"step": step, "reward": 2.0} for step in (3, 3, 5)]
    folder = view(state(tmp_path / "out", history))
    assert [(row["step"], row["reward_mean"]) for row in rows(folder)] == [(1, 1), (2, 1), (3, 2), (5, 2)]


def test_links_that_lead_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    write_lines(secret, [verl_row(1)])
    source = trl_run(tmp_path / "theirs")
    for name in ("checkpoint-8/trainer_state.json", "completions/completions_00003.parquet"):
        (source / name).unlink()
        (source / name).symlink_to(secret)
    folder = view(source)
    assert 3 not in {row["step"] for row in groups(folder)}
    assert "secret" not in json.dumps(groups(folder)) and rows(folder)[0]["len_mean"] != 128.0
    assert len(manifest(folder)["notes"]) >= 2
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "log.jsonl").symlink_to(secret)
    assert try_find_viewable(tmp_path / "linked") is None


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "harmed"),))

    source = trl_run(tmp_path / "theirs")
    for name in ("training_args.bin", "checkpoint-8/optimizer.pt", "checkpoint-8/training_args.bin"):
        (source / name).write_bytes(pickle.dumps(Harm()))
    view(source)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 200 + b"PAR1", b"\xff" * 4000])
def test_a_parquet_that_is_none(tmp_path: Path, content: bytes) -> None:
    source = trl_run(tmp_path / "theirs")
    (source / "completions" / "completions_00002.parquet").write_bytes(content)
    folder = view(source)
    assert {row["step"] for row in groups(folder)} == {1, 3, 5, 6, 7}
    assert any("completions_00002.parquet" in note for note in manifest(folder)["notes"])


def test_an_empty_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = trl_run(tmp_path / "theirs")
    pq.write_table(pa.table({"step": pa.array([], pa.int64())}), source / "completions" / "completions_00002.parquet")
    folder = view(source)
    assert len(rows(folder)) == 8 and 2 not in {row["step"] for row in groups(folder)}


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = view(trl_run(tmp_path / "theirs"))
    assert len(rows(folder)) == 8 and not groups(folder)
    (note,) = manifest(folder)["notes"]
    assert "pip install pyarrow" in note


def test_a_parquet_that_is_larger_than_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MAX_DECODED_BYTES", 100)
    folder = view(trl_run(tmp_path / "theirs"))
    assert not groups(folder) and manifest(folder)["notes"]


@pytest.mark.parametrize("place", range(8))
def test_event_file_that_is_damaged(tmp_path: Path, place: int) -> None:
    path = events(tmp_path / "logs", ((step, {"reward": step / 8}) for step in range(1, 41)))
    data = bytearray(path.read_bytes())
    data[len(data) * (place + 1) // 10] ^= 0x55
    path.write_bytes(data)
    folder = view(tmp_path / "logs")
    found = {row["step"]: row["reward_mean"] for row in rows(folder)}
    assert found and len(found) < 40 and all(value == step / 8 for step, value in found.items())
    assert manifest(folder)["notes"]


def test_event_file_that_ends_early(tmp_path: Path) -> None:
    path = events(tmp_path / "logs", ((step, {"reward": step / 8}) for step in range(1, 41)))
    path.write_bytes(path.read_bytes()[:-5])
    os.utime(path, (1e9, 1e9))
    folder = view(tmp_path / "logs")
    assert len(rows(folder)) == 39
    assert (manifest(folder)["status"], len(manifest(folder)["notes"])) == ("stopped", 1)


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def test_records_of_noise(tmp_path: Path) -> None:
    """Valid checksums around bytes that are no Event; nested groups, endless numbers, lengths past the end."""
    source = random.Random(0)
    path = tmp_path / "logs" / "events.out.tfevents.1.x.1.0"
    path.parent.mkdir()
    parts = [source.randbytes(source.randrange(1, 200)) for _ in range(2000)]
    parts += [b"\x2a\xff\xff\xff\xff\x0f", b"\x0b" * 100, b"\x2a\x00" * 60_000, b"\x80" * 50]
    path.write_bytes(b"".join(record(part) for part in parts) + struct.pack("<QI", 1 << 60, 0))
    folder = view(tmp_path / "logs")
    assert manifest(folder)["notes"]


def test_wire_limits() -> None:
    for data in (b"\x0a\x05ab", b"\x80", b"\x0c", b"\x00\x00", b"\x08" + b"\xff" * 20):
        with pytest.raises(ValueError):
            list(fields(data))
    assert list(fields(b"\x08\x96\x01\x12\x02hi")) == [(1, 150), (2, b"hi")]


def test_lines_that_are_cut_or_deep_or_long(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "exp.jsonl", [verl_row(1)])
    deep = '{"step": 2, "data": ' + '{"a":' * 5000 + "1" + "}" * 5001
    with path.open("a") as file:
        file.write(f"{deep}\n[1, 2]\nnothing\n" + json.dumps(verl_row(3)) + "\n" + json.dumps(verl_row(4))[:40])
    folder = view(path)
    assert [row["step"] for row in rows(folder)] == [1, 3]
    assert any("3 lines" in note for note in manifest(folder)["notes"])
    with path.open("a") as file:
        file.write(json.dumps(verl_row(4))[40:] + "\n")
    again(folder)
    assert [row["step"] for row in rows(folder)] == [1, 3, 4]


def test_names_that_are_hostile(tmp_path: Path) -> None:
    names = {"a\x1b[31m": 1.0, "<script>alert(1)</script>": 2.0, "x" * 100_000: 3.0, "": 4.0, "\udc80": 5.0}
    path = write_lines(tmp_path / "exp.jsonl", [{"step": 1, "reward": 0.5, **names}])
    (row,) = rows(view(path))
    assert row["reward_mean"] == 0.5 and max(map(len, row)) < 400


def test_a_million_columns(tmp_path: Path) -> None:
    row = {"step": 1, "reward": 0.5} | {f"c{i}": 1.0 for i in range(50_000)}
    path = write_lines(tmp_path / "exp.jsonl", [row])
    assert len(rows(view(path))[0]) <= 2000


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"step": 1, "text": "hello"}\n')
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert try_find_viewable(tmp_path) is None
    with pytest.raises(OutdoError):
        find_viewable(tmp_path)


def test_a_run_of_ours_is_no_foreign_run(tmp_path: Path) -> None:
    """Its own TensorBoard files and W&B folder are not runs beside it."""
    from outdo.dash.places import list_folders

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.json").write_text('{"status": "done", "recipe": {}}')
    events(tmp_path / "own" / "tensorboard", [(1, {"reward": 1.0})])
    events(tmp_path / "own" / "wandb" / "offline-run-1", [(1, {"reward": 1.0})])
    events(tmp_path / "theirs", [(1, {"reward": 1.0})])
    listing = list_folders(tmp_path)
    assert (listing.runs, listing.foreign) == (("own",), ("theirs",))


def test_what_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in reading is a note of that run."""
    from outdo.runs.foreign import translate

    monkeypatch.setattr(translate, "settings", lambda *given: 1 / 0)
    found = manifest(view(trl_run(tmp_path / "theirs")))
    assert found["status"] == "stopped" and "ZeroDivisionError" in found["notes"][0]


def test_verdicts_without_rewards(tmp_path: Path) -> None:
    """Answers that are given twice, whose total reward is not known."""
    from outdo.doctor.read import run_history

    answers = [{"input": "1+1?", "output": "2", "step": 1, "acc": right} for right in (1, 1, 0)]
    folder = view(write_lines(tmp_path / "dumps" / "1.jsonl", answers).parent)
    assert [a["reward"] for row in groups(folder) for a in row["completions"]] == [None] * 3
    assert run_history(folder).answers.differing == 1
