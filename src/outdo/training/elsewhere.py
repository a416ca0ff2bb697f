"""A run in another Python environment (`backend_python`): the same command there, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from outdo.bridges.backend import BACKENDS
from outdo.errors import EngineError, RecipeError
from outdo.parallel.launch import end_with_parent
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe
from outdo.runs.writer import default_folder
from outdo.training import interrupts
from outdo.training.callbacks import find_callbacks
from outdo.training.context import Result, RunContext
from outdo.training.start import finished_result

ASK = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({p: version(p) for p in sys.argv[1:]}))"
)


CHILD = "OUTDO_BACKEND_CHILD"  # in the environment of the other process


class ChildFailed(EngineError):
    """The run ended there, with a message of its own and this exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def is_elsewhere(recipe: Recipe) -> bool:
    """Whether another Python than this is to run it."""
    if not recipe.backend_python or CHILD in os.environ:  # its path may be that of a script which starts this one
        return False
    found = shutil.which(recipe.backend_python) or recipe.backend_python
    return os.path.abspath(found) != os.path.abspath(sys.executable)


def run_elsewhere(context: RunContext) -> Result:
    """Raises RecipeError where that Python cannot run it, ChildFailed where the run did not end well."""
    recipe, python = context.recipe, str(context.recipe.backend_python)
    if get_world().is_shared:
        raise RecipeError(f"backend={recipe.backend} runs in one process here: start it without torchrun or accelerate")
    _refuse_objects(context)
    _refuse_python(recipe, python)
    folder = context.resume or Path(recipe.output_dir or default_folder(context.task.name, recipe.run_name))
    with tempfile.TemporaryDirectory(prefix="outdo-") as scratch:
        if context.resume and context.manifest:
            how = ["--resume", str(folder), "--trust", *_changed(context.manifest.recipe, recipe)]
        else:
            path = Path(scratch) / "recipe.yaml"
            given = recipe.model_dump(mode="json", exclude_unset=True) | {"output_dir": str(folder), "resume": "never"}
            path.write_text(yaml.safe_dump(given), encoding="utf-8")
            how = [str(path)]
        command = [python, "-m", "outdo", "train", *how, *(["--force"] if context.force else [])]
        status = _watched(command)
    if status:
        raise ChildFailed(f"the run in {python} ended with status {status}; see above, and {folder}", status)
    return finished_result(folder, recipe)


def _changed(before: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """The keys that were given over those of the run to resume, as words of a command."""
    now = recipe.model_dump(mode="json")
    defaults = {key: field.get_default() for key, field in Recipe.model_fields.items()}
    changed = {key: value for key, value in now.items() if before.get(key, defaults[key]) != value}
    return [f"{key}={json.dumps(value)}" for key, value in changed.items() if key not in ("resume", "output_dir")]


def _refuse_objects(context: RunContext) -> None:
    objects = {
        "a model": context.given.model,
        "a task": context.own_task,
        "rewards": context.reward_objects,
        "tools": context.tools,
        "an environment": context.environment,
        "callbacks": len(context.callbacks) > len(find_callbacks(context.recipe)),
    }
    if given := [name for name, value in objects.items() if value]:
        raise RecipeError(
            f"backend_python runs in another process, which cannot have {', '.join(given)} that are objects: name "
            "them, as file.py:function, or install the backend in this environment"
        )


def _refuse_python(recipe: Recipe, python: str) -> None:
    """Asks that Python for its packages. Raises RecipeError where one is missing."""
    backend = BACKENDS[recipe.backend]
    assert backend
    packages = ["outdo", *backend.packages]
    install = f"{python} -m pip install 'outdo[{recipe.backend}]'"
    try:
        asked = subprocess.run([python, "-c", ASK, *packages], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecipeError(f"backend_python={python} cannot be started: {error}") from None
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RecipeError(f"backend_python={python} cannot run this: {last}. Install what is missing: {install}")
    try:
        found: dict[str, Any] = json.loads(asked.stdout)
    except ValueError:
        raise RecipeError(f"backend_python={python} is no Python: it printed {asked.stdout[:80]!r}") from None
    backend.refuse_versions(found, recipe.backend, install)


def _watched(command: list[str]) -> int:
    """The exit status. The other process is in a session of its own, so that a signal reaches it once: from here. It
    saves the run and ends, also where this process is killed."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", CHILD: "1"}
    streams: Any = {"stdout": sys.__stdout__, "stderr": sys.__stderr__, "start_new_session": True}
    with subprocess.Popen(command, env=environment, **streams) as process, _passed_on(process):
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals go to the process."""
    try:
        before = {
            number: signal.signal(number, lambda number, _: process.send_signal(number))
            for number in interrupts.SIGNALS
        }
    except ValueError:  # off the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent_if_child() -> None:
    """A run that was started from another Python ends when that one is killed."""
    if CHILD in os.environ:
        end_with_parent()
