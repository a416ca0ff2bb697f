"""Which GPU each cell gets, without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outdo.cli.app import app
from outdo.errors import RecipeError
from outdo.recipe.schema import Recipe
from outdo.runs.writer import RunWriter
from outdo.sweeps import drive
from outdo.sweeps.devices import GpuPool, Share, default_jobs, takes_gpu, visible_gpus
from outdo.sweeps.grid import read_sweep


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a,GPU-9b"}, ["GPU-8a", "GPU-9b"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
    ],
)
def test_visible(environment: dict[str, str], gpus: list[str]) -> None:
    assert visible_gpus(environment, ["0", "1", "2"]) == gpus


def test_pool_shares_evenly() -> None:
    pool = GpuPool(["0", "1"])
    assert [pool.take() for _ in range(5)] == ["0", "1", "0", "1", "0"]
    pool.give_back("1")
    pool.give_back("1")
    assert pool.take() == "1"
    assert GpuPool([]).take() == ""


def test_jobs_by_default() -> None:
    auto, cpu = Recipe(), Recipe(device="cpu")
    assert default_jobs([auto, cpu], ["0", "1", "2"]) == 3
    assert default_jobs([auto], []) == 1 and default_jobs([cpu], ["0", "1"]) == 1
    assert takes_gpu(Recipe(device="cuda")) and not takes_gpu(Recipe(device="cuda:1"))


def test_variables_of_a_child() -> None:
    assert Share(4, "1").variables == {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "1"}
    assert Share(4).variables == {"OMP_NUM_THREADS": "4"}


class Running:
    """A cell's process that ends when it is polled for the third time."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self) -> int | None:
        self.polls += 1
        return 0 if self.polls > 2 else None

    def send(self, number: int) -> None: ...


@pytest.mark.parametrize(("jobs", "expected"), [(None, 2), (1, 1), (4, 4)])
def test_cells_over_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int | None, expected: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    monkeypatch.setattr(drive, "POLL_SECONDS", 0)
    running: list[tuple[Running, str]] = []
    together: list[int] = []

    def start(words: Sequence[str], log: Path, share: Share) -> Running:
        writer = RunWriter.create(Path(str(log).removesuffix(".log")), {"max_steps": 1}, {})
        writer.finish("done")
        writer.close()
        running.append((Running(), share.gpu))
        alive = [gpu for child, gpu in running if child.polls <= 2]
        together.append(len(alive))
        assert max(alive.count("6"), alive.count("7")) <= -(-expected // 2)
        return running[-1][0]

    sweep = read_sweep(None, ["seed=0,1,2,3,4", "sft_steps=0"])
    drive.run_cells(drive.open_folder(sweep, tmp_path / "s", start), jobs, lambda line: None)
    assert max(together) == expected and len(running) == 5
    assert {gpu for _, gpu in running} == ({"6"} if expected == 1 else {"6", "7"})


def test_refused_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["sweep", "seed=0,1"])
    assert isinstance(done.exception, RecipeError) and "--jobs" in str(done.exception)
    assert not list(tmp_path.iterdir())
