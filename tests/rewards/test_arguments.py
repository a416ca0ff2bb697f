"""What a user's reward function is called with: TRL's forms, functions of one answer, a step at a time."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from outdo.errors import GraderError, RecipeError
from outdo.recipe.load import load_recipe
from outdo.rewards.arguments import form_of, group_inputs, texts
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import find_rewards, grade, grade_all
from outdo.rewards.lines import graded_lines
from outdo.tasks.task import find_task
from outdo.types import Grade, Group, Prompt, Segment, Trajectory


def group_of(*answers, conversational=False, key="p", answer="4", **meta):
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})
    prompt = Prompt(key, messages, answer, meta, conversational)
    return Group(prompt, (1,), tuple(Trajectory.single((7,), (0.0,), text, "stop", 0) for text in answers))


def judged(function, *answers, group=None, **options):
    rewards = find_rewards(["f"], [], "f", own={"f": function}, **options)
    return grade(group or group_of(*answers), rewards).grades


def values(function, *answers, **options):
    return [g.reward for g in judged(function, *answers, **options)]


def open_r1(completions, solution, **kwargs):
    return [float(completion[0]["content"] == gold) for completion, gold in zip(completions, solution, strict=True)]


def test_conversational_data_gives_messages(tmp_path):
    rows = '{"prompt": [{"role": "user", "content": "2+2?"}], "solution": "4"}\n'
    (tmp_path / "chat.jsonl").write_text(rows * 20)
    (tmp_path / "text.jsonl").write_text('{"prompt": "2+2?", "solution": "4"}\n' * 20)
    (tmp_path / "list.jsonl").write_text(rows.replace("prompt", "messages") * 20)
    prompts = {
        name: next(find_task(str(tmp_path / f"{name}.jsonl")).prompts("train", 0)) for name in ("chat", "text", "list")
    }
    assert [p.conversational for p in prompts.values()] == [True, False, True]
    seen = []

    def look(completions, prompts, **columns):
        seen.append((completions[0], prompts[0]))
        return [1.0] * len(completions)

    for prompt in prompts.values():
        group = Group(prompt, (1,), group_of("4", "5").trajectories)
        judged(look, group=group)
        assert values(open_r1, group=group) == ([1.0, 0.0] if prompt.conversational else [None, None])
        assert [g.reward for g in grade(group, find_rewards(["exact"], [], "exact")).grades] == [0.0, 0.0]  # gets text
    answer, question = [{"role": "assistant", "content": "4"}], [{"role": "user", "content": "2+2?"}]
    assert seen == [(answer, question), ("4", "2+2?"), (answer, question)]


def test_reward_input():
    group = group_of("4", "5", solution="4")
    assert values(open_r1, group=group, input="messages") == [1.0, 0.0]
    (broken, _) = judged(open_r1, group=group)
    assert "reward_input=messages" in broken.reason

    def text(completions):
        return [float(c.strip() == "4") for c in completions]

    chat = group_of("4", "5", conversational=True)
    assert values(text, group=chat, input="text") == [1.0, 0.0]
    assert "reward_input=text" in judged(text, group=chat)[0].reason
    assert values(lambda completions: text(texts(completions)), group=chat) == [1.0, 0.0]
    recipe = load_recipe(None, {"reward_input": "messages", "reward_batch": "step"})
    rewards = rewards_of(recipe, find_task("arithmetic"), {})
    assert (rewards.input, rewards.batch) == ("messages", "step")


@pytest.mark.parametrize(
    "wrap",
    [
        torch.tensor,
        lambda v: torch.tensor(v, requires_grad=True).bfloat16(),
        lambda v: torch.tensor(v)[:, None],
        lambda v: np.array(v, dtype=np.float16),
        lambda v: [np.float32(x) for x in v],
        lambda v: [torch.tensor(x) for x in v],
        lambda v: (x for x in v),
        lambda v: np.array(v) > 0.5,
    ],
)
def test_tensors_and_arrays(wrap):
    assert values(lambda completions: wrap([1.0, 0.0, 0.0]), "a", "b", "c") == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "result",
    [torch.zeros(2, 3), torch.tensor(1.0), np.zeros(2), 1.0, "abc", {"a": 1, "b": 2, "c": 3}, {1.0, 2.0, 3.0}, None],
)
def test_not_one_value_each(result):
    for grade_ in judged(lambda completions: result, "a", "b", "c"):
        assert grade_.verdict == "broken" and "3 completions" in grade_.reason


def test_nan_in_a_tensor():
    nan = judged(lambda completions: torch.tensor([1.0 if text == "a" else math.nan for text in completions]), "a", "b")
    assert [(g.reward, g.verdict) for g in nan] == [(1.0, "right"), (0.0, "wrong")]
    nan = judged(lambda completions: torch.full((len(completions),), math.nan), "a", "b")
    assert [g.verdict for g in nan] == ["broken", "broken"]


def test_functions_of_one_answer():
    def verifier(prompt, response):
        return float(prompt == "2+2?" and response == "4")

    def aliases(question, answer, completion, level=0):
        return (question == "2+2?" and completion == answer) * level

    def verl(solution_str, ground_truth, **columns):
        return Grade(0.5, "right") if solution_str == ground_truth and columns["level"] == 3 else None

    def picky(completion, finish):
        if completion == "raise":
            raise KeyError("x")
        return [1.0] if completion == "list" else float(finish == "stop")

    for chat in (False, True):  # always text
        group = group_of("4", "5", conversational=chat, level=3, completion="a demonstration")
        assert values(verifier, group=group) == [1.0, 0.0]
        assert values(aliases, group=group) == [3.0, 0.0]
        assert [g.verdict for g in judged(verl, group=group)] == ["right", "broken"]
    assert [g.verdict for g in judged(picky, "a", "raise", "list", "b")] == ["right", "wrong", "wrong", "right"]
    group = group_of("4", "5", response="from the data")
    assert values(lambda completion, response: float(response == "from the data"), group=group) == [1.0, 1.0]
    assert values(lambda response: float(response == "4"), group=group) == [1.0, 0.0]
    assert values(functools.partial(lambda completion, gold: float(completion == gold), gold="4"), "4", "5") == [
        1.0,
        0.0,
    ]


def test_ambiguous_parameters_are_refused():
    for function, part in (
        (lambda prompts, response: 0, "`prompts`, a list, and `response`"),
        (lambda answer: 0, "no answer to judge"),
        (lambda: 0, "no answer to judge"),
        (lambda x, /: 0, "by position only"),
    ):
        with pytest.raises(GraderError, match=part):
            form_of("f", function)
    for function, part in (
        (lambda completions, response: 0, "`completions`, a list, and `response`"),
        (lambda completions, prompt: 0, "`completions`, a list, and `prompt`"),
        (lambda response, output: 0, "which one is the answer"),
        (lambda completion, response: 0, "which one is the answer"),
        (lambda completion, level: 0, "needs level"),
    ):
        with pytest.raises(GraderError, match=part):
            judged(function, "a")
    assert form_of("f", lambda **columns: 0) == "many"
    assert form_of("f", lambda completions, completion: 0) == "many"  # the demonstration is a column


def test_named_functions_of_one_answer(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import os\n"
        "def f(prompt, response, base=1.0):\n"
        "    if response == 'die': os._exit(1)\n"
        "    return base * (response == '4')\n"
    )
    rewards = find_rewards([f"{path}:f"], [], f"{path}:f", args={"f": {"base": 2.0}})
    assert [g.reward for g in grade(group_of("4", "die", "5"), rewards).grades] == [2.0, 0.0, 0.0]


def test_reward_args():
    def scaled(completions, factor, answer):
        return [factor * (text == gold) for text, gold in zip(completions, answer, strict=True)]

    task = find_task("arithmetic")
    keys = {"reward_funcs": ["scaled"], "reward_args": {"scaled.factor": 3}}
    recipe = load_recipe(None, keys, base_of={"reward_args": {"scaled": {"factor": 1}}})
    assert recipe.reward_args == {"scaled": {"factor": 3}}
    rewards = rewards_of(recipe, task, {"scaled": scaled})
    assert rewards.part("scaled").args == {"factor": 3}
    assert [g.parts["scaled"] for g in grade(group_of("4", "5"), rewards).grades] == [3.0, 0.0]
    for args, part in (({"factr": 1}, "takes factor"), ({"answer": 1}, "cannot be set")):
        with pytest.raises(GraderError, match=part):
            find_rewards(["scaled"], [], "scaled", own={"scaled": scaled}, args={"scaled": args})
    with pytest.raises(GraderError, match="no arguments of its own"):
        find_rewards(["numeric"], [], "numeric", args={"numeric": {"tolerance": 1}})
    with pytest.raises(RecipeError, match="did you mean 'scaled'"):
        rewards_of(recipe.model_copy(update={"reward_args": {"scald": {}}}), task, {"scaled": scaled})
    with pytest.raises(GraderError, match=r"reward_args.f.factor=VALUE"):
        judged(scaled, "a")


def test_a_step_at_a_time():
    """The same grades as a group at a time, in one call, ordered by prompt; built-in rewards still see groups."""
    calls = []

    def counts(completions, answer, hint=None, **columns):
        calls.append((list(completions), hint))
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    groups = [
        group_of("b", "b", key="2", answer="b"),
        group_of("a", "b", "c", key="1", answer="a", hint="h"),
        group_of("c", key="3", answer="x"),
    ]
    options = {"own": {"counts": counts}}
    names, weights = ["counts", "duplicates"], [1.0, 0.5]
    alone = grade_all(groups, find_rewards(names, weights, "counts", **options))
    assert len(calls) == 3
    calls.clear()
    together = grade_all(groups, find_rewards(names, weights, "counts", batch="step", **options))
    assert together == alone
    assert calls == [(["a", "b", "c", "b", "b", "c"], ["h"] * 3 + [None] * 3)]


def test_a_step_with_one_bad_answer():
    def fragile(completions):
        return [1 / (text != "bad") for text in completions]

    groups = [group_of("a", "bad", key="1"), group_of("c", "d", key="2")]
    graded = grade_all(groups, find_rewards(["fragile"], [], "fragile", own={"fragile": fragile}, batch="step"))
    assert [[g.reward for g in group.grades] for group in graded] == [[1.0, 0.0], [1.0, 1.0]]
    short = grade_all(groups, find_rewards(["f"], [], "f", own={"f": lambda completions: [1.0]}, batch="step"))
    assert {g.verdict for group in short for g in group.grades} == {"broken"}


def test_trainer_state():
    def late(completions, trainer_state):
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

    from dataclasses import replace

    rewards = replace(find_rewards(["late"], [], "late", own={"late": late}), step=3, num_steps=4)
    assert grade(group_of("a"), rewards).grades[0].reward == 0.75


def test_solution_is_the_gold_of_a_line():
    lines = [
        '{"completion": "<answer>4</answer>", "solution": "4"}',
        '{"completion": "<answer>4</answer>", "solution": "worked out", "answer": 4}',
        '{"completion": "<answer>4</answer>", "prompt": [{"role": "user", "content": "2+2?"}], "solution": 5}',
    ]
    rewards = find_rewards(["numeric"], [], "numeric")
    assert [g.verdict for g in graded_lines(lines, rewards)] == ["right", "right", "wrong"]


def test_no_column_of_the_data_stands_for_the_answer():
    names = ("completions", "prompts", "finish", "verdicts", "completion_ids", "completion_tools", "reward_timeout")
    prompt = Prompt("p", ({"role": "user", "content": "2+2?"},), "4", {**dict.fromkeys(names, "data"), "level": 3})
    answer = Trajectory((Segment(()),), "5", "length")
    inputs = group_inputs(Group(prompt, (1,), (answer,)), {"reward_timeout": 10.0}, None)
    assert inputs.arguments() == {
        "completions": ["5"],
        "prompts": ["2+2?"],
        "messages": [prompt.messages],
        "answer": ["4"],
        "finish": ["length"],
        "level": [3],
        "reward_timeout": 10.0,
    }
    called = Group(prompt, (1,), (answer, replace(answer, tool_calls=[])))
    assert group_inputs(called, {}, ["wrong", "wrong"]).lists["completion_tools"] == [None, []]
