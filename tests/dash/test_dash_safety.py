"""Access control, paths that leave the root, and hostile or corrupt files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from support.folders import HOSTILE, append, group, make_run, numbers
from support.served import Served, servers

Serve = Callable[..., Served]
ADDRESSES = ("run", "metrics", "sft", "evals", "findings", "steps", "improved", "compare")


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


@pytest.fixture
def served(tmp_path: Path, serve: Serve) -> Served:
    """runs/good inside the root; a secret run beside the root."""
    make_run(tmp_path / "runs" / "good", steps=3)
    make_run(tmp_path / "secret", steps=3)
    return serve(tmp_path / "runs")


OUTSIDE = (
    "../secret",
    "good/../../secret",
    "..",
    "/etc",
    "//secret",
    "good/",
    "./good",
    "good//",
    "",
    "%2e%2e/secret",
    "..\\secret",
    "good\x00",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "x" * 4000,
    "a/" * 1500,
    "link",
    "link/inside",
    "good/groups",
)


def test_no_path_leaves_the_root(served: Served) -> None:
    (served.root / "link").symlink_to(served.root.parent / "secret")
    for name in OUTSIDE:
        for address in (*ADDRESSES, "live"):
            assert served.status(address, run=name) == 404, (address, name)
        assert served.status("sweep", sweep=name) == 404, name
        assert served.raw(f"/report?{urlencode({'run': name})}").status == 404, name


def test_encoded_and_absolute_paths(served: Served) -> None:
    outside = served.root.parent / "secret"
    for target in (
        "/api/run?run=..%2fsecret",
        "/api/run?run=%2e%2e%2fsecret",
        "/api/run?run=good%00",
        f"/api/run?run={outside}",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/app.py",
        "/static/",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/../../etc/passwd",
    ):
        assert served.raw(target).status == 404, target


def test_links_are_not_followed(served: Served) -> None:
    (served.root / "link").symlink_to(served.root.parent / "secret")
    good = served.root / "good"
    (good / "evals.jsonl").unlink()
    (good / "evals.jsonl").symlink_to(served.root.parent / "secret" / "evals.jsonl")
    (good / "report.html").symlink_to("/etc/hostname")
    assert [run["id"] for run in served.get("runs")["runs"]] == ["good"]
    found = served.get("evals", run="good")
    assert found["evals"] == [] and "evals.jsonl" in found["trouble"][0]
    assert served.raw("/report?run=good").status == 404
    (good / "run.json").unlink()
    (good / "run.json").symlink_to(served.root.parent / "secret" / "run.json")
    assert served.get("runs")["runs"][0]["status"] == "unreadable"
    assert served.get("run", run="good")["recipe"] == {}


def test_report_sandbox(served: Served) -> None:
    (served.root / "good" / "report.html").write_text("<h1>report</h1>")
    found = served.raw("/report?run=good")
    assert found.status == 200 and found.body == b"<h1>report</h1>"
    policy = found.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;") and "default-src 'none'" in policy
    assert "allow-same-origin" not in policy and "connect-src" not in policy


def test_security_headers(served: Served) -> None:
    for target in ("/", "/api/runs", "/api/run?run=none", "/api/groups", "/static/app.js", "/nowhere", "/api/docs"):
        headers = served.raw(target).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';"), target
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == ("no-store" if target.startswith("/api") else "no-cache")
        assert "access-control-allow-origin" not in headers
    assert served.raw("/static/app.js").headers["content-type"].startswith("text/javascript")


def test_read_only(served: Served) -> None:
    schema = served.get("openapi.json")
    for path in (*schema["paths"], "/", "/static/app.js", "/report"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert served.raw(f"{path}?run=good", method=method).status == 405, (method, path)


def test_foreign_host_names(served: Served) -> None:
    for host in ("evil.example", "evil.example:8787", "127.0.0.1.evil.example", "", "[::1", "localhost.evil"):
        assert served.raw("/api/runs", Host=host).status == 403, host
    for host in ("127.0.0.1", "localhost:1", "[::1]:8787"):
        assert served.raw("/api/runs", Host=host).status == 200, host


def test_token_and_cookie(tmp_path: Path, serve: Serve) -> None:
    make_run(tmp_path / "run", steps=1)
    served = serve(tmp_path, token="s3cret", loopback=False)
    for target in ("/", "/api/runs", "/static/app.js", "/api/live?run=run", "/api/openapi.json", "/report?run=run"):
        assert served.raw(target).status == 401, target
    for wrong in ("/?token=", "/?token=s3cre", "/?token=s3crett", "/?token=%ff"):
        assert served.raw(wrong).status == 401, wrong
    assert served.raw("/api/runs", Authorization="Bearer wrong").status == 401
    assert served.raw("/api/runs", Cookie="outdo-dash-1=s3cret").status == 401
    assert served.raw("/api/runs", Authorization="Bearer s3cret", Host="any.name").status == 200
    first = served.raw("/api/runs?token=s3cret")
    cookie = first.headers["set-cookie"]
    assert first.status == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert served.raw("/api/runs", Cookie=cookie.partition(";")[0]).status == 200
    assert "set-cookie" not in served.raw("/api/runs", Cookie=cookie.partition(";")[0]).headers


def test_hostile_answer(tmp_path: Path, serve: Serve) -> None:
    texts = [HOSTILE, "A" * 1_000_000, "\ud800 alone", "\r\nevent: status\ndata: {}\n\n"]
    run = make_run(tmp_path / "run", steps=0, ended=None)
    run.record_step(0, numbers(0), [group(HOSTILE, texts, [1.0, 0.0, 0.0, 0.0])])
    run.finish("failed", HOSTILE)
    run.close()
    served = serve(tmp_path)
    found = served.raw("/api/groups?run=run&step=0")
    assert found.headers["content-type"] == "application/json"
    one = found.json["groups"][0]
    assert one["answers"][0]["text"] == HOSTILE and one["prompt_id"] == HOSTILE
    assert one["answers"][2]["text"] == "\ufffd alone" and one["answers"][3]["text"] == texts[3]
    alone = served.get("group", run="run", step=0, prompt=HOSTILE)
    assert len(alone["answers"][1]["text"]) == 200_000 and alone["answers"][1]["cut"]
    assert served.get("prompt", run="run", prompt=HOSTILE)["seen"][0]["best"] == HOSTILE[:300]
    assert served.get("runs")["runs"][0]["why"] == HOSTILE


def test_corrupt_files_are_answered(tmp_path: Path, serve: Serve) -> None:
    """Each run is ill in a way of its own; every address still answers."""
    deep = b'{"step": 0, "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n"
    rows = [b'{"step": 0, "reward_mean": NaN, "kl_mean": Infinity, "len_mean": -1e999, "tokens": 1e308}\n', deep]
    rows += [
        b'{"step": 1, "tokens": ' + b"9" * 400 + b', "reward_mean": "\\ud800", "x": {"y": 1}}\n',
        b"\x00\x01\xff\n",
    ]
    for name in ("numbers", "pipes", "folders", "manifest", "types", "texts", "empty"):
        make_run(tmp_path / name, steps=0)
    append(tmp_path / "numbers" / "metrics.jsonl", *rows, *rows)
    append(tmp_path / "numbers" / "evals.jsonl", *rows, {"step": 0, "split": "test", "success_rate": "x", "n": 0})
    append(tmp_path / "numbers" / "findings.jsonl", *rows, {"code": 7}, {"code": "kl_blowup", "evidence": [3, {}]})
    for file in ("metrics.jsonl", "evals.jsonl", "findings.jsonl", "sft.jsonl", "groups/steps-000000.jsonl", ".lock"):
        for name, make in (("pipes", os.mkfifo), ("folders", os.mkdir)):
            path = tmp_path / name / file
            path.unlink(missing_ok=True)
            make(path)
    (tmp_path / "manifest" / "run.json").write_bytes(b"\xff" * 100)
    odd = {
        "status": "running",
        "recipe": [1],
        "kind": ["x"],
        "why": {"a": 1},
        "started": 5,
        "memory": "x",
        "devices": -1,
    }
    (tmp_path / "types" / "run.json").write_text(json.dumps(odd))
    told = {"step": 0, "prompt_id": "p", "messages": [1, {"content": [1]}], "completions": [1, {"text": 5, "parts": 3}]}
    path = tmp_path / "texts" / "groups" / "steps-000000.jsonl"
    append(path, told, {**told, "completions": "no"}, {**told, "completions": [{"reward": 1e308}] * 3, "messages": 4})
    append(
        path, b'{"step": 0, "prompt_id": "\\ud800", "completions": [{"tokens": [[1], [], 3], "text": null}]}\n', deep
    )
    (tmp_path / "empty" / "run.json").write_text("")
    (tmp_path / "stray.txt").write_text("foreign")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text('{"cells": {"a": 1}, "pick": 3, "varied": "x"}')
    os.mkfifo(tmp_path / "run.json")
    served = serve(tmp_path)
    listed = {run["id"]: run for run in served.get("runs")["runs"]}
    assert listed.keys() >= {"numbers", "pipes", "folders", "manifest", "types", "texts", "empty"}
    assert listed["manifest"]["status"] == listed["empty"]["status"] == "unreadable"
    assert listed["pipes"]["trouble"] and listed["folders"]["trouble"]
    for name in listed:
        for address in ADDRESSES:
            served.get(address, run=name)
        served.get("groups", run=name, step=0)
        assert served.status("group", run=name, step=0, prompt="p") in (200, 404)
        assert served.status("prompt", run=name, prompt="p") in (200, 404)
        assert served.status("tokens", run=name, step=0, prompt="\ufffd", answer=0) in (200, 404)
    assert served.get("metrics", run="numbers")["series"]["reward_mean"]["mean"] == [None] * 4
    assert served.get("sweep", sweep="sweep")["rows"] == []
    assert "not groups" in served.get("groups", run="texts", step=0)["trouble"][0]


def test_corrupt_held_out_answers(tmp_path: Path, serve: Serve) -> None:
    for name in ("odd", "pipe", "link"):
        make_run(tmp_path / name, steps=2)
    folder = tmp_path / "odd" / "held_out"
    odd = {"split": "test", "key": "a", "text": "t" * 10**6, "cut": [5, 10**30], "reward": "x", "verdict": {"a": 1}}
    append(folder / "step-000002.jsonl", b"{broken\n", odd, {"split": "test", "key": [1], "text": 7, "cut": "x"})
    append(folder / "step-000000.jsonl", {"split": "test", "key": "a", "text": "\ud800"}, {"split": "test", "key": [1]})
    append(
        folder / "problems.jsonl", {"split": "test", "key": "a", "messages": [3, {"content": {}}], "answer": 10**400}
    )
    append(tmp_path / "odd" / "evals.jsonl", {"step": 2.5, "split": "test"}, {"step": 10**30, "split": "test"})
    paths = [tmp_path / name / "held_out" / "step-000002.jsonl" for name in ("pipe", "link")]
    for path, make in zip(paths, (os.mkfifo, lambda path: path.symlink_to("/etc/passwd")), strict=True):
        path.unlink()
        make(path)
    served = serve(tmp_path)
    page = served.get("answers", run="odd")
    assert page["changes"]["counts"]["gained"] == 2 and page["trouble"], "what is valid is shown"
    assert max(len(each["after"]["text"]) for each in page["changes"]["changes"]) <= 20_000
    assert served.get("answers", run="pipe")["changes"]["after"]["step"] == 0, "a pipe is not read"
    link = served.raw("/api/answers?run=link")
    assert link.status == 200 and b"root:" not in link.body and "leads out" in link.json["trouble"][0]


def test_undecodable_folder_names(tmp_path: Path, serve: Serve) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffns"))
    make_run(root, steps=1)
    make_run(root / os.fsdecode(b"a\xfe"), steps=1)
    served = serve(root)
    found = served.get("runs")
    assert [(run["id"], run["name"]) for run in found["runs"]] == [(".", "r\ufffdns")]
    assert served.get("run", run=".")["summary"]["steps"] == 1


def test_deleted_run(served: Served) -> None:
    assert served.get("metrics", run="good")["total"] == 3
    for path in sorted((served.root / "good").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for address in ADDRESSES:
        assert served.status(address, run="good") == 404
    (served.root / "good").rmdir()
    make_run(served.root / "good", steps=5)
    assert served.get("metrics", run="good")["total"] == 5


def test_invalid_parameters(served: Served) -> None:
    for address, query in (
        ("metrics", {"run": "good", "points": 0}),
        ("metrics", {"run": "good", "points": "x"}),
        ("metrics", {"run": "good", "first": -1}),
        ("metrics", {"run": "good", "last": 10**30}),
        ("groups", {"run": "good"}),
        ("groups", {"run": "good", "step": 0, "sort": "size"}),
        ("groups", {"run": "good", "step": 0, "limit": 100_000}),
        ("tokens", {"run": "good", "step": 0, "prompt": "p", "answer": -1}),
        ("compare", {"run": ["good"] * 17}),
        ("compare", {}),
        ("live", {}),
    ):
        assert served.status(address, **query) == 422, (address, query)
