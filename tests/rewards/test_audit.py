"""The audit: good graders pass, exploitable ones fail before training."""

import itertools
import time

import pytest

from outdo.errors import GraderError
from outdo.rewards.answer import final_answers, number
from outdo.rewards.audit import audit, refuse_unfit
from outdo.rewards.choose import dense_rewards, refuse_unfit_rewards
from outdo.rewards.command import _example
from outdo.rewards.compose import find_rewards
from outdo.rewards.maths import math
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


TEXT_TASKS = sorted(name for name in TASKS if name != "gsm8k" and not TASKS[name].environment)  # gsm8k needs its files


@pytest.mark.parametrize("name", TEXT_TASKS)
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
    assert outcome(result, "exploits") == "failed"


def test_rewarded_empty_answer_fails():
    def brief(completions, **columns):
        return [1 - len(text) / 1000 for text in completions]

    result = audited(brief)
    assert "an empty answer '' gets 1" in result.failures[0].detail


def test_random_reward_fails():
    coin = itertools.cycle([0.0, 1.0, 1.0])

    def toss(completions, **columns):
        return [next(coin) for _ in completions]

    assert outcome(audited(toss), "same grade") == "failed"


def test_unreadable_golds():
    bad = Prompt("x", ({"role": "user", "content": "?"},), "four")
    with pytest.raises(GraderError, match="not one of"):
        audit(find_rewards(["numeric"], [], "numeric"), [bad])
    result = audit(find_rewards(["numeric"], [], "numeric"), [bad, *SUMS])
    assert "1 of 4 do not" in result.failures[0].detail


