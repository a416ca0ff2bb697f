"""A run in another Python environment (`backend_python`): the same command there, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from outdo.bridges.backend import BACKENDS
from outdo.errors import EngineError, RecipeError
from outdo.recipe.schema import Recipe
from outdo.runs.writer import default_folder
from outdo.training.callbacks import find_callbacks
from outdo.training.context import Result, RunContext
from outdo.training.start import finished_result

ASK = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({p: version(p) for p in sys.argv[1:]}))"
)


class ChildFailed(EngineError):
    """The run ended there, with a message of its own and this exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def run_elsewhere(context: RunContext) -> Result:
    """Raises RecipeError where that Python cannot run it, ChildFailed where the run did not end well."""
    recipe, python = context.recipe, str(context.recipe.backend_python)
    _refuse_objects(context)
    _refuse_python(recipe, python)
    folder = context.resume or Path(recipe.output_dir or default_folder(context.task.name, recipe.run_name))
    with tempfile.TemporaryDirectory(prefix="outdo-") as scratch:
        path = Path(scratch) / "recipe.yaml"
        given = recipe.model_dump(mode="json", exclude_unset=True) | {"backend_python": None, "output_dir": str(folder)}
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        how = ["--resume", str(folder), "--trust", "backend_python=null"] if context.resume else [str(path)]
        command = [python, "-m", "outdo", "train", *how, *(["--force"] if context.force else [])]
        status = _watched(command)
    if status:
        raise ChildFailed(f"the run in {python} ended with status {status}; see above, and {folder}", status)
    return finished_result(folder, recipe)


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
    found: dict[str, Any] = json.loads(asked.stdout)
    backend.refuse_versions(found, recipe.backend, install)


def _watched(command: list[str]) -> int:
    """The exit status. Signals reach the other process too: it saves the run and ends."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    streams: Any = {"stdout": sys.__stdout__, "stderr": sys.__stderr__}
    with subprocess.Popen(command, env=environment, **streams) as process, _passed_on(process):
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGTERM is passed on; Ctrl-C reaches both by the terminal."""
    numbers = (signal.SIGTERM, signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            process.send_signal(number)

    try:
        before = {number: signal.signal(number, handle) for number in numbers}
    except ValueError:  # off the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
