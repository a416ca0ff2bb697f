"""The source of functions of ours as one file that imports nothing of outdo.

A definition is copied as it is written, with all definitions that it needs, from whatever modules of ours they are in.
So a copy decides as the original does. Names that two modules have are told apart by the module's name.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

OWN = "outdo"
Key = tuple[str, str]  # a module, and a name in it
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, *_COMPREHENSIONS)


@dataclass
class Standalone:
    """Definitions in one file, with what they are called there."""

    text: str
    names: dict[Key, str]
    packages: tuple[str, ...]  # beside the standard library
    own: tuple[str, ...] = field(default=())  # modules of ours that it was copied from


@dataclass(frozen=True)
class _Module:
    lines: tuple[str, ...]
    statements: tuple[ast.stmt, ...]
    defined: dict[str, list[int]]  # a name: the statements that bind or change it
    imported: dict[str, Key | str]  # a name: what it is in a module of ours, or the import that binds it


def standalone(wanted: Sequence[Key]) -> Standalone:
    """The source of these definitions and of all that they need."""
    needed = _needed(wanted)
    names = _unique_names(needed)
    imports, blocks = dict[str, None](), []
    for module, places in needed.items():
        source = _parsed(module)
        renamed = _names_in(module, names)
        for place in sorted(places):
            statement = source.statements[place]
            blocks.append(_text_of(source, statement, renamed))
            for name in _globals_of(statement):
                bound = source.imported.get(name)
                if isinstance(bound, str):
                    imports[bound] = None
    lines = sorted(imports, key=lambda line: (line.startswith("from"), line))
    head = "\n".join(lines)
    return Standalone("\n\n\n".join(filter(None, [head, *blocks])) + "\n", names, _packages(lines), tuple(needed))


def _needed(wanted: Sequence[Key]) -> dict[str, set[int]]:
    """The statements to copy, by module; a module comes after those that it imports from."""
    queue, seen = list(wanted), set[Key]()
    places: dict[str, set[int]] = defaultdict(set)
    arrows: dict[str, set[str]] = defaultdict(set)
    while queue:
        key = queue.pop()
        if key in seen:
            continue
        seen.add(key)
        module, name = key
        source = _parsed(module)
        bound = source.imported.get(name)
        if isinstance(bound, tuple):
            arrows[module].add(bound[0])
            queue.append(bound)
            places.setdefault(module, set())
            continue
        for place in source.defined[name]:
            if place in places[module]:
                continue
            places[module].add(place)
            for other in _globals_of(source.statements[place]):
                target = source.imported.get(other)
                if isinstance(target, tuple):
                    arrows[module].add(target[0])
                    queue.append(target)
                elif other in source.defined:
                    queue.append((module, other))
    return {module: places[module] for module in _ordered(places, arrows) if places[module]}


def _ordered(modules: dict[str, set[int]], arrows: dict[str, set[str]]) -> list[str]:
    done: dict[str, None] = {}

    def visit(module: str) -> None:
        if module not in done:
            for other in sorted(arrows[module]):
                visit(other)
            done[module] = None

    for module in modules:
        visit(module)
    return list(done)


def _unique_names(needed: dict[str, set[int]]) -> dict[Key, str]:
    """What each definition is called in the one file: its own name where no other has it, and it is no import's."""
    names: dict[Key, str] = {}
    imported = {name for module in needed for name, what in _parsed(module).imported.items() if isinstance(what, str)}
    taken: set[str] = set(imported)
    for module, places in needed.items():
        source = _parsed(module)
        for name, where in source.defined.items():
            if not places.intersection(where):
                continue
            unique = name
            if unique in taken:
                unique = f"{name}_of_{module.rpartition('.')[2]}"
            while unique in taken:
                unique += "_"
            taken.add(unique)
            names[module, name] = unique
    return names


def _names_in(module: str, names: dict[Key, str]) -> dict[str, str]:
    """What the names that a module uses are to be called, where that is another name."""
    source = _parsed(module)
    out = {name: names[module, name] for name in source.defined if (module, name) in names}
    for name, what in source.imported.items():
        if isinstance(what, tuple) and (final := _origin(what)) in names:
            out[name] = names[final]
    return {name: new for name, new in out.items() if name != new}


