"""The package graph, read from the imports: `make graph` prints it, tests/test_layers.py holds it.

Every import counts, also one inside a function. A package is a folder of src/outdo, or one of its top-level modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "outdo"

# Lowest first: a package imports from its own layer's left and from the layers below.
LAYERS = (
    ("types", "errors", "seeds", "untrusted", "web", "host"),
    ("recipe",),
    ("runs",),
    ("algo", "sandbox", "parallel"),
    ("models",),
    ("metrics", "tasks"),
    ("rewards", "learn", "envs"),
    ("rollout",),
    ("serve", "doctor", "evals"),
    ("report",),
    ("training",),
    ("api",),
    ("bridges",),
    ("sweeps", "drills", "dash"),
    ("cli",),
)
EVERYWHERE = ("__init__", "__main__")  # names only, resolved when they are used


def package_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    names = {}
    for path in sorted(SOURCE.rglob("*.py")):
        dotted = ".".join(("outdo", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        names[dotted] = path
    return names


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function; not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_graph() -> dict[str, set[str]]:
    """Which packages each package imports directly."""
    known = modules()
    graph: dict[str, set[str]] = {package_of(path): set() for path in known.values()}
    for path in known.values():
        own = package_of(path)
        targets = {package_of(known[name]) for name in imports_of(path) if name in known}
        graph[own] |= targets - {own, *EVERYWHERE}
    return {name: targets for name, targets in graph.items() if name not in EVERYWHERE}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that a package imports, directly or not."""
    seen: set[str] = set()
    queue = [start]
    while queue:
        for target in graph[queue.pop()] - seen:
            seen.add(target)
            queue.append(target)
    return seen


def rank() -> dict[str, tuple[int, int]]:
    return {name: (i, j) for i, layer in enumerate(LAYERS) for j, name in enumerate(layer)}


def main() -> None:
    graph = package_graph()
    for layer in reversed(LAYERS):
        for name in reversed(layer):
            print(f"{name:<9} -> {', '.join(sorted(graph[name], key=lambda one: rank()[one], reverse=True)) or '-'}")


if __name__ == "__main__":
    main()
