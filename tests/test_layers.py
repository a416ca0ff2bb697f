"""Arrows point one way: the package graph, computed from the imports themselves."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.graph import SOURCE, imports_of, modules, package_graph, rank, reachable

ENGINES = ("torch", "transformers", "peft", "vllm", "ray", "tokenizers")
# Packages that must work without an engine: they import none, directly or through what they import.
NO_ENGINE = (
    "types",
    "errors",
    "seeds",
    "recipe",
    "host",
    "runs",
    "sandbox",
    "metrics",
    "tasks",
    "rewards",
    "doctor",
)
RUN_FILES = re.compile(r"\"(run\.json|metrics\.jsonl|evals\.jsonl|sft\.jsonl|findings\.jsonl)\"")
MAX_LINES = 400


def test_every_package_has_a_layer() -> None:
    assert set(package_graph()) == set(rank())


def test_imports_point_down() -> None:
    order = rank()
    upward = {
        f"{name} -> {target}"
        for name, targets in package_graph().items()
        for target in targets
        if order[target] > order[name]
    }
    assert not upward


def test_no_cycles() -> None:
    graph = package_graph()
    assert not [name for name in graph if name in reachable(graph, name)]


def test_no_engine_where_none_is_needed() -> None:
    graph, known = package_graph(), modules()
    for package in NO_ENGINE:
        for name in {package} | reachable(graph, package):
            paths = [path for module, path in known.items() if module.split(".")[1:2] == [name]]
            engines = {one for path in paths for one in imports_of(path) if one.split(".")[0] in ENGINES}
            assert not engines, f"{package} imports {engines} through {name}"


def test_the_maths_knows_torch_and_types_only() -> None:
    assert package_graph()["algo"] == {"types"}
    for module, path in modules().items():
        if module.startswith("outdo.algo"):
            assert not {one for one in imports_of(path) if one.split(".")[0] in ENGINES[1:]}, module


def test_only_runs_knows_the_names_of_a_runs_files() -> None:
    others = [path for path in SOURCE.rglob("*.py") if path.parent.name != "runs"]
    assert not [path.relative_to(SOURCE) for path in others if RUN_FILES.search(path.read_text())]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("outdo.api", ("outdo.dash", "fastapi", "matplotlib")),
        ("outdo.cli", ("torch", "transformers", "outdo.dash.app")),
    ],
)
def test_import_stays_light(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith({unwanted!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_small() -> None:
    counts = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert not {name: count for name, count in counts.items() if count > MAX_LINES}
