"""A model and data that a caller gave as objects.

The run keeps both in its folder, and its recipe names them there: it is resumed and evaluated like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.errors import ModelError, RecipeError
from outdo.models.load import LoadedModel, Policy, loaded_model, save_policy
from outdo.recipe.schema import Recipe
from outdo.runs import layout
from outdo.runs.files import disk_errors, write_folder
from outdo.tasks.objects import NAME, as_files, data_task, given_data
from outdo.tasks.sources import UNSPLIT, Source, Splits
from outdo.tasks.task import Task

MODEL_KEYS = ("model", "model_name_or_path")
TOKENIZER_KEYS = ("processing_class", "tokenizer")


@dataclass(frozen=True)
class Given:
    """What was given as objects, if anything."""

    model: LoadedModel | None = None
    data: Splits | None = None

    def task(self, recipe: Recipe) -> Task | None:
        """Of the given rows."""
        if self.data is None:
            return None
        splits = recipe.dataset_train_split, recipe.dataset_test_split
        return data_task(self.data, Source(NAME, None, *splits, dict(recipe.columns)), recipe.system_prompt)

    def place(self, recipe: Recipe, folder: Path) -> Recipe:
        """The recipe of the run in that folder, with the names that the objects have there."""
        keys: dict[str, Any] = {}
        if self.model:
            keys["model_name_or_path"] = str(layout.start_folder(folder))
        if self.data is not None:
            only = "rows.jsonl" if UNSPLIT in self.data else ""
            keys["dataset_name"] = str(layout.data_folder(folder) / only)
        return recipe.model_copy(update=keys) if keys else recipe

    def write(self, folder: Path, policy: Policy | None = None) -> None:
        """Into the run's folder, before anything is trained."""
        if self.model and policy:
            with disk_errors(layout.start_folder(folder), "set output_dir elsewhere"):
                write_folder(layout.start_folder(folder), lambda into: save_policy(policy, into))
        if self.data is not None:
            files = as_files(self.data)

            def write(into: Path) -> None:
                for name, text in files.items():
                    (into / name).write_text(text, encoding="utf-8")

            with disk_errors(layout.data_folder(folder), "set output_dir elsewhere"):
                write_folder(layout.data_folder(folder), write)


def take_objects(keys: Mapping[str, Any], task: Any, resumes: bool) -> tuple[dict[str, Any], Given]:
    """The keys without objects, and those. Raises RecipeError, ModelError, TaskError."""
    keys = dict(keys)
    tokenizer = next((keys.pop(key) for key in TOKENIZER_KEYS if keys.get(key) is not None), None)
    data = {key: keys.pop(key) for key in ("train_dataset", "eval_dataset") if keys.get(key) is not None}
    model = None
    for key in MODEL_KEYS:
        if key in keys and not isinstance(keys[key], (str, type(None))):
            given = keys.pop(key)
            if isinstance(given, Path):
                keys[key] = str(given)
                continue
            if resumes:
                raise RecipeError(f"{key}: a run is resumed with the weights of its checkpoint: leave the model out")
            model = loaded_model(given, tokenizer)
            keys["model_name_or_path"] = model.name
            keys.setdefault("dtype", model.dtype)
    if tokenizer is not None and model is None:
        raise RecipeError("a tokenizer is given and no loaded model: a model by name has its own tokenizer")
    if model and keys.get("load_in_4bit"):
        raise ModelError("load_in_4bit=true loads the weights itself: give the model by its name or folder")
    return keys, Given(model, _take_data(keys, data, task, resumes))


def _take_data(keys: dict[str, Any], data: Mapping[str, Any], task: Any, resumes: bool) -> Splits | None:
    if not data:
        return None
    train, test = data.get("train_dataset"), data.get("eval_dataset")
    if train is None:
        raise RecipeError("eval_dataset needs train_dataset: data by name has its own test split (docs/data.md)")
    if other := [key for key in ("dataset_name", "dataset_mixture", "task") if keys.get(key)]:
        raise RecipeError(f"train_dataset and {other[0]} both set the data: give one of them")
    if task is not None:
        raise RecipeError("train_dataset and task both set the data: give one of them")
    if isinstance(train, (str, Path)) and test is None:
        keys["dataset_name"] = str(train)
        return None
    if not resumes:
        keys["dataset_name"] = NAME
    return given_data(train, test)
