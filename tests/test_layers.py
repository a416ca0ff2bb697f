"""Arrows point one way: the tree's layering, read from the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import outdo

SOURCE = Path(outdo.__file__).parent
ENGINES = {"torch", "transformers", "peft", "vllm", "ray", "tokenizers"}
OURS = {"outdo.learn", "outdo.rollout", "outdo.models", "outdo.api"}

# Which modules each package may import, beside the standard library.
ALLOWED = {
    "algo": {"torch", "outdo.algo", "outdo.types"},
    "types": set(),
    "errors": set(),
    "seeds": set(),
}
NO_ENGINE = (
    "tasks",
    "rewards",
    "sandbox",
    "metrics",
    "evals/estimate",
    "doctor",
    "recipe",
    "runs",
    "sweeps",
    "dash",
    "report",
    "training/loop",
)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names if node.module == "outdo"}
    return found


def files_of(room: str) -> list[Path]:
    path = SOURCE / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def starts(module: str, roots: set[str]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


def test_every_room_is_there() -> None:
    for room in (*ALLOWED, *NO_ENGINE):
        assert files_of(room), room
        assert all(path.exists() for path in files_of(room)), room


def test_the_maths_knows_torch_and_types_only() -> None:
    for room, allowed in ALLOWED.items():
        for path in files_of(room):
            foreign = {m for m in imports_of(path) if starts(m, ENGINES | {"outdo"}) and not starts(m, allowed)}
            assert not foreign, f"{path.name} imports {foreign}"


def test_tasks_grades_and_tracks_import_no_engine() -> None:
    for room in NO_ENGINE:
        for path in files_of(room):
            engines = {m for m in imports_of(path) if starts(m, ENGINES | OURS)}
            assert not engines, f"{path.relative_to(SOURCE)} imports {engines}"


def test_only_the_command_line_imports_the_command_line() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.name != "__main__.py" and path.parent.name != "cli":
            assert not any(starts(module, {"outdo.cli"}) for module in imports_of(path)), path.name


def test_files_stay_small() -> None:
    long = {path.name: n for path in SOURCE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 400}
    assert not long
