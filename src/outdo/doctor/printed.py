"""Rows out of what a trainer printed: verl's console lines, and the dictionaries of transformers and TRL."""

from __future__ import annotations

import re
from typing import Any

LINE = re.compile(r"\bstep:(\d+) - (.+)")  # verl: step:3 - actor/entropy:0.51 - critic/score/mean:np.float64(0.4)
WRAPPED = re.compile(r"np\.\w+\((.+)\)")
PAIRS = re.compile(r"\{('[^{}\n]+)\}")  # transformers: {'loss': '0.01', 'reward': '0.4'}, among progress bars
PAIR = re.compile(r"'([^']+)': '?(-?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf))\b")


def printed_rows(text: str) -> list[dict[str, Any]]:
    """A row for each step that was told of; none where the text is something else."""
    lines = [_line(found) for found in map(LINE.search, text.split("\n")) if found]
    return lines or [row for found in PAIRS.finditer(text) if (row := dict(PAIR.findall(found[1])))]


def _line(found: re.Match[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": found[1]}
    for pair in found[2].split(" - "):
        name, _, value = pair.rpartition(":")
        row[name] = WRAPPED.sub(r"\1", value.strip())
    return row
