"""What happens in the processes of a launch when something goes wrong in one of them; each writes what it saw.

torchrun --nproc-per-node 2 tests/support/world_cases.py FOLDER
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from outdo.errors import Halted, OutdoError
from outdo.parallel.world import World, is_common, joined


class OwnHalt(Halted):
    """Cannot be unpickled: its constructor takes something else than its message."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"{why} at {step}", keys=("beta",))


def outcome(work: Callable[[], object]) -> str:
    start = time.monotonic()
    try:
        seen = str(work())
    except (OutdoError, KeyError, TypeError) as error:
        seen = f"{type(error).__name__}, {'in all' if is_common(error) else 'here alone'}"
    return seen if time.monotonic() - start < 5 else f"{seen}, late"


def raise_in(world: World, rank: int, error: BaseException) -> None:
    if world.rank == rank:
        raise error


def cases(world: World) -> dict[str, str]:
    return {
        "ranks": outcome(lambda: world.gather(lambda: world.rank)),
        "first": outcome(lambda: world.first(lambda: world.rank)),
        "raised by the second": outcome(lambda: world.gather(lambda: raise_in(world, 1, KeyError("no")))),
        "a halt of its own class": outcome(lambda: world.first(lambda: raise_in(world, 0, OwnHalt(3, "enough")))),
        "not to be pickled": outcome(lambda: world.gather(lambda: threading.Lock() if world.rank else 1)),
        "an exchange of the first alone": outcome(lambda: world.first(lambda: world.gather(lambda: 1))),
        "after all that": outcome(lambda: world.gather(lambda: 2)),
    }


if __name__ == "__main__":
    for number in range(3):  # a script may train several times
        with joined(30, "cpu") as world:
            seen = cases(world)
            if world.rank == number % 2:
                time.sleep(0.3)
    (Path(sys.argv[1]) / f"rank-{world.rank}.json").write_text(json.dumps(seen))
