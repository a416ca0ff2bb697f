"""Any request gets an answer that the schema allows, and never a server error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from outdo.dash.app import make_api
from support.folders import HOSTILE, append, group, make_run

pytestmark = pytest.mark.slow

_FOLDER = tempfile.TemporaryDirectory(prefix="outdo-fuzz-")
ROOT = Path(_FOLDER.name)
make_run(ROOT / "run", steps=12)
make_run(ROOT / "x", steps=2, groups=[group(HOSTILE, [HOSTILE, "b"], [0.0, 1.0])])
append(ROOT / "x" / "metrics.jsonl", b"{broken\n", b'{"step": 2, "reward_mean": NaN, "tokens": 1e308}\n')
odd = {"split": "test", "key": [1], "text": 7, "cut": "x"}
append(ROOT / "x" / "held_out" / "step-000002.jsonl", b"{broken\n", odd)
append(ROOT / "x" / "held_out" / "problems.jsonl", {"split": "test", "key": "[1]", "messages": [3, {"content": {}}]})
(ROOT / "sweep").mkdir()
(ROOT / "sweep" / "sweep.json").write_text('{"cells": [{"folder": "a"}], "varied": ["beta"], "pick": {"why": "x"}}')

api = make_api(ROOT)
schema = schemathesis.openapi.from_asgi("/api/openapi.json", api)


@schema.exclude(path="/api/live").parametrize()  # a stream has no end
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_answers_match_the_schema(case: Case) -> None:
    if "run" in (case.query or {}) and isinstance(case.query["run"], str) and len(case.query["run"]) % 2:
        case.query["run"] = "run" if len(case.query["run"]) % 4 == 1 else "x"  # half of them ask for what there is
    case.call_and_validate()


@schema.include(path="/api/live").parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_stream_of_an_unknown_run(case: Case) -> None:
    case.query = {**(case.query or {}), "run": ["none", "run"]}
    answer = case.call()
    assert answer.status_code in (404, 405, 422)  # it tries other methods too
