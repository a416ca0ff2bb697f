"""Our tools and environments in the form that TRL plays: a class with `reset`, whose other public methods are tools.

Behind each object is an environment of ours, so that arguments are validated, calls have a deadline, code runs in the
sandbox, and what an environment raises makes its answer broken, not the run.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from outdo.bridges.prompts import ROW, DrawnPrompts
from outdo.envs.toolbox import ToolEnvironment
from outdo.errors import RecipeError, ToolError, describe
from outdo.rollout.play import EnvironmentPlay, Play
from outdo.types import Episode, Prompt

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict", "array": "list"}


class CallFailed(Exception):
    """What a call answers the model where it has no result."""


class _Loop:
    """An event loop in a thread of its own, for environments whose methods are async."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="environments", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TRLEnvironment:
    """One for each answer of a batch; TRL uses it again for the next batch. Subclasses have the tools' methods."""

    def __init__(self, play: EnvironmentPlay, prompts: Callable[[int], Prompt], loop: _Loop) -> None:
        self._play, self._prompts, self._loop = play, prompts, loop
        self._inner: Any = None
        self._broken = ""

    def reset(self, **row: Any) -> str | None:
        """What follows the prompt's last message."""
        self._close()
        prompt, self._broken = self._prompts(row[ROW]), ""
        try:
            self._inner = self._play.make(prompt)
            messages = self._loop.run(self._inner.reset(prompt))
        except Exception as error:
            self._broken = describe(error)
            return None
        shown = str(messages[-1].get("content") or "")
        return shown.removeprefix(prompt.text) or None

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._broken:
            raise CallFailed(self._broken)
        observation = self._loop.run(self._inner.step({"tool_calls": [{"name": name, "arguments": dict(arguments)}]}))
        text = str(observation.messages[0]["content"]) if observation.messages else ""
        if observation.num_failed_calls:
            raise CallFailed(text)
        return text

    def _close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is None:
            return
        try:
            self._loop.run(inner.close())
        except Exception as error:
            self._broken = self._broken or describe(error)

    def _end(self, episode: Episode) -> Episode:
        """The episode with what the environment says of it."""
        facts: dict[str, Any] = {"broken": self._broken, "environment": getattr(self._inner, "environment", None)}
        if not self._broken:
            try:
                facts["reward"] = self._loop.run(self._inner.get_reward())
            except Exception as error:
                facts["broken"] = describe(error)
        tools = len(self._inner.tools) if self._inner else 0
        return Episode(episode.messages, episode.num_turns, episode.num_calls, None, num_tools=tools, **facts)


def finished(environment: TRLEnvironment, episode: Episode) -> Episode:
    """The episode with what its environment says of it."""
    return environment._end(episode)


def factory_of(play: Play | None, prompts: DrawnPrompts, name: str) -> Callable[[], TRLEnvironment] | None:
    """What TRL makes environments of; None where answers have one turn. Raises RecipeError where it cannot play so."""
    if play is None:
        return None
    sample = play.make(prompts[0]) if isinstance(play, EnvironmentPlay) else None
    if not isinstance(play, EnvironmentPlay) or not isinstance(sample, ToolEnvironment):
        raise RecipeError(f"{name} plays tools, and environments whose methods are tools; not what this task plays")
    methods = {schema["function"]["name"]: _method(schema, name) for schema in sample.tools}
    kind: Any = type("Environment", (TRLEnvironment,), methods)
    loop = _Loop()
    return lambda: kind(play, prompts.__getitem__, loop)


def _method(schema: Mapping[str, Any], trainer: str) -> Callable[..., str]:
    """A method that calls the tool of this schema, and has its signature and docstring."""
    from transformers.utils import get_json_schema

    function = schema["function"]
    name, properties = function["name"], function["parameters"].get("properties", {})
    required = function["parameters"].get("required", [])

    def method(self: TRLEnvironment, **arguments: Any) -> str:
        return self._call(name, arguments)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = sorted(properties, key=lambda one: one not in required)
    parameters = [_parameter(one, properties[one], one in required) for one in order]
    method.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    method.__name__ = name
    method.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": str}
    method.__doc__ = _docstring(function["description"], properties)
    shown = get_json_schema(method.__get__(object()))
    if _comparable(shown) != _comparable(schema):
        raise ToolError(f"tool {name}: {trainer} cannot show the model its parameters as they are: {properties}")
    return method


def _parameter(name: str, schema: Mapping[str, Any], required: bool) -> inspect.Parameter:
    annotation: Any = {"str": str, "int": int, "float": float, "bool": bool, "dict": dict, "list": list}[
        _TYPES.get(str(schema.get("type")), "str")
    ]
    if schema.get("type") == "array" and "items" in schema:
        annotation = list[_parameter("item", schema["items"], True).annotation]  # type: ignore[misc]
    if schema.get("nullable"):
        annotation = annotation | None
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [description, "", "Args:"]
    for name, schema in properties.items():
        choices = f" (choices: {json.dumps(schema['enum'])})" if "enum" in schema else ""
        lines.append(f"    {name}: {schema.get('description', '')}{choices}")
    return "\n".join(lines) if properties else description


def _comparable(schema: Mapping[str, Any]) -> Any:
    """Without what is not shown to the model, and without an order."""
    function = {key: value for key, value in schema["function"].items() if key != "return"}
    parameters = dict(function.get("parameters", {}))
    parameters["required"] = sorted(parameters.get("required", []))
    return json.loads(json.dumps({**function, "parameters": parameters}, sort_keys=True))
