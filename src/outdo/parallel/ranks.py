"""The processes of a distributed launch, as torchrun and `accelerate launch` describe them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from outdo.errors import RecipeError


def refuse_several_processes(environment: Mapping[str, str] | None = None) -> None:
    """Raises RecipeError in every process of a launch of several: each would train, and write to the same folder."""
    given = os.environ if environment is None else environment
    count, rank = given.get("WORLD_SIZE", ""), given.get("RANK", "")
    if rank and count.isdecimal() and int(count) > 1:
        raise RecipeError(
            f"this is process {rank} of {count} (RANK and WORLD_SIZE of torchrun or accelerate), and outdo trains in "
            "one process, on one GPU. Start it without torchrun: outdo train …; device=cuda:1 chooses a GPU"
        )
