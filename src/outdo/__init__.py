"""outdo: GRPO on rewards that a program can check.

Names are imported when first used, so that `import outdo` is quick and the maths needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "train": "outdo.api",
    "evaluate": "outdo.api",
    "sft": "outdo.api",
    "Callback": "outdo.training.callbacks",
    "EarlyStopping": "outdo.training.callbacks",
    "plot": "outdo.report.plot",
    "GRPOTrainer": "outdo.training.trainer",
    "group_advantages": "outdo.algo.advantage",
    "rloo_advantages": "outdo.algo.advantage",
    "reinforce_pp_advantages": "outdo.algo.advantage",
    "grpo_loss": "outdo.algo.losses",
    "k1_kl": "outdo.algo.divergence",
    "k2_kl": "outdo.algo.divergence",
    "k3_kl": "outdo.algo.divergence",
    "clip_table": "outdo.algo.clip",
    "pass_at_k": "outdo.metrics.estimate",
    "wilson": "outdo.metrics.estimate",
    "Recipe": "outdo.recipe.schema",
    "load_recipe": "outdo.recipe.load",
    "task": "outdo.tasks.task",
    "belongs": "outdo.tasks.splits",
    "Prompt": "outdo.types",
    "Grade": "outdo.types",
}

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
    from outdo.metrics.estimate import pass_at_k as pass_at_k
    from outdo.metrics.estimate import wilson as wilson
    from outdo.recipe.load import load_recipe as load_recipe
    from outdo.recipe.schema import Recipe as Recipe
    from outdo.report.plot import plot as plot
    from outdo.tasks.splits import belongs as belongs
    from outdo.tasks.task import task as task
    from outdo.training.callbacks import Callback as Callback
    from outdo.training.callbacks import EarlyStopping as EarlyStopping
    from outdo.training.trainer import GRPOTrainer as GRPOTrainer
    from outdo.types import Grade as Grade
    from outdo.types import Prompt as Prompt


__all__ = sorted(_WHERE)  # noqa: PLE0605 names, all of them texts


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("outdo.errors")
    if name not in _WHERE:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
