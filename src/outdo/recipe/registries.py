"""Where the names that a recipe may use are registered.

Addresses instead of imports: the recipe lies below these modules, and one is loaded only to check a name against it.
"""

from __future__ import annotations

import importlib

REGISTRIES = {  # recipe key: module:mapping
    "loss_type": "outdo.algo.losses:LOSSES",
    "advantage_estimator": "outdo.algo.advantage:ESTIMATORS",
    "kl_estimator": "outdo.algo.divergence:ESTIMATORS",
    "lr_scheduler_type": "outdo.algo.schedules:SCHEDULES",
    "sft_lr_scheduler_type": "outdo.algo.schedules:SCHEDULES",
    "report_to": "outdo.training.trackers:TRACKERS",
}
GROUP_NAMES = {"report_to": ("all",)}  # names that stand for several entries


def registered_names(key: str) -> tuple[str, ...]:
    """The names that a recipe key may have."""
    module, _, mapping = REGISTRIES[key].partition(":")
    return (*getattr(importlib.import_module(module), mapping), *GROUP_NAMES.get(key, ()))
