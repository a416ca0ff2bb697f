"""Built-in environments by name. Their methods are called on the event loop itself: one that blocks is async, and waits
without blocking it, or sets `blocking = True` on its class and gets a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outdo.envs.grid import Grid
from outdo.envs.guess import Guess
from outdo.envs.repair import Repair
from outdo.envs.shop import Shop

ENVIRONMENTS: dict[str, Callable[..., Any]] = {"guess": Guess, "grid": Grid, "shop": Shop, "repair": Repair}
