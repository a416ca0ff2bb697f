"""Tables of right and wrong answers to structured tasks, and answers that try to break their grader."""

import json
import math
import time

import pytest

from outdo.rewards.compose import Reward, Rewards, find_rewards, grade
from outdo.rewards.formats import FORMATS as CHECKS
from outdo.rewards.lines import graded_lines
from outdo.rewards.rft import rft_reward
from outdo.rewards.rft.read import read_spec
from outdo.rewards.structured import json_schema, tool_call
from outdo.types import Group, Prompt, Trajectory
from support.structured_cases import (
    ANN,
    BOB,
    FORMATS,
    OTHER,
    PERSON,
    RIGHT_CALLS,
    RIGHT_JSON,
    WEATHER,
    WRONG_CALLS,
    WRONG_JSON,
)


def failures(grader, column, cases, verdict):
    graded = [(row, text, grader([text], **{column: [row]})[0]) for row, text in cases]
    return [(row, text, grade.reason) for row, text, grade in graded if grade.verdict != verdict]


@pytest.mark.parametrize(
    ("grader", "column", "cases", "verdict"),
    [
        (tool_call, "answer", RIGHT_CALLS, "right"),
        (tool_call, "answer", WRONG_CALLS, "wrong"),
        (json_schema, "schema", RIGHT_JSON, "right"),
        (json_schema, "schema", WRONG_JSON, "wrong"),
    ],
    ids=["right calls", "wrong calls", "right JSON", "wrong JSON"],
)
def test_tables(grader, column, cases, verdict):
    assert len(cases) > 140
    assert failures(grader, column, cases, verdict) == []


def test_every_format_has_cases():
    assert set(FORMATS) | {"iri-reference"} == set(CHECKS)


# A column of the data is not the answer


def lines(*rows, reward="tool_call"):
    rewards = find_rewards([reward], [], reward)
    return [(g.verdict, g.reward) for g in graded_lines([json.dumps(row) for row in rows], rewards)]


@pytest.mark.parametrize("column", ["output_tools", "completion_tools", "tool_calls", "completions", "output_text"])
def test_columns_named_like_the_answer(column):
    for value in ([WEATHER], json.dumps(WEATHER), None, []):
        right, wrong = {"completion": json.dumps(WEATHER)}, {"completion": json.dumps(OTHER)}
        rows = [{**row, "answer": WEATHER, column: value} for row in (right, wrong)]
        assert lines(*rows) == [("right", 1.0), ("wrong", 0.0)]


def test_siblings_have_their_own_calls():
    calls = [[{"type": "function", "function": one}] for one in (WEATHER, OTHER)]
    answers = [{"role": "assistant", "content": None, "tool_calls": one} for one in calls]
    rows = [{"completion": [one], "answer": WEATHER, "group": 1} for one in answers]
    assert lines(*rows) == [("right", 1.0), ("wrong", 0.0)]
    assert lines(*reversed(rows)) == [("wrong", 0.0), ("right", 1.0)]
    spoken = {**answers[0], "content": f"No: {json.dumps(OTHER)}"}
    assert lines({"completion": [spoken], "answer": WEATHER}) == [("wrong", 0.0)]
    spoken = {**answers[0], "content": f"<tool_call>{json.dumps(WEATHER)}</tool_call>"}
    assert lines({"completion": [spoken], "answer": WEATHER}) == [("right", 1.0)]


# OpenAI's graders

TEXT = {
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.gold }}",
    "operation": "eq",
}
NAME = {**TEXT, "input": "{{ sample.output_json.name }}"}
CONTAINS = {**TEXT, "operation": "like"}
CALLED = {**TEXT, "input": "{{ sample.output_tools[0].function.name }}"}


def rft(data, *texts, **row):
    spec, problems = read_spec(data)
    assert not problems
    columns = {key: [value] * len(texts) for key, value in row.items() if key != "reward_timeout"}
    return rft_reward(spec)(list(texts), **columns, **{k: v for k, v in row.items() if k == "reward_timeout"})


PLACES = (
    "{}",
    "{}\n",
    "\n\t{} \r\n",
    "<think>Rome? [1] {{}}</think>\n{}",
    "Rome?</think>{}",
    "<think>\n\n</think>\n\n{}\n",
)
JSON_PLACES = (
    *PLACES,
    "```json\n{}\n```",
    "Here:\n```\n{}\n```\nDone.",
    "<think>\n```json\n[]\n```\n</think>\n```json\n{}\n```\n",
    "<answer>{}</answer>",
    "~~~json\n{}\n~~~",
)
GOLDS = ("Paris", "a b", "{{ item.gold }}", "5", "[x]", "naïve 🙂", "<b>", "x\ny")


def test_rft_reads_the_answer():
    for gold in GOLDS:
        texts = [place.format(gold) for place in PLACES]
        assert [g.verdict for g in rft(TEXT, *texts, gold=gold)] == ["right"] * len(texts)
        assert [g.verdict for g in rft(CONTAINS, *texts, gold=gold)] == ["right"] * len(texts)
        assert [g.verdict for g in rft(TEXT, *texts, gold=f"{gold}\n")] == ["right"] * len(texts)
        assert [g.verdict for g in rft({**TEXT, "operation": "ne"}, *texts, gold=gold)] == ["wrong"] * len(texts)
        objects = [place.format(json.dumps({"name": gold, "n": 1.0})) for place in JSON_PLACES]
        assert [g.verdict for g in rft(NAME, *objects, gold=gold)] == ["right"] * len(objects)


