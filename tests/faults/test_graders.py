"""Graders that are killed, hang or flood, in the middle of training: no step is lost and nothing is left running."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from faults.test_stops import fault
from support.harness import SHORT, Bench, rows
from support.processes import left_running, running

STEPS = 3
REWARDS = """
import os, signal, sys, time, zlib

def _strikes(text, prompts):
    return zlib.crc32((text + prompts[0]).encode()) % 8 == 0

def kills(completions, prompts):
    for text in completions:
        if _strikes(text, prompts):
            os.kill(os.getpid(), signal.SIGKILL)
    return [0.5] * len(completions)

def hangs(completions, prompts):
    for text in completions:
        while _strikes(text, prompts):
            time.sleep(1)
    return [0.5] * len(completions)

def floods(completions, prompts):
    if any(_strikes(text, prompts) for text in completions):
        for stream in (1, 2):
            os.write(stream, b"x" * 2**22)
        hoard = bytearray(b"1") * 2**29
    return [0.5] * len(completions)

def hoards(completions, prompts):
    hoard = []
    while any(_strikes(text, prompts) for text in completions):
        hoard = [*hoard, bytearray(b"1") * 2**26][-16:]
    return [0.5] * len(completions)

def slow(completions):
    time.sleep(0.3)
    return [0.25 + 0.5 * (len(text) % 2) for text in completions]
