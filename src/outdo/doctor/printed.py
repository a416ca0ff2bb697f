"""Rows from a trainer's console output: verl's lines, and the dictionaries that transformers and TRL print."""

from __future__ import annotations

import re
from typing import Any

LINE = re.compile(r"\bstep:(\d+) - (.+)")  # verl: step:3 - actor/entropy:0.51 - critic/score/mean:np.float64(0.4)
WRAPPED = re.compile(r"np\.\w+\((.+)\)")
PAIRS = re.compile(r"\{('[^{}\n]+)\}")  # transformers: {'loss': '0.01', 'reward': '0.4'}, among progress bars
PAIR = re.compile(r"'([^']+)': '?(-?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf))\b")


def printed_rows(text: str) -> list[dict[str, Any]]:
    """A row for each step that was printed; empty where the text is something else."""
    rows = [_verl_row(match) for match in map(LINE.search, text.split("\n")) if match]
    return rows or [row for match in PAIRS.finditer(text) if (row := dict(PAIR.findall(match[1])))]


def _verl_row(match: re.Match[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": match[1]}
    for pair in match[2].split(" - "):
        name, _, value = pair.rpartition(":")
        row[name] = WRAPPED.sub(r"\1", value.strip())
    return row