@pytest.mark.parametrize(
    "text",
    [
        *("", "Rome", "Paris or Rome", "paris", "<think>Paris</think>", "<think>Paris", "<think>Paris</think>Rome"),
        *("Paris<think>", "<think>a</think><think>Paris", "</think>", "```\nParis\n```"),
    ],
)
def test_rft_wrong_texts(text):
    assert [(g.reward, g.verdict) for g in rft(TEXT, text, gold="Paris")] == [(0.0, "wrong")]


def test_rft_thinking_that_is_not_closed_is_no_answer():
    for operation, gold in (("ne", "Paris"), ("eq", ""), ("eq", "<think>Rome")):
        assert rft({**TEXT, "operation": operation}, "<think>Rome", gold=gold)[0].verdict == "wrong"
    data = {"type": "python", "source": "def grade(sample, item):\n    return float(sample['output_text'] == '')\n"}
    assert rft(data, "<think>Rome")[0].reward == 1.0


@pytest.mark.parametrize(
    "text",
    [
        *(f"```json\n{ANN}\n```\nIgnore that, use {BOB}", f"```json\n{ANN}\n```\n```json\n{BOB}\n```", f"{ANN}{BOB}"),
        *('{"name": "Ann", "name": "Ann"}', '{"name": "Bob", "name": "Ann"}', '{"name": NaN}', "{'name': 'Ann'}"),
        *(f"<think>{ANN}</think>", f"<think>{ANN}", f"[{ANN}]", f"{ANN} ok", f"<answer>{ANN}</answer>{BOB}", "Ann"),
        '{"name": "Ann", "x": ' + "[" * 200 + "]" * 200 + "}",
        "{" + "".join(f'"{i}": 1, ' for i in range(100_000)) + '"name": "Ann", "name": "Ann"}',
    ],
    ids=range(15),
)
def test_rft_wrong_json(text):
    start = time.thread_time()
    assert [(g.reward, g.verdict) for g in rft(NAME, text, gold="Ann")] == [(0.0, "wrong")]
    assert time.thread_time() - start < 1.0


def test_rft_columns_named_like_the_answer():
    calls = [{"function": {"name": "add"}}]
    for column in ("output_tools", "output_json", "output_text", "choices", "sample"):
        assert rft(CALLED, "x", gold="add", **{column: calls})[0].verdict == "wrong"
        assert rft(NAME, "x", gold="Ann", **{column: {"name": "Ann"}})[0].verdict == "wrong"
        data = {**TEXT, "input": f"{{{{ item.{column} }}}}"}
        assert rft(data, "x", gold="of the data", **{column: "of the data"})[0].verdict == "right"
    assert rft(CALLED, "x", gold="add", completion_tools=calls)[0].verdict == "right"
    for column in ("completion_tools", "verdicts", "completions", "finish"):
        spec, _ = read_spec({**TEXT, "input": f"{{{{ item.{column} }}}}"})
        prompt = Prompt("p", ({"role": "user", "content": "?"},), None, {"gold": "x", column: "x"})
        answers = (Trajectory.single((1,), (0.0,), "x", "stop", 0),)
        parts = (Reward("exact", lambda completions: [1.0] * len(completions)), Reward("grader", rft_reward(spec)))
        assert grade(Group(prompt, (1,), answers), Rewards(parts, "exact")).grades[0].parts["grader"] is None


# Broken as a refuge

NUMBER = {"type": "text_similarity", "input": "{{ sample.output_text }}", "reference": "{{ item.gold }}"}
CLOSE = {**NUMBER, "evaluation_metric": "fuzzy_match"}
HAS_KEY = {**TEXT, "input": "{{ sample.output_json.name }}", "operation": "ne"}


def multi(formula, **graders):
    return {"type": "multi", "graders": graders, "calculate_output": formula}


@pytest.mark.parametrize(
    ("formula", "worst"),
    [
        ("close / exact", 0.0),
        ("close / exact - 2", -2.0),
        ("1 / close - 5", -4.0),
        ("log(exact)", math.log(0.01)),
        ("sqrt(close - 0.9)", 0.0),
        ("-exp(1000 * (1 - close))", -math.exp(10)),
        ("exact - 1 / close", -100.0),
        ("1 / (close + exact)", 0.0),
    ],
)
def test_formula_without_a_value(formula, worst):
    data = multi(formula, exact=TEXT, close=CLOSE)
    bad, good = rft(data, "zzz", "Paris", gold="Paris")
    assert bad.verdict == "wrong"
    assert bad.reward == pytest.approx(worst)
    assert bad.reward <= good.reward
    alone = rft(data, "zzz", gold="Paris")[0]
    assert (alone.verdict, alone.reward) == ("wrong", bad.reward)


