"""Live events: new rows, evaluations, findings and status; reset after a rewind."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from support.folders import append, make_run, numbers
from support.served import Served, servers

Serve = Callable[..., Served]
Event = tuple[str, str, Any]  # its kind, its id, its data


class Viewer:
    """One connection to /api/live."""

    def __init__(self, served: Served, **query: Any) -> None:
        headers = {"Last-Event-ID": query.pop("had")} if "had" in query else {}
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        self.connection.request("GET", f"/api/live?{urlencode(query, doseq=True)}", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200 and self.answer.headers["content-type"].startswith("text/event-stream")
        self.events = self._events()

    def _events(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        while raw := self.answer.readline():
            text = raw.decode().rstrip("\n")
            if not text:
                if "data" in fields:
                    yield fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])
                fields = {}
            elif not text.startswith(":"):
                name, _, value = text.partition(": ")
                fields[name] = value

    def until(self, kind: str) -> Event:
        return next(event for event in self.events if event[0] == kind)

    def close(self) -> None:
        assert self.connection.sock is not None
        self.connection.sock.shutdown(2)
        self.connection.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


@pytest.fixture
def served(tmp_path: Path, serve: Serve) -> Iterator[Served]:
    run = make_run(tmp_path / "run", steps=3, ended=None)
    found = serve(tmp_path)
    found.run = run  # type: ignore[attr-defined]
    yield found
    run.close()


def test_new_row_within_a_second(served: Served) -> None:
    viewer = Viewer(served, run="run")
    kind, last, told = next(viewer.events)
    assert (kind, last, told["summary"]["status"]) == ("status", "3", "running")
    metrics = served.root / "run" / "metrics.jsonl"
    start = time.monotonic()
    append(metrics, {"step": 4, **numbers(3, 0.75)})
    _, last, told = viewer.until("metrics")
    assert time.monotonic() - start < 1.0
    assert last == "4" and told["run"] == "run" and told["steps"] == [4] and told["time"] == [8.0]
    assert told["series"]["reward_mean"] == {"mean": [0.75], "low": None, "high": None} and told["tokens"] == [96.0]
    append(metrics, b'{"step": 5, "reward_mean": 0.2')
    time.sleep(0.5)
    append(metrics, b"5}\n")
    assert viewer.until("metrics")[2]["series"]["reward_mean"]["mean"] == [0.25]
    viewer.close()


def test_eval_finding_and_end_events(served: Served) -> None:
    viewer = Viewer(served, run="run")
    next(viewer.events)
    run = served.run  # type: ignore[attr-defined]
    run.record_eval({"step": 9, "split": "ood", "n": 4, "success_rate": 0.5, "low": 0.2, "high": 0.8})
    assert [e["split"] for e in viewer.until("evals")[2]["evals"]] == ["ood"]
    run.record_finding(2, {"code": "truncation", "severity": "warning", "step": 1, "evidence": []})
    assert "truncation" in [f["code"] for f in viewer.until("findings")[2]["findings"]]
    run.finish("stopped", "told to")
    told = next(e[2] for e in viewer.events if e[0] == "status" and e[2]["summary"]["status"] != "running")
    assert (told["summary"]["status"], told["summary"]["why"]) == ("stopped", "told to")
    viewer.close()


def test_reconnect(served: Served) -> None:
    for viewer in (Viewer(served, run="run", after=0), Viewer(served, run="run", had="0")):
        kind, last, told = next(viewer.events)
        assert (kind, last, told["steps"]) == ("metrics", "3", [1, 2, 3])
        viewer.close()
    ahead = Viewer(served, run="run", after=50)  # of a run that was taken back since
    assert next(ahead.events)[0] == "reset"
    ahead.close()


def test_rewind_resets(served: Served) -> None:
    viewer = Viewer(served, run="run")
    next(viewer.events)
    path = served.root / "run" / "metrics.jsonl"
    os.truncate(path, len(path.read_bytes().splitlines(keepends=True)[0]))
    append(path, {"step": 2, **numbers(1, 0.125)})
    assert viewer.until("reset")[2] == {"run": "run"}
    append(path, {"step": 3, **numbers(2, 0.25)})
    assert viewer.until("metrics")[2]["steps"] == [3]
    assert served.get("metrics", run="run")["series"]["reward_mean"]["mean"] == [0.0, 0.125, 0.25]
    viewer.close()


def test_several_runs_and_a_deleted_one(served: Served) -> None:
    make_run(served.root / "other", steps=5)
    viewer = Viewer(served, run=["run", "other"])
    assert next(viewer.events)[2]["run"] == "run"
    _, last, told = next(viewer.events)
    assert told["run"] == "other" and last == "3,5"
    shutil.rmtree(served.root / "other")
    assert viewer.until("gone")[2] == {"run": "other"}
    append(served.root / "run" / "metrics.jsonl", {"step": 4, **numbers(3)})
    assert viewer.until("metrics")[1] == "4,5"
    viewer.close()


def test_one_watcher_for_all_viewers(served: Served) -> None:
    live = served.api.state.api.live
    viewers = [Viewer(served, run="run") for _ in range(50)]
    for viewer in viewers:
        next(viewer.events)
    assert list(live.watchers) == ["run"] and len(live.watchers["run"].viewers) == 50
    append(served.root / "run" / "metrics.jsonl", {"step": 3, **numbers(3)})
    assert {viewer.until("metrics")[1] for viewer in viewers} == {"3"}
    for viewer in viewers:
        viewer.close()
    until = time.monotonic() + 5
    while live.watchers and time.monotonic() < until:
        append(served.root / "run" / "metrics.jsonl", {"step": 4, **numbers(4)})
        time.sleep(0.1)
    assert not live.watchers and not live.viewers


def test_too_many_viewers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.dash.live.MAX_VIEWERS", 1)
    viewer = Viewer(served, run="run")
    next(viewer.events)
    assert served.status("live", run="run") == 503
    viewer.close()
