"""HTML from values. Whatever is not `Raw` is text: markup is escaped, control characters are made visible."""

from __future__ import annotations

import html
import re
from typing import Any

VOID = {"meta", "br", "hr", "rect", "polyline", "line", "circle", "polygon"}  # of the elements that are used
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Raw(str):
    """Trusted markup."""

    __slots__ = ()


def visible(text: str) -> str:
    """With control and direction characters as visible text."""
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def escaped(value: Any) -> Raw:
    return value if isinstance(value, Raw) else Raw(html.escape(visible(str(value))))


def el(name: str, /, *children: Any, **attributes: Any) -> Raw:
    """An element. `class_` is class, `data_x` is data-x; None and False omit a child or an attribute."""
    formatted = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"' if value is not True else f" {key}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Raw(f"<{name}{formatted}/>")
    return Raw(f"<{name}{formatted}>{joined(children)}</{name}>")


def joined(children: Any) -> Raw:
    """Children in order, with lists flattened."""
    if isinstance(children, (list, tuple)):
        return Raw("".join(joined(child) for child in children))
    return Raw("") if children is None or children is False else escaped(children)


def table(head: list[str], rows: list[list[Any]], class_: str = "") -> Raw:
    """In a box that scrolls where the window is narrow."""
    top = el("thead", el("tr", [el("th", name, scope="col") for name in head])) if head else None
    body = [el("tr", el("th", row[0], scope="row"), [el("td", cell) for cell in row[1:]]) for row in rows]
    return el("div", el("table", top, el("tbody", body)), class_=f"scroll {class_}".strip())
