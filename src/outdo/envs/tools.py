"""Finds tools: built-in ones by name, a user's by `file.py:function` or `module:function`, and function objects.

A user's function has type hints and a docstring with `Args:`; transformers makes its JSON schema of them, as for TRL.
What cannot be a tool is refused before training. A built-in tool with arguments is written with its main one after a
colon, or with all of them by name:

    tools: [calculator, "search:docs/", my_tools.py:weather]
    tools: [calculator, {search: {path: facts.jsonl, column: fact}}, {python: {seconds: 2}}]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from outdo.envs.calculator import calculator
from outdo.envs.calls import Direct, with_null
from outdo.envs.environment import Tool
from outdo.errors import ToolError, did_you_mean
from outdo.recipe import plugins
from outdo.rewards.schema import BadSchema, refuse_bad_schema

Given = str | Mapping[str, Any] | Callable[..., Any] | Tool
HOW = (
    "A tool needs a type for each parameter, and a docstring that says what it does, with a line `name: what it means` "
    "for each of them under `Args:`"
)
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def make_calculator() -> Tool:
    """Exact arithmetic."""
    return tool_of(calculator, lambda: Direct(calculator))


def make_python(seconds: float = 5.0, memory_mb: int = 512, packages: bool = False) -> Tool:
    """Python in the sandbox: `seconds` for each call, `memory_mb` for each process, and with `packages` those that are
    installed here."""
    from outdo.envs.python_tool import make_python_tool

    return make_python_tool(seconds, memory_mb, packages)


def make_search(path: str = "", column: str = "", title: str = "") -> Tool:
    """BM25 over the text files of a folder, or the rows of a .jsonl: of the latter, which column holds the text, and
    which the title."""
    from outdo.envs.search import make_search_tool

    return make_search_tool(path, column, title)


TOOLS: dict[str, Callable[..., Tool]] = {"calculator": make_calculator, "python": make_python, "search": make_search}


def find_tools(tools: Iterable[Given]) -> list[Tool]:
    """The tools of a recipe or a call, in their order. Raises ToolError."""
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
        raise ToolError(f"tools must be a list, such as tools: [calculator], not {tools!r:.80}")
    found = [_found(one) for one in tools]
    refuse_same_names(found)
    return found


def refuse_same_names(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ToolError(f"{names.count(name)} tools have the name {name}: the model could not call one of them")


def _found(given: Given) -> Tool:
    if isinstance(given, Tool):
        return given
    if isinstance(given, Mapping):
        if len(given) != 1:
            what = repr(dict(given))[:80]
            raise ToolError(f"tools: {what} must be one name with its arguments: {{search: {{path: docs/}}}}")
        ((name, args),) = given.items()
        return _builtin(str(name), args)
    if not isinstance(given, str):
        return tool_of(given)
    name, colon, value = given.partition(":")
    if name in TOOLS:
        return _builtin(name, value.strip() if colon else {})
    return tool_of(plugins.find(given, TOOLS, "outdo.tools", ToolError), of=given)


def _builtin(name: str, args: Any) -> Tool:
    """A built-in tool, with its arguments by name or the first of them alone."""
    if name not in TOOLS:
        meant = did_you_mean(name, TOOLS, "did you mean {!r}? ")
        raise ToolError(
            f"tools: {name} is not a built-in tool, and only those take arguments: {meant}They are {', '.join(TOOLS)}"
        )
    parameters = inspect.signature(TOOLS[name]).parameters
    if isinstance(args, str):
        if not parameters:
            raise ToolError(f"tools: {name} takes no arguments, not {args!r:.80}")
        args = {next(iter(parameters)): args}
    if not isinstance(args, Mapping):
        raise ToolError(f"tools: the arguments of {name} must be given by name, such as {{search: {{path: docs/}}}}")
    for key, value in args.items():
        if key not in parameters:
            takes = f"takes {', '.join(parameters)}" if parameters else "takes none"
            raise ToolError(f"tools: {name} has no argument {key!r}{did_you_mean(key, parameters)}: it {takes}")
        _refuse_type(f"tools: {key} of {name}", value, type(parameters[key].default))
    return TOOLS[name](**args)


def _refuse_type(what: str, value: Any, kind: type) -> None:
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        names = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
        raise ToolError(f"{what} must be {names[kind]}, not {value!r:.80}")


def tool_of(function: Callable[..., Any], make: Callable[[], Callable[..., Any]] | None = None, of: str = "") -> Tool:
    """The tool that a function is, or that `make` gives for each answer in its place. `of` is where it was found, for
    messages. Raises ToolError."""
    schema = schema_of(function, of)
    return Tool(schema["function"]["name"], schema, make or (lambda: function))


def schema_of(function: Callable[..., Any], of: str = "") -> dict[str, Any]:
    """The JSON schema of a function or a bound method. Raises ToolError."""
    from transformers.utils import get_json_schema

    what = f"tool {of or getattr(function, '__name__', function)!s:.80}"
    _refuse_no_function(function, what)
    _refuse_signature(function, what)
    try:
        schema: dict[str, Any] = get_json_schema(function)
        refuse_bad_schema(with_null(schema["function"]["parameters"]))
    except BadSchema as error:
        raise ToolError(f"{what}: its parameters have types that JSON has not: {error}") from error
    except Exception as error:  # of its docstring, its types or their names
        text = " ".join(str(error).split())
        raise ToolError(f"{what}: {text[:300]}. {HOW}") from error
    if not schema["function"]["description"]:
        raise ToolError(f"{what}: its docstring does not say what it does. {HOW}")
    return schema


def _refuse_no_function(function: Any, what: str) -> None:
    if inspect.isclass(function):
        raise ToolError(f"{what} is a class: give a function, or the class as environment_factory")
    if isinstance(function, partial):
        raise ToolError(f"{what} is a partial, which has no name and no docstring: write a function that calls it")
    if not callable(function):
        raise ToolError(f"{what} is not a function, but of the type {type(function).__name__}")
    if not inspect.isroutine(function):
        raise ToolError(
            f"{what} is an object of the type {type(function).__name__}: give a function or one of its methods"
        )
    if function.__name__ == "<lambda>":
        raise ToolError(f"{what} is a lambda, which has no name to be called by: write it as a function with `def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolError(f"{what} yields: `return` one result")


def _refuse_signature(function: Callable[..., Any], what: str) -> None:
    if not (inspect.getdoc(function) or "").strip():
        raise ToolError(f"{what} has no docstring. {HOW}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise ToolError(f"{what} has no signature that Python knows ({error}). {HOW}") from error
    for one in parameters:
        if one.kind in _VARIADIC:
            raise ToolError(f"{what} has the parameter {_VARIADIC[one.kind]}{one.name}: name each of its parameters")
        if one.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ToolError(f"{what}: calls give arguments by name, and {one.name} has none: remove the / behind it")
        if one.annotation is inspect.Parameter.empty:
            raise ToolError(f"{what}: the parameter {one.name} has no type. {HOW}")