"""

# What a model may write where code is wanted: programs that hang, flood, hoard, fork and kill, and one that is right.
HOSTILE = [
    "while True: pass",
    "while True: print('x' * 10**6, flush=True)",
    "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "hoard = []\nwhile True: hoard.append(bytearray(b'1') * 10**8)",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "print(int(input()) + 1)",
]
TOWERS = [f"<answer>{f'9^{{9^{{{i + 9}}}}}' if i % 4 else 'x + 2'}</answer>" for i in range(48)]  # three in four hang


@pytest.fixture(scope="module", autouse=True)
def files(bench: Bench) -> None:
    (bench.folder / "striking.py").write_text(REWARDS)
    cases = [{"stdin": "4", "stdout": "5"}]
    sums = [{"prompt": f"print {i} and one more", "cases": cases, "answer": "2+x", "id": str(i)} for i in range(24)]
    splits = [{**row, "split": "test" if i < 4 else "train"} for i, row in enumerate(sums)]
    (bench.folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in splits))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = running()
    yield
    assert left_running(but=before) == []


def words(name: str, reward: str, *more: str) -> list[str]:
    own = ("reward_audit=false", "broken_limit=0", f"max_steps={STEPS}", "eval_size=4", "eval_samples=0")
    return ["train", *SHORT, f"reward_funcs={reward}", "reward_weights=[]", *own, *more, f"output_dir={name}"]


def from_file(name: str, reward: str, *more: str) -> list[str]:
    return words(name, reward, "dataset_name=sums.jsonl", "sft_steps=0", "max_completion_length=8", *more)


def whole(run: Path) -> list[dict[str, float]]:
    """The rows of a run that has lost none."""
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    found = rows(run / "metrics.jsonl")
    assert [row["step"] for row in found] == list(range(1, STEPS + 1)) and not any(
        row["skipped_updates"] for row in found
    )
    return found


STRIKES = ["kills", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hangs", "floods", "hoards"))]


@pytest.mark.parametrize("name", STRIKES)
def test_a_function_that_kills_hangs_or_floods_costs_the_answer_and_not_the_run(bench: Bench, name: str) -> None:
    reward = f"numeric,striking.py:{name}"
    assert bench.start(*words(name, reward, f"reward_timeout={10 if name == 'floods' else 0.5}")).wait() == 0, (
        bench.said()[-2000:]
    )
    assert sum(row["grader_broken"] for row in whole(bench.folder / name)) == 0
    bench.said()
    answers = [a for g in rows(bench.folder / name / "groups" / "steps-000000.jsonl") for a in g["completions"]]
    struck = sum(answer["parts"][name] == 0 for answer in answers)  # the worst score
    assert (struck == 0) if name == "floods" else (0 < struck < len(answers) / 2)  # a flood alone is no failure


@pytest.mark.slow
@pytest.mark.sandbox
def test_hostile_programs_are_wrong_not_broken_and_the_right_one_is_right(bench: Bench) -> None:
    told = fault("graded", 1, "answers", always=True, texts=HOSTILE)
    status = bench.start(*from_file("hostile", "code", "reward_timeout=0.5"), faults=[told]).wait()
    assert status == 0, bench.said()[-2000:]
    for row in whole(bench.folder / "hostile"):
        assert row["grader_broken"] == 0 and row["success_rate"] == pytest.approx(1 / len(HOSTILE))


@pytest.mark.slow
def test_towers_of_powers_are_wrong_and_the_right_one_is_right(bench: Bench) -> None:
    told = fault("graded", 1, "answers", always=True, texts=TOWERS)
    status = bench.start(*from_file("towers", "math", "reward_timeout=1", "num_generations=2"), faults=[told]).wait()
    assert status == 0, bench.said()[-2000:]
    for row in whole(bench.folder / "towers"):
        assert row["grader_broken"] == 0 and row["success_rate"] == pytest.approx(1 / 4)


def grading(run: psutil.Process, mark: str) -> list[psutil.Process]:
    """The processes of a run that have this word in their command line."""
    found = []
    for process in run.children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if mark in process.cmdline():
                found.append(process)
    return found


def struck(bench: Bench, line: list[str], mark: str, at_most: int, faults: tuple[object, ...] = ()) -> int:
    """Runs it, and meanwhile kills processes that grade. How many were killed."""
    child, kills = bench.start(*line, faults=faults), 0
    run = psutil.Process(child.pid)
    metrics = bench.folder / line[-1].partition("=")[2] / "metrics.jsonl"
    while run.is_running() and run.status() != psutil.STATUS_ZOMBIE and kills < at_most:
        found = grading(run, mark) if metrics.exists() else []
        if found:
            found[-1 if kills % 2 else 0].kill()
            kills += 1
        time.sleep(0.15)
    assert child.wait() == 0, bench.said()[-2000:]
    return kills


def test_workers_killed_from_outside_cost_nothing(bench: Bench) -> None:
    """A job whose worker dies is given to another; the first process of the pool is killed too."""
    line = words("workers", "numeric,striking.py:slow")
    assert struck(bench, line, "outdo.sandbox.worker", 2) == 2
    assert sum(row["grader_broken"] for row in whole(bench.folder / "workers")) == 0


@pytest.mark.slow
def test_workers_of_maths_killed_from_outside(bench: Bench) -> None:
    told = fault("graded", 1, "answers", always=True, texts=TOWERS)
    line = from_file("maths-workers", "math", "reward_timeout=1", "num_generations=2")
    assert struck(bench, line, "outdo.sandbox.worker", 3, (told,)) == 3
    whole(bench.folder / "maths-workers")


@pytest.mark.slow
@pytest.mark.sandbox
def test_sandboxes_killed_from_outside(bench: Bench) -> None:
    told = fault("graded", 1, "answers", always=True, texts=HOSTILE)
    assert struck(bench, from_file("sandboxes", "code", "reward_timeout=1"), "bwrap", 5, (told,)) == 5
    whole(bench.folder / "sandboxes")


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "term", "twice"])
def test_a_run_that_ends_while_graders_hang_leaves_nothing(bench: Bench, action: str) -> None:
    line = words(f"ends-{action}", "numeric,striking.py:hangs", "reward_timeout=30")
    child = bench.start(*line)
    run = psutil.Process(child.pid)
    manifest = bench.folder / f"ends-{action}" / "run.json"
    while not (manifest.exists() and grading(run, "outdo.sandbox.worker")):
        time.sleep(0.05)
    time.sleep(1)
    run.kill() if action == "kill" else run.terminate()
    if action == "twice":
        run.terminate()
    assert child.wait() in (-9, 143)
