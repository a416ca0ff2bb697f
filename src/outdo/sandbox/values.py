"""Values beyond Python's plain ones, as tagged JSON: what a function may also return. Standard library only.

Runs inside the sandbox (`inside.py` imports it when it meets such a value) and outside. A value crosses as its data,
never as its class: a subclass that lies about itself arrives as what it holds. An iterator arrives exhausted. An object
of the code's own class arrives as an instance of the class of that name in the code of the prompt, else as a record of
its attributes, which equals only another record.

Outside (`plain`) there is no class at all: a Counter is a dict, a named tuple is a tuple, a deque is a list.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_ITEMS = 10_000  # read from an iterator
MAX_DIGITS = 10_000  # of a Fraction or Decimal
OWN_MODULES = ("answer", "check")  # where the code that is run lives
FACTORIES = {kind.__name__: kind for kind in (int, float, str, list, tuple, dict, set, bool)}
DATES = {  # class -> its attributes, in the order of its constructor
    "date": ("year", "month", "day"),
    "time": ("hour", "minute", "second", "microsecond"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
}


class Opaque:
    """A value that equals no plain one; `content` is its data."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Record:
    """An object's attributes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        same_class = isinstance(other, Record) and type(other).__name__ == type(self).__name__
        return same_class and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class NotANumber(float):
    """NaN for tests that expect one: whoever orders it fails, rather than getting False."""

    def _itself(self, *others: object) -> NotANumber:
        return self

    def _refuse(self, other: object) -> bool:
        raise AssertionError("NaN is neither less nor greater")

    __abs__ = __neg__ = __pos__ = __add__ = __radd__ = __sub__ = __rsub__ = _itself
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _itself
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


def marked(data: Any) -> Any:
    """Encoded data with every NaN as `NotANumber`."""
    if isinstance(data, list):
        return [marked(item) for item in data]
    if isinstance(data, dict):
        return {key: marked(item) for key, item in data.items()}
    return NotANumber("nan") if isinstance(data, float) and data != data else data


def write(value: Any, encode: Callable[[Any], str]) -> str:
    """Such a value as JSON. Raises TypeError for a value that cannot cross."""
    kind = type(value)
    names = [(base.__module__, base.__qualname__) for base in kind.__mro__]
    if ("enum", "Enum") in names:
        is_plain = isinstance(value, (int, str))
        plain = int.__int__(value) if isinstance(value, int) else str.__str__(value) if is_plain else value.value
        return f'{{"E":{encode([kind.__name__, value.name, plain, is_plain])}}}'
    for name in names:
        if name in _WRITERS:
            tag, content = _WRITERS[name](value)
            return f'{{"{tag}":{encode(content)}}}' if tag else encode(content)
    if hasattr(kind, "__next__"):
        from itertools import islice

        items = list(islice(value, MAX_ITEMS + 1))
        return f'{{"y":{encode([items[:MAX_ITEMS], len(items) > MAX_ITEMS])}}}'
    if kind.__module__ in OWN_MODULES:
        return f'{{"o":{encode([kind.__name__, _fields(value)])}}}'
    raise TypeError(f"a {kind.__name__} is not a plain value")


def _fields(value: Any) -> list[list[Any]]:
    slots = [name for base in type(value).__mro__ for name in (base.__dict__.get("__slots__") or ())]
    fields = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return [list(item) for item in {**fields, **getattr(value, "__dict__", {})}.items()]


def _pairs(value: Any) -> list[list[Any]]:
    return [list(item) for item in dict.items(value)]


def _tuple(value: Any) -> tuple[str, Any]:
    items, fields = tuple.__getitem__(value, slice(None)), getattr(type(value), "_fields", ())
    is_named = type(fields) is tuple and len(fields) == len(items)
    return ("n", [type(value).__name__, list(fields), list(items)]) if is_named else ("", items)


def _defaultdict(value: Any) -> tuple[str, Any]:
    factory = getattr(value.default_factory, "__name__", None)
    return "D", [factory if factory in FACTORIES else None, _pairs(value)]


def _date(value: Any) -> tuple[str, Any]:
    name = next(base.__name__ for base in type(value).__mro__ if base.__name__ in DATES)
    if getattr(value, "tzinfo", None) is not None:
        raise TypeError("a time with a time zone is not a plain value")
    return "T", [name, [getattr(value, attribute) for attribute in DATES[name]]]


# By module and name, so that nothing is imported: the value, as a tag and content that can be encoded.
_WRITERS: dict[tuple[str, str], Callable[[Any], tuple[str, Any]]] = {
    ("collections", "Counter"): lambda value: ("C", _pairs(value)),
    ("collections", "OrderedDict"): lambda value: ("O", _pairs(value)),
    ("collections", "defaultdict"): _defaultdict,
    ("collections", "deque"): lambda value: ("q", list(value)),
    ("fractions", "Fraction"): lambda value: ("F", [int(value.numerator), int(value.denominator)]),
    ("decimal", "Decimal"): lambda value: ("X", str(value)),
    **{("datetime", name): _date for name in DATES},
    ("builtins", "int"): lambda value: ("", int.__int__(value)),
    ("builtins", "float"): lambda value: ("", float.__float__(value)),
    ("builtins", "str"): lambda value: ("", str.__str__(value)),
    ("builtins", "bytes"): lambda value: ("", bytes.__getitem__(value, slice(None))),
    ("builtins", "bytearray"): lambda value: ("B", bytes(value)),
    ("builtins", "list"): lambda value: ("", list.__getitem__(value, slice(None))),
    ("builtins", "tuple"): _tuple,
    ("builtins", "dict"): lambda value: ("", dict(dict.items(value))),
    ("builtins", "set"): lambda value: ("", set(set.__iter__(value))),
    ("builtins", "frozenset"): lambda value: ("", frozenset(frozenset.__iter__(value))),
    ("builtins", "range"): lambda value: ("r", [value.start, value.stop, value.step]),
    ("builtins", "dict_keys"): lambda value: ("k", list(value)),
    ("builtins", "dict_values"): lambda value: ("v", list(value)),
    ("builtins", "dict_items"): lambda value: ("j", list(value)),
}


def restore(tag: str, content: Any, decode: Callable[[Any], Any], classes: dict[str, Any]) -> Any:
    """The value again, inside the sandbox. `classes` are those of the prompt's code, by name."""
    if tag == "o":
        return _object(content[0], {key: decode(item) for key, item in content[1]}, classes)
    if tag == "E":
        name, member, value, is_plain = (decode(item) for item in content)
        members = getattr(classes.get(name), "__members__", {})
        if member in members:
            return members[member]
        return value if is_plain else _object(name, {"name": member, "value": value}, {})
    return _RESTORERS[tag](decode(content))


