"""Arguments and a recipe's `sweep:` part to cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import RecipeError
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.sweeps.grid import changed_keys, listed, nested, read_sweep
from support.basics import ROOT


def test_listed_and_nested() -> None:
    assert listed("4,8") == ["4", "8"]
    assert listed("[1.0,0.1],[1.0,5]") == ["[1.0,0.1]", "[1.0,5]"]
    assert listed("{a: [1,2], b: 3}") == ["{a: [1,2], b: 3}"]
    assert listed("'a,b',c") == ["'a,b'", "c"]
    assert nested({"task_args.digits": 3, "task_args.ops": "+", "beta": 0}) == {
        "task_args": {"digits": 3, "ops": "+"},
        "beta": 0,
    }


def test_grid() -> None:
    sweep = read_sweep(None, ["group_size=4,8", "beta=0,0.05", "seed=0,1,2", "max_steps=7"])
    assert len(sweep.cells) == 12 and sweep.varied == ("num_generations", "beta")
    assert sweep.cells[0].setting == "num_generations=4 beta=0" and sweep.cells[0].name.endswith("-seed-0")
    assert len({cell.setting for cell in sweep.cells}) == 4
    assert {(c.recipe.num_generations, c.recipe.beta, c.recipe.seed) for c in sweep.cells} == {
        (g, b, s) for g in (4, 8) for b in (0.0, 0.05) for s in (0, 1, 2)
    }
    assert all(cell.recipe.max_steps == 7 and cell.recipe.sft_steps == 500 for cell in sweep.cells)
    assert sweep.default == ""  # the default's beta is 0.01


def test_default_setting() -> None:
    assert read_sweep(None, ["beta=0,0.01", "seed=3,4"]).default == "beta=0.01"
    assert read_sweep(None, ["task_args.digits=1,2"]).cells[1].recipe.task_args == {"ops": "+", "digits": 2}


def different(recipe: Recipe, base: Recipe) -> dict[str, object]:
    """The keys in which a recipe differs from another, beside the passes over a step's answers."""
    ours, theirs = recipe.model_dump(), base.model_dump()
    return {key: value for key, value in ours.items() if value != theirs[key] and key != "num_iterations"}


def test_variant_recipes() -> None:
    """Each cell has what its recipe adds to GRPO."""
    sweep = read_sweep(str(ROOT / "recipes" / "ablation_variants.yaml"), ["seed=0"])
    assert sweep.default == "GRPO" and sweep.prepare and sweep.prepare.sft_steps == 300
    cells = {cell.setting: cell.recipe for cell in sweep.cells}
    base = load_recipe(ROOT / "recipes" / "variant_bnpo.yaml", ["loss_type=grpo"])
    files = {"REINFORCE++": "reinforce_pp", "two-sided clip": "two_sided"}
    names = {name: files.get(name, re.sub(r"\W+", "_", name.lower())) for name in cells}
    alone = {"GRPO", "DPPO, KL", "KL", "two rewards"}  # what another is compared with, or another form of it
    for setting in cells.keys() - alone:
        whole = load_recipe(ROOT / "recipes" / f"variant_{names[setting]}.yaml")
        plain = cells["KL" if setting == "unbiased KL" else "GRPO"]
        assert different(cells[setting], plain) == different(whole, base), setting
    recipes = {path.stem.removeprefix("variant_") for path in (ROOT / "recipes").glob("variant_*.yaml")}
    assert recipes == {names[setting] for setting in cells.keys() - alone}
    moved = sweep.started_from("there").cells[5].recipe
    assert (moved.model_name_or_path, moved.sft_steps) == ("there", 0)


@pytest.mark.parametrize("name", ["group_size", "format_weight"])
def test_ablation_recipes(name: str) -> None:
    sweep = read_sweep(str(ROOT / "recipes" / f"ablation_{name}.yaml"), ["seed=0"])
    assert len(sweep.cells) == 4 and sweep.prepare
    if name == "format_weight":
        assert [cell.recipe.reward_weights[1] for cell in sweep.cells] == [0.0, 0.1, 1.0, 5.0]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["betta=0,1"], "cell betta=0: unknown key 'betta': did you mean 'beta'?"),
        (["beta=0,-1"], "cell beta=-1: beta=-1: input should be greater"),
        (
            ["num_generations=8,12", "per_device_train_batch_size=128"],
            "cell num_generations=12: num_generations=12 does not divide",
        ),
        (["beta=0,0.0"], "are identical"),
        (["beta=0", "seed=1"], "nothing varies"),
        (["beta=0,", "seed=1,2"], "is empty"),
        (["beta=0,1", "kl_coef=0.1"], "given twice"),
        (["beta"], "expected key=value"),
        (["beta=0,1", "output_dir=x"], "--out"),
        (["seed=" + ",".join(map(str, range(40))), "max_steps=" + ",".join(map(str, range(1, 40)))], "1,560 cells"),
    ],
)
def test_bad_words(words: list[str], part: str) -> None:
    with pytest.raises(RecipeError) as error:
        read_sweep(None, words)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        ("sweep: {gird: {}}", [], "unknown part 'gird'"),
        ("sweep: {grid: {beta: 0.1}}", [], "expected a list"),
        ("sweep: {cells: {a: {beta: 0}, b: {betta: 1}}}", [], "cell b: unknown key 'betta'"),
        ("sweep: {cells: {a: {beta: 0}, b: {beta: 1}}}", ["beta=0"], "set to 0 by the cell a"),
        ("sweep: {cells: {a: {beta: 0}, b: {beta: 0}}}", [], "are identical"),
        ("sweep: {cells: {a: {beta: 0}, b: 3}}", [], "a cell must be a mapping"),
        ("sweep: {default: c, cells: {a: {beta: 0}, b: {beta: 1}}}", [], "settings: a, b"),
        ("sweep: {prepare: {sft_steps: 1}, grid: {sft_steps: [1, 2]}}", [], "sft_steps is set by sweep.prepare"),
        ("sweep: {columns: kl, grid: {beta: [0, 1]}}", [], "columns must be a list"),
        ("sweep: {prepare: {beta: 0}, grid: {beta: [0, 1]}}", [], "set sft_steps or sft_epochs"),
    ],
)
def test_bad_sweep_part(tmp_path: Path, text: str, words: list[str], part: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        read_sweep(str(tmp_path / "r.yaml"), words)
    assert part in str(error.value)


def test_new_recipe_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of an older version has not all keys of today: the same words find its folder, and resume in it."""
    sweep = read_sweep(None, ["beta=0,0.05"])
    now = sweep.cells[0].definition
    then = {key: value for key, value in now.items() if key not in ("save_total_limit", "min_p")}
    assert len(then) == len(now) - 2 and changed_keys(then, now) == []
    assert changed_keys({**then, "min_p": 0.1}, now) == ["min_p"]
    before = sweep.fingerprint
    whole = Recipe.model_dump

    def with_one_more(self: Recipe, **words: Any) -> dict[str, Any]:
        return whole(self, **words) | ({} if words.get("exclude_defaults") else {"brand_new": 1})

    monkeypatch.setattr(Recipe, "model_dump", with_one_more)
    assert sweep.fingerprint == before and read_sweep(None, ["beta=0,0.06"]).fingerprint != before


def test_recipe_with_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("output_dir: out\nrun_name: mine\n")
    notes: list[str] = []
    sweep = read_sweep(str(tmp_path / "r.yaml"), ["beta=0,0.1"], notes.append)
    assert all(cell.recipe.output_dir is None and cell.recipe.run_name is None for cell in sweep.cells)
    assert sum("ignored, because" in line for line in notes) == 2
