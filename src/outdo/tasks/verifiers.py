"""Tasksets of the library verifiers as tasks: `verifiers:NAME` of one that is installed, `verifiers:path/to/file.py`.

`task_args` are the fields of verifiers' own configuration of an environment (`taskset`, the agent's, `id`), as its
TOML has them under `env`. `test` among them has the fields that are different for held-out tasks; without it, one task
in ten is held out, by the hash of its data. `serve/verifiers.py` plays the tasks.

Not covered: tasks that show images, and environments in which the model plays several agents.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from outdo.errors import TaskError, did_you_mean, no_such_file
from outdo.recipe.plugins import importing
from outdo.seeds import seed_of
from outdo.tasks.data import Table
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

COLUMN = "verifiers"  # of a prompt: which environment plays it, and its task's data
AGENT = "verifiers"  # the agent that plays it
TEST = "test"  # the key of task_args with what is different for held-out tasks
INSTALL = "pip install 'outdo[verifiers]'"


def prompts(split: str, seed: int, /, name: str = "", **args: Any) -> Iterator[Prompt]:
    """The taskset's tasks once, in an order that the seed decides; of an infinite one endlessly, in its own order."""
    if is_finite(name, args):
        table = _table(name, json.dumps(args))
        if split not in table.splits:
            raise TaskError(
                f"verifiers:{name} has {len(table.rows['train'])} tasks, and holds out one in ten by hash: none of "
                "these. Say which are held out with task_args.test, the fields that are different for them, or "
                "evaluate on training tasks with eval_split=train"
            )
        yield from table.prompts(split, seed)
    else:
        yield from _prompts_of(split, name, args)


def is_finite(name: str, args: Mapping[str, Any]) -> bool:
    return bool(taskset_of(config_of(name, _args_of("train", args))).bounded)


@lru_cache(maxsize=8)
def _table(name: str, args: str) -> Table:
    return Table({split: list(_prompts_of(split, name, json.loads(args))) for split in ("train", TEST)})


def _prompts_of(split: str, name: str, args: Mapping[str, Any]) -> Iterator[Prompt]:
    own = _args_of(split, args)
    for prompt in _prompts(name, own, taskset_of(config_of(name, own))):
        if TEST in args or belongs(prompt.id, split):
            yield prompt


def _args_of(split: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that hold for a split's tasks."""
    own = {key: value for key, value in args.items() if key != TEST}
    return own if split == "train" else _over(own, args.get(TEST, {}))


def _over(base: Any, over: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: _over(base.get(key), value) for key, value in over.items()}}


@lru_cache(maxsize=32)
def _config(name: str, args: str) -> Any:
    try:
        from pydantic import ValidationError
        from verifiers import v1
    except ImportError as error:
        raise TaskError(f"verifiers:{name} needs the library verifiers ({error}): {INSTALL}") from None
    given = json.loads(args)
    taskset = given.get("taskset", {})
    if not isinstance(taskset, Mapping):
        raise TaskError(f"task_args.taskset={taskset!r:.60}: expected its fields, as task_args.taskset.KEY=…")
    raw = {**given, "taskset": {**taskset, "id": _module(name)}}
    try:
        config = v1.resolve_env_config(raw)
    except ValidationError as error:
        raise TaskError("\n".join(_describe(name, raw, one) for one in error.errors())) from None
    except Exception as error:  # the taskset's module runs in here
        raise TaskError(f"verifiers:{name}: {type(error).__name__}: {error}") from error
    if len(played := trained_agents(config)) != 1:
        raise TaskError(
            f"verifiers:{name}: the model would play {', '.join(played) or 'no agent'}: outdo trains one agent of an "
            f"environment. Give each of the others a model of its own: task_args.{(played or ['AGENT'])[-1]}.client"
        )
    return config


def config_of(name: str, args: Mapping[str, Any]) -> Any:
    """verifiers' EnvConfig of the environment that plays this taskset. Raises TaskError."""
    return _config(name, json.dumps(args, sort_keys=True))


def trained_agents(config: Any) -> list[str]:
    """The agents that the model plays: those without a client of their own."""
    from verifiers.v1.configs.agent import agent_config_fields

    return [name for name, agent in agent_config_fields(config).items() if agent.client is None]


def taskset_of(config: Any) -> Any:
    from verifiers import v1

    return v1.load_taskset(config.taskset)


def _describe(name: str, raw: Mapping[str, Any], error: Any) -> str:
    """One error of verifiers' configuration; for an unknown key of the environment or the taskset, the nearest."""
    from verifiers import v1

    path, taskset = [str(part) for part in error["loc"]], raw["taskset"]["id"]
    owners = {"taskset": v1.taskset_config_type(taskset)} if path[:-1] == ["taskset"] else {}
    owner = owners.get(path[0], v1.env_config_type(taskset, raw.get("id") or ""))
    known = owner.model_fields if len(path) == 1 + len(owners) else {}
    meant = did_you_mean(path[-1], known) if error["type"] == "extra_forbidden" else ""
    return f"verifiers:{name}: task_args.{'.'.join(path)}{meant or ': ' + error['msg']}"


def _module(name: str) -> str:
    """The id of the taskset for verifiers, which is the name of its module. A file's becomes importable, here and in
    the processes of its tools."""
    path = Path(name)
    if not name.endswith(".py"):
        return name
    if not path.is_file():
        raise TaskError(f"verifiers:{name}: {no_such_file(path)}")
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: it hides no installed package
    importlib.invalidate_caches()
    with importing(f"verifiers:{name}", str(path), TaskError):
        other = Path(getattr(importlib.import_module(path.stem), "__file__", None) or "")
    if other.resolve() != path:
        raise TaskError(f"verifiers:{name}: there is another module {path.stem}, {other}: rename the file")
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*inherited, folder]))
    return path.stem


def _prompts(name: str, args: Mapping[str, Any], tasks: Iterable[Any]) -> Iterator[Prompt]:
    for task in tasks:
        given = task.data.model_fields_set  # the rest are defaults
        data = {key: value for key, value in task.data.model_dump(mode="json").items() if key in given}
        key = json.dumps({field: value for field, value in data.items() if field != "idx"}, sort_keys=True)
        column = {"name": name, "args": dict(args), "data": data}
        yield Prompt(f"{seed_of(key):016x}", _messages(name, task.data), data.get("answer"), {COLUMN: column})


def _messages(name: str, data: Any) -> tuple[Message, ...]:
    """What the model is shown first, as far as the task says: an environment may add to it."""
    from verifiers.v1.types import content_text

    given = [(message.role, message.content) for message in data.prompt] if isinstance(data.prompt, list) else []
    if isinstance(data.prompt, str):
        given = [("user", data.prompt)]
    if data.system_prompt is not None:
        given = [("system", data.system_prompt), *given]
    if any(part.type != "text" for _, content in given if isinstance(content, list) for part in content):
        raise TaskError(f"verifiers:{name}: task {data.idx} shows images, which outdo's models are not shown")
    if all(role == "system" for role, _ in given):  # the environment opens the conversation
        given.append(("user", data.description or data.name or "…"))
    return tuple({"role": role, "content": content_text(content)} for role, content in given)
