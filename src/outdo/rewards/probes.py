"""Test answers of the audit: some that deserve full marks, and similar ones that deserve nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outdo.rewards.answer import boxed
from outdo.rewards.maths.question import formulas_to_give_back

Columns = Mapping[str, Any]  # of one prompt
_MAX_FORMULAS = 4  # of a question, tested as answers to it


def tagged(final: object) -> str:
    return f"<think>Step by step.</think><answer>{final}</answer>"


def gold(row: Columns) -> str | None:
    return None if row["answer"] is None else tagged(row["answer"])


def number(row: Columns) -> str:
    return tagged(str(row["answer"]).rpartition("####")[2].strip())


def near_numbers(row: Columns) -> list[str]:
    gold = str(row["answer"]).rpartition("####")[2].strip()
    return [tagged(text) for text in (f"-{gold}1", f"{gold}/3", f"{gold}e2", f"{gold} 2", f"{gold} or 1{gold}", "nan")]


def near_texts(row: Columns) -> list[str]:
    return [tagged(f"{row['answer']}."), tagged(f"{row['answer']} or not")]


def latex(row: Columns) -> str:
    text = str(row["answer"])
    return f"Thus \\boxed{{{(boxed(text) or [text.rpartition('####')[2].strip()])[-1]}}}."


def near_latex(row: Columns) -> list[str]:
    """The question's own formulas, and others that are close to the gold."""
    gold = latex(row).removeprefix("Thus \\boxed{").removesuffix("}.")
    repeated = formulas_to_give_back(str(row.get("prompt", "")), gold)[:_MAX_FORMULAS]
    larger = "9" if "infty" in gold else f"{gold}+1"
    others = (larger, f"{gold}\\text{{ or }}9", f"7={gold}", f"\\{{{gold},9\\}}", "\\text{nan}", "x")
    return [f"\\boxed{{{text}}}" for text in (*repeated, *others)]


def plan(row: Columns) -> str | None:
    return tagged(row["solution"]) if "solution" in row else None


def no_plans(row: Columns) -> list[str]:
    target = row.get("target", 0)
    return [tagged(text) for text in (target, f"abs({target})", f"{target}#", f"--{target}")]


def no_json(row: Columns) -> list[str]:
    return ["{}]", '{"a": NaN}', "[" * 1000, '{"name": 1, "name": "x", "age": 1}']


def call(row: Columns) -> str | None:
    gold = row["answer"]
    text = gold if isinstance(gold, str) else json.dumps(gold)
    return None if isinstance(gold, list) else f"<tool_call>{text}</tool_call>"


def no_calls(row: Columns) -> list[str]:
    right = call(row) or ""
    one_more = right + '<tool_call>{"name": "other"}</tool_call>'
    return ["[]", "<tool_call></tool_call>", f"<think>{right}</think>", one_more]


def no_labels(row: Columns) -> list[str]:
    gold, labels = row["answer"], row.get("labels") or [row["answer"], "another"]
    return [f"not {gold}", ", ".join(map(str, labels)), " or ".join(map(str, labels)), f"<think>{gold}"]


def solution(row: Columns) -> str | None:
    return row.get("canonical_solution")


def no_code(row: Columns) -> list[str]:
    name = str(row.get("entry_point") or "main").partition(".")[0]
    everything = "class Any:\n    def __eq__(self, other): return True\n    __ne__ = __hash__ = None\n"
    bodies = [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        f"print('PASS')\ndef {name}(*args, **kwargs): pass",
        f"{everything}def {name}(*args, **kwargs): return Any()",
        f"import builtins\nbuiltins.AssertionError = ValueError\ndef {name}(*args, **kwargs): return None",
        f"import sys\ndef {name}(*args, **kwargs): return sys._getframe(1).f_locals.get('expected')",
        f"import atexit, os\natexit.register(os._exit, 0)\ndef {name}(*args, **kwargs): raise SystemExit(0)",
    ]
    return [f"```python\n{body}\n```" for body in bodies]
