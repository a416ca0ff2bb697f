"""Tables fit the window, and show where a setting failed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outdo.metrics.estimate import paired_difference
from outdo.sweeps.analysis import settings_of
from outdo.sweeps.choice import choose
from outdo.sweeps.draw import draw
from outdo.sweeps.grid import Sweep
from outdo.sweeps.report import heat_map, notes, page, table
from support.cells import row


def grid() -> list[dict[str, Any]]:
    """Groups of 4 and 8 by three betas; one of them halted."""
    rows = []
    for g in (4, 8):
        for i, beta in enumerate((0.0, 0.05, 0.2)):
            made = row(f"num_generations={g} beta={beta}", 0, 100 + 10 * i + g, kl_mean=0.02, entropy_mean=0.05)
            rows.append(made | {"keys": {"num_generations": g, "beta": beta, "seed": 0}})
    rows[3] |= {"status": "halted", "why": "halted at step 9: KL|past", "troubles": ["halted"], "success_rate": None}
    return rows


def shown(what: Any, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(what)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "there", "gone"), [(120, ["gain", "seconds"], []), (60, ["KL"], ["gain", "seconds"])]
)
def test_table_width(width: int, there: list[str], gone: list[str]) -> None:
    lines = shown(table(settings_of(grid()), width), width)
    assert all(len(line) <= width for line in lines) and len(lines) == 7  # nothing is folded
    assert all(name in lines[0] for name in there) and not any(name in lines[0] for name in gone)
    assert "0.520 [0.45, 0.59]" in lines[1] and lines[4].split()[2] == "–"


def test_heat_map() -> None:
    lines = [line.split() for line in shown(heat_map(settings_of(grid()), ("num_generations", "beta")), 60)]
    assert lines[0] == ["0.0", "0.05", "0.2"]
    assert lines[1][0] == "4" and [word for word in lines[1] if word.startswith("0.")] == ["0.520", "0.570", "0.620"]
    assert lines[2] == ["8", "halted", "▒▒", "0.590", "██", "0.640"]


def test_page() -> None:
    settings = settings_of(grid())
    sweep = Sweep((), (), title="Title", about="About.", columns=("grad_norm",))
    text = page(sweep, settings, choose(settings), {"made by": "`outdo sweep`"}, "p.png")
    assert "| num_generations=4 beta=0.0 | 0.520 [0.45, 0.59] | +0.32 |" in text and "against" not in text
    best = settings[-1].name
    told = page(Sweep((), (), title="Title", default=best), settings, choose(settings), {})
    gap = paired_difference([1.0] * 104 + [0.0] * 96, [1.0] * 128 + [0.0] * 72)
    assert f"| against {best} |" in told and f"| -0.120 [{gap.low:+.3f}, {gap.high:+.3f}], lower |" in told
    assert "halted; halted at step 9: KL\\|past |" in text and "**Pick** num_generations=" in text
    assert notes(settings) == ["num_generations=8 beta=0.0: halted; halted at step 9: KL|past"]


def test_pictures(tmp_path: Path) -> None:
    settings = settings_of(grid())
    for name, varied in (("heat.png", ("num_generations", "beta")), ("points.svg", ())):
        assert draw(settings, varied, "Title", tmp_path / name).stat().st_size > 5000
