"""Rewards that hang, crash or lie, wherever they run: the answer is wrong, the run continues, no process is left."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from outdo.errors import GraderError, SandboxError
from outdo.rewards import calls
from outdo.rewards.compose import find_rewards, grade, grade_all
from outdo.types import Group, Prompt, Trajectory

REWARDS = """
import os, signal, sys, threading, time
from outdo import Grade

def moody(completions, answer, **columns):
    out = []
    for text in completions:
        if text == "hang": time.sleep(1000)
        if text == "spin":
            while True: pass
        if text == "exit": os._exit(7)
        if text == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if text == "raise": raise KeyError("no such thing")
        if text == "quit": sys.exit(3)
        out.append({"nan": float("nan"), "none": None}.get(text, float(text == answer[0])))
    return out

def rich(completions, **columns):
    return [Grade(0.5, "right", {"inner": 1.0}, "because") for _ in completions]

def thread(completions, **columns):
    return [float(threading.current_thread() is threading.main_thread()) for _ in completions]

def alarm(completions, **columns):
    signal.signal(signal.SIGALRM, lambda *_: None)  # works on a main thread only
    signal.alarm(5)
    signal.alarm(0)
    return [1.0 for _ in completions]

def mean(completions, **columns):
    lengths = [len(text) for text in completions]
    return [length - sum(lengths) / len(lengths) for length in lengths]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARDS)
    return path


def group_of(*texts):
    prompt = Prompt("p", ({"role": "user", "content": "2+2?"},), "4", {"numbers": (1, 2)})
    return Group(prompt, (1,), tuple(Trajectory.single((7,), (0.0,), text, "stop", 0) for text in texts))


def test_a_reward_of_another_folder(file, tmp_path, monkeypatch):
    grade(group_of("4"), find_rewards([f"{file}:mean"], [], "mean"))  # starts them, if nothing has yet
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text("def near(completions, **columns): return [0.25 for _ in completions]\n")
    assert [g.reward for g in grade(group_of("4"), find_rewards(["near.py:near"], [], "near")).grades] == [0.25]


def judged(name, *texts, timeout=1.0, own=None):
    rewards = find_rewards([name], [], name, own=own, timeout=timeout)
    return grade(group_of(*texts), rewards).grades


BAD = ["hang", "spin", "exit", "crash", "raise", "quit", "nan"]


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_answer_is_wrong_alone(file, bad):
    start = time.monotonic()
    first, second, third = judged(f"{file}:moody", "4", bad, "5")
    assert (first.reward, third.reward) == (1.0, 0.0)
    assert (second.verdict, second.reward) == ("wrong", 0.0)
    assert second.reason
    assert time.monotonic() - start < 8


def test_none_abstains(file):
    grades = judged(f"{file}:moody", *BAD, "4", "none")
    assert [g.verdict for g in grades] == ["wrong"] * len(BAD) + ["right", "broken"]
    assert "abstained" in grades[-1].reason


def test_a_named_function_runs_on_a_main_thread(file):
    for name in ("thread", "alarm"):
        assert judged(f"{file}:{name}", "a")[0].reward == 1.0
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(judged, f"{file}:{name}", "a").result()[0].reward == 1.0


def test_grades_and_group_statistics(file):
    (grade_,) = judged(f"{file}:rich", "a")
    assert (grade_.reward, grade_.verdict, grade_.reason) == (0.5, "right", "because")
    assert [g.reward for g in judged(f"{file}:mean", "a", "aaa")] == [-1.0, 1.0]


def test_an_object_that_hangs_is_abandoned():
    def hangs(completions, **columns):
        if "hang" in completions:
            threading.Event().wait(60)
        return [1.0] * len(completions)

    start = time.monotonic()
    first, second = judged("hangs", "a", "hang", own={"hangs": hangs}, timeout=0.3)
    assert (first.reward, second.verdict) == (1.0, "wrong")
    assert "timed out after 0.3 s" in second.reason
    assert time.monotonic() - start < 5


def test_objects_are_called_one_at_a_time():
    running, parallel = [], []

    def counts(completions, **columns):
        running.append(1)
        parallel.append(len(running))
        time.sleep(0.02)
        running.pop()
        return [1.0] * len(completions)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda text: judged("counts", text, own={"counts": counts}), "abcdef"))
    assert max(parallel) == 1


