"""Which number decides between evaluations: success, or the mean reward where no answer can succeed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

Metric = Literal["success", "reward"]
FIELDS: dict[Metric, str] = {"success": "success_rate", "reward": "reward_mean"}  # of an evaluation's row


def deciding_metric(eval_metric: str, rows: Iterable[Mapping[str, Any]]) -> Metric:
    """The number that ranks these evaluations, by the recipe's `eval_metric`.

    `auto` is success; the mean reward where no evaluation has a right answer, greedy or sampled, and rewards differ
    from 0: success cannot rank them. Give all evaluations that are ranked, so that all are ranked by the same number.
    """
    known = list(rows)
    if eval_metric in FIELDS:
        is_measured = eval_metric == "success" or any(row.get("reward_mean") is not None for row in known)
        return eval_metric if is_measured else "success"
    succeeds = any(value for row in known for name, value in row.items() if name == "success_rate" or _is_pass(name))
    pays = any(row.get("reward_mean") or row.get("sampled_reward_mean") for row in known)
    return "reward" if pays and not succeeds else "success"


def _is_pass(name: str) -> bool:
    return name.startswith("pass@") and name[5:].isdecimal()
