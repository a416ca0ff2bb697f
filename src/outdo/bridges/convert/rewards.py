"""The rewards of a recipe as source: copies of our graders and of the user's files, and calls of them."""

from __future__ import annotations

import ast
import inspect
import keyword
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.bridges.convert.plan import Plan, one_line
from outdo.bridges.convert.source import Standalone, standalone
from outdo.recipe import plugins
from outdo.rewards.arguments import ANSWER_NAMES, PLAYED
from outdo.rewards.calls import is_async
from outdo.rewards.compose import Reward

GRADERS_FILE = "graders"
# Built-in graders that no file can hold, and what to use in their place.
BOUND = {
    "math": "it compares formulas in worker processes with sympy; numeric and gsm8k can be carried over for numbers, "
    "or write one with the package math-verify as file.py:function",
    "code": "it runs in the sandbox; write one for the sandbox that you have there as file.py:function",
    "code_fraction": "it runs in the sandbox; write one for the sandbox that you have there as file.py:function",
    "reasoning_gym": "it runs in the sandbox; call the package reasoning-gym in a file.py:function",
    "reasoning_gym_partial": "it runs in the sandbox; call the package reasoning-gym in a file.py:function",
    "llm_judge": "it has a budget, a cache and retries of its own; call your judge in a file.py:function",
    "environment": "it pays what an environment does",
}
TEXT_ONLY = ("completions", "messages", "prompts")  # what every trainer can give
OF_TOKENS = ("completion_ids", "finish")  # what only some can
OF_GROUPS = ("duplicates", "length")  # statistics of a prompt's answers
_RESERVED = {GRADERS_FILE, "train", "start", "reward", "trl", "unsloth", "torch", "datasets", "transformers", "peft"}


@dataclass(frozen=True)
class Carried:
    """A reward that can be carried over."""

    name: str  # as in the recipe, and a name of Python
    weight: float
    module: str  # that has it there
    function: str  # its name in that module
    parameters: Mapping[str, bool]  # by name, whether it is required
    takes_any: bool
    gives_grades: bool  # with a verdict; else numbers
    one: bool = False  # of one answer; else of lists
    args: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""
    builtin: bool = False
    as_messages: bool = False  # completions and prompts are messages


@dataclass
class Sources:
    """The rewards of a plan, and the files that they are in."""

    carried: list[Carried]
    graders: Standalone | None  # copies of built-in ones
    files: dict[str, Path]  # the user's, by the name that they get
    origins: dict[str, Path] = field(default_factory=dict)  # by module, the user's file


def carry_rewards(plan: Plan, can_give: Collection[str], one_file: bool = False) -> Sources:
    """The rewards with a weight, as far as the target can call them; what cannot be carried is noted as lost.

    `can_give` is what it gives to a reward beside the text and the row's columns. With `one_file` a user's function
    must stand in a file that imports none of its neighbours.
    """
    sources = Sources([], None, {})
    own: dict[str, tuple[str, str]] = {}
    as_messages = plan.recipe.reward_input == "messages"
    if plan.recipe.reward_input == "auto":
        as_messages = next(plan.task.prompts("train", plan.recipe.seed)).conversational
    for part in plan.rewards.parts:
        why = _why_not(part, plan, can_give, one_file)
        if not why and part.weight == 0:
            continue  # only measured
        if why:
            if part.weight:
                plan.lost.append(f"the reward {part.name}: {why}")
            continue
        if part.grader:
            own[part.name] = (part.function.__module__, part.function.__name__)
            module, function = GRADERS_FILE, part.function.__name__
        else:
            module, function = _take_file(sources, part.source), part.source.rpartition(":")[2]
        sources.carried.append(_carried(part, module, function, as_messages and not part.grader))
    if plan.recipe.reward_gate:
        plan.lost.append(
            f"reward_gate={plan.recipe.reward_gate}: rewards are only summed there; write one reward that is gated "
            "itself as file.py:function"
        )
    needs_truth = any("verdicts" in one.parameters for one in sources.carried)
    if needs_truth:
        truth = plan.rewards.part(plan.rewards.truth)
        own[truth.name] = (truth.function.__module__, truth.function.__name__)
    if own:
        sources.graders = standalone(list(own.values()))
        sources.carried = [_renamed(one, sources.graders, own) for one in sources.carried]
    return sources


def _why_not(part: Reward, plan: Plan, can_give: Collection[str], one_file: bool) -> str:
    """Why a reward cannot be carried over; empty where it can."""
    if part.grader and part.name in BOUND:
        return BOUND[part.name]
    if part.source.endswith(".json"):
        return "a grader.json is run by outdo, or by OpenAI (--to rft)"
    if is_async(part.function):
        return "it is async: write it as a plain function"
    parameters = list(inspect.signature(part.function).parameters)
    lacking = [
        name
        for name in parameters
        if name in (*OF_TOKENS, "verdicts", "trainer_state", *PLAYED) and name not in can_give
    ]
    if part.grader and (lacking or (part.name in OF_GROUPS and "groups" not in can_give)):
        return "it needs the tokens of an answer, or its group, which rewards are not given there"
    if lacking:
        return f"its parameter {lacking[0]} is not given there"
    if "verdicts" in parameters and not _judges_itself(plan):
        return f"it needs the verdicts of {plan.rewards.truth}, and only those of built-in graders are carried over"
    return "" if part.grader else _why_not_file(part.source, one_file)


