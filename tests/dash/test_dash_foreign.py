"""Runs of other trainers in the dashboard, beside ours: listed, overlaid, live."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Watched, chromium, dash, until
from support.folders import make_run
from support.foreign import STEPS, events, prime_row, trl_run, verl_row, write_lines
from support.served import Served, servers

Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of ours and one of each kind."""
    make_run(tmp_path / "ours", steps=12)
    trl = trl_run(tmp_path / "theirs" / "trl")
    shutil.copytree(trl / f"checkpoint-{STEPS}", trl / "checkpoint-4")  # an earlier one is no run of its own
    write_lines(tmp_path / "verl" / "one.jsonl", (verl_row(step) for step in (1, 2, 3)))
    write_lines(tmp_path / "verl" / "two.jsonl", (verl_row(step) for step in (1, 2, 3)))
    write_lines(tmp_path / "prime" / "metrics.jsonl", (prime_row(step) for step in (1, 2)))
    events(tmp_path / "board", ((step, {"reward": 0.5}) for step in (1, 2)))
    return tmp_path


def test_listed_beside_ours(root: Path, serve: Serve) -> None:
    found = {run["id"]: run for run in serve(root).get("runs")["runs"]}
    assert {name: (run["trainer"], run["steps"]) for name, run in found.items()} == {
        "ours": ("", 12),
        "theirs/trl": ("TRL", STEPS),
        "verl/one.jsonl": ("verl", 3),
        "verl/two.jsonl": ("verl", 3),
        "prime": ("prime-rl", 2),
        "board": ("TensorBoard", 2),
    }
    assert found["theirs/trl"]["status"] == "done" and found["theirs/trl"]["max_steps"] == STEPS
    assert found["theirs/trl"]["after"]["success"] == 0.9375
    assert found["theirs/trl"]["before"] is None and found["theirs/trl"]["after"]["low"] is None


def test_every_endpoint(root: Path, serve: Serve) -> None:
    served = serve(root)
    ids = [run["id"] for run in served.get("runs")["runs"]]
    for name in ids:
        for endpoint in ("run", "metrics", "sft", "evals", "findings", "steps", "improved", "answers"):
            served.get(endpoint, run=name)
    groups = served.get("groups", run="theirs/trl", step=3)["groups"]
    assert [len(group["answers"]) for group in groups] == [4, 4]
    prompt = groups[0]["prompt_id"]
    assert served.get("group", run="theirs/trl", step=3, prompt=prompt)["prompt"] == groups[0]["prompt"]
    assert served.get("prompt", run="theirs/trl", prompt=prompt)["seen"]
    assert served.get("run", run="theirs/trl")["device_seconds"] == 0 and not served.get("run", run="prime")["phases"]
    curves = served.get("metrics", run="theirs/trl")
    assert set(curves["tokens"]) == {None} and None not in curves["time"]
    rows = served.get("compare", run=["ours", "theirs/trl"])["rows"]
    assert rows[1]["device_seconds"] is None and rows[1]["success_rate"] == 0.9375


def test_a_folder_that_is_the_run(root: Path, serve: Serve) -> None:
    assert [run["id"] for run in serve(root / "theirs" / "trl").get("runs")["runs"]] == ["."]


def test_nothing_is_written_into_it(root: Path, serve: Serve) -> None:
    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    before = stamps()
    test_every_endpoint(root, serve)
    assert stamps() == before


def test_live(root: Path, serve: Serve) -> None:
    """A run that is still written: its new row comes as one of ours would."""
    from dash.test_dash_live import Viewer

    served = serve(root)
    served.get("runs")
    viewer = Viewer(served, run="verl/one.jsonl", after=3)
    viewer.until("status")
    with (root / "verl" / "one.jsonl").open("a") as file:
        file.write(json.dumps(verl_row(4)) + "\n")
    _, _, told = viewer.until("metrics")
    assert told["steps"] == [4] and told["series"]["reward_mean"]["mean"] == [0.5]
    viewer.close()


def test_ids_that_lead_elsewhere(root: Path, serve: Serve) -> None:
    served = serve(root / "verl")
    for name in ("../theirs/trl", "/etc/passwd", "three.jsonl", "one.jsonl/..", "./one.jsonl"):
        assert served.status("run", run=name) == 404


@pytest.fixture
def watched(browser: Any, root: Path) -> Iterator[Watched]:
    chromium()
    with dash(root) as address:
        watched = Watched(browser, address)
        yield watched
        for page in watched.pages:
            page.close()


@pytest.mark.slow
def test_overlay_in_a_browser(watched: Watched, root: Path) -> None:
    page = watched.open("#/runs")
    page.wait_for_selector("table.runs tbody tr")
    tags = page.locator("tr:has-text('trl') .tag.trainer")
    assert tags.all_inner_texts() == ["TRL"]
    assert page.locator("tr:has-text('ours') .tag.trainer").count() == 0
    for name in ("ours", "trl"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("link", name="Overlay curves").click()
    page.wait_for_selector("article[data-signal=reward_mean] canvas")
    assert page.locator(".legend li").all_inner_texts()[1].split()[:2] == ["trl", "TRL"]
    label = page.get_attribute("article[data-signal=reward_mean] canvas >> nth=1", "aria-label")
    assert "ours" in label and "trl" in label, label
    page = watched.open("#/groups?run=theirs%2Ftrl&step=3")
    page.wait_for_selector(".group .answer")
    assert page.locator(".group").count() == 2 and page.locator(".answer").count() == 8
    page = watched.open("#/resources?run=theirs%2Ftrl")
    page.wait_for_selector("text=not recorded")
    watched.check()


@pytest.mark.slow
def test_growing_in_a_browser(watched: Watched, root: Path) -> None:
    page = watched.open("#/run?run=verl%2Fone.jsonl")
    page.wait_for_selector("article[data-signal=reward_mean]")
    page.evaluate("window.first = true")
    for step in (4, 5):
        with (root / "verl" / "one.jsonl").open("a") as file:
            file.write(json.dumps(verl_row(step)) + "\n")
        until(page, f"document.querySelector('.fact b').textContent === '{step}'")
        time.sleep(0.1)
    assert page.evaluate("window.first"), "the page was loaded again"
    shutil.rmtree(root / "verl")
    page.wait_for_selector("text=no longer exists")
    watched.check(("404", "net::ERR"))
