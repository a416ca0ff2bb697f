"""JSON Schema: valid and invalid answers, and schemas that cannot be checked."""

import json
import time

import pytest

from outdo.rewards.schema import BadSchema, canonical, read_json, violation
from outdo.rewards.structured import json_schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANN = '{"name": "Ann", "age": 7}'


def fits(text, schema=PERSON):
    (grade,) = json_schema([text], schema=[schema], answer=[None])
    assert grade.reward == {"right": 1.0, "wrong": 0.0, "broken": None}[grade.verdict]
    return grade.verdict


@pytest.mark.parametrize(
    "text",
    [
        ANN,
        f"\n  {ANN}\n",
        '{"age": 7.0, "name": "Ann"}',
        f"<think>maybe []</think>{ANN}",
        f"so </think>\n{ANN}",
        f"<answer>{ANN}</answer>",
        f"Here: <answer>\n{ANN}\n</answer> as asked.",
        f"```json\n{ANN}\n```",
        f"Here it is:\n```\n{ANN}\n```\nas asked.",
        f"<think>a</think><answer>```JSON\n{ANN}\n```</answer>",
        '{"name": "```", "age": 7}',
        '{"name": "\\ud800\\u0000", "age": 7}',
        "<think>" + "[1] " * 2**18 + f"</think>{ANN}",
        f"<answer>{ANN}</answer><answer>{ANN}</answer>",
        f"```json\n{ANN}\n```\n```json\n{ANN}\n```",
    ],
    ids=range(15),
)
def test_valid_json(text):
    assert fits(text) == "right"
    assert fits(text, json.dumps(PERSON)) == "right"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "Ann is 7",
        '{"name": "Ann", "age": "7"}',
        '{"name": "Ann", "age": true}',
        '{"name": "Ann", "age": -1}',
        '{"name": "Ann", "age": 7.5}',
        '{"name": "Ann", "age": 7, "x": 1}',
        f"[{ANN}]",
        f"{ANN} ok",
        f"ok {ANN}",
        f"{ANN}{ANN}",
        f"{ANN}\n{ANN}",
        f"{ANN},",
        f"{ANN}\x00",
        "\ufeff" + ANN,
        '{"name": "Ann", "age": 7,}',
        "{'name': 'Ann', 'age': 7}",
        '{"name": "Ann", "age": 7 /* years */}',
        '{"name": "Ann", "age": NaN}',
        '{"name": "Ann", "age": Infinity}',
        '{"name": "Ann", "age": 1e999}',
        '{"name": "Ann", "age": ' + "1" * 301 + "}",
        '{"name": "Ann", "age": ' + "9" * 90_000 + "}",
        '{"name": "Ann", "name": "Ann", "age": 7}',
        '{"name": 3, "name": "Ann", "age": 7}',
        '{"name": "Ann", "age": 7, "\\u0061ge": 8}',
        '{"name": "A\x00nn", "age": 7}',
        f"<think>{ANN}</think>",
        f"<think>{ANN}",
        f"<think>a</think><think>{ANN}",
        f"<answer>{ANN}</answer><answer>[]</answer>",
        f"<answer>{ANN}{ANN}</answer>",
        f"<answer>{ANN} or so</answer>",
        f"{ANN}<answer></answer>",
        f"<answer>{ANN}",
        f"{ANN}</answer>",
        f"</answer>{ANN}<answer>",
        f"```json\n{ANN}\n```\n```json\n[]\n```",
        f"```json\n{ANN}",
        f"```python\n{ANN}\n```",
        f"```json\n{ANN}\n{ANN}\n```",
        f'"{ANN}"',
        json.dumps(ANN),
    ],
    ids=range(45),
)
def test_invalid_json(text):
    assert fits(text) == "wrong"


def test_reason():
    schema = {"properties": {"rows": {"items": PERSON}}}
    (grade,) = json_schema(['{"rows": [' + ANN + ', {"name": 1, "age": 7}]}'], schema=[schema])
    assert grade.reason == "at $['rows'][1]['name']: 1 is not of type 'string'"
    (grade,) = json_schema([ANN * 2], schema=[schema])
    assert "Extra data" in grade.reason


@pytest.mark.parametrize(
    "schema",
    [
        None,
        3,
        [],
        "",
        "{",
        "object",
        '{"type": "object", "type": "array"}',
        {"type": "objekt"},
        {"required": "name"},
        {"minimum": float("nan")},
        {"enum": {1, 2}},
        {"$ref": "http://127.0.0.1:9/person.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "person.json"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"properties": {"never": {"$ref": "http://127.0.0.1:9/person.json"}}},
        {"properties": {"never": {"$ref": "#/$defs/none"}}},
        {"$dynamicRef": "#none"},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {}]},
        {"$ref": "#/type", "type": "object"},
        {"$ref": "#/examples/0", "examples": [{"type": "objekt"}]},
        {"properties": {"name": {"pattern": "("}}},
        {"pattern": "a{99999999999999999999}"},
        {"pattern": "(?R)*"},
        {"pattern": "a" * 501},
        {"patternProperties": {"(": {}}},
        {"patternProperties": {"a": {}}, "allOf": [{"unevaluatedProperties": False}]},
        {"$defs": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}},
        json.loads('{"not":' * 60 + "{}" + "}" * 60),
        '{"not":' * 90_000,
        {"enum": list(range(6000))},
    ],
    ids=range(32),
)
def test_bad_schema_is_broken(schema):
    for text in (ANN, "", "<think>", "[" * 100_000):
        assert fits(text, schema) == "broken"


