"""HTML from values. Whatever is no `Raw` is text, and is shown as text: markup, control signs and all."""

from __future__ import annotations

import html
import re
from typing import Any

VOID = {"meta", "br", "hr", "rect", "polyline", "line", "circle", "polygon"}  # of those that are used here
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Raw(str):
    """Markup that is ours."""

    __slots__ = ()


def visible(text: str) -> str:
    """Signs that steer a terminal or turn the direction of writing, as signs that can be seen."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def escaped(value: Any) -> Raw:
    return value if isinstance(value, Raw) else Raw(html.escape(visible(str(value))))


def el(name: str, /, *children: Any, **attributes: Any) -> Raw:
    """An element. `class_` is class, `data_x` is data-x; None and False leave a child or an attribute out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"' if value is not True else f" {key}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Raw(f"<{name}{told}/>")
    return Raw(f"<{name}{told}>{joined(children)}</{name}>")


def joined(children: Any) -> Raw:
    """Children one after the other; lists among them are taken apart."""
    if isinstance(children, (list, tuple)):
        return Raw("".join(joined(child) for child in children))
    return Raw("") if children is None or children is False else escaped(children)


def table(head: list[str], rows: list[list[Any]], class_: str = "") -> Raw:
    """In a box that scrolls by itself where the window is narrow."""
    top = el("thead", el("tr", [el("th", name, scope="col") for name in head])) if head else None
    body = el("tbody", [el("tr", [_cell(i, cell) for i, cell in enumerate(row)]) for row in rows])
    return el("div", el("table", top, body), class_=f"scroll {class_}".strip())


def _cell(index: int, cell: Any) -> Raw:
    return el("th", cell, scope="row") if index == 0 else el("td", cell)
