"""Environments as users write them, made into `Environment`s: a class by name or as an object, of one of two kinds.

With a `step` it is the plain kind: `reset(prompt) -> messages`, `step(message) -> Observation`. Without, it is TRL's:
`reset(**columns) -> str | None` gets the columns of the prompt's row, and text that it returns is appended to the last
user message; every other public method is a tool; `get_reward() -> float`, where it has one, is read once the answer
has ended. Either may have a `close`, and methods may be async. Sync ones of one answer run one after another, in a
thread that is theirs.

A class is constructed when its answer begins, with the `environment_args`. What it raises, a call that takes longer
than a minute and a result of the wrong type are the environment's fault, and propagate.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, cast

from outdo.envs.calls import TIMEOUT, Direct
from outdo.envs.environment import Environment, MakeEnvironment, Observation, Tool
from outdo.envs.registry import ENVIRONMENTS
from outdo.envs.threads import Lane, Overdue, run
from outdo.envs.toolbox import CLOSE_SECONDS, ToolEnvironment
from outdo.envs.tools import refuse_same_names, tool_of
from outdo.errors import InputError, ToolError, describe, did_you_mean
from outdo.recipe import plugins
from outdo.types import Message, Prompt

SECONDS = 60.0  # for reset, step or get_reward
ROUTE = "environment"  # the column that names one of several environments
NO_TOOLS = ("reset", "step", "get_reward", "close")
ROLES = ("system", "user", "assistant", "tool")
GROUP = "outdo.environments"  # of entry points

Given = str | Callable[..., Any] | Mapping[str, Any]


def find_environment(
    given: Given,
    args: Mapping[str, Any] | None = None,
    *,
    tools: Sequence[Tool] = (),
    max_tool_calling_iterations: int = 0,
    tool_timeout: float = TIMEOUT,
) -> MakeEnvironment:
    """What makes the environment of each answer: of a built-in name, `file.py:Class`, `module:Class`, a class or a
    function that returns an object; of a dict of them, the one that the prompt's column `environment` names, and `args`
    are by these names too. `tools` are further ones, beside the methods of TRL's kind. Raises ToolError; so does what
    is returned, for a prompt that lacks a column."""
    limits: dict[str, Any] = {"max_tool_calling_iterations": max_tool_calling_iterations, "tool_timeout": tool_timeout}
    args = args or {}
    if not isinstance(given, Mapping):
        return _maker(given, args, tools, limits)
    if not given:
        raise ToolError("environment_factory is empty: give a class, or several by the names of a column `environment`")
    if unknown := [name for name in args if name not in given]:
        meant = did_you_mean(unknown[0], given)
        raise ToolError(f"environment_args has arguments for {unknown[0]!r}, which is no environment here{meant}")
    makers = {name: _maker(one, args.get(name, {}), tools, limits) for name, one in given.items()}

    def route(prompt: Prompt) -> Environment:
        name = prompt.meta.get(ROUTE)
        if not isinstance(name, str) or name not in makers:
            says = f"says {name!r:.80}" if ROUTE in prompt.meta else "is missing"
            meant = did_you_mean(name, makers)
            raise ToolError(
                f"prompt {prompt.id[:60]}: the column {ROUTE!r} {says}{meant}. It must name one of {', '.join(makers)}"
            )
        return makers[name](prompt)

    return route


def _maker(given: Any, args: Any, tools: Sequence[Tool], limits: Mapping[str, Any]) -> MakeEnvironment:
    make = plugins.find(given, ENVIRONMENTS, GROUP, ToolError) if isinstance(given, str) else given
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if not callable(make):
        raise ToolError(f"environment {name} is an object of {type(make).__name__}: give the class")
    if not isinstance(args, Mapping):
        raise ToolError(f"environment_args of {name} must be arguments by name, not {args!r:.80}")
    _refuse_args(name, make, args)
    is_own = ENVIRONMENTS.get(name) is make  # whose arguments are checked by its constructor
    sample = make if inspect.isclass(make) and not is_own else _example(name, make, args)
    is_inline = is_own and not getattr(sample, "blocking", False)
    if not callable(getattr(sample, "reset", None)):
        raise ToolError(f"environment {name} has no method `reset`, which an answer begins with")
    construct = lambda: make(**args)  # noqa: E731
    if hasattr(sample, "step"):
        if tools:
            raise ToolError(f"environment {name} has a `step`, which answers calls itself: it takes no other tools")
        return lambda prompt: PlainEnvironment(name, construct, getattr(sample, "tools", ()), is_inline)
    own = _method_tools(name, sample)
    refuse_same_names([*tools, *own])
    if not tools and not own:
        raise ToolError(f"environment {name} has neither a method `step` nor a public method that could be a tool")

    def make_own(prompt: Prompt) -> Environment:
        columns = _columns(name, _bound(sample, "reset"), prompt)
        return FactoryEnvironment(name, construct, columns, tools, own, is_inline, **limits)

    return make_own


def _example(name: str, make: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """An object that a function makes: of its methods alone it is known what it is."""
    try:
        example = make(**args)
    except InputError:
        raise
    except Exception as error:
        raise ToolError(f"environment {name} cannot be made: {describe(error)}") from error
    close = getattr(example, "close", None)
    if callable(close) and not inspect.iscoroutinefunction(close):
        close()
    return example


def _refuse_args(name: str, make: Callable[..., Any], args: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (ValueError, TypeError):  # of C code
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        unknown = [arg for arg in args if arg not in signature.parameters]
        meant = did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise ToolError(
            f"environment {name} cannot be made with environment_args={dict(args)!r:.80}: {error}{meant}"
        ) from error


def _method_tools(name: str, sample: Any) -> list[Tool]:
    """The tools that the public methods of TRL's kind are, in the order in which they are written."""
    kind = sample if inspect.isclass(sample) else type(sample)
    names = [one for base in reversed(kind.__mro__[:-1]) for one in vars(base)]
    tools = []
    for one in dict.fromkeys(names):
        method = inspect.getattr_static(kind, one)
        is_method = inspect.isfunction(method) or isinstance(method, (classmethod, staticmethod))
        if is_method and not one.startswith("_") and one not in NO_TOOLS:
            tools.append(tool_of(_bound(kind, one), of=f"{name}.{one}"))
    return tools


