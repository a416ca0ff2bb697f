"""Runs whose memory is limited for real: each is a process of its own, because a process keeps what it has freed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo import api
from outdo.drills.acts import fail_and_fix
from outdo.drills.desk import Desk, ShowProgress, logged, treat_to_end
from outdo.drills.drill import Drill, Keys, Outcome
from outdo.errors import OutOfMemory, RunError
from outdo.recipe.load import load_recipe
from outdo.training.callbacks import Callback
from outdo.training.run import TrainingRun

MEBIBYTES = 160  # beyond what the process has before its first update: all answers at once take 270, 1,024 tokens 90
ALLOCATOR = {"MALLOC_ARENA_MAX": "1"}  # glibc would reserve address space for each thread


class MemoryLimit(Callback):
    """Limits the address space of this process when training starts."""

    def on_start(self, run: TrainingRun[Any]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEBIBYTES * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


@dataclass(frozen=True)
class LimitedDesk(Desk):
    def train(self, name: str, keys: Keys) -> Path:
        recipe = self.recipe(name, keys)
        self._run({"name": name, "recipe": recipe.model_dump(mode="json")})
        return self.folder / name

    def treat(self, failing: Path, name: str) -> tuple[Path, int]:
        start = self._run({"name": name, "failing": str(failing)})
        return self.folder / name, start

    def _run(self, request: dict[str, Any]) -> int:
        """Runs this file with a request, shows its lines, and returns the step that it resumed from."""
        if not sys.platform.startswith("linux"):
            raise RunError("memory can only be limited on Linux: run this drill there")
        line = [sys.executable, "-m", __name__, json.dumps({**request, "folder": str(self.folder)})]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, **ALLOCATOR}) as process:
            assert process.stdout
            start = 0
            try:
                for text in process.stdout:
                    if text.startswith("{"):
                        start = json.loads(text)["start"]
                    else:
                        self.say(text.rstrip("\n"))
            except BaseException:  # an interrupt: the run must not outlive the drill
                process.terminate()
                raise
        if process.returncode:
            raise RunError(f"the run in {self.folder / request['name']} ended with status {process.returncode}")
        return start


def run_out_of_memory(drill: Drill, desk: Desk) -> Outcome:
    """`fail_and_fix` with limited memory, in the failing run and in the fixed one."""
    return fail_and_fix(drill, LimitedDesk(**vars(desk)))


def main(request: dict[str, Any]) -> None:
    """One run, in the process whose memory is limited. Out of memory is what the drill expects."""
    name, folder = request["name"], Path(request["folder"])
    callbacks = [ShowProgress(name, lambda line: print(line, flush=True)), MemoryLimit()]
    with logged(folder / f"{name}.log") as reporter:
        if "failing" in request:
            _, start = treat_to_end(Path(request["failing"]), folder / name, reporter, callbacks)
            print(json.dumps({"start": start}))
            return
        try:
            api.train(load_recipe(None, {}, base_of=request["recipe"]), reporter=reporter, callbacks=callbacks)
        except OutOfMemory as error:
            print(f"  {name:<7} {error}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
