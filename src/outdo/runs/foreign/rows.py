"""Numbers by step, under the names of the trainer that logged them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outdo.runs.values import MAX_EXACT_INT

MAX_ROWS = 200_000
MAX_CELLS = 12_000_000
MAX_NAME_CHARS = 300
MAX_NAMES = 1000


@dataclass
class Rows:
    """Values of one step are merged. Where a trainer logs a step again, because it was resumed from an earlier one, the
    later values count, and what was logged of later steps is dropped."""

    by_step: dict[int, dict[str, Any]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)  # the last step of each name
    cells: int = 0
    dropped: int = 0  # values past the limits

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        room = MAX_NAMES - len(self.last)
        new = [name for name in values if name not in self.last and 0 < len(name) <= MAX_NAME_CHARS]
        known = {*new[: max(0, room)]} | (values.keys() & self.last.keys())
        self.dropped += len(values) - len(known)
        values = {name: value for name, value in values.items() if name in known}
        if not values or not 0 <= step <= MAX_EXACT_INT:
            return
        if any(self.last.get(name, -1) >= step for name in values):
            self._rewind(step)
        if self.cells + len(values) > MAX_CELLS or (step not in self.by_step and len(self.by_step) >= MAX_ROWS):
            self.dropped += len(values)
            return
        self.by_step.setdefault(step, {}).update(values)
        self.cells += len(values)
        self.last.update(dict.fromkeys(values, step))

    def _rewind(self, step: int) -> None:
        for later in [each for each in self.by_step if each > step]:
            self.cells -= len(self.by_step.pop(later))
        self.last = {name: min(last, step) for name, last in self.last.items()}

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return ((step, self.by_step[step]) for step in sorted(self.by_step))


def merged(parts: list[Rows]) -> Rows:
    """Logs of one run, one after the other."""
    if len(parts) == 1:
        return parts[0]
    out = Rows()
    for part in parts:
        for step, values in part:
            out.add(step, values)
        out.dropped += part.dropped
    return out
