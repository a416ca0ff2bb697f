"""Functions by name: of a module in the working folder, of a file, of a package, and beside the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from outdo.errors import GraderError
from outdo.recipe import plugins
from outdo.recipe.load import load_recipe
from outdo.recipe.trust import code_refs
from outdo.rewards.compose import find_rewards, grade
from outdo.types import Group, Prompt, Trajectory

CODE = (
    "from {module} import paid\ndef strict(completions, **columns):\n    return [paid(text) for text in completions]\n"
)
PAID = "def paid(text):\n    return float(text == 'yes')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module, and a package beside a recipe elsewhere."""
    place, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    package = elsewhere / "outdo_test_package"
    package.mkdir(parents=True)
    place.mkdir()
    (place / "outdo_test_rewards.py").write_text(CODE.format(module="outdo_test_paid"))
    (place / "outdo_test_paid.py").write_text(PAID)
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text(CODE.format(module=".paid"))
    (package / "paid.py").write_text(PAID)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(tmp_path / "none"))  # restores sys.path afterwards
    return place


def graded(name: str) -> list[float | None]:
    """By a worker process, as in training."""
    answers = tuple(Trajectory.single((), (), text, "stop", 0) for text in ("yes", "no"))
    group = Group(Prompt("a", ({"role": "user", "content": "?"},), "yes"), (1,), answers)
    return [one.reward for one in grade(group, find_rewards([name], [], name)).grades]


def test_module_in_the_working_folder(folder: Path) -> None:
    """With a module beside it that it imports."""
    for name in ("outdo_test_rewards:strict", "outdo_test_rewards.py:strict"):
        assert graded(name) == [1.0, 0.0], name
    assert plugins.absolute_name("outdo_test_rewards:strict") == f"{folder.resolve()}/outdo_test_rewards.py:strict"


def test_beside_the_recipe(folder: Path) -> None:
    """A package with relative imports."""
    recipe = folder.parent / "elsewhere" / "r.yaml"
    recipe.write_text("reward_funcs: [numeric, outdo_test_package.rewards:strict, 'outdo_test_rewards:strict']\n")
    names = load_recipe(recipe).reward_funcs
    assert names[0] == "numeric" and names[2] == "outdo_test_rewards:strict"
    assert names[1] == f"{recipe.parent}/outdo_test_package/rewards.py:strict"
    assert graded(names[1]) == [1.0, 0.0]


def test_no_such_function(folder: Path) -> None:
    for name, reason in (("outdo_test_rewards:strikt", "did you mean 'strict'"), ("outdo_none:f", "No module named")):
        with pytest.raises(GraderError, match=reason):
            plugins.find(name, {}, "outdo.rewards", GraderError)


def test_files_of_a_library(folder: Path) -> None:
    """Names of tasksets, which are files too: found beside the recipe, and known to be code."""
    recipe = folder.parent / "elsewhere" / "r.yaml"
    for name in ("here", "there"):
        (folder.parent / "elsewhere" / f"{name}.py").write_text("")
    (folder / "here.py").write_text("")
    recipe.write_text("dataset_mixture: [{dataset_name: 'verifiers:here.py'}, {dataset_name: 'verifiers:there.py'}]\n")
    here, there = (entry["dataset_name"] for entry in load_recipe(recipe).dataset_mixture)
    assert (here, there) == ("verifiers:here.py", f"verifiers:{recipe.parent}/there.py")
    assert plugins.file_of(there) == recipe.parent / "there.py" and plugins.file_of("verifiers:installed") is None
    refs = code_refs({"dataset_name": here})
    assert [str(ref.path) for ref in refs] == ["here.py"]
