"""Checks the syntax of ECMAScript's regular expressions, and how large one becomes when it is compiled.

    pattern_size("a{2,3}|b")  # 4

A library may unroll counted repeats: a few characters can take gigabytes. So patterns are measured before they are
compiled, and those of an answer are never compiled. The check is linear in the pattern. It reads the syntax of the `u`
flag, but accepts a lone `]`, `{` and `}`. Not covered: whether a property of `\\p{…}` or a group of `\\k<…>` exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEPTH = 100  # nested groups
_GROUP = re.compile(r"\((?:\?(?::|=|!|<=|<!|<[A-Za-z_$][\w$]*>)|(?!\?))")
_ESCAPE = re.compile(
    r"\\(?:[dDwWsSbBtnvfr0]|[1-9][0-9]*|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|"
    r"[pP]\{[A-Za-z_=0-9]+\}|k<[A-Za-z_$][\w$]*>|[^A-Za-z0-9])",
    re.DOTALL,
)
_RANGE = re.compile(r"(\\.|[^\\\]])-(\\.|[^\\\]])", re.DOTALL)
_QUANTIFIER = re.compile(r"(?:[*+?]|\{([0-9]+)(?:,([0-9]*))?\})\??")
_LOOKAROUND = ("(?<=", "(?<!")


@dataclass
class _Group:
    """An open group, or the pattern itself."""

    opening: str
    size: int = 0
    last: int | None = None  # size of the atom that a quantifier may follow


def pattern_size(pattern: str) -> int:
    """How many characters a pattern matches at most, with `*` and `+` once: what a library may unroll it to. Raises
    ValueError where it is not a pattern."""
    groups = [_Group("")]
    at = 0
    while at < len(pattern):
        group, char = groups[-1], pattern[at]
        if char == "(":
            match = _GROUP.match(pattern, at)
            if match is None or len(groups) > MAX_DEPTH:
                raise ValueError(f"invalid group, or groups nested deeper than {MAX_DEPTH}")
            groups.append(_Group(match[0]))
            at = match.end()
        elif char == ")":
            if len(groups) == 1:
                raise ValueError("an unopened group")
            closed = groups.pop()
            groups[-1].size += closed.size
            groups[-1].last = None if closed.opening in _LOOKAROUND else closed.size
            at += 1
        elif (quantifier := _QUANTIFIER.match(pattern, at)) is not None:
            if group.last is None:
                raise ValueError("nothing to repeat")
            group.size += group.last * (_times(quantifier) - 1)
            group.last = None
            at = quantifier.end()
        else:
            at = _atom(pattern, at)
            group.last = None if char in "|^$" else 1
            group.size += 1
    if len(groups) > 1:
        raise ValueError("an unclosed group")
    return groups[0].size


def _times(quantifier: re.Match[str]) -> int:
    low, high = quantifier.groups()
    if low is None:
        return 1
    if max(len(low), len(high or "")) > 9:
        raise ValueError("a repeat of too many times")
    if high and int(high) < int(low):
        raise ValueError("a repeat out of order")
    return max(int(low), int(high or 0), 1)


def _atom(pattern: str, at: int) -> int:
    """Where the atom that starts here ends."""
    if pattern[at] == "\\":
        return _escape(pattern, at)
    if pattern[at] != "[":
        return at + 1
    end = at + 1 + pattern.startswith("^", at + 1)
    start = end
    while end < len(pattern) and pattern[end] != "]":
        end = _escape(pattern, end) if pattern[end] == "\\" else end + 1
    if end >= len(pattern):
        raise ValueError("an unclosed class")
    for low, high in _RANGE.findall(pattern[start:end]):
        if len(low) == len(high) == 1 and low > high:
            raise ValueError("a range out of order")
    return end + 1


def _escape(pattern: str, at: int) -> int:
    match = _ESCAPE.match(pattern, at)
    if match is None:
        raise ValueError(f"invalid escape {pattern[at : at + 2]!r}")
    return match.end()
