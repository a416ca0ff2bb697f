"""Rows of made-up cells."""

from __future__ import annotations

from typing import Any

from outdo.metrics.estimate import wilson


def row(setting: str, seed: int, right: int, n: int = 200, wrong: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """A cell with `right` of n problems, the easy ones first."""
    low, high = wilson(right, n)
    found = {"setting": setting, "keys": {"seed": seed}, "status": "done", "why": "", "seconds": 10.0}
    found |= {"passes": {}, "kl_mean": 0.02}
    found |= {"success_rate": right / n, "low": low, "high": high, "before": 0.2, "troubles": list(wrong)}
    return found | {"problems": "p", "verdicts": "1" * right + "0" * (n - right)} | more
