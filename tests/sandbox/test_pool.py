"""The pool of killable workers: every job gets a reply, in order, whatever happens to its process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from outdo.sandbox.pool import Pool
from support.processes import left_running, running

JOBS = """
import os, signal, time

def double(x): return 2 * x
def fail(message): raise ValueError(message)
def leave(code): os._exit(code)
def stop(number): os.kill(os.getpid(), number)
def exit_(): raise SystemExit(0)
def interrupt(): raise KeyboardInterrupt
def spin():
    while True: pass
def sleep(seconds): time.sleep(seconds); return seconds
def work(steps):
    for _ in range(steps): time.sleep(0.01)  # a paused process makes no progress
    return "worked"
def fill(megabytes): return len(bytearray(megabytes * 2**20))
def unsendable(): return object()
def large(n): return "x" * n
def pid(): return os.getpid()
def loads(seconds, rest): time.sleep(rest); return [seconds, LOADED]
LOADED = []
def load(seconds): time.sleep(seconds); LOADED.append(seconds)
loads.load = load
def deaf():
    for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
    spin()
def once(path):
    if os.path.exists(path): return "second time"
    open(path, "w").close()
    os._exit(1)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = running()
    with_limit = Pool(["jobs_of_a_test"], memory_mb=128, slots=2)
    yield with_limit
    with_limit.close()
    assert left_running(but=before) == []


def job(name, *args):
    return (f"jobs_of_a_test:{name}", args)


def kinds(replies):
    return [reply.kind for reply in replies]


def test_replies_are_in_order(pool):
    jobs = [job("sleep", 0.2), *[job("double", i) for i in range(20)], job("sleep", 0.0)]
    assert [r.value for r in pool.run(jobs, 5)] == [0.2, *[2 * i for i in range(20)], 0.0]
    assert pool.run([], 5) == []


def test_an_exception_is_a_reply(pool):
    raised, missing, object_ = pool.run([job("fail", "no\ud800"), job("nowhere"), job("unsendable")], 5)
    assert kinds([raised, missing, object_]) == ["raised"] * 3
    assert raised.message.startswith("ValueError: no")
    assert "nowhere" in missing.message
    assert object_.message.startswith("TypeError")


@pytest.mark.parametrize(
    "death",
    [
        job("leave", 0),
        job("leave", 1),
        job("stop", signal.SIGKILL),
        job("stop", signal.SIGSEGV),
        job("stop", signal.SIGTERM),
        job("exit_"),
        job("interrupt"),
    ],
)
def test_a_dead_worker_fails_only_its_job(pool, death):
    replies = pool.run([job("double", 1), death, job("double", 2)], 5)
    assert kinds(replies) == ["value", "died", "value"]
    assert pool.run([job("double", 3)], 5)[0].value == 6


def test_a_job_is_retried_once(pool, tmp_path):
    assert pool.run([job("once", str(tmp_path / "mark"))], 5)[0].value == "second time"


def test_memory_limit(pool):
    few, many = pool.run([job("fill", 32), job("fill", 1024)], 5)
    assert few.value == 32 * 2**20
    assert (many.kind, many.message.partition(":")[0]) == ("raised", "MemoryError")


def test_large_reply(pool):
    assert len(pool.run([job("large", 5 * 2**20)], 5)[0].value) == 5 * 2**20


@pytest.mark.parametrize("name", ["spin", "deaf"])
def test_deadline_kills(pool, name):
    pool.run([job("double", 1)], 5)
    started = time.monotonic()
    hung, slept, good = pool.run([job(name), job("sleep", 60), job("double", 4)], 0.6)
    assert kinds([hung, slept, good]) == ["timeout", "timeout", "value"]
    assert hung.message == "timed out after 0.6 s"
    assert time.monotonic() - started < 2.5


def test_jobs_that_hang_are_paused(pool):
    pool.run([job("double", 1)], 5)
    started = time.monotonic()
    replies = pool.run([*[job("spin")] * 12, *[job("double", i) for i in range(60)]], 1.5)
    assert kinds(replies) == ["timeout"] * 12 + ["value"] * 60
    assert time.monotonic() - started < 4.5


def test_slow_jobs_are_not_starved(pool):
    pool.run([job("double", 1)], 5)
    slow, *hung = pool.run([job("work", 10), *[job("spin")] * 30], 1.0)  # its second turn comes after a second
    assert slow.value == "worked"
    assert kinds(hung) == ["timeout"] * 30


