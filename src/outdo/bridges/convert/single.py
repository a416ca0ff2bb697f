"""A reward as the call for one answer: verl and OpenAI's python graders grade one at a time."""

from __future__ import annotations

from outdo.bridges.convert.data import Data
from outdo.bridges.convert.plan import Plan
from outdo.bridges.convert.rewards import Carried, answer_name, call_of

ASSISTANT = '[{"role": "assistant", "content": text}]'


def call_for_one(one: Carried, plan: Plan, data: Data, function: str) -> str:
    """The expression of one reward, over the names `text`, `messages` and `item`, which has the row's columns.

    It is a number, or a Grade where `one.gives_grades`.
    """
    columns = {name: f'item.get("{name}")' for name in data.columns if name.isidentifier()}
    given = {
        "max_completion_length": repr(plan.recipe.max_completion_length),
        "reward_timeout": repr(plan.recipe.reward_timeout),
    }
    if one.one:
        given |= {"missing": "None", answer_name(one, columns): "text", "messages": "messages"}
        given |= {name: 'messages[-1]["content"]' for name in ("prompt", "question") if name not in columns}
        given |= {"ground_truth": columns.get("ground_truth", 'item.get("answer")')}
        return call_of(_named(one, function), given, columns, "")
    texts, prompts = "[text]", '[messages[-1]["content"]]'
    given |= {
        "completions": f"[{ASSISTANT}]" if one.as_messages else texts,
        "prompts": "[messages]" if one.as_messages else prompts,
        "messages": "[messages]",
        "missing": "[None]",
    }
    lists = {name: f"[{expression}]" for name, expression in columns.items()}
    return f"{call_of(_named(one, function), given, lists, '')}[0]"


def _named(one: Carried, function: str) -> Carried:
    return Carried(**{**vars(one), "function": function})
