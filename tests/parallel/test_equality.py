"""Several processes compute what one does: statistics of every step, and all weights after some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.basics import ROOT
from support.launches import torchrun
from support.rank_cases import CASES, make_families, run_all

TOLERANCE = 1e-5
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    make_families(folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Results]:
    """What one process gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run_all(folder, "none")
    torch.set_num_threads(threads)


def check(folder: Path, alone: Results, size: int, *shardings: str) -> None:
    status, printed = torchrun(size, str(ROOT / "tests/support/rank_cases.py"), str(folder), *shardings, cwd=folder)
    assert status == 0, printed
    for sharding in shardings:
        for rank in range(size):
            several = torch.load(folder / f"{sharding}-{size}-rank-{rank}.pt", weights_only=True)
            for name in CASES:
                where = f"{name}, sharding={sharding}, process {rank} of {size}"
                assert_equal(alone[name], several[name], where)


def assert_equal(one: dict[str, Any], other: dict[str, Any], where: str) -> None:
    for step, (mine, theirs) in enumerate(zip(one["rows"], other["rows"], strict=True)):
        assert mine.keys() == theirs.keys(), where
        for key, value in mine.items():
            assert theirs[key] == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE), f"{where}: {key} at step {step}"
    assert one["weights"].keys() == other["weights"].keys(), where
    for name, value in one["weights"].items():
        difference = float((other["weights"][name] - value).abs().max())
        assert difference < TOLERANCE, f"{where}: {name} differs by {difference:.1e}"


def test_two(folder: Path, alone: Results) -> None:
    check(folder, alone, 2, "none", "grads", "full")


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_more(folder: Path, alone: Results, size: int) -> None:
    check(folder, alone, size, "none", "grads", "full")


@pytest.mark.slow
def test_replicas_of_shards(folder: Path, alone: Results) -> None:
    check(folder, alone, 4, "grads+replicas", "full+replicas")


@pytest.mark.slow
def test_kept_on_the_host(folder: Path, alone: Results) -> None:
    check(folder, alone, 2, "grads+offload", "full+offload")


def test_one_process_under_fsdp(folder: Path, alone: Results) -> None:
    """FSDP2 in a single process gives what the plain path does."""
    check(folder, alone, 1, "full")


def test_the_cases_learn(alone: Results) -> None:
    """A comparison of runs in which nothing happens would compare nothing."""
    for name, case in CASES.items():
        norms = [row["grad_norm"] for row in alone[name]["rows"]]
        assert (max(norms) > 1e-3) == any(map(case.spread, range(case.groups))) or case.sft, name
