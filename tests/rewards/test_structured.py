"""Tool calls and labels, and hostile texts for every structured grader."""

import json
import time

import pytest

from outdo.rewards.labels import label
from outdo.rewards.structured import json_schema, tool_call


def calls(text, gold, **columns):
    (grade,) = tool_call([text], answer=[gold], **columns)
    assert grade.reward == {"right": 1.0, "wrong": 0.0, "broken": None}[grade.verdict]
    return grade.verdict


def labelled(text, gold, labels=None):
    (grade,) = label([text], answer=[gold], labels=None if labels is None else [labels])
    assert grade.reward == {"right": 1.0, "wrong": 0.0, "broken": None}[grade.verdict]
    return grade.verdict


SUM = {"name": "add", "arguments": {"a": 1, "b": [2, {"c": None}]}}
SUM_TEXT = json.dumps(SUM)
ZIP = {"name": "zip", "arguments": {}}
OPENAI = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": json.dumps(SUM["arguments"])}}


def tagged(*items):
    return "".join(
        f"<tool_call>\n{item if isinstance(item, str) else json.dumps(item)}\n</tool_call>\n" for item in items
    )


@pytest.mark.parametrize(
    "text",
    [
        tagged(SUM),
        "I will add them." + tagged(SUM) + "Done.",
        f"<think>{tagged(ZIP)}</think>{tagged(SUM)}",
        SUM_TEXT,
        f"[{SUM_TEXT}]",
        f"Here:\n```json\n{SUM_TEXT}\n```",
        f"<answer>{SUM_TEXT}</answer>",
        tagged('{"arguments": {"b": [2.0, {"c": null}], "a": 1e0}, "name": "add"}'),
        tagged({**SUM, "id": "x", "type": "function"}),
        tagged({"name": "add", "arguments": json.dumps(SUM["arguments"])}),
        tagged(OPENAI),
        tagged(f"[{SUM_TEXT}]"),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("gold", [SUM, [SUM], SUM_TEXT, OPENAI, [OPENAI], json.dumps([OPENAI])], ids=range(6))
def test_right_calls(text, gold):
    assert calls(text, gold) == "right"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add(1, 2)",
        tagged({"name": "sub", "arguments": SUM["arguments"]}),
        tagged({"name": "Add", "arguments": SUM["arguments"]}),
        tagged({"name": "\u0430dd", "arguments": SUM["arguments"]}),  # a Cyrillic a
        tagged({"name": "add"}),
        tagged({"name": "add", "arguments": {}}),
        tagged({"name": "add", "arguments": {"a": 1}}),
        tagged({"name": "add", "arguments": {**SUM["arguments"], "d": 1}}),
        tagged({"name": "add", "arguments": {**SUM["arguments"], "a": True}}),
        tagged({"name": "add", "arguments": {**SUM["arguments"], "a": "1"}}),
        tagged({"name": "add", "arguments": {**SUM["arguments"], "b": [{"c": None}, 2]}}),
        tagged({"name": "add", "arguments": {**SUM["arguments"], "b": [2, {}]}}),
        tagged({**SUM, "also": ZIP}),
        tagged('{"name": "add", "name": "add"' + SUM_TEXT[len('{"name": "add"') :]),
        tagged('{"name": "add", "name": "zip"' + SUM_TEXT[len('{"name": "add"') :]),
        tagged(SUM_TEXT[:-1] + ', "arguments": {}}'),
        tagged(SUM_TEXT.replace('"a": 1', '"a": 9, "a": 1')),
        tagged(SUM_TEXT.replace('"a": 1', '"a": NaN')),
        tagged(SUM_TEXT + SUM_TEXT),
        tagged(SUM_TEXT + " ok"),
        tagged(SUM, SUM),
        tagged(SUM, ZIP),
        tagged(ZIP, SUM),
        tagged(SUM) + "<tool_call>",
        tagged(SUM) + "</tool_call>",
        f"<tool_call>{SUM_TEXT}",
        f"{SUM_TEXT}</tool_call>",
        f"<tool_call>{tagged(SUM)}</tool_call>",
        f"<think>{tagged(SUM)}</think>",
        f"<think>{tagged(SUM)}",
        f"{tagged(SUM)}<think>",
        f"<think>{tagged(SUM)}</think>{tagged(ZIP)}",
        f"call {SUM_TEXT}",
        f"{SUM_TEXT}{SUM_TEXT}",
        f"[{SUM_TEXT}, {SUM_TEXT}]",
        f"[[{SUM_TEXT}]]",
        "[]",
        "<tool_call></tool_call>",
        "<TOOL_CALL>" + SUM_TEXT + "</TOOL_CALL>",
    ],
    ids=range(40),
)
def test_wrong_calls(text):
    assert calls(text, SUM) == "wrong"