def test_formula_without_a_value_for_any_answer_to_the_row():
    fixed = {**TEXT, "input": "{{ item.level }}", "reference": "high"}
    data = multi("close / fixed", fixed=fixed, close=CLOSE)
    assert [g.verdict for g in rft(data, "Paris", "zzz", gold="Paris", level="low")] == ["broken", "broken"]
    assert [g.verdict for g in rft(data, "Paris", "zzz", gold="Paris", level="high")] == ["right", "wrong"]


def test_a_penalty_in_a_formula():
    wordy = {
        "type": "python",
        "source": "def grade(sample, item):\n    return len(sample['output_json']['why']) / 10\n",
    }
    data = multi("exact - 0.5 * wordy", exact=NAME, wordy=wordy)
    short, long, none, bad = (
        json.dumps({"name": "Ann", "why": "x"}),
        json.dumps({"name": "Ann", "why": "x" * 20}),
        json.dumps({"name": "Ann"}),
        json.dumps({"name": "Ann", "why": 5}),
    )
    rewards = [g.reward for g in rft(data, short, long, none, bad, gold="Ann")]
    assert rewards == pytest.approx([0.95, 0.0, 0.0, 0.0])
    missing = multi("exact - 0.5 * has", exact=TEXT, has=HAS_KEY)
    assert [g.reward for g in rft(missing, "Ann", "Bob", gold="Ann")] == [0.5, -0.5]


GRADERS = {
    "raises": "return 1.0 / len(sample['output_text'].split('x')[1]) if 'x' in sample['output_text'] else 1.0",
    "hangs": "\n    while 'x' in sample['output_text']: pass\n    return 1.0",
    "exits": "import os\n    return os._exit(0) if 'x' in sample['output_text'] else 1.0",
    "nan": "return float('nan') if 'x' in sample['output_text'] else 1.0",
    "bool": "return True if 'x' in sample['output_text'] else 1.0",
    "parses": "import json\n    return float(json.loads(sample['output_text'])['a'] == item['a'])",
}


@pytest.mark.parametrize("name", GRADERS)
def test_python_graders_that_fail_on_one_answer(name):
    data = {"type": "python", "source": f"def grade(sample, item):\n    {GRADERS[name]}\n"}
    start = time.monotonic()
    bad, good = rft(data, "x", '{"a": 5}', a=5, reward_timeout=1.0)
    assert (bad.reward, bad.verdict, good.reward, good.verdict) == (0.0, "wrong", 1.0, "right")
    (alone,) = rft(data, "x", a=5, reward_timeout=1.0)
    assert (alone.reward, alone.verdict) == (0.0, "wrong")
    assert time.monotonic() - start < 30


def test_python_graders_obey_the_timeout():
    source = "import time\ndef grade(sample, item):\n    time.sleep(30)\n    return 1.0\n"
    start = time.monotonic()
    (judged,) = rft({"type": "python", "source": source}, "a", gold="a", reward_timeout=0.3)
    assert judged.verdict == "broken"
    assert time.monotonic() - start < 15


def test_a_hanging_pattern_costs_the_timeout_once():
    source = (
        "import re\ndef grade(sample, item):\n    return float(not re.fullmatch('(a+)+b', sample['output_text']))\n"
    )
    start = time.monotonic()
    bad, good = rft({"type": "python", "source": source}, "a" * 60, "c", reward_timeout=8.0)
    assert (bad.verdict, good.verdict) == ("wrong", "right")
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"```json\n{ANN}\n```\n[1, 2]", "wrong"),
        (f"```json\n{ANN}\n```\nNo:\n[\n1\n]\n", "wrong"),
        (f"<answer>{ANN}</answer>\n[]", "wrong"),
        (f"[1, 2]\n```json\n{ANN}\n```", "right"),  # what it works with
        (f"```json\n{ANN}\n```\nThe list [1, 2] has two items [1].\n- [ ] check", "right"),
    ],
    ids=range(5),
)
def test_a_list_beside_an_object(text, verdict):
    assert json_schema([text], schema=[{"type": "object"}])[0].verdict == verdict


def test_a_negative_weight_takes_the_highest():
    spec, _ = read_spec(NAME)
    prompt = Prompt("p", ({"role": "user", "content": "?"},), None, {"gold": "Ann"})
    answers = tuple(Trajectory.single((1,), (0.0,), text, "stop", 0) for text in (ANN, BOB, "none"))
    parts = (Reward("one", lambda completions: [1.0] * len(completions)), Reward("ann", rft_reward(spec), -0.5))
    grades = grade(Group(prompt, (1,), answers), Rewards(parts, "one")).grades
    assert [g.reward for g in grades] == [0.5, 1.0, 0.5]


def test_schemas_and_refuges():
    evil = {"type": "object", "properties": {"a": {"pattern": "^(a|a)*$"}}}
    text = json.dumps({"a": "a" * 60 + "!"})
    assert [g.verdict for g in json_schema([text, "{}"], schema=[evil, evil])] == ["wrong", "right"]
    assert json_schema([ANN], schema=[PERSON])[0].verdict == "right"
