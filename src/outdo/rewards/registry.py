"""Every built-in grader: its function, what it needs and rejects, and the answers an audit tests it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outdo.rewards import answer, code, form, games, gym, judge, labels, maths, played, probes, structured
from outdo.rewards.probes import Columns
from outdo.types import RewardFunction


@dataclass(frozen=True)
class Grader:
    function: RewardFunction  # the first line of its docstring says what it pays
    needs: tuple[str, ...] = ()  # columns; optional ones in brackets
    rejects: str = ""
    gold: Callable[[Columns], str | None] = lambda row: None  # an answer that deserves full marks, where one is known
    exploits: Callable[[Columns], list[str]] = lambda row: []  # answers that must score nothing
    example: Columns = field(default_factory=dict)  # a row to test it on; its `gold` deserves full marks
    judges: bool = True  # decides right or wrong; the others score form only
    plays: bool = False  # judges what was played in an environment: there is no text to test it with

    @property
    def pays(self) -> str:
        return (self.function.__doc__ or "").strip().splitlines()[0]


# Rows to test graders on.
_SUM = {"prompt": "What is 19 + 23?", "answer": "42"}
_WORKED_SUM = {**_SUM, "answer": "19+23=42\n#### 42"}
_CAPITAL = {"prompt": "The capital of France?", "answer": "Paris"}
_HALF = {"prompt": "Solve 2x = 1.", "answer": "\\frac{1}{2}"}
_PLAN = {"prompt": "3 4 5 -> 23", "numbers": [3, 4, 5], "target": 23, "solution": "3+4*5"}
_DOUBLE = {
    "prompt": "Write a function `double(x)`.",
    "entry_point": "double",
    "cases": [{"args": [3], "expected": 6}, {"args": ["ab"], "expected": "abab"}],
    "gold": "```python\ndef double(x):\n    return 2 * x\n```",
}
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_ANN = {"prompt": "Who?", "schema": _SCHEMA, "gold": '{"name": "Ann", "age": 7}'}
_CALL = {"prompt": "Add 1 and 2.", "answer": {"name": "add", "arguments": {"a": 1, "b": 2}}}
_LABEL = {"prompt": "Where does this go?", "answer": "billing", "labels": ["billing", "refund", "tech"]}
_HELLO = {"prompt": "Say hello.", "gold": probes.tagged("hello")}

# What graders reject, where it does not fit in the table.
_NUMBERS = (
    "answers in the thinking part or in an echo of the prompt, two different answers, `3/4` for 3, `7 2` for 7; "
    "any text beside the number that is not a listed unit, currency, noun or lead-in: `42 lakh`, `42 or so`"
)
_TEXTS = "anything but the exact text; answers in the thinking part, two different answers"
_MATHS = (
    "several answers that disagree, chains such as 5=6, unevaluated sums, the question's formula, other units; hangs"
)
_PLANS = "other numbers, numbers used twice or not at all, anything but + - * / and brackets, a wrong `= value`"
_CODE = "early exits, objects that equal everything, forged replies, hangs, excessive output; runs only in the sandbox"
_JSON = "text around a bare value, a second value that differs, wrong formats, duplicate keys, NaN, external references"
_CALLS = "extra, missing or repeated calls, also outside the tags, arguments of another type, calls while thinking"
_LABELS = "lists of labels, hedging, another option's text, look-alike letters, labels in the thinking part"
_JUDGED = "replies that are not exactly the requested JSON; instructions to the judge are fenced off as data"
_GYM = "code, before any scorer sees it; empty answers; premises restated as conclusions"

_TESTS = ("cases or test", "entry_point")


def _form(function: RewardFunction, needs: tuple[str, ...], rejects: str) -> Grader:
    return Grader(function, needs, rejects, example=_HELLO, judges=False)


GRADERS: dict[str, Grader] = {
    "gsm8k": Grader(answer.gsm8k, ("answer",), _NUMBERS, probes.number, probes.near_numbers, _WORKED_SUM),
    "numeric": Grader(answer.numeric, ("answer",), _NUMBERS, probes.number, probes.near_numbers, _SUM),
    "exact": Grader(answer.exact, ("answer",), _TEXTS, probes.gold, probes.near_texts, _CAPITAL),
    "math": Grader(maths.math, ("answer",), _MATHS, probes.latex, probes.near_latex, _HALF),
    "countdown": Grader(games.countdown, ("numbers", "target"), _PLANS, probes.plan, probes.no_plans, _PLAN),
    "code": Grader(code.code, _TESTS, _CODE, probes.solution, probes.no_code, _DOUBLE),
    "code_fraction": Grader(code.code_fraction, _TESTS, "as code", probes.solution, probes.no_code, _DOUBLE),
    "json_schema": Grader(structured.json_schema, ("schema",), _JSON, exploits=probes.no_json, example=_ANN),
    "tool_call": Grader(structured.tool_call, ("answer",), _CALLS, probes.call, probes.no_calls, _CALL),
    "label": Grader(labels.label, ("answer", "[labels]"), _LABELS, probes.gold, probes.no_labels, _LABEL),
    "reasoning_gym": Grader(gym.reasoning_gym, ("gym",), f"partly right answers; {_GYM}", probes.gold),
    "reasoning_gym_partial": Grader(gym.reasoning_gym_partial, ("gym",), _GYM, probes.gold),
    "llm_judge": Grader(judge.llm_judge, ("[answer]",), _JUDGED),
    "environment": Grader(played.environment, ("environment",), "answers whose environment gave no reward", plays=True),
    "format": _form(form.format, (), "repeated or misplaced tags, text around them, nothing inside"),
    "tag_count": _form(form.tag_count, (), "repeated or misplaced tags, text at the end, nothing inside"),
    "reasoning_steps": _form(
        form.reasoning_steps, (), "markers without a step, steps that say nothing, repeated steps"
    ),
    "length": _form(form.length, ("tokens",), "a bonus for short wrong answers"),
    "cosine": _form(form.cosine, ("tokens",), "full reward for a truncated answer"),
    "overlong": _form(form.overlong, ("tokens",), ""),
    "repetition": _form(form.repetition, ("[tokens]",), "loops"),
    "duplicates": _form(form.duplicates, (), "copies among the answers to one prompt"),
}