def test_gives_up_on_a_broken_reward(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outdo.rewards.bench.GIVE_UP_SECONDS", 0.5)
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
    assert not audited(secret).fit
    gold = [Prompt("x", ({"role": "user", "content": "?"},), "y", {"gold": "open sesame"})]
    assert outcome(audited(secret, gold), "full marks") == "passed"


def test_raising_on_odd_answers_fails():
    def fragile(completions, answer, **columns):
        return [
            float(int(text.rpartition(" ")[2]) == int(gold)) for text, gold in zip(completions, answer, strict=True)
        ]

    result = audited(fragile)
    assert not result.fit
    assert outcome(result, "can be judged") == "failed"


BAD = """
import math, re, time
from itertools import count

calls = count()
seen = set()

def zero(completions, **c): return [0.0] * len(completions)
def half(completions, **c): return [0.5] * len(completions)
def one(completions, **c): return [1.0] * len(completions)
def contains(completions, answer): return [float(a in c) for c, a in zip(completions, answer)]
def words(completions, answer): return [float(a in c.split()) for c, a in zip(completions, answer)]
def starts(completions, answer): return [float(c.startswith(a)) for c, a in zip(completions, answer)]
def ends(completions, answer): return [float(c.strip().endswith(a)) for c, a in zip(completions, answer)]
def in_tags(completions, answer):
    finals = [(re.findall("<answer>(.*?)</answer>", c, re.S) or [""])[-1] for c in completions]
    return [float(a in f) for f, a in zip(finals, answer)]
def first_number(completions, answer):
    return [float((re.findall("[0-9]+", c) or [""])[0] == a) for c, a in zip(completions, answer)]
def last_number(completions, answer):
    return [float((re.findall("[0-9]+", c) or [""])[-1] == a) for c, a in zip(completions, answer)]
def evaluates(completions, answer):
    def value(text):
        try: return eval(text, {})
        except BaseException: return None
    return [float(str(value(c)) == a) for c, a in zip(completions, answer)]
def any_number(completions, **c):
    return [float(bool(re.fullmatch("#### [0-9]+", text))) for text in completions]
def longer(completions, **c): return [len(text) / 1000 for text in completions]
def shorter(completions, **c): return [1 - len(text) / 1000 for text in completions]
def crashes(completions, answer):
    if any(hash(c) % 3 == 0 for c in completions): raise RuntimeError("x")
    return [float(c == a) for c, a in zip(completions, answer)]
def ascii_only(completions, answer):
    return [float(c.encode("ascii").decode() == a) for c, a in zip(completions, answer)]
def nan(completions, answer): return [1.0 if c == a else math.nan for c, a in zip(completions, answer)]
def too_few(completions, answer): return [float(completions[0] == answer[0])]
def first_wins(completions, answer):
    return [float(c == a and i == 0) for i, (c, a) in enumerate(zip(completions, answer))]
def once(completions, answer):
    out = [float(c == a and c not in seen) for c, a in zip(completions, answer)]
    seen.update(completions)
    return out
def drifts(completions, answer):
    return [float(c == a and next(calls) < 8) for c, a in zip(completions, answer)]
def sleeps(completions, answer):
    if any(len(c) > 100 for c in completions): time.sleep(5)
    return [float(c == a) for c, a in zip(completions, answer)]
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    names: dict = {}
    exec(BAD, names)
    return names


@pytest.mark.parametrize(
    ("name", "check"),
    [
        *[(name, "full marks") for name in ("zero", "half")],
        *[(name, "exploits") for name in ("one", "half", "contains", "words", "starts", "ends", "in_tags")],
        *[(name, "exploits") for name in ("first_number", "last_number", "evaluates", "longer", "shorter")],
        ("any_number", "other rows"),
        *[(name, "can be judged") for name in ("crashes", "ascii_only", "nan", "sleeps")],
        *[(name, "same grade") for name in ("first_wins", "once", "drifts")],
    ],
)
def test_bad_rewards_are_not_fit(bad, name, check, monkeypatch):
    monkeypatch.setattr("outdo.rewards.audit.MAX_SECONDS", 3.0)
    function = bad[name]
    rewards = find_rewards([name], [], name, own={name: function}, timeout=0.3)
    prompts = [Prompt(f"{a}", ({"role": "user", "content": f"What is {a}+1?"},), str(a + 1)) for a in range(41, 45)]
    result = audit(rewards, prompts)
    assert not result.fit
    assert outcome(result, check) == ("unknown" if check == "full marks" else "failed")


def test_wrong_counts_cannot_be_audited(bad):
    rewards = find_rewards(["too_few"], [], "too_few", own={"too_few": bad["too_few"]})
    with pytest.raises(GraderError, match="1 values for 2 completions"):
        audit(rewards, SUMS, short=True)
    assert outcome(audit(rewards, SUMS), "can be judged") == "failed"


def test_good_rewards_are_fit():
    def negative(completions, answer):
        return [
            -min(9, abs(int(c) - int(a))) if c.isdecimal() else -10.0 for c, a in zip(completions, answer, strict=True)
        ]

    def strict(completion, answer):
        return completion.strip() == answer

    def close(completions, answer):
        finals = [final_answers(text) for text in completions]
        values = [number(final[0]) if len(final) == 1 else None for final in finals]
        return [0.0 if v is None else 1 / (1 + abs(v - int(a))) for v, a in zip(values, answer, strict=True)]

    for function in (negative, strict, close):
        result = audited(function)
        assert result.fit, result.checks
    golds = [Prompt(str(i), ({"role": "user", "content": "?"},), None, {"gold": f"open {i}"}) for i in range(3)]
    assert audited(lambda completions, gold: [float(c == g) for c, g in zip(completions, gold, strict=True)], golds).fit


@pytest.mark.parametrize("name", ["format", "tag_count", "reasoning_steps", "overlong", "repetition", "duplicates"])
def test_rewards_for_form_are_fit_beside_others(name):
    result = audit(find_rewards([name], [], name, max_completion_length=1024), [_example(name)])
    assert result.fit and result.form_only


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


FORMS = [
    ("Expand (x+9)^2.", "x^2+18x+81"),
    ("Simplify \\sqrt{72}.", "6\\sqrt{2}"),
    ("Compute 391/23.", "17"),
    ("Factor $x^2-9$.", "(x-3)(x+3)"),
]


def test_a_gold_that_is_another_form_of_the_question(monkeypatch):
    prompts = [Prompt(f"{i}", ({"role": "user", "content": text},), gold) for i, (text, gold) in enumerate(FORMS)]
    rewards = find_rewards(["math"], [], "math")
    assert audit(rewards, prompts).fit
    monkeypatch.setattr("outdo.rewards.maths.grader.text_of", lambda messages: "")  # a grader that ignores the question
    result = audit(rewards, prompts)
    assert not result.fit
    assert outcome(result, "exploits") == "failed"


def test_a_reward_that_pays_the_question_is_not_fit():
    """An own reward that compares values pays the formula of the question; one that compares texts does not."""
    prompts = [Prompt(f"{i}", ({"role": "user", "content": text},), gold) for i, (text, gold) in enumerate(FORMS)]

    def by_value(completions, answer, **columns):
        return [grade.reward for grade in math(completions, answer=answer)]

    def by_text(completions, answer, **columns):
        return [float(f"\\boxed{{{gold}}}" in text) for text, gold in zip(completions, answer, strict=True)]

    result = audit(find_rewards(["by_value"], [], "by_value", own={"by_value": by_value}), prompts)
    assert outcome(result, "exploits") == "failed"
    (detail,) = (check.detail for check in result.checks if "exploits" in check.name)
    assert "a formula of the question" in detail
    result = audit(find_rewards(["by_text"], [], "by_text", own={"by_text": by_text}), prompts)
    assert outcome(result, "exploits") == "passed"
