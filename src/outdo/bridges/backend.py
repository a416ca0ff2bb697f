"""The trainers that a recipe can name (`backend`), the versions that are known, and what is refused before loading."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from outdo.bridges.keys import refuse_keys
from outdo.errors import RecipeError
from outdo.recipe.schema import Recipe

OWN = "outdo"


class Loaded(NamedTuple):
    """A model to train, what PEFT is to add to it, and its tokenizer."""

    model: Any
    peft_config: Any
    tokenizer: Any


Loader = Callable[[Recipe, Path, Any], Loaded]  # of a recipe, a model's folder, and our adapter, where one is trained


@dataclass(frozen=True)
class Backend:
    """A trainer. `packages` are those that it needs, each with the versions that were tried: from one on, below one.
    `loader` is where its function lies that loads a model, which imports them."""

    title: str
    packages: dict[str, tuple[str, str]]
    loader: str
    is_last: bool = False  # its packages must be imported after our own model is loaded
    own_args: tuple[str, ...] = ()  # of `backend_args`: those of the loader, which TRL's configuration does not have

    @property
    def versions(self) -> dict[str, str]:
        """Of its packages, as installed."""
        return {package: version(package) for package in self.packages}

    @property
    def name(self) -> str:
        """With the version of its first package."""
        return f"{self.title} {version(next(iter(self.packages)))}"

    def find_loader(self) -> Loader:
        module, _, name = self.loader.partition(":")
        return getattr(import_module(module), name)

    def refuse_versions(self, found: Mapping[str, str], key: str, install: str) -> None:
        """Raises RecipeError where one is not among those that were tried."""
        for package, (first, end) in self.packages.items():
            if not _numbers(first) <= _numbers(found[package]) < _numbers(end):
                raise RecipeError(
                    f"backend={key} was written for {package} {first} and later, below {end}, and here is "
                    f"{found[package]}: {install}"
                )


# Recipe key `backend`.
BACKENDS: dict[str, Backend | None] = {
    OWN: None,
    "trl": Backend("TRL", {"trl": ("1.15", "1.17")}, "outdo.bridges.trl:load_model"),
    "unsloth": Backend(
        "Unsloth",
        {"unsloth": ("2026.10", "2026.12"), "trl": ("1.15", "1.16")},
        "outdo.bridges.unsloth:load_model",
        True,
        ("fast_inference", "gpu_memory_utilization", "max_lora_rank", "max_seq_length", "float8_kv_cache"),
    ),
}


def refuse_backend(recipe: Recipe) -> None:
    """Raises RecipeError where the recipe's backend cannot do what it says, or is not installed where it is to run."""
    backend = BACKENDS[recipe.backend]
    if backend is None:
        for key in ("backend_args", "backend_python"):
            if value := getattr(recipe, key):
                raise RecipeError(f"{key}={value} is for another trainer: set backend too, such as backend=trl")
        return
    refuse_keys(recipe, backend.title)
    if not recipe.backend_python:
        find_backend(recipe)


def find_backend(recipe: Recipe, world_size: int = 1) -> Backend | None:
    """The backend of a recipe; None where outdo trains. Raises RecipeError where it is not installed here, or has
    another version than those that were tried."""
    backend = BACKENDS[recipe.backend]
    if backend is None:
        return None
    if world_size > 1:
        raise RecipeError(f"backend={recipe.backend} runs in one process here: start it without torchrun or accelerate")
    other = ", in this environment, or in another one that you name by backend_python=PATH"
    install = f"python -m pip install 'outdo[{recipe.backend}]'{other}"
    for package in backend.packages:
        try:
            version(package)
        except PackageNotFoundError:
            raise RecipeError(f"backend={recipe.backend} needs {package}: {install}") from None
    backend.refuse_versions(backend.versions, recipe.backend, install)
    return backend


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