def _object(name: str, fields: dict[str, Any], classes: dict[str, Any]) -> Any:
    if not isinstance(classes.get(name), type):
        return type(name, (Record,), {})(fields)
    value = object.__new__(classes[name])
    for key, item in fields.items():
        object.__setattr__(value, key, item)
    return value


def _items(items: list[Any], is_cut: bool) -> Any:
    yield from items
    if is_cut:
        raise RuntimeError(f"only the first {MAX_ITEMS} values of an iterator were read")


def _collection(name: str) -> Any:
    import collections

    return getattr(collections, name)


def _dated(content: list[Any]) -> Any:
    import datetime

    return getattr(datetime, {name: name for name in DATES}[content[0]])(*content[1])


def _number(module: str, name: str, *args: Any) -> Any:
    return getattr(__import__(module), name)(*args)


_RESTORERS: dict[str, Callable[[Any], Any]] = {
    "C": lambda pairs: _collection("Counter")(dict(pairs)),
    "O": lambda pairs: _collection("OrderedDict")(dict(pairs)),
    "D": lambda content: _collection("defaultdict")(FACTORIES.get(content[0]), content[1]),
    "n": lambda content: _collection("namedtuple")(content[0], content[1])(*content[2]),
    "q": lambda items: _collection("deque")([*items]),
    "F": lambda content: _number("fractions", "Fraction", *content),
    "X": lambda text: _number("decimal", "Decimal", text),
    "B": bytearray,
    "T": _dated,
    "r": lambda content: range(*content),
    "k": lambda items: dict.fromkeys(items).keys(),
    "v": lambda items: dict(enumerate(items)).values(),
    "j": lambda items: dict(items).items(),
    "y": lambda content: _items(*content),
}


def plain(tag: str, content: Any, decode: Callable[[Any], Any]) -> Any:
    """The nearest plain value, outside the sandbox. Raises ValueError or TypeError where the content is not valid."""
    if tag in ("C", "O"):
        return decode({"d": content})
    if tag == "D":
        return decode({"d": content[1]})
    if tag == "n":
        name, fields, items = content
        if not all(type(word) is str and word.isidentifier() and word[0] != "_" for word in (name, *fields)):
            raise ValueError("not the names of a named tuple")
        return tuple(decode(item) for item in items)
    if tag == "E":
        return decode(content[2]) if content[3] is True else Opaque(decode(content))
    if tag in ("q", "B"):
        return decode(content)
    if tag in ("F", "X"):
        return _plain_number(tag, content)
    if tag == "o":
        return Opaque([decode(item) for _, item in content[1]])
    if tag in _RESTORERS:
        return Opaque(decode(content))
    raise ValueError(f"unknown tag {tag!r:.20}")


def _plain_number(tag: str, content: Any) -> Any:
    """Limited in length: arithmetic with longer ones takes minutes."""
    from decimal import Decimal, DecimalException
    from fractions import Fraction

    parts = content if tag == "F" else [content]
    if tag == "F" and not all(type(part) is int and part.bit_length() < MAX_DIGITS for part in parts):
        raise ValueError("not a fraction")
    if tag == "X" and not (type(content) is str and len(content) < MAX_DIGITS):
        raise ValueError("not a decimal number")
    try:
        number: Any = Fraction(*parts) if tag == "F" else Decimal(content)
    except (DecimalException, ZeroDivisionError):
        raise ValueError("not a number") from None
    if tag == "X" and number.is_snan():
        raise ValueError("not a decimal number")
    return number