def _bound(sample: Any, name: str) -> Callable[..., Any]:
    """A method as it is of an object, for its signature: without `self`, also where only the class is there yet."""
    method: Callable[..., Any] = getattr(sample, name)
    if inspect.isclass(sample) and inspect.isfunction(inspect.getattr_static(sample, name)):
        return MethodType(method, sample)
    return method


def _columns(name: str, reset: Callable[..., Any], prompt: Prompt) -> dict[str, Any]:
    """What `reset` is called with: all columns where it takes **columns, else those that it names. Raises ToolError."""
    messages = [dict(message) for message in prompt.messages]
    columns = {**prompt.meta, "answer": prompt.answer, "prompt": messages}
    parameters = inspect.signature(reset).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    for one in named:
        if one.name not in columns and one.default is one.empty:
            raise ToolError(
                f"environment {name}: reset takes {one.name!r}, and prompt {prompt.id[:60]} has no such column"
                f"{did_you_mean(one.name, columns)}: it has {', '.join(columns)}"
            )
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        columns = {one.name: columns[one.name] for one in named if one.name in columns}
    return copy.deepcopy(columns)


class FactoryEnvironment(ToolEnvironment):
    """TRL's kind. `environment` is the user's object once `reset` has made it."""

    environment: Any = None

    def __init__(
        self,
        name: str,
        construct: Callable[[], Any],
        columns: Mapping[str, Any],
        tools: Sequence[Tool],
        own: Sequence[Tool],
        is_inline: bool = False,
        **limits: Any,
    ) -> None:
        mine = [Tool(tool.name, tool.schema, self._method(tool.name)) for tool in own]
        super().__init__([*tools, *mine], **limits)
        self._name, self._construct, self._columns = name, construct, columns
        self._own = {tool.name for tool in own}
        self._thread = None if is_inline else Lane()
        self._reward: float | None = None
        self._is_read = False

    def _method(self, name: str) -> Callable[[], Callable[..., Any]]:
        def make() -> Callable[..., Any]:
            method: Callable[..., Any] = getattr(self.environment, name)
            return method if self._thread else Direct(method)

        return make

    def _lane(self, name: str) -> Lane | None:
        return self._thread if name in self._own else None

    async def reset(self, prompt: Prompt) -> Sequence[Message]:
        self.environment = await _run(self._name, "__init__", self._construct, self._thread)
        call = lambda: self.environment.reset(**self._columns)  # noqa: E731
        text = await _run(self._name, "reset", call, self._thread)
        if text is None or text == "":
            return prompt.messages
        if not isinstance(text, str):
            raise TypeError(f"{self._name}: reset returned a {type(text).__name__}: return text or None")
        return _appended(prompt.messages, text)

    async def get_reward(self) -> float | None:
        read = getattr(self.environment, "get_reward", None)
        if self._is_read or read is None:
            return self._reward
        self._is_read = True
        self._reward = _number(self._name, "get_reward", await _run(self._name, "get_reward", read, self._thread))
        return self._reward

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await _close(self.environment, self._thread)


