"""`outdo convert`: a recipe as a script, a configuration or a request of another trainer, which needs no outdo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outdo.bridges.convert.files import Files, name_of
from outdo.bridges.convert.open_r1 import open_r1_files
from outdo.bridges.convert.plan import Plan, make_plan
from outdo.bridges.convert.rft import rft_files
from outdo.bridges.convert.script import trl_files, unsloth_files
from outdo.bridges.convert.verl import verl_files
from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.schema import Recipe

Target = Callable[[Plan, bool], Files]  # a plan, and whether what decides the training may be missing
TARGETS: dict[str, Target] = {  # the names of --to
    "trl": trl_files,
    "unsloth": unsloth_files,
    "open-r1": open_r1_files,
    "verl": verl_files,
    "rft": rft_files,
}


@dataclass(frozen=True)
class Converted:
    """What was written, the file to start with first, and what is not in it."""

    paths: list[Path]
    lost: list[str]
    notes: list[str]


def convert(
    recipe: Recipe,
    target: str,
    out: Path | None = None,
    name: str = "",
    *,
    allow_missing: bool = False,
    force: bool = False,
) -> Converted:
    """Writes the files of a target. Raises RecipeError, TaskError and GraderError, before anything is written."""
    if target not in TARGETS:
        meant = did_you_mean(target, TARGETS)
        raise RecipeError(f"--to {target}: it is one of {', '.join(TARGETS)}{meant}")
    plan = make_plan(recipe, name or "keys of the command line")
    files = TARGETS[target](plan, allow_missing)
    folder = out or Path(f"{name_of(plan)}-{target}")
    if folder.suffix and folder.suffix == Path(files.main).suffix and not folder.is_dir():
        files.rename_main(folder.name)
        folder = folder.parent
    return Converted(files.write(folder, force), plan.lost, plan.notes)
