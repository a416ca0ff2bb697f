"""The API over HTTP, of runs that the real writer wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.runs.writer import RunWriter
from outdo.sweeps import compare
from support.folders import append, group, make_run, numbers
from support.served import Served, servers

Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A finished run, and one inside a folder that is still going on. Tests add to it and change nothing."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "first")
    run = make_run(root / "sweep" / "cell-a", steps=6, ended=None)
    with servers() as start:
        yield start(root)
    run.close()


def test_list_runs(two: Served) -> None:
    found = {run["id"]: run for run in two.get("runs")["runs"]}
    assert {"first", "sweep/cell-a"} <= set(found)
    first = found["first"]
    assert (first["status"], first["steps"], first["max_steps"], first["task"]) == ("done", 30, 30, "arithmetic")
    before = {"split": "test", "success": 0.1, "low": 0.0, "high": 0.4, "sampled": 0.2, "reward": None}
    assert first["before"] == before and [each["split"] for each in first["splits"]] == ["test"]
    assert first["after"]["success"] == 0.9 and first["spark"][0] == 0.0 and first["spark"][-1] == 1.0
    assert len(first["spark"]) == 30 and first["trouble"] == []
    assert found["sweep/cell-a"]["status"] == "running" and found["sweep/cell-a"]["ended"] is None
    assert [run["id"] for run in two.get("runs", q="CELL", status="running", kind="grpo")["runs"]] == ["sweep/cell-a"]
    assert two.get("runs", q="nothing like it")["runs"] == []


def test_lost_run_and_nothing_written(tmp_path: Path, serve: Serve) -> None:
    run = make_run(tmp_path / "run", steps=2, ended=None)
    run.close()
    lock = (tmp_path / "run" / ".lock").read_text()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    served = serve(tmp_path)
    assert served.get("runs")["runs"][0]["status"] == "lost"
    served.get("compare", run="run")
    assert (tmp_path / "run" / ".lock").read_text() == lock
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_sparkline_of_a_long_run(tmp_path: Path, serve: Serve) -> None:
    run = make_run(tmp_path / "run", steps=0, ended=None)
    rows = [{"step": i + 1, **numbers(i, i / 2000)} for i in range(2000)]
    append(tmp_path / "run" / "metrics.jsonl", *rows)
    found = serve(tmp_path).get("runs")["runs"][0]
    assert found["steps"] == 2000 and len(found["spark"]) == 48
    assert found["spark"] == sorted(found["spark"]) and found["spark"][0] < 0.01 and found["spark"][-1] > 0.98
    run.close()


def test_run_cost(two: Served) -> None:
    page = two.get("run", run="first")
    assert (page["tokens"], page["seconds"], page["device_seconds"], page["answers"]) == (720, 60.0, 60.0, 240)
    assert page["price"] is None and page["trained_tokens"] == 0
    assert page["phases"] == {"rollout": 22.5, "grade": 7.5, "update": 15.0, "save": 0.0, "other": 15.0}
    assert page["recipe"]["num_generations"] == 4 and page["facts"]["device"] == "cpu"
    assert "recipe" not in page["facts"]


def test_exact_and_binned_curves(two: Served) -> None:
    exact = two.get("metrics", run="first")
    assert exact["exact"] and exact["total"] == 30 and exact["steps"] == list(range(1, 31))
    assert exact["time"][:3] == [2.0, 4.0, 6.0] and exact["tokens"][-1] == 720
    assert exact["series"]["reward_mean"]["low"] is None
    few = two.get("metrics", run="first", points=3, names="reward_mean,kl_mean")
    assert not few["exact"] and few["steps"] == [10, 20, 30] and few["time"] == [20.0, 40.0, 60.0]
    assert set(few["series"]) == {"reward_mean", "kl_mean"}
    reward = few["series"]["reward_mean"]
    assert reward["mean"][0] == pytest.approx(4.5 / 29, abs=1e-5)
    assert reward["low"][1] == pytest.approx(10 / 29, abs=1e-5) and reward["high"] == pytest.approx(
        [9 / 29, 19 / 29, 1.0], abs=1e-5
    )
    zoomed = two.get("metrics", run="first", first=11, last=13)
    assert zoomed["steps"] == [11, 12, 13] and zoomed["time"] == [22.0, 24.0, 26.0]


def test_evals_and_sft(two: Served) -> None:
    assert two.get("evals", run="first")["evals"][1] == {
        **{"step": 30, "split": "test", "n": 10, "success": 0.9, "low": 0.6, "high": 0.98, "pass_at": {"1": 0.8}},
        **{"reward": None, "reward_low": None, "reward_high": None},
    }
    append(two.root / "first" / "sft.jsonl", {"step": 0, "loss": 4.0, "tokens": 5}, {"step": 1, "loss": 2.0})
    sft = two.get("sft", run="first")
    assert sft["series"]["loss"]["mean"] == [4.0, 2.0] and sft["time"] == [None, None]


def test_sort_and_filter_groups(two: Served) -> None:
    found = two.get("groups", run="first", step=11)
    assert found["total"] == 2 and [g["prompt_id"] for g in found["groups"]] == ["1+1", "17*3"]
    easy = found["groups"][0]
    assert easy["prompt"] == "What is 1+1?" and easy["answer"] == "42" and easy["version"] == 10
    assert (easy["right"], easy["wrong"], easy["broken"]) == (3, 1, 0)
    assert easy["mean"] == pytest.approx((3 + 10 / 29) / 4) and easy["spread"] > 0
    assert easy["answers"][0]["text"] == "two 10" and easy["answers"][3]["parts"] == {"numeric": 10 / 29}
    assert [g["prompt_id"] for g in two.get("groups", run="first", step=11, order="asc")["groups"]] == ["17*3", "1+1"]
    assert [g["prompt_id"] for g in two.get("groups", run="first", step=11, sort="id")["groups"]] == ["17*3", "1+1"]
    assert [g["prompt_id"] for g in two.get("groups", run="first", step=11, show="all_wrong")["groups"]] == ["17*3"]
    assert [g["prompt_id"] for g in two.get("groups", run="first", step=30, show="all_right")["groups"]] == ["1+1"]
    assert two.get("groups", run="first", step=11, show="broken")["total"] == 0
    one = two.get("groups", run="first", step=11, limit=1, offset=1)
    assert one["total"] == 2 and [g["prompt_id"] for g in one["groups"]] == ["17*3"]
    assert two.get("groups", run="first", step=99)["groups"] == []
    assert two.get("steps", run="first", first=3, last=5) == {"steps": [3, 4, 5], "ranges": [[3, 5]], "trouble": []}


def test_broken_answer(tmp_path: Path, serve: Serve) -> None:
    make_run(tmp_path / "run", steps=1, groups=[group("p", ["a", "b", "c"], [None, 1.0, 1.0])])
    found = serve(tmp_path).get("groups", run="run", step=1, show="broken")["groups"][0]
    assert (found["right"], found["broken"], found["mean"], found["spread"]) == (2, 1, 1.0, 0.0)
    assert found["answers"][0]["reward"] is None and found["answers"][0]["reason"] == "said broken"


def test_long_texts_are_cut(tmp_path: Path, serve: Serve) -> None:
    make_run(tmp_path / "run", steps=1, groups=[group("p", ["x" * 5000, "y" * 300_000], [0.0, 1.0])])
    served = serve(tmp_path)
    listed = served.get("groups", run="run", step=1)["groups"][0]["answers"]
    assert [(len(a["text"]), a["cut"]) for a in listed] == [(2000, True), (2000, True)]
    alone = served.get("group", run="run", step=1, prompt="p")["answers"]
    assert [(len(a["text"]), a["cut"]) for a in alone] == [(5000, False), (200_000, True)]


def test_tokens(tmp_path: Path, serve: Serve) -> None:
    run = RunWriter.create(tmp_path / "run", {"max_steps": 1}, {"kind": "grpo"})
    tokens = [[["a", -0.5, 1.25], ["b", -1.0, None]], [["c", -0.1, 1.0]]]
    run.record_step(0, numbers(0), [group("p", ["ab", "c"], [0.0, 1.0]), group("q", ["ab"], [0.0])], [tokens])
    run.close()
    served = serve(tmp_path)
    found = served.get("tokens", run="run", step=0, prompt="p", answer=0)["tokens"]
    assert found == [{"text": "a", "logprob": -0.5, "ratio": 1.25}, {"text": "b", "logprob": -1.0, "ratio": None}]
    kept = {g["prompt_id"]: g["answers"][0]["has_tokens"] for g in served.get("groups", run="run", step=0)["groups"]}
    assert kept == {"p": True, "q": False}
    assert served.status("tokens", run="run", step=0, prompt="q", answer=0) == 404
    assert served.status("tokens", run="run", step=0, prompt="p", answer=7) == 404


def test_prompt_history_and_gains(two: Served) -> None:
    page = two.get("prompt", run="first", prompt="17*3")
    assert [one["step"] for one in page["seen"]] == list(range(1, 31)) and page["prompt"] == "What is 17*3?"
    assert page["seen"][20] == {
        **{"step": 21, "rewards": [1.0, 0.0, 0.0, 0.0], "right": 1, "wrong": 3, "broken": 0, "mean": 0.25, "best": "51"}
    }
    gained = two.get("improved", run="first")["prompts"]
    assert [(one["prompt_id"], one["first_mean"], one["last_mean"]) for one in gained] == [
        ("1+1", 0.75, 1.0),
        ("17*3", 0.0, 0.25),
    ]
    assert (gained[0]["first_step"], gained[0]["last_step"], gained[0]["gain"]) == (1, 30, 0.25)
    assert two.status("prompt", run="first", prompt="never asked") == 404


def test_answers_side_by_side(two: Served) -> None:
    page = two.get("answers", run="first")
    assert page["changes"]["counts"] == {"gained": 2, "lost": 1, "both": 1, "neither": 1, "unjudged": 1}
    assert [page["changes"][side]["step"] for side in ("before", "after")] == [0, 30]
    assert [each["kind"] for each in page["changes"]["changes"][:3]] == ["gained", "gained", "lost"]
    (lost,) = two.get("answers", run="first", show="lost")["changes"]["changes"]
    assert (lost["id"], lost["prompt"], lost["answer"]) == ("2+2", "What is 2+2?", "42")
    assert (lost["before"]["text"], lost["after"]["text"]) == ("before 2+2", "after 2+2")
    assert (lost["after"]["reward"], lost["after"]["sampled"], lost["after"]["right"]) == (0.0, 2, 1)
    found = two.get("answers", run="first", q="AFTER 5+2")
    assert (found["total"], found["changes"]["changes"][0]["id"]) == (1, "5+2")
    assert found["changes"]["counts"] == page["changes"]["counts"], "the counts are of all problems"
    rest = two.get("answers", run="first", limit=2, offset=4)["changes"]["changes"]
    assert [each["kind"] for each in rest] == ["both", "unjudged"]
    backwards = two.get("answers", run="first", before=30, after=0)["changes"]["counts"]
    assert (backwards["gained"], backwards["lost"]) == (1, 2)


def test_answers_of_two_runs(two: Served) -> None:
    page = two.get("answers", run="first", other="sweep/cell-a")
    assert [page["changes"][side]["step"] for side in ("before", "after")] == [30, 6]
    assert page["changes"]["counts"] == {"gained": 0, "lost": 0, "both": 4, "neither": 2, "unjudged": 0}
    assert page["changes"]["p_value"] == 1.0 and page["changes"]["notes"] == []
    assert two.status("answers", run="first", other="none") == 404


def test_rewound_run(tmp_path: Path, serve: Serve) -> None:
    run = make_run(tmp_path / "run", steps=4, ended=None)
    served = serve(tmp_path)
    assert served.get("improved", run="run")["prompts"][0]["last_step"] == 4
    run.rewind({})
    run.record_step(0, numbers(0, 0.5), [group("1+1", ["a", "b"], [0.0, 0.0])])
    run.record_step(1, numbers(1, 0.5), [group("1+1", ["a", "b"], [1.0, 1.0])])
    assert served.get("metrics", run="run")["steps"] == [0, 1]
    assert [p["gain"] for p in served.get("improved", run="run")["prompts"]] == [1.0]
    assert served.get("steps", run="run")["steps"] == [0, 1]
    run.close()


def test_current_and_past_findings(tmp_path: Path, serve: Serve) -> None:
    run = make_run(tmp_path / "run", steps=0, ended=None)
    for step in range(60):
        run.record_step(step, numbers(step, 0.4, kl_mean=0.01 * step, truncated=0.0), [])
    noted = {
        "code": "truncation",
        "severity": "warning",
        "step": 3,
        "evidence": [{"signal": "truncated", "after": 0.5}],
    }
    run.record_finding(7, noted | {"change": {"key": "max_completion_length", "from": 64, "to": 128}})
    run.finish("done")
    run.close()
    served = serve(tmp_path)
    found = served.get("findings", run="run")["findings"]
    now = [finding.row() for finding in diagnose(run_history(tmp_path / "run"))]
    assert [(f["code"], f["step"]) for f in found if not f["past"]] == [(f["code"], f["step"]) for f in now]
    kl = next(f for f in found if f["code"] == "kl_blowup")
    assert "kl_mean" in kl["signals"] and kl["change"]["override"].startswith(kl["change"]["key"] + "=")
    assert kl["numbers"]["kl_mean"]["after"] > 0.1 and kl["what"] and kl["expect"]["words"]
    past = [f for f in found if f["past"]]
    assert [(f["code"], f["seen"], f["change"]["from"]) for f in past] == [("truncation", 7, 64)]
    assert [f["code"] for f in served.get("runs")["runs"][0]["findings"]] == ["truncation"]


def test_compare_matches_the_command(two: Served) -> None:
    make_run(two.root / "other", steps=12)
    told = two.get("compare", run=["first", "other"])
    sides = compare.read([two.root / "first", two.root / "other"], [])
    command = json.loads(json.dumps(compare.as_json(sides), default=str))
    for row, same in zip(told["rows"], command["runs"], strict=True):
        for name in same.keys() - {"run"}:
            near = pytest.approx(same[name]) if isinstance(same[name], float) else same[name]
            assert row[name] == near, name
    assert told["keys"] == [{"key": "max_steps", "values": [30, 12]}]
    assert told["differences"][0]["difference"] == pytest.approx(command["differences"][0]["difference"])


def test_sweep(two: Served) -> None:
    cells = [{"name": "a", "status": "done", "folder": "cell-a", "keys": {"beta": 0}}, {"name": "b", "folder": "../x"}]
    told = {
        "title": "beta",
        "varied": ["beta"],
        "cells": cells,
        "pick": {"setting": "a", "why": "best"},
        "default": None,
    }
    (two.root / "sweep" / "sweep.json").write_text(json.dumps(told))
    page = two.get("sweep", sweep="sweep")
    assert (page["keys"], page["pick"], page["why"], page["done"], page["cells"]) == (["beta"], "a", "best", 1, 2)
    assert [row["run"] for row in page["rows"]] == ["sweep/cell-a", None]
    assert two.get("runs")["sweeps"] == [{"id": "sweep", "title": "beta", "cells": 2, "done": 1}]


def test_root_is_a_run(tmp_path: Path, serve: Serve) -> None:
    make_run(tmp_path / "alone", steps=2)
    served = serve(tmp_path / "alone")
    assert [(run["id"], run["name"]) for run in served.get("runs")["runs"]] == [(".", "alone")]
    assert served.get("metrics", run=".")["total"] == 2


def test_openapi_and_docs(two: Served) -> None:
    schema = two.get("openapi.json")
    assert {"/api/runs", "/api/live", "/api/groups"} <= schema["paths"].keys()
    assert all(set(methods) == {"get"} for methods in schema["paths"].values())
    page = two.raw("/api/docs")
    assert page.status == 200 and b"/api/improved" in page.body and b"<script" not in page.body
