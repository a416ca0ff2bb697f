"""Composition: weights, gates, abstention, and rewards that break without ending the run."""

import math
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from outdo.errors import BrokenGraders, GraderError
from outdo.rewards.compose import Reward, Rewards, find_rewards, grade, grade_all, graded, halt_if_broken
from outdo.types import Grade, Group, Prompt, Trajectory


def group_of(texts, answer="4", **meta):
    prompt = Prompt("p", ({"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}), answer, meta)
    return Group(prompt, (1,), tuple(Trajectory.single((7, 8), (0.0, 0.0), text, "stop", 0) for text in texts))


def grades_of(texts, *parts, truth=None, answer="4", **meta):
    """Parts are functions, or (function, weight)."""
    pairs = [part if isinstance(part, tuple) else (part, 1.0) for part in parts]
    rewards = Rewards(tuple(Reward(f.__name__, f, w) for f, w in pairs), truth or pairs[0][0].__name__, 64)
    return grade(group_of(texts, answer, **meta), rewards).grades


def right(completions, answer, **columns):
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def length(completions, **columns):
    return [float(len(text)) for text in completions]


def always(value, name="always"):
    def function(completions, **columns):
        return [value] * len(completions)

    function.__name__ = name
    return function


def test_weighted_sum():
    first, second = grades_of(["4", "five"], right, (length, 0.1))
    assert first.reward == pytest.approx(1.1)
    assert second.reward == pytest.approx(0.4)
    assert (first.verdict, second.verdict) == ("right", "wrong")
    assert first.parts == {"right": 1.0, "length": 1.0}
    assert second.parts == {"right": 0.0, "length": 4.0}


def test_negative_weights():
    assert grades_of(["4"], right, (length, -0.25))[0].reward == pytest.approx(0.75)


def test_truth_without_weight():
    first, second = grades_of(["five", "4"], (length, 0.5), (right, 0.0), truth="right")
    assert (first.reward, first.verdict) == (2.0, "wrong")
    assert (second.reward, second.verdict) == (0.5, "right")


@pytest.mark.parametrize(("value", "verdict"), [(1, "right"), (1.0, "right"), (True, "right"), (2.5, "right")])
def test_one_or_more_is_right(value, verdict):
    assert grades_of(["x"], always(value))[0].verdict == verdict


@pytest.mark.parametrize("value", [0, 0.999, -3.0, False])
def test_less_than_one_is_wrong(value):
    (judged,) = grades_of(["x"], always(value))
    assert (judged.verdict, judged.reward) == ("wrong", float(value))


def test_a_part_that_abstains_is_left_out():
    def sometimes(completions, **columns):
        return [None, 0.5]

    first, second = grades_of(["4", "4"], right, sometimes)
    assert (first.reward, first.verdict, first.parts["sometimes"]) == (1.0, "right", None)
    assert (second.reward, second.parts["sometimes"]) == (1.5, 0.5)


def test_broken_where_all_abstain():
    (judged,) = grades_of(["4"], always(None, "a"), always(None, "b"))
    assert (judged.verdict, judged.reward) == ("broken", None)
    assert "abstained" in judged.reason


def test_raising_on_one_answer_gets_the_worst_score():
    def fragile(completions, **columns):
        return [1.0 / len(text) for text in completions]

    ok, bad, fine = grades_of(["a", "", "ab"], fragile)
    assert (ok.reward, fine.reward) == (1.0, 0.5)
    assert (bad.verdict, bad.reward) == ("wrong", 0.0)
    assert "fragile" in bad.reason
    assert "ZeroDivisionError" in bad.reason
    assert "test_compose.py" in bad.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1.0", b"1", "", [1.0], {}, object(), 1j])
def test_non_finite_breaks_one_answer(value):
    def odd(completions, **columns):
        return [0.25, value, 0.75]

    grades = grades_of(["4", "4", "4"], odd)
    assert [g.verdict for g in grades] == ["wrong", "broken", "wrong"]
    assert [g.reward for g in grades] == [0.25, None, 0.75]
    assert "odd" in grades[1].reason


def test_a_broken_part_breaks_the_answer():
    (judged,) = grades_of(["4"], right, (always(math.nan, "nan"), 0.0))
    assert (judged.verdict, judged.reward) == ("broken", None)
    assert judged.parts == {"right": 1.0, "nan": None}


def test_grades_pass_through_with_their_reason():
    def judge(completions, **columns):
        return [Grade(0.3, "right", reason="near enough"), Grade(None, "broken", reason="no gold")]

    first, second = grades_of(["a", "b"], judge)
    assert (first.reward, first.verdict, first.reason) == (0.3, "right", "near enough")
    assert (second.verdict, second.reason) == ("broken", "no gold")


@pytest.mark.parametrize("values", [[1.0, 1.0], [], [1.0] * 4, 1.0, None, "abc", {"a": 1.0}])
def test_wrong_number_of_values(values):
    def miscounts(completions, **columns):
        return values

    returned = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
    for judged in grades_of(["a", "b", "c"], miscounts):
        assert (judged.verdict, judged.reward) == ("broken", None)
        assert f"miscounts returned {returned} for 3 completions" in judged.reason


def test_answers_are_graded_alone_where_the_group_fails():
    def only_one(completions, answer, **columns):
        if len(completions) != 1 or len(answer) != 1:
            raise ValueError("one at a time")
        return [float(completions[0] == answer[0])]

    assert [g.reward for g in grades_of(["4", "5"], only_one)] == [1.0, 0.0]


def test_named_arguments():
    seen = {}

    def plain(completions, prompts, level, missing="default"):
        seen.update(completions=completions, prompts=prompts, level=level, missing=missing)
        return [0.5] * len(completions)

    assert [g.reward for g in grades_of(["a", "b"], plain, level=3)] == [0.5, 0.5]
    assert seen == {"completions": ["a", "b"], "prompts": ["2+2?", "2+2?"], "level": [3, 3], "missing": "default"}


def test_keyword_arguments():
    seen = {}

    def greedy(completions, **columns):
        seen.update(columns)
        return [1.0] * len(completions)

    grades_of(["a", "b"], greedy, level=3)
    assert seen == {
        "level": [3, 3],
        "prompts": ["2+2?", "2+2?"],
        "answer": ["4", "4"],
        "completion_ids": [(7, 8), (7, 8)],
        "finish": ["stop", "stop"],
        "max_completion_length": 64,
        "messages": [({"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"})] * 2,
        "reward_timeout": 10.0,
        "trainer_state": SimpleNamespace(global_step=0, max_steps=0),
    }


def test_columns_cannot_replace_completions():
    grades = grades_of(["4", "5"], right, completions="4", prompts="x")
    assert [g.reward for g in grades] == [1.0, 0.0]


def test_missing_column():
    def wants(completions, difficulty):
        return [1.0] * len(completions)

    with pytest.raises(GraderError, match=r"difficulty.*completions"):
        grades_of(["a"], wants)


def test_halt_if_broken():
    def cannot_judge_x(completions, **columns):
        x = Grade(None, "broken", reason="ZeroDivisionError")
        return [x if text == "x" else 1.0 for text in completions]

    group = grade(group_of(["x", "a", "b", "c"]), Rewards((Reward("r", cannot_judge_x),), "r"))
    halt_if_broken([group], limit=0.25)
    halt_if_broken([], limit=0.0)
    with pytest.raises(BrokenGraders, match=r"1 of 4 answers.*broken_limit=0.2 .*ZeroDivisionError") as caught:
        halt_if_broken([group], limit=0.2)
    assert caught.value.exit_status == 3


def test_gate():
    rewards = find_rewards(["numeric", "format"], [1.0, 0.5], "numeric", gate="numeric")
    texts = ["<think>a</think><answer>4</answer>", "<think>a</think><answer>5</answer>", "<answer>4</answer>"]
    grades = grade(group_of(texts), rewards).grades
    assert [g.reward for g in grades] == [1.5, 0.0, 1.0]
    assert grades[1].parts == {"numeric": 0.0, "format": 1.0}


def test_gate_is_added_with_weight_zero():
    rewards = find_rewards(["format"], [1.0], "numeric", gate="numeric")
    assert [(part.name, part.weight) for part in rewards.parts] == [("format", 1.0), ("numeric", 0.0)]
    texts = ["<think>a</think><answer>4</answer>", "<think>a</think><answer>5</answer>"]
    assert [g.reward for g in grade(group_of(texts), rewards).grades] == [1.0, 0.0]


def test_closed_gate_drops_penalties():
    def penalty(completions, **columns):
        return [-1.0] * len(completions)

    rewards = find_rewards(["numeric", "penalty"], [], "numeric", own={"penalty": penalty}, gate="numeric")
    assert [g.reward for g in grade(group_of(["<answer>4</answer>", "5"]), rewards).grades] == [0.0, 0.0]


def test_verdicts_of_the_truth():
    def by_verdict(completions, verdicts):
        return [{"right": 0.5, "wrong": -0.5}[verdict] for verdict in verdicts]

    grades = grades_of(["4", "5"], by_verdict, right, truth="right")
    assert [g.parts["by_verdict"] for g in grades] == [0.5, -0.5]


def test_length_needs_a_reward_that_judges():
    with pytest.raises(GraderError, match="numeric,length"):
        grade(group_of(["a"]), find_rewards(["length"], [], "length"))


def test_groups_are_graded_while_the_next_are_sampled():
    graded_first, overlapped = threading.Event(), []

    def judge(completions, **columns):
        graded_first.set()
        return [1.0] * len(completions)

    def groups():
        yield group_of(["a"])
        overlapped.append(graded_first.wait(10))
        yield group_of(["b"])

    done = grade_all(groups(), Rewards((Reward("judge", judge),), "judge"))
    assert overlapped == [True]
    assert [group.trajectories[0].text for group in done] == ["a", "b"]


def test_graded_yields_in_order_before_all_are_sampled():
    log, second, release = [], threading.Event(), threading.Event()

    def judge(completions, **columns):
        if completions == ["b"]:
            second.set()
        assert {"a": second, "last": release}.get(completions[0], second).wait(10)
        return [1.0]

    def groups():
        yield group_of(["a"])
        yield group_of(["b"])
        while "b" not in log:
            yield group_of(["more"])
        log.append("sampled")
        yield group_of(["last"])

    @contextmanager
    def waiting():
        log.append("waiting")
        release.set()
        yield
        log.append("waited")

    for group in graded(groups(), Rewards((Reward("judge", judge),), "judge"), waiting()):
        if (text := group.trajectories[0].text) != "more":
            log.append(text)
    assert log == ["a", "b", "sampled", "waiting", "last", "waited"]


def test_an_error_is_raised_once_all_are_sampled():
    sampled, yielded = [], []

    def groups():
        for text in "abc":
            yield group_of([text])
            sampled.append(text)

    def judge(completions, **columns):
        if completions == ["b"]:
            raise GraderError("no b")
        return [1.0]

    with pytest.raises(GraderError, match="no b"):
        yielded.extend(graded(groups(), Rewards((Reward("judge", judge),), "judge")))
    assert sampled == ["a", "b", "c"]


def test_find_rewards():
    rewards = find_rewards(["numeric", "format"], [1.0, 0.1], "numeric", 128)
    assert [(part.name, part.weight) for part in rewards.parts] == [("numeric", 1.0), ("format", 0.1)]
    assert (rewards.truth, rewards.max_completion_length) == ("numeric", 128)
    (judged,) = grade(group_of(["<think>a</think><answer>4</answer>"]), rewards).grades
    assert judged.reward == pytest.approx(1.1)


def test_weights_are_one_unless_given():
    assert [part.weight for part in find_rewards(["format", "exact"], [], "exact").parts] == [1.0, 1.0]


def test_the_truth_is_added_with_weight_zero():
    rewards = find_rewards(["format"], [1.0], "numeric")
    assert [(part.name, part.weight) for part in rewards.parts] == [("format", 1.0), ("numeric", 0.0)]
    good_form, right_answer = grade(
        group_of(["<think>a</think><answer>5</answer>", "<answer>4</answer>"]), rewards
    ).grades
    assert (good_form.reward, good_form.verdict) == (1.0, "wrong")
    assert (right_answer.reward, right_answer.verdict) == (0.0, "right")


def test_own_function_as_truth():
    rewards = find_rewards(["mine", "format"], [2.0, 1.0], "mine", own={"mine": right})
    assert [g.reward for g in grade(group_of(["4", "5"]), rewards).grades] == [2.0, 0.0]


def test_a_reward_from_a_file(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text("def short(completions):\n    return [float(len(c) < 3) for c in completions]\n")
    rewards = find_rewards([f"{path}:short"], [], f"{path}:short")
    assert [part.name for part in rewards.parts] == ["short"]
    assert [g.reward for g in grade(group_of(["4", "four"]), rewards).grades] == [1.0, 0.0]


def test_what_find_rewards_refuses():
    with pytest.raises(GraderError, match="did you mean 'numeric'"):
        find_rewards(["numerc"], [], "numeric")
    with pytest.raises(GraderError, match="twice"):
        find_rewards(["numeric", "numeric"], [1.0, 1.0], "numeric")
    with pytest.raises(GraderError, match="float, not a function"):
        find_rewards(["pi"], [], "pi", own={"pi": 3.14})
    with pytest.raises(ValueError):
        find_rewards(["numeric", "format"], [1.0], "numeric")


def test_two_rewards_of_one_name_are_refused(tmp_path):
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    for path in (mine, other):
        path.write_text("def exact(completions): return [0.0] * len(completions)\n")
    for names, truth, more in (
        ([f"{mine}:exact"], "exact", {}),
        (["exact"], "exact", {"gate": f"{mine}:exact"}),
        (["format"], "exact", {"audit": f"{mine}:exact"}),
        ([f"{mine}:exact"], f"{mine}:exact", {"gate": f"{other}:exact"}),
    ):
        with pytest.raises(GraderError, match="give it another name"):
            find_rewards(names, [], truth, **more)
    assert find_rewards([f"{mine}:exact"], [], f"{mine}:exact", gate=f"{mine}:exact").gate == "exact"


def test_deterministic():
    rewards = find_rewards(["numeric", "format"], [1.0, 0.1], "numeric", 128)
    group = group_of(["<answer>4</answer>", "4", "<think>a</think><answer>4</answer>"])
    assert grade(group, rewards) == grade(group, rewards)
    assert group.grades == ()
