"""The cells of a sweep, from command-line arguments and a recipe's `sweep:` part, each with a complete recipe.

sweep:
  prepare: {sft_steps: 500}                  # once, by `outdo sft`; every cell starts from its model
  cells:                                     # named settings …
    GRPO: {}
    Dr. GRPO: {loss_type: dr_grpo, scale_rewards: none}
  grid: {beta: [0, 0.05], seed: [0, 1, 2]}   # … times all combinations of these
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.foreign import SYNONYMS
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_value, read_yaml
from outdo.recipe.schema import Recipe

Keys = dict[str, Any]
PARTS = ("title", "about", "prepare", "cells", "grid", "default", "columns")
REFUSED = {"output_dir": "use --out", "resume": "a sweep always resumes", "stages": "use sweep.prepare"}
OF_ONE_RUN = {  # keys of a recipe that do not apply to its sweep, and why
    "output_dir": "the cells are in the sweep's own folder, which --out sets",
    "run_name": "each cell has its own name",
    "resume": "a sweep always resumes",
    "resume_from_checkpoint": "a sweep always resumes",
}
PLACE = {"output_dir", "resume"}  # keys that say where a cell runs, not what
MAX_CELLS = 1000
SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class Cell:
    """One run of the sweep."""

    name: str  # of its folder, after `cell-`
    setting: str  # its name for people; cells that differ by their seed alone share it
    keys: Keys  # those that differ between cells
    recipe: Recipe

    @property
    def definition(self) -> Keys:
        """What identifies the cell, wherever it runs."""
        return self.recipe.model_dump(mode="json", exclude=PLACE)


def _non_defaults(recipe: Recipe) -> Keys:
    return recipe.model_dump(mode="json", exclude=PLACE, exclude_defaults=True)


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys in which two definitions differ; a missing key, as in an older sweep, has its default."""
    defaults = {key: field.get_default() for key, field in Recipe.model_fields.items()}
    return [key for key in {**old, **new} if old.get(key, defaults.get(key)) != new.get(key, defaults.get(key))]


@dataclass(frozen=True)
class Sweep:
    """All cells, and how the result is shown."""

    cells: tuple[Cell, ...]
    varied: tuple[str, ...]  # keys that a grid varies, except the seed; empty where all cells are named
    prepare: Recipe | None = None  # of the run that every cell starts from
    title: str = "Sweep"
    about: str = ""
    default: str = ""  # the setting to keep where none is better; empty: none
    columns: tuple[str, ...] = ()  # more signals in its tables

    @property
    def definitions(self) -> dict[str, Keys]:
        return {cell.name: cell.definition for cell in self.cells}

    @property
    def prepared(self) -> Keys | None:
        return self.prepare.model_dump(mode="json") if self.prepare else None

    @property
    def fingerprint(self) -> str:
        """A hash of all keys without their default value: a key that a later version adds does not change it."""
        cells = [[cell.name, _non_defaults(cell.recipe)] for cell in self.cells]
        prepare = _non_defaults(self.prepare) if self.prepare else None
        return hashlib.blake2b(json.dumps([cells, prepare], sort_keys=True).encode(), digest_size=4).hexdigest()

    def started_from(self, model: str) -> Sweep:
        """The same cells, started from the prepared model."""
        update = {"model_name_or_path": model, "sft_steps": 0, "sft_epochs": 0.0}
        moved = [replace(cell, recipe=cell.recipe.model_copy(update=update)) for cell in self.cells]
        return replace(self, cells=tuple(moved))


