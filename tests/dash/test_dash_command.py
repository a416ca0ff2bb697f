"""`outdo dash` and `outdo train --dash` as a user starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from outdo.dash import serve
from outdo.errors import RecipeError
from outdo.web import sockets
from support.basics import QUICK
from support.folders import append, make_run

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/")
Outdo = Callable[..., "subprocess.CompletedProcess[str]"]


def start(words: list[str], cwd: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    piped = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "outdo", *words], cwd=cwd, env=env, stdout=piped, stderr=piped, text=True
    )


def asked(port: int, path: str = "/api/runs") -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return dict(json.load(answer))


def is_gone(port: int, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return True
        time.sleep(0.05)
    return False


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody may be there to bury it
    except psutil.NoSuchProcess:
        return True


def test_taken_port_and_ctrl_c(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", steps=2)
    with sockets.bind(port=0).sock as taken:
        port = taken.getsockname()[1]
        server = start(["dash", "--port", str(port), "--no-open"], tmp_path)
        assert server.stdout
        found = ADDRESS.search(server.stdout.readline())
    assert found and port < int(found[1]) < port + sockets.MAX_PORTS
    assert [run["id"] for run in asked(int(found[1]))["runs"]] == ["one"]
    loaded = Path(f"/proc/{server.pid}/maps").read_text()
    assert "torch" not in loaded and "matplotlib" not in loaded
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/api/live?run=one", timeout=20) as stream:
        assert stream.readline() == b"retry: 2000\n"
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=10)
    assert server.returncode == 0 and out == "" and err == f"port {port} is taken\n"


def test_bad_input(outdo: Outdo, tmp_path: Path) -> None:
    for words, said in (
        (["dash", "nowhere"], "nowhere is not a folder"),
        (["dash", str(tmp_path), "--token", 'a;b c"d-long'], "--token"),
        (["dash", str(tmp_path), "--port", "70000"], "--port"),
    ):
        done = outdo(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, words


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "REQUIRED", ("json", "no_such_package"))
    with pytest.raises(RecipeError, match=r"needs no_such_package: pip install 'outdo\[dash\]'"):
        sockets.require(*serve.EXTRA)
    said: list[str] = []
    with serve.serve_beside(Path("runs"), said.append):
        pass
    assert len(said) == 1 and "training continues" in said[0]


def test_token_of_other_hosts() -> None:
    tokens = set()
    for host in ("0.0.0.0", "0.0.0.0", "::"):
        try:
            bound = sockets.bind(host, 0)
        except RecipeError:  # a machine without IPv6
            continue
        assert bound.token and len(bound.token) >= 32 and bound.address.endswith(f"?token={bound.token}")
        assert not bound.is_local and socket.gethostname() in bound.address
        tokens.add(bound.token)
        bound.sock.close()
    assert len(tokens) >= 2
    local = sockets.bind(port=0)
    assert local.token is None and local.is_local and local.address == f"http://127.0.0.1:{local.port}/"
    local.sock.close()
    assert sockets.is_loopback("::1") and sockets.is_loopback("localhost") and not sockets.is_loopback("192.168.0.1")


@pytest.mark.slow
def test_huge_files_cost_no_memory(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", steps=2)
    for name in ("metrics.jsonl", "evals.jsonl", "groups/steps-000000.jsonl"):
        path = tmp_path / "runs" / "one" / name
        os.truncate(path, path.stat().st_size + (1 << 30))  # a hole: no line end in all of it
        append(path, b"\n", {"step": 9, "reward_mean": 0.5, "prompt_id": "late", "completions": []})
    long = {"step": 9, "prompt_id": "long", "completions": [{"text": "x" * 50_000_000}]}
    append(tmp_path / "runs" / "one" / "groups" / "steps-000000.jsonl", long)
    server = start(["dash", "--port", "0", "--no-open"], tmp_path)
    assert server.stdout
    found = ADDRESS.search(server.stdout.readline())
    assert found
    port = int(found[1])
    assert asked(port, "/api/metrics?run=one")["steps"] == [1, 2, 9]
    groups = asked(port, "/api/groups?run=one&step=9")
    assert [group["prompt_id"] for group in groups["groups"]] == ["late"]
    assert any("a group of 47 MB is not read" in line for line in groups["trouble"])
    for address in ("run", "evals", "findings", "improved", "compare"):
        asked(port, f"/api/{address}?run=one")
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert peak and int(peak[1]) < 300_000
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, None], ids=["ctrl-c", "killed", "done"])
def test_server_beside_a_run(number: signal.Signals | None, tmp_path: Path) -> None:
    steps = 3 if number is None else 2000
    words = ["train", "--dash", *QUICK, f"max_steps={steps}", "kl_limit=null", "output_dir=runs/one"]
    training = start(words, tmp_path)
    assert training.stdout
    found = None
    while not found:
        text = training.stdout.readline()
        assert text, "training ended without an address"
        found = ADDRESS.search(text)
    port = int(found[1])
    children = psutil.Process(training.pid).children(recursive=True)
    server = next(child for child in children if "dash" in child.cmdline())
    if number is not None:
        until = time.monotonic() + 60
        while not any(run["steps"] for run in asked(port)["runs"]):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert asked(port)["runs"][0]["status"] == "running" and server.nice() >= serve.NICE
        training.send_signal(number)
    training.communicate(timeout=90)
    assert training.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9, None: 0}[number]
    assert is_gone(port)
    until = time.monotonic() + 10
    while not has_ended(server):
        assert time.monotonic() < until, "the server outlived the run"
        time.sleep(0.05)
