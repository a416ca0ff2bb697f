"""The audit: good graders pass, exploitable ones fail before training."""

import itertools
import time

import pytest

from outdo.errors import GraderError
from outdo.rewards.audit import audit, refuse_unfit
from outdo.rewards.choose import dense_rewards, refuse_unfit_rewards
from outdo.rewards.command import _example
from outdo.rewards.compose import find_rewards
from outdo.rewards.registry import GRADERS
from outdo.tasks.task import TASKS, Task
from outdo.types import Prompt

SUMS = [Prompt(f"{a}", ({"role": "user", "content": f"What is {a}+1?"},), str(a + 1)) for a in range(1, 4)]


def audited(function, prompts=SUMS, **options):
    name = function.__name__
    return audit(find_rewards([name], [], name, own={name: function}, timeout=1.0), prompts, **options)


def outcome(result, part):
    (check,) = [check for check in result.checks if part in check.name]
    return check.outcome


@pytest.mark.parametrize("name", [name for name, grader in GRADERS.items() if grader.example and grader.judges])
def test_built_in_graders_are_fit(name):
    result = audit(find_rewards([name], [], name, max_completion_length=1024), [_example(name)])
    assert result.fit, result.failures
    assert outcome(result, "full marks") == "passed"
    assert outcome(result, "exploits") == "passed"
    assert 0 < result.p50 <= result.p99


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"gsm8k"}))  # which needs its files
def test_built_in_tasks_are_fit(name):
    task = TASKS[name]
    prompts = list(itertools.islice(task.prompts("train", 0), 5))
    result = audit(find_rewards(list(task.rewards), [], task.rewards[0]), prompts)
    assert result.fit, result.failures
    assert outcome(result, "full marks") == "passed"


def test_form_is_unknown():
    result = audit(find_rewards(["format"], [], "format"), [_example("format")])
    assert result.fit
    assert outcome(result, "exploits") == "unknown"


def test_a_file_reward_named_like_a_grader(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def length(completions): return [1.0] * len(completions)\n"
        "def exact(completions, answer): return [float(c == a) for c, a in zip(completions, answer)]\n"
        "def code(completions, answer): return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    generous, strict, code = (
        find_rewards([name], [], name) for name in (f"{path}:{n}" for n in ("length", "exact", "code"))
    )
    result = audit(generous, SUMS)
    assert not result.fit and outcome(result, "exploits") == "failed"
    result = audit(strict, SUMS)  # the built-in one wants tags, or a marker
    assert result.fit and outcome(result, "full marks") == "passed"
    refuse_unfit_rewards(code, Task("sums", lambda split, seed: iter(SUMS), ()), 0)  # which has no `cases`
    assert dense_rewards(strict, right=True) == [
        "exact"
    ]  # a user's reward may give partial credit; the built-in one is binary
    assert dense_rewards(find_rewards(["exact"], [], "exact"), right=True) == []


def test_an_object_named_like_a_grader():
    def format(completions, **columns):
        return [1.0] * len(completions)

    result = audited(format)
    assert not result.fit and outcome(result, "exploits") == "failed"


def test_substring_match_fails():
    def contains(completions, answer, **columns):
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    result = audited(contains)
    assert not result.fit
    assert "garbage" in result.failures[0].detail


def test_rewarded_empty_answer_fails():
    def brief(completions, **columns):
        return [1 - len(text) / 1000 for text in completions]

    result = audited(brief)
    assert "an empty answer '' gets 1" in result.failures[0].detail


def test_random_reward_fails():
    coin = itertools.cycle([0.0, 1.0, 1.0])

    def toss(completions, **columns):
        return [next(coin) for _ in completions]

    assert outcome(audited(toss), "same verdict") == "failed"


def test_unreadable_golds():
    bad = Prompt("x", ({"role": "user", "content": "?"},), "four")
    with pytest.raises(GraderError, match="not one of"):
        audit(find_rewards(["numeric"], [], "numeric"), [bad])
    result = audit(find_rewards(["numeric"], [], "numeric"), [bad, *SUMS])
    assert "1 of 4 do not" in result.failures[0].detail


def test_gives_up_on_a_broken_reward(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outdo.rewards.audit.GIVE_UP_SECONDS", 0.5)
    graded_texts = []

    def hangs(completions, **columns):
        graded_texts.extend(completions)
        time.sleep(1000)

    with pytest.raises(GraderError, match=r"not one of \d answers could be judged.*timed out after 0.2 s"):
        audit(find_rewards(["hangs"], [], "hangs", own={"hangs": hangs}, timeout=0.2), SUMS * 5)
    assert len(graded_texts) < 10


def test_unknown_gold_and_a_gold_column():
    def secret(completions, **columns):
        return [float(text == "open sesame") for text in completions]

    assert outcome(audited(secret), "full marks") == "unknown"
    gold = [Prompt("x", ({"role": "user", "content": "?"},), "y", {"gold": "open sesame"})]
    assert outcome(audited(secret, gold), "full marks") == "passed"


def test_raising_on_odd_answers_is_not_refused():
    def fragile(completions, answer, **columns):
        return [
            float(int(text.rpartition(" ")[2]) == int(gold)) for text, gold in zip(completions, answer, strict=True)
        ]

    result = audited(fragile)
    assert result.fit
    assert outcome(result, "can be judged") == "unknown"


def test_refuse_unfit():
    def generous(completions, **columns):
        return [1.0] * len(completions)

    rewards = find_rewards(["generous"], [], "generous", own={"generous": generous})
    with pytest.raises(GraderError, match=r"generous is not fit.*empty.*reward_audit=false") as caught:
        refuse_unfit(rewards, lambda: iter(SUMS))
    assert caught.value.exit_status == 2


def test_a_costly_judge_is_called_rarely():
    graded_texts = []

    def judge(completions, answer, **columns):
        graded_texts.extend(completions)
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    judge.costly = True
    refuse_unfit(find_rewards(["judge"], [], "judge", own={"judge": judge}), lambda: iter(SUMS))
    assert len(graded_texts) <= 2 + 2 * (4 + 3)
