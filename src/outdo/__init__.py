"""outdo: GRPO on rewards that a program can check.

Names are imported when first used, so that `import outdo` is quick and the maths needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "outdo.algo.advantage": ("group_advantages", "reinforce_pp_advantages", "rloo_advantages"),
    "outdo.algo.clip": ("clip_table",),
    "outdo.algo.divergence": ("k1_kl", "k2_kl", "k3_kl"),
    "outdo.algo.losses": ("grpo_loss",),
    "outdo.api": ("evaluate", "sft", "train"),
    "outdo.envs.environment": ("Observation",),
    "outdo.metrics.estimate": ("pass_at_k", "wilson"),
    "outdo.recipe.load": ("load_recipe",),
    "outdo.recipe.schema": ("Recipe",),
    "outdo.report.plot": ("plot",),
    "outdo.runs.held_out": ("read_answers",),
    "outdo.tasks.splits": ("belongs",),
    "outdo.tasks.task": ("task",),
    "outdo.training.callbacks": ("Callback", "EarlyStopping"),
    "outdo.training.trainer": ("GRPOTrainer",),
    "outdo.types": ("Grade", "Prompt"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from outdo.algo.advantage import group_advantages as group_advantages
    from outdo.algo.advantage import reinforce_pp_advantages as reinforce_pp_advantages
    from outdo.algo.advantage import rloo_advantages as rloo_advantages
    from outdo.algo.clip import clip_table as clip_table
    from outdo.algo.divergence import k1_kl as k1_kl
    from outdo.algo.divergence import k2_kl as k2_kl
    from outdo.algo.divergence import k3_kl as k3_kl
    from outdo.algo.losses import grpo_loss as grpo_loss
    from outdo.api import evaluate as evaluate
    from outdo.api import sft as sft
    from outdo.api import train as train
    from outdo.envs.environment import Observation as Observation
    from outdo.metrics.estimate import pass_at_k as pass_at_k
    from outdo.metrics.estimate import wilson as wilson
    from outdo.recipe.load import load_recipe as load_recipe
    from outdo.recipe.schema import Recipe as Recipe
    from outdo.report.plot import plot as plot
    from outdo.runs.held_out import read_answers as read_answers
    from outdo.tasks.splits import belongs as belongs
    from outdo.tasks.task import task as task
    from outdo.training.callbacks import Callback as Callback
    from outdo.training.callbacks import EarlyStopping as EarlyStopping
    from outdo.training.trainer import GRPOTrainer as GRPOTrainer
    from outdo.types import Grade as Grade
    from outdo.types import Prompt as Prompt

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 names, all of them texts


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("outdo.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