def doubling(depth):
    """A schema of a few lines that takes two to the power of its depth of checks."""
    defs = {"d0": {"type": "string"}}
    for i in range(depth):
        defs[f"d{i + 1}"] = {"anyOf": [{"$ref": f"#/$defs/d{i}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/d{depth}"}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"a": 1}', {"properties": {"a": {"$ref": "#/$defs/d40"}}, "$defs": doubling(40)["$defs"]}),
        ('{"a": 1}', {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        ("[" * 50 + "]" * 50, {"anyOf": [{"allOf": [{"items": {"allOf": [{"anyOf": [{"$ref": "#"}] * 2}]}}] * 2}]}),
        (json.dumps("a" * 5000 + "!"), {"pattern": "^(a|a)*$"}),
        (json.dumps("a" * 5000 + "!"), {"pattern": r"(a+)+\1$"}),
        (json.dumps({"a" * 5000 + "!": 1}), {"patternProperties": {"^(a|a)*$": {}}}),
        (json.dumps({"a" * 5000 + "!": 1}), {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}),
        (json.dumps(["a" * 40 + "!"] * 1000), {"items": {"pattern": "^(a|a)*$"}}),
        ('"' + "a" * 40 + '!"', {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a|a)*$"}),
    ],
    ids=range(9),
)
def test_an_answer_that_makes_a_schema_slow_is_wrong(text, schema):
    start = time.thread_time()
    assert fits(text, schema) == "wrong"
    assert fits("true", schema) == "right"
    assert time.thread_time() - start < 3.0


def test_a_schema_that_is_slow_for_every_answer_is_broken():
    assert [fits(text, doubling(40)) for text in ("1", '"a"', "no JSON")] == ["broken"] * 3


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ('"12"', {"pattern": r"^\d+$"}, "right"),
        (r'"12\n"', {"pattern": r"^\d+$"}, "wrong"),
        ('"\u0663"', {"pattern": r"^\d$"}, "wrong"),
        ('"a$"', {"pattern": r"^a\$$"}, "right"),
        ('"$"', {"pattern": "^[$]$"}, "right"),
        ('"xay"', {"pattern": "a"}, "right"),
        ("12", {"pattern": "a"}, "right"),
        ('{"x_a": 1}', {"patternProperties": {"^x_": {"type": "string"}}}, "wrong"),
        ('{"x_a": "1"}', {"patternProperties": {"^x_": {"type": "string"}}, "additionalProperties": False}, "right"),
        ('{"y": "1"}', {"patternProperties": {"^x_": {"type": "string"}}, "additionalProperties": False}, "wrong"),
        ('{"y": "1"}', {"additionalProperties": {"type": "string"}}, "right"),
        ('{"y": 1}', {"additionalProperties": {"type": "string"}}, "wrong"),
        ("[1, true, 0, false]", {"uniqueItems": True}, "right"),
        ('[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]', {"uniqueItems": True}, "wrong"),
        ("[1, 1.0]", {"uniqueItems": True}, "wrong"),
        ("[1, 1.0]", {"uniqueItems": False}, "right"),
        ("true", {"enum": [1]}, "wrong"),
        ("1.0", {"const": 1}, "right"),
        ("[[[1]]]", {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}, "right"),
        ('[[["1"]]]', {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}, "wrong"),
        ('{"a": 1, "b": 2}', {"properties": {"a": True}, "unevaluatedProperties": False}, "wrong"),
        ('"not a date"', {"format": "date"}, "wrong"),
        ('"2024-02-29"', {"format": "date"}, "right"),
        ("20240229", {"format": "date"}, "right"),
        ('"not a date"', {"format": "day"}, "right"),
        ('{"$ref": "http://a"}', {"properties": {"$ref": {"type": "string"}}}, "right"),
        ("1e308", {"multipleOf": 0.1}, "right"),
        ("0.07", {"multipleOf": 0.01}, "right"),
        ("0.075", {"multipleOf": 0.01}, "wrong"),
        ("1e23", {"const": 10**23}, "right"),
        ("1", True, "right"),
        ("1", False, "wrong"),
        ("1", "true", "right"),
    ],
)
def test_keywords(text, schema, expected):
    assert fits(text, schema) == expected


def test_canonical():
    same = ["1", "1.0", "10e-1", " 1 "]
    assert {canonical(read_json(text)) for text in same} == {"1"}
    different = ["1", "true", '"1"', "[1]", "null", "1.5", '{"1": 1}', "100000000000000000001", "1e20"]
    assert len({canonical(read_json(text)) for text in different}) == len(different)
    assert canonical(read_json('{"b": -0.0, "a": [1e2]}')) == canonical(read_json('{"a": [100], "b": 0}'))


def test_violation_raises():
    assert violation(1, {"type": "integer"}) is None
    with pytest.raises(BadSchema, match="objekt"):
        violation(1, {"type": "objekt"})


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([{"a": i} for i in range(2400)], {"uniqueItems": True}),
        (list(range(4900)), {"type": "array", "items": {"type": "integer", "minimum": 0}}),
        (list(range(4900)), {"unevaluatedItems": {"type": "integer"}}),
        (json.loads("[" * 50 + "]" * 50), {"type": "array", "items": {"$ref": "#"}}),
    ],
    ids=range(4),
)
def test_largest_answers(value, schema):
    start = time.thread_time()
    assert fits(json.dumps(value), schema) == "right"
    assert time.thread_time() - start < 2.0