@pytest.mark.parametrize("also", ["zip(k=1)", "[zip(k=1)]", "Then zip(\n  k = [1, 2]) runs.", "tools.zip(k='x', m=2)"])
def test_a_call_as_python_writes_it(also):
    assert calls(f"{tagged(SUM)}\n{also}", SUM) == "wrong"
    assert calls(f"{also}\n{tagged(SUM)}", SUM) == "wrong"
    assert calls(f"<think>{also}</think>{tagged(SUM)}", SUM) == "right"  # only considered
    gold = {"name": "run", "arguments": {"code": also}}
    assert calls(tagged(gold), gold) == calls(f"```json\n{json.dumps(gold)}\n```", gold) == "right"  # an argument
    for prose in ("I add (a == 1) here.", "So add(1, 2) is 3.", "(a=1)"):
        assert calls(f"{prose}\n{tagged(SUM)}", SUM) == "right"


def test_parallel_calls():
    assert calls(tagged(ZIP, SUM), [SUM, ZIP]) == "right"
    assert calls(f"[{json.dumps(ZIP)}, {SUM_TEXT}]", [OPENAI, ZIP]) == "right"
    assert calls(tagged(SUM, SUM), [SUM, SUM]) == "right"
    assert calls(tagged(SUM), [SUM, SUM]) == "wrong"
    assert calls(tagged(SUM, SUM), [SUM, ZIP]) == "wrong"
    assert calls(tagged(SUM, ZIP, ZIP), [SUM, ZIP]) == "wrong"


def test_parsed_calls():
    assert calls("", SUM, completion_tools=[[OPENAI]]) == "right"
    assert calls(tagged(SUM), SUM, completion_tools=[[ZIP]]) == "wrong"
    assert calls(tagged(SUM), SUM, completion_tools=[[]]) == "wrong"
    assert calls(tagged(SUM), SUM, completion_tools=[None]) == "right"
    assert calls("", SUM, completion_tools=[[{**OPENAI, "function": {"name": "add", "arguments": "{"}}]]) == "wrong"


def test_tool_calls_column_is_ignored():
    assert calls("", SUM, tool_calls=[[OPENAI]]) == "wrong"


@pytest.mark.parametrize(
    "gold",
    [
        None,
        "",
        "add",
        3,
        [],
        {},
        "[]",
        {"name": "add"},
        {"name": "", "arguments": {}},
        {"name": 3, "arguments": {}},
        {"name": "add", "arguments": [1]},
        {"name": "add", "arguments": "a=1"},
        {"name": "add", "arguments": {"a": float("nan")}},
        {"name": "add", "arguments": {"a": {1, 2}}},
        {"function": "add"},
        '{"name": "add", "name": "zip", "arguments": {}}',
        [SUM, None],
        "[" * 100_000,
    ],
    ids=range(18),
)
def test_invalid_gold_calls_are_broken(gold):
    for text in ("", tagged(SUM), "[]", "null"):
        assert calls(text, gold) == "broken"


