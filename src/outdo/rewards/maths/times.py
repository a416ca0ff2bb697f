"""Times of day: `2:30 PM` is `14:30`, and no ratio."""

from __future__ import annotations

from outdo.rewards.maths.tree import Node


def is_time(node: Node) -> bool:
    """Whether a ratio may be a time of day: `2:30`."""
    if node.op != "ratio" or not 2 <= len(node.args) <= 3 or any(part.op != "num" for part in node.args):
        return False
    hours, *rest = (part.name for part in node.args)
    return hours.isdigit() and int(hours) < 25 and all(len(part) == 2 and part < "60" for part in rest)


def same_time(gold: Node, node: Node) -> bool:
    if not all(side.op == "time" or is_time(side) for side in (gold, node)):
        return False
    return any(x == y for x in _minutes(gold, node.name) for y in _minutes(node, gold.name))


def _minutes(node: Node, other: str) -> list[tuple[int, ...]]:
    """The time of day; where only the other side has a half of the day, that half."""
    hours, *rest = (int(part.value or 0) for part in node.args)
    half = node.name or (other if hours <= 12 else "")
    if half:
        hours = hours % 12 + 12 * (half[0] == "p")
    return [(hours, *rest, *([0] * (2 - len(rest))))]
