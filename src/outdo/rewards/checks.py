"""What the tests of a HumanEval problem expect beyond plain results, read from their source.

An exception of the answer reaches the tests only where they name it or one of its bases: code that iterates would
swallow others (`StopIteration` ends a loop over `map(candidate, …)`, `IndexError` one over `__getitem__`, an
`AttributeError` is `hasattr`'s False). NaN and infinity reach them only where they name them: a comparison such as
`not abs(x - y) > eps` holds for NaN, and one relative to the result for infinity.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from outdo.sandbox.values import Opaque

_ENDS_ITERATION = (StopIteration, StopAsyncIteration)
_NAN = {"nan", "isnan", "isfinite"}
_INFINITY = {"inf", "ninf", "infinity", "isinf", "isfinite"}


@dataclass(frozen=True)
class Expected:
    exceptions: frozenset[str]  # names that the tests mention outside of `raise`
    nan: bool
    infinity: bool

    def passes(self, kinds: Sequence[str]) -> list[str]:
        """The classes of an exception that the tests may see, most special first; empty where they expect none."""
        names = [kind.rpartition(".")[2] for kind in kinds]
        if "Exception" not in names or not self.exceptions.intersection(names):
            return []
        ordinary = [kind for kind in kinds if _is_ordinary(kind)]
        return [k for k in kinds if k in ordinary or (k.rpartition(".")[2] in self.exceptions and k not in _RESERVED)]

    def refuses(self, value: Any) -> str:
        """Why the tests may not see a value: it holds NaN or infinity, and they mention none."""
        for number in _numbers(value):
            if number != number and not self.nan:
                return "returned NaN"
            if number in (math.inf, -math.inf) and not self.infinity:
                return "returned infinity"
        return ""


_RESERVED = {f"builtins.{name}" for name in dir(builtins)}


def _is_ordinary(kind: str) -> bool:
    """Whether it is a builtin exception that neither ends iteration nor the process."""
    module, _, name = kind.rpartition(".")
    found = getattr(builtins, name, None) if module == "builtins" else None
    return isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _ENDS_ITERATION)


def _numbers(value: Any) -> Iterable[Any]:
    """Every number of a plain value, whose parts may be in containers."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        elif isinstance(value, Opaque):
            pending.append(value.content)
        elif isinstance(value, complex):
            pending += [value.real, value.imag]
        elif isinstance(value, (float, Decimal)):
            yield value


def has_nan(value: Any) -> bool:
    return any(number != number for number in _numbers(value))


@lru_cache(maxsize=1024)
def expected_by(test: str) -> Expected:
    """What the tests expect; nothing where they are not Python."""
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Expected(frozenset(), nan=False, infinity=False)
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    names, words, nan, infinity = set(), [], False, False
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
        if isinstance(name, str):
            words.append(name)
            names |= set() if id(node) in raised else {name}
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            names.add("Exception")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.append(node.value.strip().lstrip("+-"))  # of float("-inf")
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and math.isinf(node.value):
            infinity = True
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
            nan |= ast.dump(node.left) == ast.dump(node.comparators[0])  # `x != x`
    names |= {"Exception"} if "BaseException" in names else set()
    mentioned = {word.casefold() for word in words}
    return Expected(frozenset(names), nan or bool(mentioned & _NAN), infinity or bool(mentioned & _INFINITY))