def test_high_descriptors(pool):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert [r.value for r in pool.run([job("double", i) for i in range(5)], 5)] == [0, 2, 4, 6, 8]
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_fork_server_killed_between_calls(pool):
    assert pool.run([job("double", 1)], 5)[0].value == 2
    old = pool._server.pid
    os.kill(old, signal.SIGKILL)
    assert [r.value for r in pool.run([job("double", i) for i in range(4)], 5)] == [0, 2, 4, 6]
    assert pool._server.pid != old


def test_fork_server_killed_during_a_call(pool):
    pool.run([job("double", 1)], 5)
    old = pool._server.pid
    threading.Timer(0.3, os.kill, (old, signal.SIGKILL)).start()
    assert [r.value for r in pool.run([job("sleep", 0.6), job("double", 1)], 10)] == [0.6, 2]


def test_idle_worker_killed(pool):
    (reply,) = pool.run([job("pid")], 5)
    os.kill(reply.value, signal.SIGKILL)
    time.sleep(0.1)
    assert pool.run([job("double", 1)], 5)[0].value == 2


def test_four_threads(pool):
    def calls(k):
        jobs = [job("double", 100 * k + i) for i in range(25)] + [job("spin"), job("leave", 0), job("fail", str(k))]
        return pool.run(jobs, 1.0)

    with ThreadPoolExecutor(4) as threads:
        for k, replies in enumerate(threads.map(calls, range(4))):
            assert [r.value for r in replies[:25]] == [200 * k + 2 * i for i in range(25)]
            assert kinds(replies[25:]) == ["timeout", "died", "raised"]
            assert replies[-1].message == f"ValueError: {k}"


def test_interrupt_kills_the_workers(pool):
    pool.run([job("double", 1)], 5)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run([job("spin")] * 6, 60)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and any(_busy(p) for p in _workers(pool)):
        time.sleep(0.05)
    assert [p for p in _workers(pool) if _busy(p)] == []
    assert pool.run([job("double", 2)], 5)[0].value == 4


def _workers(pool):
    return psutil.Process(pool._server.pid).children()


def _busy(process):
    try:
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def test_close_twice(pool):
    pool.run([job("double", i) for i in range(8)], 5)
    server = psutil.Process(pool._server.pid)
    processes = [server, *server.children()]
    pool.close()
    pool.close()
    assert psutil.wait_procs(processes, timeout=3)[1] == []


def test_no_process_survives_the_parent(tmp_path):
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    before = running()
    source = (
        "from outdo.sandbox.pool import Pool\npool = Pool(['jobs_of_a_test'])\n"
        "pool.run([('jobs_of_a_test:double', (1,))], 5)\nprint('started', flush=True)\n"
        "pool.run([('jobs_of_a_test:spin', ()), ('jobs_of_a_test:deaf', ())] * 4, 600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, cwd=tmp_path, text=True) as parent:
        try:
            assert parent.stdout.readline() == "started\n"
            deadline = time.monotonic() + 30
            while len(psutil.Process(parent.pid).children(recursive=True)) < 9:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            parent.kill()
    assert left_running(but=before) == []


def test_loading_is_not_the_jobs_time(tmp_path, monkeypatch):
    """What a function loads first has a limit of its own, and is loaded once by each worker."""
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    patient = Pool(["jobs_of_a_test"], slots=1, load_seconds=2.0)
    try:
        first, second = (patient.run([job("loads", 0.6, 0.0)], seconds=0.3)[0] for _ in range(2))
        assert (first.kind, first.value) == ("value", [0.6, [0.6]])
        assert second.value == [0.6, [0.6]]
        slow, long = (patient.run([job("loads", *args)], seconds=0.3)[0] for args in ((0.5, 60.0), (60.0, 0.0)))
        assert (slow.kind, slow.message) == ("timeout", "timed out after 0.3 s")
        assert long.kind == "timeout" and "2.3 s to load" in long.message
        crowd = patient.run([job("loads", 0.5, 0.0)] * 4, seconds=0.3)
        assert [reply.kind for reply in crowd] == ["value"] * 4
    finally:
        patient.close()
    hasty = Pool(["jobs_of_a_test"], slots=1)
    try:
        assert hasty.run([job("loads", 0.6, 0.0)], seconds=0.3)[0].kind == "timeout"
    finally:
        hasty.close()
