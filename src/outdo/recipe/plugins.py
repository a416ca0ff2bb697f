"""Resolves a name: a built-in, `package.module:function`, `path/to/file.py:function`, or an entry point."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path
from typing import Any

from outdo.errors import did_you_mean, no_such_file

ALTERNATIVES = {"outdo.tasks": "a data file that ends in .jsonl, .json, .csv or .parquet, "}  # to a function, by group

VERIFIERS = "verifiers:"  # what names of that library's tasksets begin with: the rest is a name, or a path


def find(name: str, builtin: Mapping[str, Any], group: str, error: type[Exception]) -> Any:
    """The object of that name. Raises `error` if there is none."""
    if name in builtin:
        return builtin[name]
    if ":" in name:
        return _load(name, error)
    if name.endswith(".py"):
        raise error(_message_no_function(Path(name)))
    for entry in entry_points(group=group):
        if entry.name == name:
            with _importing(name, entry.value, error):
                return entry.load()
    meant = did_you_mean(name, builtin, "did you mean {!r}? ")
    raise error(
        f"unknown name {name!r}: {meant}Built-in names are {', '.join(sorted(builtin))}; "
        f"for your own, give {ALTERNATIVES.get(group, '')}path/to/file.py:function or package.module:function"
    )


def absolute_name(name: str) -> str:
    """The name with an absolute path, for a process in another working directory."""
    path, colon, attribute = (local_name(name) or name).rpartition(":")
    return f"{Path(path).resolve()}:{attribute}" if colon and path.endswith(".py") else name


def local_name(name: str, folder: Path = Path()) -> str | None:
    """The name by file of a function in a folder: of `rewards.py:strict`, or of the module `rewards:strict`. None where
    the folder has no such file."""
    if name.startswith(VERIFIERS):
        path = folder / name.removeprefix(VERIFIERS)
        return f"{VERIFIERS}{path}" if path.suffix == ".py" and path.is_file() else None
    where, colon, attribute = name.rpartition(":")
    if not colon or not where:
        return None
    if where.endswith(".py"):
        path = folder / where
        return f"{path}:{attribute}" if path.is_file() else None
    if not all(part.isidentifier() for part in where.split(".")):
        return None
    stem = folder.joinpath(*where.split("."))
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((f"{path}:{attribute}" for path in files if path.is_file()), None)


def file_of(name: str) -> Path | None:
    """The file of a function, or of a taskset, in the working folder."""
    if (local := local_name(name)) is None:
        return None
    return Path(local.removeprefix(VERIFIERS) if local.startswith(VERIFIERS) else local.rpartition(":")[0])


def _message_no_function(path: Path) -> str:
    """For a file named without a function: the functions that it defines. Parses the file without running it."""
    if not path.is_file():
        return f"{path}: {no_such_file(path)}"
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError, OSError) as error:
        return f"{path}: cannot be parsed as Python: {error}"
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    public = [name for name in defined if not name.startswith("_")]
    if not public:
        return f"{path}: defines no function; write one and give it as {path}:NAME"
    return f"{path}: which function? It has {', '.join(public)}: {path}:{public[0]}"


def _load(name: str, error: type[Exception]) -> Callable[..., Any]:
    where, _, attribute = (local_name(name) or name).rpartition(":")
    with _importing(name, where, error):
        module = _from_file(Path(where), error) if where.endswith(".py") else importlib.import_module(where)
    value = getattr(module, attribute, None)
    if value is None:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise error(f"{name}: {where} has no {attribute!r}{did_you_mean(attribute, public, '; did you mean {!r}?')}")
    return value


@contextmanager
def _importing(name: str, where: str, error: type[Exception]) -> Iterator[None]:
    """The user's module runs in here: whatever it raises is reported as `error`."""
    try:
        yield
    except error:
        raise
    except SystemExit as cause:
        raise error(
            f"{name}: importing {where} calls sys.exit({cause.code!r}): put code that is only for running the file "
            "itself under `if __name__ == '__main__':`"
        ) from cause
    except Exception as cause:
        raise error(f"{name}: importing {where} failed: {type(cause).__name__}: {cause}") from cause


def _from_file(path: Path, error: type[Exception]) -> Any:
    if not path.is_file():
        raise error(f"{path}: {no_such_file(path)}")
    path = path.resolve()
    packages = list(takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
    root = path.parents[len(packages)]
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last: its files can import each other, and hide no installed package
    if packages:  # its relative imports need its package
        parts = [folder.name for folder in reversed(packages)] + [path.stem] * (path.name != "__init__.py")
        return importlib.import_module(".".join(parts))
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
