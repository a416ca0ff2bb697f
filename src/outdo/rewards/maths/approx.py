"""The value of a formula in floating point, at given places: enough to see that two formulas differ."""

from __future__ import annotations

import cmath
import hashlib
import math
from collections.abc import Callable

from outdo.rewards.maths.tree import Node

NUM_PLACES = 3
_DIFFERENT = 1e-5  # relative; below it they may be the same number, rounded

_FUNCTIONS: dict[str, Callable[..., complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{f"arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
    **{"sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x), "cot": lambda x: 1 / cmath.tan(x)},
    **{"ln": cmath.log, "log": lambda x, base=10: cmath.log(x) / cmath.log(base), "lg": cmath.log10, "abs": abs},
}
_CONSTANTS = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


def differ(gold: Node, node: Node) -> bool:
    """Whether the values certainly differ; False where that cannot be seen here."""
    for place in range(NUM_PLACES):
        x, y = approximate(gold, place), approximate(node, place)
        if x is not None and y is not None and abs(x - y) > _DIFFERENT * max(abs(x), abs(y)):
            return True
    return False


def approximate(node: Node, place: int = 0) -> complex | None:
    """The value where each symbol has a value that depends on its name and on `place`; None where there is none."""
    try:
        value = _value(node, place)
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if cmath.isfinite(value) else None


def _value(node: Node, place: int) -> complex:
    if node.value is not None:
        return complex(float(node.value))
    if node.op == "const":
        return _CONSTANTS[node.name]
    if node.op in ("sym", "sub", "accent"):
        digest = hashlib.sha256(repr((node.key, place)).encode()).digest()
        return complex(0.5 + digest[0] / 97 + digest[1] / 7919)
    if node.op == "fn" and node.name not in _FUNCTIONS:
        raise KeyError(node.name)
    values = [_value(arg, place) for arg in node.args]
    if node.op == "fn":
        return complex(_FUNCTIONS[node.name](*values))
    return _OPERATIONS[node.op](*values)


def _root(x: complex, index: complex) -> complex:
    if x.imag == 0 and x.real < 0 and index.real % 2 == 1:
        return complex(-((-x.real) ** (1 / index.real)))
    return complex(x ** (1 / index))


_OPERATIONS: dict[str, Callable[..., complex]] = {
    "add": lambda *values: sum(values),
    "mul": lambda *values: math.prod(values),
    "neg": lambda x: -x,
    "div": lambda x, y: x / y,
    "mixed": lambda x, y: x + y,
    "percent": lambda x: x / 100,
    "pow": lambda x, y: x**y,
    "root": _root,
    "degree": lambda x: x * math.pi / 180,
}
