"""The plan of several processes, as the dry run prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from outdo import api
from outdo.cli.app import app
from outdo.errors import ModelError, RecipeError
from outdo.models.shape import ModelShape
from outdo.parallel.clusters import parse_cluster
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.training import plan
from outdo.training.cluster_plan import cluster_of, plan_lines

BIG = ModelShape(7_615_616_512, 28, 3584, 18944, 3584, 512, 152_064, 32_768)
RECIPE = Recipe(dtype="bfloat16", per_device_train_batch_size=512, max_completion_length=1024)


def labelled(recipe: Recipe, name: str) -> dict[str, str]:
    """The lines by their first word."""
    return {line.split()[0]: line for line in plan_lines(recipe, BIG, parse_cluster(name))}


def test_every_sharding_is_listed() -> None:
    lines = labelled(RECIPE, "8xH100")
    assert "too much" in lines["none"] and "fits" in lines["grads"] and "fits" in lines["full"]
    assert "weights 15.2 GB" in lines["grads"] and "sampler's copy 15.2 GB" in lines["full"]
    assert lines["picked"].split()[1] == "grads," and "8 shards" in lines["picked"]
    assert "64 GPUs" in lines["scaling"] and "1 GPU too small" in lines["scaling"]


def test_a_chosen_sharding_is_compared_with_the_others() -> None:
    lines = labelled(RECIPE.model_copy(update={"parallel_sharding": "full"}), "8xH100")
    assert lines["picked"].split()[1] == "full," and "grads" in lines


def test_launch_of_this_environment() -> None:
    cluster = cluster_of(Recipe(device="cpu"), {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert (cluster.nodes, cluster.per_node, cluster.device) == (2, 2, "cpu")
    assert cluster_of(Recipe(parallel_pretend="4xL40S"), {"WORLD_SIZE": "2"}).size == 4


def test_dry_run_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    lines = plan.describe(load_recipe(None, ["device=cpu"]))
    assert any(line.startswith("grads ") for line in lines) and not any(line.startswith("memory ") for line in lines)


def test_what_fits_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "shape_of", lambda source, lora: BIG)
    recipe = load_recipe(None, ["dtype=bfloat16", "parallel.pretend=2xRTX4090"])
    with pytest.raises(ModelError, match=r"none 1\d\d.* GB, grads .* full .*each has 24.0 GB"):
        plan.describe(recipe)


def test_dry_run_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "--dry-run", "parallel.pretend=2x8xH100"])
    assert done.exit_code == 0 and "2 nodes x 8 x H100" in done.output and not list(tmp_path.iterdir())


def test_a_run_is_refused_where_the_cluster_is_not(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="--dry-run"):
        api.train(output_dir=str(tmp_path / "run"), parallel_pretend="8xH100")
    assert not list(tmp_path.iterdir())
