"""Every built-in grader: its function, what it needs and rejects, and the answers an audit tests it with.

To add one, write the function and its entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outdo.rewards import answer, code, form, games, gym, maths, probes, structured
from outdo.rewards.probes import Columns
from outdo.types import RewardFunction


@dataclass(frozen=True)
class Grader:
    function: RewardFunction  # the first line of its docstring says what it pays
    needs: tuple[str, ...] = ()  # columns; optional ones in brackets
    rejects: str = ""
    judges: bool = True  # decides right or wrong; the others score form only
    gold: Callable[[Columns], str | None] = lambda row: None  # an answer that deserves full marks, where one is known
    exploits: Callable[[Columns], list[str]] = lambda row: []  # answers that must score nothing
    example: Columns = field(default_factory=dict)  # a row to test it on; its `gold` deserves full marks

    @property
    def pays(self) -> str:
        return (self.function.__doc__ or "").strip().splitlines()[0]


_SUM = {"prompt": "What is 19 + 23?", "answer": "42"}
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_DOUBLE = {
    "prompt": "Write a function `double(x)`.",
    "entry_point": "double",
    "cases": [{"args": [3], "expected": 6}, {"args": ["ab"], "expected": "abab"}],
    "gold": "```python\ndef double(x):\n    return 2 * x\n```",
}
_GOOD_FORM = {"prompt": "Say hello.", "gold": probes.tagged("hello")}
_ANSWERS = "answers in the thinking part or in an echo of the prompt, two different answers, `3/4` for 3, `7 2` for 7"

GRADERS: dict[str, Grader] = {
    "gsm8k": Grader(
        answer.gsm8k,
        ("answer",),
        _ANSWERS,
        True,
        probes.number,
        probes.near_numbers,
        {**_SUM, "answer": "19+23=42\n#### 42"},
    ),
    "numeric": Grader(answer.numeric, ("answer",), _ANSWERS, True, probes.number, probes.near_numbers, _SUM),
    "exact": Grader(
        answer.exact,
        ("answer",),
        "anything but the exact text; answers in the thinking part, two different answers",
        True,
        probes.gold,
        lambda row: [probes.tagged(f"{row['answer']}."), probes.tagged(f"{row['answer']} or not")],
        {"prompt": "The capital of France?", "answer": "Paris"},
    ),
    "math": Grader(
        maths.math,
        ("answer",),
        "several answers that disagree, lists and `or`, chains such as 5=6, unevaluated sums, other bases; hangs",
        True,
        probes.latex,
        probes.near_latex,
        {"prompt": "Solve 2x = 1.", "answer": "\\frac{1}{2}"},
    ),
    "countdown": Grader(
        games.countdown,
        ("numbers", "target"),
        "other numbers, numbers used twice or not at all, anything but + - * / and brackets",
        True,
        probes.plan,
        probes.no_plans,
        {"prompt": "3 4 5 -> 23", "numbers": [3, 4, 5], "target": 23, "solution": "3+4*5"},
    ),
    "code": Grader(
        code.code,
        ("cases or test", "entry_point"),
        "early exits, objects that equal everything, forged replies, hangs, excessive output; runs only in the sandbox",
        True,
        probes.solution,
        probes.no_code,
        _DOUBLE,
    ),
    "code_fraction": Grader(
        code.code_fraction, ("cases or test", "entry_point"), "as code", True, probes.solution, probes.no_code, _DOUBLE
    ),
    "json_schema": Grader(
        structured.json_schema,
        ("schema",),
        "text around the value, a second value, duplicate keys, NaN, schemas with external references",
        exploits=lambda row: ["{}]", '{"a": NaN}', "[" * 1000, '{"name": 1, "name": "x", "age": 1}'],
        example={"prompt": "Who?", "schema": _SCHEMA, "gold": '{"name": "Ann", "age": 7}'},
    ),
    "tool_call": Grader(
        structured.tool_call,
        ("answer",),
        "extra, missing or repeated calls, arguments of another type, calls in the thinking part",
        True,
        probes.call,
        probes.no_calls,
        {"prompt": "Add 1 and 2.", "answer": {"name": "add", "arguments": {"a": 1, "b": 2}}},
    ),
    "label": Grader(
        structured.label,
        ("answer", "[labels]"),
        "lists of labels, hedging, look-alike letters, labels in the thinking part",
        True,
        probes.gold,
        probes.no_labels,
        {"prompt": "Where does this go?", "answer": "billing", "labels": ["billing", "refund", "tech"]},
    ),
    "reasoning_gym": Grader(
        gym.reasoning_gym, ("gym",), "partly right answers; code, before any scorer sees it", True, probes.gold
    ),
    "reasoning_gym_partial": Grader(
        gym.reasoning_gym_partial, ("gym",), "code, before any scorer sees it", True, probes.gold
    ),
    "format": Grader(form.format, (), "repeated or misplaced tags, text around them", False, example=_GOOD_FORM),
    "tag_count": Grader(form.tag_count, (), "repeated or misplaced tags, text at the end", False, example=_GOOD_FORM),
    "reasoning_steps": Grader(
        form.reasoning_steps, (), "markers without a step, repeated steps", False, example=_GOOD_FORM
    ),
    "length": Grader(form.length, ("tokens",), "a bonus for short wrong answers", False, example=_GOOD_FORM),
    "cosine": Grader(form.cosine, ("tokens",), "full reward for a truncated answer", False, example=_GOOD_FORM),
    "overlong": Grader(form.overlong, ("tokens",), "", False, example=_GOOD_FORM),
    "repetition": Grader(form.repetition, ("[tokens]",), "loops", False, example=_GOOD_FORM),
}