LABELS = ["billing", "refund", "Tech support"]


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("billing", "billing"),
        (" Billing.\n", "billing"),
        ('"billing"', "billing"),
        ("'billing.'", "billing"),
        ("“billing”.", "billing"),
        ("`tech support`", "Tech support"),
        ("<think>refund? no</think>billing", "billing"),
        ("<answer>billing</answer>", "billing"),
        ("It is about an invoice. <answer> BILLING </answer>", "billing"),
        ("so\n#### billing", "billing"),
        ("\\boxed{refund}", "refund"),
        ("<answer>billing</answer>\n#### Billing.", "billing"),
        ("<think>" + "refund " * 2**17 + "</think>billing", "billing"),
    ],
    ids=range(13),
)
def test_right_labels(text, gold):
    assert labelled(text, gold) == "right"
    assert labelled(text, gold, LABELS) == "right"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        '""',
        "refund",
        "billing, refund",
        "billing or refund",
        "billing/refund/Tech support",
        "billing\nrefund",
        "billing billing",
        "billing?",
        "billing!",
        "not billing",
        "The label is billing",
        "billing (I think)",
        '["billing"]',
        '"billing',
        '""billing""',
        "billing..",
        "<answer>billing or refund</answer>",
        "<answer>billing</answer><answer>refund</answer>",
        "<answer>refund</answer><answer>billing</answer>",
        "<answer>refund</answer> #### billing",
        "<answer></answer>billing",
        "<think>billing",
        "<think>billing</think>",
        "billing<think>",
        "<think>billing</think>refund",
        "b\u0456lling",  # a Cyrillic i
        "bill\u0131ng",  # an i without its dot
        "ｂｉｌｌｉｎｇ",
        "bil\u200bling",
        "billing\x00",
        "billing\ud800",
        "billin",
        "billings",
    ],
    ids=range(35),
)
def test_wrong_labels(text):
    assert labelled(text, "billing") == "wrong"
    assert labelled(text, "billing", LABELS) == "wrong"


def test_look_alikes():
    assert labelled("\u212aeep", "Keep") == "wrong"  # the sign of the kelvin
    assert labelled("ﬁx", "fix") == "wrong"
    assert labelled("Économie", "économie") == "right"


def test_label_reasons():
    grades = label(["refund", "sales"], answer=["billing"] * 2, labels=[LABELS] * 2)
    assert [grade.reason for grade in grades] == [
        "answered 'refund', not 'billing'",
        "answered 'sales', not one of the labels",
    ]


@pytest.mark.parametrize(
    ("gold", "labels"),
    [
        (None, None),
        ("", None),
        (" . ", None),
        ("a" * 201, None),
        ("sales", LABELS),
        ("billing", []),
        ("billing", "billing, refund"),
        ("b", "billing"),
        ("billing", ["billing", "Billing"]),
        ("billing", ["billing", ""]),
        ("billing", ["billing", None]),
    ],
)
def test_invalid_labels_are_broken(gold, labels):
    for text in ("billing", "", "b", "None"):
        assert labelled(text, gold, labels) == "broken"


def test_numeric_labels():
    assert labelled("1", 1, [0, 1]) == "right"
    assert labelled("<answer>0</answer>", 1, (0, 1)) == "wrong"


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "text",
    [
        "a" * MEGABYTE,
        " " * MEGABYTE,
        "\x00" * MEGABYTE,
        "\ud800" * MEGABYTE,
        "[" * 100_000,
        "[" * 40_000 + "]" * 40_000,
        '{"a":' * 100_000,
        "[" + "1," * 500_000 + "1]",
        "[" + "{}," * 33_000 + "{}]",
        '"' + "a" * MEGABYTE + '"',
        "1" * MEGABYTE,
        "```\n" * 250_000,
        "```json\n" * 100_000,
        "<answer>" * 100_000,
        "<answer>{}</answer>" * 50_000,
        "<tool_call>" * 100_000,
        "</tool_call>" * 100_000,
        "<tool_call>{}</tool_call>" * 40_000,
        tagged(SUM) * 10_000,
        "</think>" * 100_000,
        "<think>" * 100_000,
        "billing " * 100_000,
        "#### billing\n#### refund\n" * 30_000,
        "".join(f"<answer>{i}</answer>" for i in range(50_000)),
    ],
    ids=range(24),
)
def test_hostile_texts(text):
    start = time.thread_time()
    (grade,) = json_schema([text], schema=[{"type": "object", "required": ["name"]}])
    assert grade.verdict == "wrong"
    assert calls(text, SUM) == "wrong"
    assert labelled(text, "billing", LABELS) == "wrong"
    assert time.thread_time() - start < 1.0


def test_strict_zip():
    with pytest.raises(ValueError, match="zip"):
        json_schema(["1"], schema=[{}, {}])
    with pytest.raises(ValueError, match="zip"):
        tool_call(["1"], answer=[SUM, SUM])
    with pytest.raises(ValueError, match="zip"):
        label(["1"], answer=["1"], labels=[["1"], ["1"]])
