"""Held-out answers in a run's folder, and the time that its processes worked on it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from outdo.evals.changes import compare_answers
from outdo.runs import usage
from outdo.runs.held_out import HeldOutAnswer, held_out_answers, read_answers, with_mark
from outdo.runs.manifest import read_manifest
from outdo.runs.writer import RunWriter
from support.folders import HOSTILE, RECIPE, group, held_out, played


def test_a_problem_once_and_an_answer_per_evaluation(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {})
    run.record_answers(0, "test", held_out({"1+1": 0.0, "2+2": None}, HOSTILE))
    run.record_answers(10, "test", held_out({"1+1": 1.0, "3+3": 0.25}))
    run.record_answers(10, "ood", held_out({"1+1": 1.0}))
    run.close()
    assert len((run.folder / "held_out" / "problems.jsonl").read_text().splitlines()) == 4
    rows = list(read_answers(run.folder))
    assert [(row["step"], row["split"], row["id"], row["reward"]) for row in rows] == [
        *((0, "test", "1+1", 0.0), (0, "test", "2+2", None)),
        *((10, "test", "1+1", 1.0), (10, "test", "3+3", 0.25), (10, "ood", "1+1", 1.0)),
    ]
    first = rows[0]
    assert (first["prompt"], first["answer"], first["text"]) == ("What is 1+1?", "42", f"{HOSTILE} 1+1")
    assert (first["verdict"], first["finish"], first["sampled"], first["right"]) == ("wrong", "stop", 2, 1)
    assert [row["split"] for row in read_answers(run.folder, step=10, split="ood")] == ["ood"]
    again = HeldOutAnswer.of(first)
    assert again == held_out({"1+1": 0.0}, HOSTILE)[0], "what is read is what was written"


def test_rewound_with_the_other_rows(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {})
    run.record_answers(0, "test", held_out({"1+1": 0.0}))
    offsets = run.offsets()
    before = list(read_answers(run.folder))
    for _ in range(2):  # the step is made twice, as after a kill
        run.record_answers(5, "test", held_out({"1+1": 1.0, "2+2": 1.0}))
        with (run.folder / "held_out" / "step-000005.jsonl").open("a") as file:
            file.write('{"step": 5, "spl')  # killed while it wrote
        run.rewind(offsets)
        assert list(read_answers(run.folder)) == before
        assert run.truncated_file(offsets) == ""
    run.record_answers(5, "test", held_out({"1+1": 1.0, "2+2": 1.0}))
    assert [row["id"] for row in read_answers(run.folder, step=5)] == ["1+1", "2+2"]
    (run.folder / "held_out" / "step-000000.jsonl").write_text("")
    assert run.truncated_file(offsets) == "held_out/step-000000.jsonl"
    assert (run.archive() / "held_out" / "step-000005.jsonl").is_file()
    run.close()


def test_long_answers_keep_start_and_end() -> None:
    long = "a" * 50_000 + "<answer>7</answer>"
    (answer,) = held_out_answers([group("p", [long], [1.0])], [])
    assert len(answer.text) == 4000 and answer.text.endswith("<answer>7</answer>")
    assert len(answer.text) + answer.cut[1] == len(long) and "46,018 characters cut" in with_mark(
        answer.text, answer.cut
    )
    many = held_out_answers([group(str(i), [long], [1.0]) for i in range(8000)], [])
    assert sum(len(one.text) for one in many) <= 8_000_000, "an evaluation has a bound"
    prompt = held_out({"x" * 30_000: 1.0})[0]
    assert len(prompt.prompt) < 9000 and "characters cut" in prompt.prompt


def test_turns_of_held_out_answers(tmp_path: Path) -> None:
    """They are kept with the answer, and cut with it; the last turn of the model, which is judged, is cut last."""
    run = RunWriter.create(tmp_path / "run", RECIPE, {})
    answers = held_out_answers([played("12+30", result="r" * 9000, final="x" * 3000)], [])
    run.record_answers(0, "test", answers)
    run.record_answers(4, "test", held_out_answers([played("12+30")], []))
    for step in (0, 4):
        run.record_eval({"step": step, "split": "test", "n": 1, "success_rate": 1.0})
    run.close()
    (row,) = read_answers(run.folder, step=0)
    turns = row["turns"]
    assert [turn["role"] for turn in turns] == ["assistant", "tool", "tool", "assistant"]
    assert turns[1]["content"].startswith("rrr") and "8,000 characters cut" in turns[1]["content"]
    assert (turns[2]["failed"], turns[3]["content"], row["failed_calls"]) == (True, "x" * 3000, 1)
    assert HeldOutAnswer.of(row) == answers[0] and "turns" not in held_out({"1+1": 1.0})[0].played
    long = held_out_answers([played("p", "s" * 90_000, "r" * 90_000, "f" * 90_000)], [])[0].played["turns"]
    assert sum(len(json.dumps(turn)) for turn in long) < 2 * 4000 + 2000
    changes = compare_answers(run.folder, split="test")
    side = changes.changes[0].after
    assert [turn.num_tokens for turn in side.turns] == [9, 0, 0, 4] and side.turns[2].failed and not side.judged


def test_time_between_a_kill_and_a_resume_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    run = RunWriter.create(tmp_path / "run", RECIPE, {}, began=990.0)
    now += 5
    run.heartbeat()  # too soon
    assert usage.running_seconds(read_manifest(run.folder).model_dump()) == 10.0
    now += 20
    run.heartbeat()
    run.close()  # killed
    now += 5000
    run = RunWriter.reopen(run.folder)
    now += 2  # the model is loaded again
    run.update_manifest(device="cpu")
    run.update_manifest(status="running", why="")
    now += 30
    run.finish("stopped")
    run.close()
    now += 700
    run = RunWriter.reopen(run.folder)
    now += 3  # there was nothing to do: this process is not counted
    run.close()
    manifest = read_manifest(run.folder).model_dump()
    assert [segment["seconds"] for segment in manifest["segments"]] == [35.0, 32.0]
    assert usage.device_seconds(manifest | {"world_size": 4}, 0.0) == 4 * 67.0
    moved = usage.with_seconds(usage.add_segment(usage.with_seconds(usage.add_segment([], "", 4), 10.0), ""), 5.0)
    assert usage.device_seconds({"segments": moved, "world_size": 1}, 0.0) == 4 * 10.0 + 5.0
    assert usage.device_seconds({"segments": "x"}, 12.0) == 12.0, "a run of an older version has its steps alone"
    assert usage.price_of({"price_per_hour": 2.0}, 1800.0) == 1.0 and usage.price_of({}, 1800.0) is None