def read_sweep(path: str | None, words: Sequence[str], notify: Callable[[str], None] = lambda line: None) -> Sweep:
    """The sweep of a recipe (none: the default) and `key=a,b,c` arguments. Every cell's recipe is validated before
    anything runs. Raises RecipeError, which names the cell."""
    base = read_yaml(Path(path)) if path else None
    for key in OF_ONE_RUN.keys() & (base or {}).keys():
        assert base is not None
        notify(f"{path}: {key}={base.pop(key)} ignored, because {OF_ONE_RUN[key]}")
    part = _part(base.pop("sweep", {}) if base else {}, path)
    plain, varying = split_words(words)
    named = {str(name): canonical(keys or {}) for name, keys in part.get("cells", {}).items()}
    _refuse_set_twice(named, {**plain, **varying})
    grid = {SYNONYMS.get(key, key): values for key, values in part.get("grid", {}).items()}
    plain_grid = {key: [plain.pop(key)] for key in list(plain) if key in grid}
    grid = {**grid, **plain_grid, **varying}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise RecipeError(f"sweep: grid: {key} is {values!r}, expected a list of values: [1, 2]")
    count = math.prod(map(len, grid.values()), start=len(named or [""]))
    if count > MAX_CELLS:
        raise RecipeError(f"{count:,} cells are too many (at most {MAX_CELLS:,}): give fewer values")
    cells = [
        _cell(base, plain, name, own, dict(zip(grid, values, strict=True)), notify if not i and not j else None)
        for i, (name, own) in enumerate((named or {"": {}}).items())
        for j, values in enumerate(itertools.product(*grid.values()))
    ]
    if len(cells) < 2:
        raise RecipeError("nothing varies: give a key several values, such as beta=0,0.05,0.2")
    _refuse_duplicates(cells)
    if part.get("prepare"):
        _refuse_prepared(cells)
    sweep = Sweep(
        tuple(cells),
        tuple(key for key, values in grid.items() if key != "seed" and len(values) > 1),
        _prepared(base, plain, part["prepare"]) if part.get("prepare") else None,
        str(part.get("title") or "Sweep"),
        str(part.get("about") or "").strip(),
        columns=tuple(part.get("columns") or ()),
    )
    return replace(sweep, default=_default(sweep, base, plain, part.get("default")))