def _judges_itself(plan: Plan) -> bool:
    truth = plan.rewards.part(plan.rewards.truth)
    return bool(truth.grader) and truth.name not in BOUND


def _why_not_file(source: str, one_file: bool) -> str:
    """Why a user's function cannot be carried over, by the imports of its file; nothing in it is run for that."""
    path = plugins.file_of(source)
    if path is None:
        return "" if not one_file else "it is in an installed package, and the source must be one file"
    imported = _imports(path)
    if "outdo" in imported:
        return f"{path} imports outdo: take that out, and return numbers"
    beside = sorted(name for name in imported if (path.parent / f"{name}.py").is_file())
    if one_file and beside:
        return f"{path} imports {beside[0]}.py, and the source must be one file"
    if any((path.parent / name / "__init__.py").is_file() for name in imported):
        return f"{path} imports a package beside it: only files are copied"
    return ""


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names} if not node.module else {node.module.partition(".")[0]}
    return names


def _take_file(sources: Sources, source: str) -> str:
    """The module that has a user's function there; its file and those that it imports are copied."""
    path = plugins.file_of(source)
    if path is None:
        return source.rpartition(":")[0]
    module = path.stem if path.stem.isidentifier() and not keyword.iskeyword(path.stem) else "my_rewards"
    while module in _RESERVED or module in sys.stdlib_module_names or sources.origins.get(module, path) != path:
        module = f"my_{module}"
    sources.origins[module] = sources.files[f"{module}.py"] = path
    queue = [path]
    while queue:
        at = queue.pop()
        for name in _imports(at):
            beside = at.parent / f"{name}.py"
            if beside.is_file() and beside not in sources.files.values():
                sources.files[beside.name] = beside
                queue.append(beside)
    return module


def _carried(part: Reward, module: str, function: str, as_messages: bool) -> Carried:
    parameters = inspect.signature(part.function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return Carried(
        name=part.name,
        weight=part.weight,
        module=module,
        function=function,
        parameters={p.name: p.default is p.empty for p in parameters if p.kind in kinds},
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters) and not part.grader,
        gives_grades="Grade" in str(inspect.signature(part.function).return_annotation) and bool(part.grader),
        one=part.form == "one",
        args=part.args,
        doc=one_line((part.function.__doc__ or "").strip().partition("\n")[0]),
        builtin=bool(part.grader),
        as_messages=as_messages and part.form != "one",
    )


def carried_of(part: Reward, sources: Sources) -> Carried:
    """A built-in grader whose copy is there, with a weight or without."""
    assert part.grader and sources.graders
    key = part.function.__module__, part.function.__name__
    return _carried(part, GRADERS_FILE, sources.graders.names[key], False)


def answer_name(one: Carried, columns: Collection[str]) -> str:
    """The parameter of a function of one answer that the answer is given as."""
    names = [name for name in one.parameters if name in ANSWER_NAMES]
    if "completion" in names or len(names) == 1:
        return "completion" if "completion" in names else names[0]
    return next(name for name in names if name not in columns)


def _renamed(one: Carried, graders: Standalone, own: Mapping[str, tuple[str, str]]) -> Carried:
    """With the name that a copied grader has in the one file."""
    return Carried(**{**vars(one), "function": graders.names[own[one.name]]}) if one.builtin else one


def graders_text(graders: Standalone, more: str = "") -> str:
    """The file with copies of our graders."""
    packages = f" They need: pip install {' '.join(graders.packages)}." if graders.packages else ""
    head = (
        f'"""Graders of outdo, copied with all that they need, so that they give the same verdicts.{packages}\n\n'
        f"From {', '.join(graders.own)}.\n" + '"""\n\nfrom __future__ import annotations\n\n'
    )
    return head + graders.text + more


Expressions = Mapping[str, str]


def call_of(one: Carried, given: Expressions, columns: Mapping[str, str], prefix: str) -> str:
    """The call of a reward, as source. `given` has the expression of each input, `columns` that of each column."""
    arguments = []
    for name, required in one.parameters.items():
        if name in one.args:
            continue
        expression = given.get(name) or columns.get(name)
        if expression is None and required:
            expression = given["missing"]
        if expression is not None:
            arguments.append(f"{name}={expression}")
    arguments += [f"{name}={value!r}" for name, value in one.args.items()]
    if one.takes_any:
        passed = [name for name in columns if name not in one.parameters and name not in one.args]
        arguments += [
            f"{name}={columns[name]}" for name in passed if name.isidentifier() and not keyword.iskeyword(name)
        ]
    return f"{prefix}{one.function}({', '.join(arguments)})"


def unique_functions(carried: list[Carried], taken: Collection[str]) -> Callable[[Carried], str]:
    """What each reward is called in a script."""
    names: dict[int, str] = {}
    for one in carried:
        name = one.name if one.name.isidentifier() and not keyword.iskeyword(one.name) else "reward"
        while name in taken or name in names.values():
            name += "_reward"
        names[id(one)] = name
    return lambda one: names[id(one)]
