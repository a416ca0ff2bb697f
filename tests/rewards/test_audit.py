"""The audit: good graders pass, gameable ones are named before anything is trained on them."""

import itertools
import time

import pytest

from outdo.errors import GraderError
from outdo.rewards.audit import audit, refuse_unfit
from outdo.rewards.choose import graded, refuse_unfit_rewards
from outdo.rewards.command import _example
from outdo.rewards.compose import find_rewards
from outdo.rewards.registry import GRADERS
from outdo.tasks.task import TASKS, Task
from outdo.types import Prompt

SUMS = [Prompt(f"{a}", ({"role": "user", "content": f"What is {a}+1?"},), str(a + 1)) for a in range(1, 4)]


def tried(function, prompts=SUMS, **options):
    name = function.__name__
    return audit(find_rewards([name], [], name, own={name: function}, timeout=1.0), prompts, **options)


def outcome(result, part):
    (check,) = [check for check in result.checks if part in check.name]
    return check.outcome


@pytest.mark.parametrize("name", [name for name, grader in GRADERS.items() if grader.example and grader.judges])
def test_every_built_in_grader_is_fit_on_its_example(name):
    result = audit(find_rewards([name], [], name, max_completion_length=1024), [_example(name)])
    assert result.fit, result.failures
    assert outcome(result, "full marks") == "passed"
    assert outcome(result, "exploits") == "passed"
    assert 0 < result.p50 <= result.p99


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"gsm8k"}))  # which needs its files
def test_every_built_in_task_is_fit(name):
    task = TASKS[name]
    prompts = list(itertools.islice(task.prompts("train", 0), 5))
    result = audit(find_rewards(list(task.rewards), [], task.rewards[0]), prompts)
    assert result.fit, result.failures
    assert outcome(result, "full marks") == "passed"


def test_form_alone_is_not_called_wrong_but_unknown():
    result = audit(find_rewards(["format"], [], "format"), [_example("format")])
    assert result.fit
    assert outcome(result, "exploits") == "unknown"


def test_a_reward_from_a_file_is_the_users_whatever_it_is_called(tmp_path):
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
    assert graded(strict, right=True) == ["exact"]  # what it pays is not known; the built-in one pays all or nothing
    assert graded(find_rewards(["exact"], [], "exact"), right=True) == []


def test_an_object_named_like_a_grader_is_the_users_too():
    def format(completions, **columns):
        return [1.0] * len(completions)

    result = tried(format)
    assert not result.fit and outcome(result, "exploits") == "failed"


def test_a_substring_is_no_verifier():
    def contains(completions, answer, **columns):
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    result = tried(contains)
    assert not result.fit
    assert "garbage" in result.failures[0].words


def test_an_empty_answer_must_not_be_paid():
    def brief(completions, **columns):
        return [1 - len(text) / 1000 for text in completions]

    result = tried(brief)
    assert "an empty answer '' gets 1" in result.failures[0].words


def test_a_coin_is_no_grader():
    coin = itertools.cycle([0.0, 1.0, 1.0])

    def toss(completions, **columns):
        return [next(coin) for _ in completions]

    assert outcome(tried(toss), "same verdict") == "failed"


def test_a_builtin_on_golds_that_it_cannot_read():
    bad = Prompt("x", ({"role": "user", "content": "?"},), "four")
    with pytest.raises(GraderError, match="not one of"):
        audit(find_rewards(["numeric"], [], "numeric"), [bad])
    result = audit(find_rewards(["numeric"], [], "numeric"), [bad, *SUMS])
    assert "1 of 4 do not" in result.failures[0].words


def test_a_reward_that_judges_nothing_is_given_up_before_all_prompts_are_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outdo.rewards.audit.HOPELESS_SECONDS", 0.5)
    asked = []

    def hangs(completions, **columns):
        asked.extend(completions)
        time.sleep(1000)

    with pytest.raises(GraderError, match=r"not one of \d answers could be judged.*no verdict within 0.2 s"):
        audit(find_rewards(["hangs"], [], "hangs", own={"hangs": hangs}, timeout=0.2), SUMS * 5)
    assert len(asked) < 10


def test_where_no_good_answer_is_known_it_says_so_and_a_gold_column_helps():
    def secret(completions, **columns):
        return [float(text == "open sesame") for text in completions]

    assert outcome(tried(secret), "full marks") == "unknown"
    gold = [Prompt("x", ({"role": "user", "content": "?"},), "y", {"gold": "open sesame"})]
    assert outcome(tried(secret, gold), "full marks") == "passed"


def test_a_reward_that_raises_on_odd_answers_is_told_and_not_refused():
    def fragile(completions, answer, **columns):
        return [
            float(int(text.rpartition(" ")[2]) == int(gold)) for text, gold in zip(completions, answer, strict=True)
        ]

    result = tried(fragile)
    assert result.fit
    assert outcome(result, "can be judged") == "unknown"


def test_before_training_an_unfit_reward_is_refused_with_what_to_do():
    def generous(completions, **columns):
        return [1.0] * len(completions)

    rewards = find_rewards(["generous"], [], "generous", own={"generous": generous})
    with pytest.raises(GraderError, match=r"generous is not fit.*empty.*reward_audit=false") as caught:
        refuse_unfit(rewards, lambda: iter(SUMS))
    assert caught.value.exit_status == 2


def test_a_judge_that_costs_money_is_asked_little():
    asked = []

    def judge(completions, answer, **columns):
        asked.extend(completions)
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    judge.costly = True
    refuse_unfit(find_rewards(["judge"], [], "judge", own={"judge": judge}), lambda: iter(SUMS))
    assert len(asked) <= 2 + 2 * (4 + 3)
