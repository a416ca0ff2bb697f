"""What the plan picks is what trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outdo import Callback, api
from outdo.learn.sharded import FullyShardedMasters
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.training import start


class Look(Callback):
    def __init__(self) -> None:
        self.masters: set[type] = set()

    def on_sft_step(self, run: Any, row: Mapping[str, Any]) -> None:
        self.masters.add(type(run.any_learner.masters))

    def on_step(self, run: Any, *arguments: Any) -> None:
        self.masters.add(type(run.learner.masters))


@pytest.mark.parametrize("kind", ["sft", "train"])
def test_every_learner_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def with_full(policy: Policy, recipe: Recipe) -> Recipe:
        return recipe.model_copy(update={"parallel_sharding": "full"})

    monkeypatch.setattr(start, "with_sharding", with_full)
    look = Look()
    size = {"eval_size": 4, "eval_samples": 0, "per_device_train_batch_size": 16, "max_completion_length": 16}
    getattr(api, kind)(sft_steps=2, max_steps=1, **size, output_dir=str(tmp_path / "run"), callbacks=[look])
    assert look.masters == {FullyShardedMasters}
