"""Failures that one answer causes are its own: the worst score, never broken. Those of a reward or a row are broken."""

import json
import math
import signal
import threading
from contextlib import suppress

import psutil
import pytest

from outdo.errors import BrokenGraders
from outdo.rewards.blame import Worst, by_weight, worst
from outdo.rewards.compose import Reward, Rewards, find_rewards, grade, halt_if_broken
from outdo.types import Grade, Group, Prompt, Trajectory


def group_of(*texts, answer="4", **meta):
    prompt = Prompt("p", ({"role": "user", "content": "2+2?"},), answer, meta)
    return Group(prompt, (1,), tuple(Trajectory.single((7,), (0.0,), text, "stop", 0) for text in texts))


def graded(group, *parts, truth=None, **options):
    """Parts are functions, or (function, weight)."""
    pairs = [part if isinstance(part, tuple) else (part, 1.0) for part in parts]
    rewards = Rewards(tuple(Reward(f.__name__, f, w) for f, w in pairs), truth or pairs[0][0].__name__, **options)
    return grade(group, rewards).grades


def right(completions, answer, **columns):
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def fails_on(bad, value=lambda text: float(text == "4")):
    """A reward that fails on these answers, each in its own way."""

    def fragile(completions, **columns):
        if "short" in bad and "short" in completions:
            return [value(text) for text in completions if text != "short"]
        return [_failing(text, value) if text in bad else value(text) for text in completions]

    return fragile


def _failing(text, value):
    if text == "raise":
        raise KeyError("x")
    if text == "exit":
        raise SystemExit(0)
    if text == "deep":
        return _failing(text, value)
    return {"nan": math.nan, "inf": -math.inf, "text": "1.0", "list": [1.0], "huge": 10**400}[text]


WAYS = ("raise", "exit", "deep", "nan", "inf", "text", "list", "huge", "short")


@pytest.mark.parametrize("bad", WAYS)
@pytest.mark.parametrize("siblings", [("4", "5"), ("5",), (), None], ids=["right and wrong", "wrong", "none", "as bad"])
def test_only_this_answer_fails(bad, siblings):
    others = (bad, bad) if siblings is None else siblings
    grades = graded(group_of(*others, bad), fails_on({bad}))
    assert [(g.reward, g.verdict) for g in grades[len(others) :]] == [(0.0, "wrong")]
    assert grades[-1].reason
    if siblings is not None:
        assert [g.reward for g in grades[:-1]] == [float(text == "4") for text in others]


@pytest.mark.parametrize("bad", WAYS[:-1])
def test_every_answer_fails(bad):
    def fails(completions, **columns):
        return [_failing(bad, None) for _ in completions]

    grades = graded(group_of("4", "5", ""), fails)
    assert [(g.reward, g.verdict) for g in grades] == [(None, "broken")] * 3


def test_a_row_that_fails_is_broken():
    def divides(completions, answer, level):
        return [float(text == gold) / part for text, gold, part in zip(completions, answer, level, strict=True)]

    assert [g.verdict for g in graded(group_of("4", "5", level=0), divides)] == ["broken", "broken"]
    assert [g.reward for g in graded(group_of("4", "5", level=2), divides)] == [0.5, 0.0]


def test_a_group_in_which_nobody_has_the_form():
    def picky(completions, answer):
        return [
            float(text.split("<answer>")[1].split("<")[0] == gold)
            for text, gold in zip(completions, answer, strict=True)
        ]

    grades = graded(group_of("4", "four", "<answer>5</answer>"), picky)
    assert [g.verdict for g in grades] == ["wrong", "wrong", "wrong"]
    assert [g.verdict for g in graded(group_of("4", "four"), picky)] == ["wrong", "wrong"]


def test_a_failure_that_passes_is_no_failure():
    tries = []

    def flaky(completions, **columns):
        tries.append(completions)
        if len(tries) < 3:
            raise ConnectionError("reset")
        return [1.0 for _ in completions]

    assert [g.reward for g in graded(group_of("a", "b"), flaky)] == [1.0, 1.0]


def test_the_same_answer_cannot_be_to_blame():
    def by_place(completions, **columns):
        return [1.0, math.nan][: len(completions)] if len(completions) > 1 else [math.nan]

    assert [g.verdict for g in graded(group_of("a", "a"), by_place)] == ["right", "broken"]