def _origin(key: Key) -> Key:
    """Where a name is defined, through modules that only pass it on."""
    what = _parsed(key[0]).imported.get(key[1])
    return _origin(what) if isinstance(what, tuple) else key


def _text_of(source: _Module, statement: ast.stmt, renamed: dict[str, str]) -> str:
    """As it is written, with the comments above it; anew, without comments, where names in it change."""
    if renamed.keys() & set(_globals_of(statement)) or any(renamed.get(name) for name in _bound_by(statement)):
        tree = _Renamer(renamed).visit(ast.parse(ast.unparse(statement)))
        return ast.unparse(tree)
    decorators = getattr(statement, "decorator_list", [])
    start = min([statement.lineno, *(one.lineno for one in decorators)]) - 1
    while start and source.lines[start - 1].startswith("#"):
        start -= 1
    return "\n".join(source.lines[start : statement.end_lineno])


class _Renamer(ast.NodeTransformer):
    """Renames globals. A name that is bound in a function is another one."""

    def __init__(self, renamed: dict[str, str]) -> None:
        self.renamed = renamed
        self.local: list[set[str]] = []

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.renamed and not any(node.id in scope for scope in self.local):
            node.id = self.renamed[node.id]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not self.local:
            node.name = self.renamed.get(node.name, node.name)
        if not isinstance(node, (*_SCOPES, ast.ClassDef)):
            return super().generic_visit(node)
        self.local.append(_locals_of(node))
        super().generic_visit(node)
        self.local.pop()
        return node


def _locals_of(scope: ast.AST) -> set[str]:
    """The names that a function or a comprehension binds itself. A class's are reached through it, and hide nothing."""
    if isinstance(scope, ast.ClassDef):
        return set()
    names = set[str]()
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        names |= {arg.arg for arg in ast.walk(scope.args) if isinstance(arg, ast.arg)}
    inside = scope.generators if isinstance(scope, _COMPREHENSIONS) else getattr(scope, "body", [])
    queue = list(inside) if isinstance(inside, list) else [inside]
    while queue:
        node = queue.pop()
        bound = getattr(node, "name", None)  # of a function, a class, an exception, a case
        names |= {bound} if isinstance(bound, str) else set()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, _COMPREHENSIONS):  # `:=` in one binds outside of it
            names |= {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
        elif not isinstance(node, (*_SCOPES, ast.ClassDef)):
            queue += ast.iter_child_nodes(node)
    return names


def _globals_of(statement: ast.stmt) -> list[str]:
    """Every name that a statement may read from its module, in the order of the text."""
    found: dict[str, None] = {}

    def walk(node: ast.AST, local: frozenset[str]) -> None:
        if isinstance(node, ast.Name) and node.id not in local:
            found[node.id] = None
        inner = local | _locals_of(node) if isinstance(node, _SCOPES) else local
        for child in ast.iter_child_nodes(node):
            # decorators, defaults and annotations are read outside; a local of the same name hides none of ours
            walk(child, inner)

    walk(statement, frozenset())
    return list(found)


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):  # NAMES.update(…)
        called = statement.value.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            yield called.value.id


@cache
def _parsed(module: str) -> _Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    statements = tuple(ast.parse(text).body)
    defined: dict[str, list[int]] = defaultdict(list)
    imported: dict[str, Key | str] = {}
    for place, statement in enumerate(statements):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imported |= _imported(statement)
        for name in _bound_by(statement):
            defined[name].append(place)
    return _Module(tuple(text.splitlines()), statements, dict(defined), imported)


def _imported(statement: ast.Import | ast.ImportFrom) -> dict[str, Key | str]:
    out: dict[str, Key | str] = {}
    for alias in statement.names:
        name, given = alias.asname or alias.name, f" as {alias.asname}" if alias.asname else ""
        if isinstance(statement, ast.Import):
            out[name.partition(".")[0]] = f"import {alias.name}{given}"
        elif str(statement.module).partition(".")[0] == OWN:
            out[name] = (str(statement.module), alias.name)
        elif statement.module != "__future__":
            out[name] = f"from {statement.module} import {alias.name}{given}"
    return out


def _packages(lines: Sequence[str]) -> tuple[str, ...]:
    names = {line.split()[1].partition(".")[0] for line in lines}
    return tuple(sorted(names - set(sys.stdlib_module_names)))
