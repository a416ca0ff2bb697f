"""Reads the fields of a JSON object by type and range. Whatever is wrong with one is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from outdo.errors import did_you_mean
from outdo.serve.errors import ApiError


class Fields:
    """A field that is null counts as left out."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = {name: value for name, value in body.items() if value is not None}

    def refuse_unknown(self, known: Collection[str]) -> None:
        for name in self.body:
            if name not in known:
                near = did_you_mean(name, known)
                raise ApiError(f"unknown field {name[:60]!r}{near or '; leave it out'}", param=name[:60])

    def get(self, name: str) -> Any:
        return self.body.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.body.get(name, default)
        return value if isinstance(value, bool) else refuse(name, "true or false", value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """None where it is left out."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            refuse(name, f"an integer from {low:,} to {high:,}", value)
        return value

    def number(self, name: str, default: float, low: float, high: float, above: bool = False) -> float:
        """From `low` to `high`; `above`: more than `low`."""
        value = self.body.get(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above and value == low):  # NaN is in no range
            rule = f"more than {low:g} and at most {high:g}" if above else f"a number from {low:g} to {high:g}"
            refuse(name, rule, value)
        return float(value)


def refuse(name: str, rule: str, value: Any) -> NoReturn:
    raise ApiError(f"{name}: must be {rule}, and is {shown(value)}", param=name)


def shown(value: Any) -> str:
    """What was sent, briefly."""
    if isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:40]!r}…"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:g}"
    if isinstance(value, int):
        return f"{value}" if abs(value) < 10**18 else "too large"
    return f"a {type(value).__name__}"
