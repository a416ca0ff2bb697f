"""Finding what a user names: a built-in, `package.module:function`, `path/to/file.py:function`, or an entry point."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from outdo.errors import did_you_mean, no_such_file

YOURS = {"outdo.tasks": "a data file that ends in .jsonl, .json or .parquet, "}  # beside a function


def find(name: str, builtin: Mapping[str, Any], group: str, error: type[Exception]) -> Any:
    """The thing by that name. Raises `error`, saying what was looked for and where."""
    if name in builtin:
        return builtin[name]
    if ":" in name:
        return _load(name, error)
    if name.endswith(".py"):
        raise error(_unnamed(Path(name)))
    for entry in entry_points(group=group):
        if entry.name == name:
            with _importing(name, entry.value, error):
                return entry.load()
    meant = did_you_mean(name, builtin, "did you mean {!r}? ")
    raise error(
        f"{name!r} is not known: {meant}Built in are {', '.join(sorted(builtin))}; "
        f"your own is {YOURS.get(group, '')}path/to/file.py:function or package.module:function"
    )


def from_anywhere(name: str) -> str:
    """The name as a process finds it that was started in another folder."""
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).resolve()}:{attribute}" if colon and path.endswith(".py") else name


def _unnamed(path: Path) -> str:
    """A file without a function: which ones it has, read and not run."""
    if not path.is_file():
        return f"{path}: {no_such_file(path)}"
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError, OSError) as error:
        return f"{path}: cannot be read as Python: {error}"
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = [name for name in defined if not name.startswith("_")]
    if not found:
        return f"{path}: it has no function to name; write one, and name it as {path}:NAME"
    return f"{path}: which function of it? It has {', '.join(found)}: {path}:{found[0]}"


def _load(name: str, error: type[Exception]) -> Callable[..., Any]:
    where, _, attribute = name.rpartition(":")
    with _importing(name, where, error):
        module = _from_file(Path(where), error) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, attribute, None)
    if found is None:
        named = [n for n in vars(module) if not n.startswith("_")]
        raise error(f"{name}: {where} has no {attribute!r}{did_you_mean(attribute, named, '; did you mean {!r}?')}")
    return found


@contextmanager
def _importing(name: str, where: str, error: type[Exception]) -> Iterator[None]:
    """The user's module runs in here: whatever it raises is theirs to read."""
    try:
        yield
    except error:
        raise
    except SystemExit as cause:
        raise error(
            f"{name}: importing {where} ends the program, with sys.exit({cause.code!r}): put what is only for a run of "
            "its own under `if __name__ == '__main__':`"
        ) from cause
    except Exception as cause:
        raise error(f"{name}: importing {where} failed: {type(cause).__name__}: {cause}") from cause


def _from_file(path: Path, error: type[Exception]) -> Any:
    if not path.is_file():
        raise error(f"{path}: {no_such_file(path)}")
    key = f"outdo_plugin_{abs(hash(str(path.resolve())))}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]
