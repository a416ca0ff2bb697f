"""Curves as a picture: what is drawn, of one run and of several."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import outdo as package
from outdo.errors import RecipeError, RunError
from outdo.report.plot import plot_runs, smooth, thinned
from outdo.runs.writer import RunWriter
from support.folders import RECIPE, make_run


def test_plot_by_folder_name_or_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "one", steps=20)
    monkeypatch.chdir(tmp_path)
    for run in (tmp_path / "runs/one", "runs/one", "one", SimpleNamespace(folder=Path("runs/one"))):
        figure = package.plot(run)
        success = figure.axes[0]
        steps, values = success.lines[1].get_data()
        assert list(steps) == list(range(1, 21)) and values[0] == 0 and values[-1] == 1
        held_out = success.containers[0].lines[0].get_data()
        assert list(held_out[0]) == [0, 20] and list(held_out[1]) == [0.1, 0.9]
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"


def test_overlay_and_signals(tmp_path: Path) -> None:
    make_run(tmp_path / "one", steps=20)
    make_run(tmp_path / "two", steps=10)
    figure = package.plot(tmp_path / "one", tmp_path / "two", signals=["kl_mean", "success_rate"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["kl_mean", "success_rate"]
    assert figure.axes[0].get_legend_handles_labels()[1] == ["one", "two"]
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [20, 20, 10, 10]
    again = package.plot([tmp_path / "one", tmp_path / "two"])
    assert again._suptitle.get_text() == "one vs two" and len(again.axes) == 6
    with pytest.raises(RecipeError, match="did you mean 'kl_mean'"):
        package.plot(tmp_path / "one", signals="kl_maen")
    with pytest.raises(RecipeError, match="needs a run"):
        package.plot()


def test_supervised_curves(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {"kind": "sft"})
    for step in range(5):
        run.record_sft({"step": step, "loss": 1.0 / (step + 1), "lr": 1e-3})
    run.close()
    figure = package.plot(tmp_path / "run")
    assert list(figure.axes[0].lines[1].get_ydata()) == [1.0, 0.5, pytest.approx(1 / 3), 0.25, 0.2]


def test_nothing_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", steps=0)
    with pytest.raises(RunError, match="no steps yet"):
        package.plot(tmp_path / "run")
    with pytest.raises(RunError, match="holds no run"):
        package.plot(tmp_path / "none")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match="pip install 'outdo\\[plot\\]'"):
        package.plot(tmp_path / "run")


def test_invalid_line_is_reported(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=5)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:2], "garbage{\n", *lines[2:]]))
    with pytest.warns(UserWarning, match=r"skipped 1 line .*metrics\.jsonl: line 3"):
        figure = package.plot(tmp_path / "run", signals="kl_mean")
    assert list(figure.axes[0].lines[1].get_xdata()) == [1, 2, 3, 4, 5]
    said: list[str] = []
    plot_runs([tmp_path / "run"], tmp_path / "it.png", notify=said.append)
    assert len(said) == 1 and "line 3" in said[0]


@pytest.mark.slow
def test_plot_command(outdo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / "runs" / name, steps=12)
    done = outdo("plot", "one", "two", "--signals", "success_rate,kl_mean", "--out", "both.svg")
    assert done.returncode == 0 and (tmp_path / "both.svg").read_text().startswith("<?xml"), done.stderr
    assert outdo("plot", "runs/one").stdout == "runs/one/curves.png\n"
    done = outdo("plot", "one", "--out", "it.txt")
    assert done.returncode == 2 and ".png or .svg" in done.stderr and "Traceback" not in done.stderr


def test_thinned_curve() -> None:
    rows = [{"step": i, "x": float(i % 2)} for i in range(1, 8001)]
    steps, values = thinned(rows, "x")
    assert len(steps) == 2000 and steps[-1] == 8000 and set(values) == {0.5}
    assert smooth([0.0, 3.0, 0.0], window=3) == [1.5, 1.0, 1.5]
