"""How sampling's time grows: `python -m bench.scan_picture scan.json scan.png`, of what `bench.rollout --json` wrote.

Seconds by rows, and by tokens of an answer, both on doubling axes: where the chip is full, twice the work is twice the
time, and the line has the slope of the dashed one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(source: Path, target: Path) -> None:
    found = json.loads(source.read_text())
    work, rows = found["work"], [row for row in found["rows"] if row["who"] == "outdo"]
    answers = work["prompts"] * work["group"]
    by_rows = {row["rows"]: row for row in rows if row["tokens"] == row["rows"] * work["new_tokens"]}
    by_tokens = {row["tokens"] // answers: row for row in rows if row["rows"] == answers}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    _draw(axes[0], by_rows, f"answers side by side, of {work['new_tokens']} tokens")
    _draw(axes[1], by_tokens, f"tokens of each of {answers:,} answers")
    figure.suptitle(f"{work['shape']}: seconds of sampling, and tokens a second", fontsize=11)
    figure.savefig(target, dpi=110)


def _draw(axes: Any, rows: dict[int, dict[str, Any]], words: str) -> None:
    sizes = sorted(rows)
    seconds = [rows[size]["seconds"] for size in sizes]
    axes.loglog(sizes, seconds, "o-", color="tab:blue", base=2)
    axes.margins(x=0.12, y=0.18)
    axes.set_ylim(auto=False)  # by the measured ones; of the other line what is in sight
    axes.loglog(sizes, [seconds[-1] * size / sizes[-1] for size in sizes], "--", color="tab:gray", base=2, linewidth=1)
    for size, second in zip(sizes, seconds, strict=True):
        rate = f"{rows[size]['rate'] / 1000:,.0f}k/s"
        axes.annotate(rate, (size, second), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=7)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g} s")
    axes.set_xlabel(words)
    axes.grid(True, alpha=0.25)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