@pytest.mark.parametrize(
    ("values", "weight", "reward"),
    [
        ({"a": 1.0, "b": 0.5}, 1.0, 0.0),  # a reward: 0 is its worst
        ({"a": 1.0, "b": -2.0}, 1.0, -2.0),
        ({"a": 0.0, "b": 0.0}, 1.0, -1.0),  # nobody is paid: it may be a penalty
        ({"a": -0.2, "b": 0.0}, 1.0, -1.0),
        ({"a": -3.0, "b": 0.0}, 0.5, -1.5),
        ({"a": 0.0, "b": 0.25}, -1.0, -1.0),  # by a negative weight, the highest is the worst
        ({"a": 7.0, "b": 0.0}, -0.1, -0.7),
        ({"a": -1.0, "b": 0.0}, -1.0, 0.0),
    ],
)
def test_the_worst_of_a_penalty(values, weight, reward):
    def penalty(completions, **columns):
        return [{**values, "": 0.0}.get(text, 0.0) if text != "bad" else 1 / 0 for text in completions]

    grades = graded(group_of("a", "b", "bad"), right, (penalty, weight))
    assert grades[-1].reward == pytest.approx(reward)
    assert grades[-1].reward <= min(g.reward for g in grades)
    assert grades[-1].verdict == "wrong"


def test_worst_keeps_both_ends():
    assert worst([0.5, 2.0], "x", decides=True) == Worst(0.0, "wrong", {}, "x", highest=2.0)
    assert worst([], "x") == Worst(-1.0, "wrong", {}, "x", highest=1.0)
    assert by_weight(worst([2.0], "x"), -1.0).reward == 2.0
    assert by_weight(Grade(0.5, "wrong"), -1.0).reward == 0.5


def test_a_threshold_cannot_make_a_failure_right():
    grades = graded(group_of("a", "raise"), fails_on({"raise"}), pass_threshold=0.0)
    assert [g.verdict for g in grades] == ["right", "wrong"]


def test_a_right_answer_that_fails_a_penalty_stays_right():
    def fails(completions, **columns):
        return [-1.0 if text == "5" else 1 / (text != "4") - 1 for text in completions]

    first, second = graded(group_of("4", "5"), right, fails)
    assert (first.verdict, first.reward, first.parts) == ("right", 0.0, {"right": 1.0, "fails": -1.0})
    assert (second.verdict, second.reward) == ("wrong", -1.0)


def test_failing_answers_do_not_halt():
    group = grade(group_of(*WAYS[:4]), Rewards((Reward("r", fails_on(set(WAYS))),), "r"))
    halt_if_broken([group], limit=0.0)
    broken = grade(group_of("a"), Rewards((Reward("r", lambda completions: 1 / 0),), "r"))
    with pytest.raises(BrokenGraders):
        halt_if_broken([broken], limit=0.0)


def test_killed_workers_are_broken(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("import time\ndef slow(completions): time.sleep(0.5); return [1.0 for _ in completions]\n")
    rewards = find_rewards([f"{path}:slow"], [], "slow")
    grade(group_of("a"), rewards)
    done = threading.Event()

    def kill():
        while not done.wait(0.05):
            for server in psutil.Process().children():
                with suppress(psutil.Error):
                    if "outdo.rewards.calls" in server.cmdline():
                        for worker in server.children():
                            worker.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert [g.verdict for g in grade(group_of("a", "b"), rewards).grades] == ["broken", "broken"]
    finally:
        done.set()
        killer.join()
    assert grade(group_of("a"), rewards).grades[0].reward == 1.0


def test_a_text_that_was_graded_before_is_a_control():
    def keyed(completions, level):
        return [json.loads(text)["x"] / part for text, part in zip(completions, level, strict=True)]

    rewards = find_rewards(["keyed"], [], "keyed", own={"keyed": keyed})
    verdicts = [
        [one.verdict for one in grade(group, rewards).grades]
        for group in (
            group_of("a", "b", level=1),  # nothing is known of the form that it grades
            group_of('{"x": 1}', "b", level=1),
            group_of("a", "b", level=1),
            group_of("a", '{"x": 1}', level=0),  # the row's fault
        )
    ]
    assert verdicts == [["broken"] * 2, ["right", "wrong"], ["wrong"] * 2, ["broken"] * 2]