def test_no_process_left(file):
    from outdo.rewards.calls import _pool

    judged(f"{file}:moody", "hang", "spin", "exit", timeout=0.5)
    _pool().close()
    left = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            left += [child.pid] if "outdo.rewards.calls" in " ".join(child.cmdline()) else []
    assert not left
    assert judged(f"{file}:moody", "4")[0].reward == 1.0  # the pool restarts


def test_a_file_that_exits_is_an_error(tmp_path):
    path = tmp_path / "ends.py"
    path.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(GraderError, match=r"ends\.py.*sys\.exit\(3\).*__main__"):
        find_rewards([f"{path}:f"], [], f"{path}:f")


def test_async_rewards(tmp_path, recwarn):
    path = tmp_path / "later.py"
    path.write_text(
        "import asyncio\n"
        "loops = set()\n"
        "async def f(completions):\n"
        "    loops.add(asyncio.get_running_loop())\n"
        "    return [float(len(loops))] * len(completions)\n"
        "class Waits:\n"
        "    async def __call__(self, completions): return [0.5] * len(completions)\n"
        "waits = Waits()\n"
        "async def yields(completions): yield 1.0\n"
    )
    for _ in range(2):  # clients of an earlier call belong to its loop: it is the same one
        assert [g.reward for g in judged(f"{path}:f", "a", "b")] == [1.0, 1.0]
    assert judged(f"{path}:waits", "a")[0].reward == 0.5
    with pytest.raises(GraderError, match="async generator"):
        find_rewards([f"{path}:yields"], [], "yields")

    async def later(completions):
        return [float(text == "4") for text in completions]

    def hides(completions):
        return later(completions)

    assert [g.reward for g in judged("hides", "4", "5", own={"hides": hides})] == [
        1,
        0,
    ]
    assert not list(recwarn)


def test_async_objects_run_concurrently():
    running, parallel = [], []

    async def waits(completions, answer):
        running.append(1)
        parallel.append(len(running))
        await asyncio.sleep(0.2)
        running.pop()
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    async def one(completion, answer):
        await asyncio.sleep(0.2)
        return float(completion == answer)

    groups = [group_of("4", str(i)) for i in range(10)]
    for own in (waits, one):
        rewards = find_rewards(["f"], [], "f", own={"f": own})
        start = time.monotonic()
        graded = grade_all(groups, rewards)
        assert time.monotonic() - start < 1.5
        assert [[g.reward for g in group.grades] for group in graded] == [[1.0, float(i == 4)] for i in range(10)]
    assert max(parallel) >= 8


def test_async_objects_that_hang_or_block():
    async def moody(completions):
        if "hang" in completions:
            await asyncio.sleep(60)
        if "block" in completions:
            time.sleep(3)
        if "raise" in completions:
            raise KeyError("x")
        return [1.0] * len(completions)

    grades = judged("moody", "a", "hang", "raise", own={"moody": moody}, timeout=0.2)
    assert [g.verdict for g in grades] == ["right", "wrong", "wrong"]
    assert "timed out after 0.2 s" in grades[1].reason and "KeyError" in grades[2].reason
    assert judged("moody", "block", own={"moody": moody}, timeout=0.2)[0].verdict == "wrong"
    assert judged("moody", "a", own={"moody": moody}, timeout=0.2)[0].reward == 1.0  # on another loop


def test_unknown_names(file):
    for name, part in ((f"{file}:mody", "moody"), ("nowhere.py:f", "no such file"), ("numerc", "numeric")):
        with pytest.raises(GraderError, match=part):
            find_rewards([name], [], name)


def test_a_sandbox_that_cannot_start_is_a_grader_error(file, monkeypatch):
    def fail(*args):
        raise SandboxError("install bubblewrap")

    with pytest.raises(GraderError, match="install bubblewrap"):
        judged("fail", "4", own={"fail": lambda completions: fail()})
    monkeypatch.setattr(calls._pool(), "run", fail)
    with pytest.raises(GraderError, match="install bubblewrap"):
        judged(f"{file}:moody", "4")


def test_slow_import(tmp_path):
    """The import of a user's module is no part of `reward_timeout`: eight workers may import torch."""
    file = tmp_path / "slow.py"
    file.write_text("import time\ntime.sleep(1)\ndef paid(completions, **columns): return [1.0] * len(completions)\n")
    assert [one.reward for one in judged(f"{file}:paid", "a", "b", timeout=0.4)] == [1.0, 1.0]
