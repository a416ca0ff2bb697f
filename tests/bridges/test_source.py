"""Copying definitions out of modules of ours: what is needed comes along, and names that collide are told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outdo.bridges.convert import source

LOW = '''
"""One module."""
import re
from functools import partial as bind

_WORD = re.compile("[a-z]+")
_UNUSED = 1 / 3
NAMES = {"a": 1}
NAMES.update(b=2)


class Base:
    _WORD = "of the class"

    def word(self, text):
        return _WORD.findall(text)


# what it does
def helper(text, _WORD=None):  # the parameter hides the pattern
    return _WORD or bind(len, text)()
'''
HIGH = """
from outdo.low import NAMES, Base, helper as help_with

_WORD = "high"


class Derived(Base):
    def both(self, text):
        return [_WORD, *self.word(text)]


def used(text):
    def inner():
        _WORD = "inner"
        return _WORD

    return {"words": Derived().both(text), "all": [_WORD for _WORD in "ab"], "inner": inner(), "own": _WORD,
            "help": help_with(text), "names": NAMES, "f": f"{_WORD}!"}
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules in place of ours."""
    for name, text in (("low", LOW), ("high", HIGH)):
        (tmp_path / f"{name}.py").write_text(text)
    parsed = source._parsed.__wrapped__

    class Spec:
        def __init__(self, origin: Path) -> None:
            self.origin = str(origin)

    def find(module: str) -> Spec:
        return Spec(tmp_path / f"{module.rpartition('.')[2]}.py")

    monkeypatch.setattr(source.importlib.util, "find_spec", find)
    monkeypatch.setattr(source, "_parsed", parsed)


def test_what_is_needed_comes_along() -> None:
    copied = source.standalone([("outdo.high", "used")])
    assert "_UNUSED" not in copied.text and "# what it does" in copied.text
    assert copied.names["outdo.low", "_WORD"] == "_WORD" and copied.names["outdo.high", "_WORD"] == "_WORD_of_high"
    assert copied.own == ("outdo.low", "outdo.high") and copied.packages == ()
    module: dict[str, object] = {}
    exec(copied.text, module)
    assert module["used"]("one 2") == {  # type: ignore[operator]
        "words": ["high", "one"],
        "all": ["a", "b"],
        "inner": "inner",
        "own": "high",
        "help": 5,
        "names": {"a": 1, "b": 2},
        "f": "high!",
    }


def test_packages_beside_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "low.py").write_text(
        "import json\nimport numpy as np\n\n\ndef mean(x):\n    return np.mean(json.loads(x))\n"
    )
    copied = source.standalone([("outdo.low", "mean")])
    assert copied.packages == ("numpy",) and copied.text.startswith("import json\nimport numpy as np\n\n\ndef mean")
    assert "numpy" not in sys.stdlib_module_names