class PlainEnvironment:
    """The plain kind. `environment` is the user's object once `reset` has made it; its own `tools` are valid then."""

    environment: Any = None

    def __init__(self, name: str, construct: Callable[[], Any], tools: Any, is_inline: bool) -> None:
        self.tools: Sequence[Mapping[str, Any]] = tools if isinstance(tools, Sequence) else ()
        self._name, self._construct = name, construct
        self._thread = None if is_inline else Lane()

    async def reset(self, prompt: Prompt) -> Sequence[Message]:
        self.environment = await _run(self._name, "__init__", self._construct, self._thread)
        self.tools = getattr(self.environment, "tools", ())
        messages = await _run(self._name, "reset", lambda: self.environment.reset(prompt), self._thread)
        return _messages(self._name, "reset", messages)

    async def step(self, message: Message) -> Observation:
        observation = await _run(self._name, "step", lambda: self.environment.step(message), self._thread)
        if not isinstance(observation, Observation):
            returned = type(observation).__name__
            raise TypeError(f"{self._name}: step returned a {returned}: return Observation(messages, reward, done)")
        _messages(self._name, "step", observation.messages)
        _number(self._name, "step", observation.reward)
        return observation

    async def close(self) -> None:
        await _close(self.environment, self._thread)


async def _run(name: str, what: str, call: Callable[[], Any], lane: Lane | None) -> Any:
    """What the call returns; on the event loop itself without a lane."""
    try:
        if lane is not None:
            return await run(call, seconds=SECONDS, lane=lane)
        value = call()
        return await value if inspect.isawaitable(value) else value
    except Overdue as error:
        raise Overdue(f"{name}: {what} {error}") from None


async def _close(environment: Any, lane: Lane | None) -> None:
    try:
        if callable(close := getattr(environment, "close", None)):
            if lane is not None:
                await run(close, seconds=CLOSE_SECONDS, lane=lane)
            elif inspect.isawaitable(closing := close()):
                await closing
    finally:
        if lane is not None:
            lane.close()


def _appended(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """The messages, with the text after that of the last one of the user, or as one more."""
    for place in reversed(range(len(messages))):
        if messages[place].get("role") == "user":
            longer = {**messages[place], "content": f"{messages[place]['content']}{text}"}
            return (*messages[:place], longer, *messages[place + 1 :])
    return (*messages, {"role": "user", "content": text})


def _messages(name: str, what: str, messages: Any) -> Sequence[Message]:
    """Raises TypeError for what are none."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"{name}: {what} gave a {type(messages).__name__} for messages: give a list of them")
    for message in messages:
        valid = isinstance(message, Mapping) and message.get("role") in ROLES
        if not valid or not isinstance(message.get("content"), (str, list)):
            raise TypeError(
                f"{name}: {what} gave {message!r:.80} for a message: it must be such as "
                '{"role": "user", "content": "Too high."}'
            )
        if not all(isinstance(value, str) for value in message.values()):
            try:
                json.dumps(dict(message))
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(f"{name}: {what} gave a message that is not plain JSON: {describe(error)}") from None
    return cast(Sequence[Message], messages)


def _number(name: str, what: str, value: Any) -> float | None:
    """A reward. Raises TypeError for what is none."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, (str, bytes)) or not math.isfinite(number):
        raise TypeError(f"{name}: {what} gave {value!r:.80} for a reward: give a finite number, or None")
    return number