def split_words(words: Sequence[str]) -> tuple[Keys, dict[str, list[Any]]]:
    """`key=value` arguments with one value, and those with several. A list in brackets is one value."""
    plain: Keys = {}
    varying: dict[str, list[Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"{word!r}: expected key=value or key=a,b,c, such as num_generations=4,8")
        name = SYNONYMS.get(key, key)
        if name in plain or name in varying:
            raise RecipeError(f"{word!r}: {name} is given twice; list its values in one argument, {name}=a,b")
        texts = listed(text)
        if "" in texts and len(texts) > 1:
            raise RecipeError(f"{word!r}: a value between the commas is empty")
        values = [parse_value(text) for text in texts]
        if len(values) > 1:
            varying[name] = values
        else:
            plain[name] = values[0]
    return plain, varying


def listed(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += (c in "[{") - (c in "]}") if not quote else 0
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def canonical(keys: Any) -> Keys:
    """Keys under a recipe's names; nested ones (`task_args.digits`) stay flat, to be displayed."""
    if not isinstance(keys, Mapping):
        raise RecipeError(f"sweep: a cell must be a mapping `key: value`, not {keys!r:.60}")
    return {SYNONYMS.get(str(key), str(key)): value for key, value in keys.items()}


def nested(keys: Mapping[str, Any]) -> Keys:
    """`task_args.digits: 3` as a recipe takes it: `task_args: {digits: 3}`."""
    out: Keys = {}
    for key, value in keys.items():
        outer, dot, inner = key.partition(".")
        if not dot:
            out[key] = {**out[key], **value} if isinstance(value, dict) and isinstance(out.get(key), dict) else value
        elif isinstance(out.setdefault(outer, {}), dict):
            out[outer] = {**out[outer], inner: value}
        else:
            raise RecipeError(f"{key}={value!r}: {outer} was already given as {out[outer]!r}")
    return out


def format_value(value: Any) -> str:
    """As it is typed on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, dict)):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def _cell(
    base: Keys | None, plain: Keys, name: str, own: Keys, point: Keys, notify: Callable[[str], None] | None
) -> Cell:
    keys = {**own, **point}
    values = " ".join(f"{key}={format_value(value)}" for key, value in point.items() if key != "seed")
    setting = " ".join(filter(None, (name, values))) or "the recipe"
    full_name = setting + (f" seed={point['seed']}" if "seed" in point else "")
    recipe = _recipe(base, {**plain, **keys}, f"cell {full_name}", notify)
    resolved = recipe.model_dump(mode="json")
    return Cell(_file_name(full_name), setting, {key: resolved.get(key, value) for key, value in keys.items()}, recipe)


def _recipe(base: Keys | None, keys: Keys, where: str, notify: Callable[[str], None] | None = None) -> Recipe:
    for key in REFUSED.keys() & {*keys, *(base or {})}:
        raise RecipeError(f"{where}: {key} cannot be set in a sweep: {REFUSED[key]}")
    try:
        return load_recipe(None, nested(keys), notify or (lambda line: None), base_of=base)
    except RecipeError as error:
        raise RecipeError(f"{where}: {str(error).removeprefix('command line: ')}") from None


def _file_name(text: str) -> str:
    """Letters, digits, dots, dashes; short."""
    name = re.sub(r"[^A-Za-z0-9.+-]+", "-", text.replace("=", "-")).strip("-.").lower() or "cell"
    if len(name) <= 80:
        return name
    return f"{name[:70]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _prepared(base: Keys | None, plain: Keys, keys: Any) -> Recipe:
    """The recipe of `outdo sft`: the base recipe with the keys of sweep.prepare."""
    recipe = _recipe(base, {**plain, **canonical(keys)}, "sweep.prepare")
    if not recipe.sft_steps and not recipe.sft_epochs:
        raise RecipeError("sweep.prepare has no training step: set sft_steps or sft_epochs")
    return recipe


def _default(sweep: Sweep, base: Keys | None, plain: Keys, named: Any) -> str:
    """The setting that `sweep.default` names, or the one that equals the recipe."""
    settings = list(dict.fromkeys(cell.setting for cell in sweep.cells))
    if named is not None:
        if named not in settings:
            raise RecipeError(f"sweep: default: {named!r} is not one of its settings: {', '.join(settings)}")
        return str(named)
    try:
        unchanged = _recipe(base, plain, "").model_dump(mode="json", exclude={"seed"})
    except RecipeError:  # it may be invalid without its cells' keys
        return ""
    same = [cell for cell in sweep.cells if cell.recipe.model_dump(mode="json", exclude={"seed"}) == unchanged]
    return same[0].setting if same else ""


def _part(part: Any, path: str | None) -> Keys:
    """The `sweep:` part, validated."""
    if not isinstance(part, dict):
        raise RecipeError(f"{path}: sweep: expected a mapping of {', '.join(PARTS)}, not {part!r:.60}")
    for key in part:
        if key not in PARTS:
            raise RecipeError(f"{path}: sweep: unknown part {key!r}; the parts are {', '.join(PARTS)}")
    for key in ("cells", "grid"):
        if not isinstance(part.get(key, {}), dict):
            raise RecipeError(f"{path}: sweep: {key} must be a mapping `name: …`, not {part[key]!r:.60}")
    if not isinstance(part.get("columns", []), list) or not all(isinstance(c, str) for c in part.get("columns", [])):
        raise RecipeError(f"{path}: sweep: columns must be a list of signals, not {part['columns']!r:.60}")
    return part


def _refuse_set_twice(named: Mapping[str, Keys], given: Keys) -> None:
    for name, keys in named.items():
        for key in keys.keys() & given.keys():
            raise RecipeError(f"{key} is set to {keys[key]!r} by the cell {name}: remove it from the command line")


def _refuse_prepared(cells: Sequence[Cell]) -> None:
    for name, key in ((cell.name, key) for cell in cells for key in cell.keys):
        if key == "model_name_or_path" or key.startswith("sft"):
            what = f"{key} is set by sweep.prepare, which all cells start from"
            raise RecipeError(f"cell {name}: {what}: remove one of them")


def _refuse_duplicates(cells: Sequence[Cell]) -> None:
    definitions: dict[str, Cell] = {}
    names: dict[str, Cell] = {}
    for cell in cells:
        definition = json.dumps(cell.definition, sort_keys=True)
        if definition in definitions:
            raise RecipeError(f"cells {definitions[definition].name} and {cell.name} are identical: remove one")
        if cell.name in names:
            raise RecipeError(f"two cells would share the folder cell-{cell.name}: rename one")
        definitions[definition] = names[cell.name] = cell
