"""JSON and YAML of strangers, within limits of depth, size and digits: what exceeds them is refused before it costs
time or memory, with the reason."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_DEPTH = 100  # levels of a nested JSON value
MAX_DIGITS = 300  # of an integer, in JSON; a float has at most 309
MAX_PROMPT_CHARS = 4_000_000  # of all messages together: no model sees more
MAX_YAML_BYTES = 256 << 10
MAX_YAML_DEPTH = 32
MAX_YAML_NODES = 20_000  # with aliases expanded
MAX_YAML_NUMBER = 40  # characters
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_NUMBERS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))

PairsHook = Callable[[list[tuple[str, Any]]], Any]


def parse_json(text: str, pairs_hook: PairsHook | None = None) -> Any:
    """The JSON value. Raises ValueError, with the reason; json.JSONDecodeError where the text is no JSON."""
    parse_int = _short_int if _LONG_NUMBER.search(text) else None
    try:
        value = json.loads(text, parse_int=parse_int, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise ValueError(_DEEP.format(MAX_DEPTH)) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deep(value):
        raise ValueError(_DEEP.format(MAX_DEPTH))
    return value


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins there, perhaps after white space, and where it ends; what follows it is not read.
    Unlike parse_json it refuses NaN and infinite numbers. Raises ValueError as that does."""
    begin = _BLANK.match(text, start)
    try:
        value, end = _DECODER.raw_decode(text, begin.end() if begin else start)
    except RecursionError:
        raise ValueError(_DEEP.format(MAX_DEPTH)) from None
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH and is_deep(value):
        raise ValueError(_DEEP.format(MAX_DEPTH))
    return value, end


_DEEP = "nested too deeply: more than {} levels"
_BLANK = re.compile(r"[ \t\n\r]*")


def is_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether a value of lists and mappings has more levels."""
    layer = [value]
    for _ in range(levels + 1):
        containers = [one for one in layer if isinstance(one, (dict, list))]
        layer = [each for one in containers for each in (one.values() if isinstance(one, dict) else one)]
        if not containers:
            return False
    return True


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits: at most {MAX_DIGITS} are read")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"a number that is too large: {digits:.20}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_int=_short_int, parse_float=_finite, parse_constant=_refuse_constant)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A file's content. Raises ValueError where it is larger, without reading it all; and OSError."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"larger than {max_bytes / 2**20:.2g} MB, the most that is read")
    return data


def parse_yaml(text: str) -> Any:
    """The YAML value; a duplicate key is refused. Raises yaml.YAMLError, and ValueError where a limit is exceeded."""
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"larger than {MAX_YAML_BYTES >> 10} kB, the most that is read")
    try:
        return yaml.load(text, _BoundedLoader)
    except (RecursionError, OverflowError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"cannot be read: {type(error).__name__}") from None


class _BoundedLoader(yaml.SafeLoader):
    """Counts nodes as they are composed. An alias counts as all that it stands for, so that none can multiply."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.depth, self.total = 0, 0
        self.sizes: dict[int, int] = {}  # of complete nodes, by identity

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self.sizes:
                raise ValueError("an alias that contains itself")
            self._count(self.sizes[id(node)])
            return node
        self.depth += 1
        if self.depth > MAX_YAML_DEPTH:
            raise ValueError(_DEEP.format(MAX_YAML_DEPTH))
        before = self.total
        self._count(1)
        node = super().compose_node(parent, index)
        self.depth -= 1
        self.sizes[id(node)] = self.total - before
        return node

    def _count(self, nodes: int) -> None:
        self.total += nodes
        if self.total > MAX_YAML_NODES:
            raise ValueError(f"more than {MAX_YAML_NODES:,} values, aliases expanded")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_YAML_NUMBER:
            line = node.start_mark.line + 1
            raise ValueError(f"line {line}: a number of {len(node.value):,} characters: at most {MAX_YAML_NUMBER}")
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuses a duplicate key, where YAML would silently keep the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)
