"""What the page's own files promise: nothing from elsewhere, no markup from text, small modules that fit together."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

WEB, CHARTS = (Path(str(files(f"outdo.{name}") / "web")) for name in ("dash", "report"))
MODULES = sorted([*WEB.glob("*.js"), *CHARTS.glob("*.js")])
PATHS = {path.name: path for path in MODULES}
SHEETS = sorted(WEB.glob("*.css"))


@pytest.mark.parametrize("path", [*MODULES, *SHEETS, WEB / "index.html"], ids=lambda path: path.name)
def test_small_files_without_foreign_addresses(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 350
    assert max(map(len, lines)) <= 120
    elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text())) - {"http://www.w3.org/2000/svg"}
    assert not elsewhere


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_markup_from_text(path: Path) -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser|javascript:"
    assert not re.findall(ways, path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_imports_exist_and_are_used(path: Path) -> None:
    for names, module in re.findall(r"import \{([^}]*)\} from \"\./([\w.]+)\"", path.read_text()):
        exported = PATHS[module].read_text()
        for name in names.split(","):
            is_there = (
                rf"export (?:async )?(?:function|const|class) {name.strip()}\b|export \{{[^}}]*\b{name.strip()}\b"
            )
            assert re.search(is_there, exported), f"{path.name} wants {name.strip()} of {module}"
            uses = len(re.findall(rf"\b{name.strip()}\b", path.read_text()))
            assert uses > 1, f"{path.name} does not use {name.strip()}"


def test_no_inline_script_or_style() -> None:
    document = (WEB / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", document)
    for name in re.findall(r"(?:src|href)=\"/static/([^\"]+)\"", document):
        assert (WEB / name).is_file(), name


def test_chart_scripts_can_be_embedded() -> None:
    """A report carries these three in itself, in this order, without their import and export words."""
    parts = [(CHARTS / name).read_text() for name in ("scale.js", "draw.js", "chart.js")]
    wanted = {name for part in parts for name in re.findall(r"from \"\./([\w.]+)\"", part)}
    assert wanted <= {"scale.js", "draw.js"}
    names = [
        name for part in parts for name in re.findall(r"^(?:export )?(?:function|const) (\w+)", part, re.MULTILINE)
    ]
    assert sorted(names) == sorted(set(names)), "two of the three use one name"
