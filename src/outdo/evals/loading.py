"""Loading the models that are evaluated, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from outdo.evals.settings import EvalSettings
from outdo.host import keep_memory
from outdo.learn.memory import release_memory
from outdo.models.load import LoadedModel, Policy, load_policy, policy_of
from outdo.models.sources import find_source
from outdo.runs.layout import CHECKPOINTS

T = TypeVar("T")


def checkpoint_notes(models: Sequence[str]) -> list[str]:
    """For each run that has no model yet, a line that names the checkpoint evaluated in its place.

    Raises ModelError for a model that does not exist, before any model is evaluated.
    """
    notes = []
    for name in models:
        path = find_source(name).path
        if path and path.parent.name == CHECKPOINTS and path != Path(name).expanduser().resolve():
            notes.append(f"{name} has no model yet: evaluating its newest valid checkpoint, {path.name}")
    return notes


def run_with_model(name: str | Path | LoadedModel, settings: EvalSettings, work: Callable[[Policy], T]) -> T:
    """Loads a model (a folder, a hub name or a run), calls `work` on it, and frees its memory. One that a caller loaded
    is used as it is.

    A callback and not a context manager: a variable of the caller would keep the weights alive.
    """
    keep_memory()
    if isinstance(name, LoadedModel):
        with name.as_given():
            return work(policy_of(name, Path(name.name), dtype=name.dtype, device=str(name.model.device)))
    policy = load_policy(str(name), dtype=settings.dtype, device=settings.device, seed=settings.seed)
    device = policy.device
    try:
        return work(policy)
    finally:
        del policy
        release_memory(device)
