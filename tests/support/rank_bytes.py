"""What a process of a launch holds after an update, part by part, for every sharding; a line of JSON for each.

torchrun --nproc-per-node 2 tests/support/rank_bytes.py FOLDER   # writes FOLDER/rank-R.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from outdo.algo.prepare import with_advantages
from outdo.learn.learner import LocalLearner
from outdo.learn.sharded import FullyShardedMasters
from outdo.models.load import load_policy
from outdo.models.shape import shape_of_policy
from outdo.parallel.world import join
from outdo.recipe.load import load_recipe
from support.rank_cases import Case, _batch, _groups


def held(sharding: str) -> dict[str, int]:
    """Bytes by part; `parameters` is the size of the whole model."""
    keys = {"per_device_train_batch_size": 12, "num_generations": 4, "max_completion_length": 64, "dtype": "bfloat16"}
    recipe = load_recipe(None, {**keys, "parallel_sharding": sharding, "model_name_or_path": "tiny"})
    policy = load_policy("tiny", device="cpu", dtype="bfloat16")
    learner = LocalLearner(policy, recipe)
    masters, sums = learner.masters, list[int]()
    finish = masters.finish

    def measured(max_norm: float) -> Tensor:
        if isinstance(masters, FullyShardedMasters):
            sums.append(size_of([p.grad.to_local() for p in masters.parameters if p.grad is not None]))
        else:
            sums.append(size_of([one for one in masters.sums if one is not None]))
        return finish(max_norm)

    masters.finish = measured  # type: ignore[method-assign]
    groups = _groups(Case(), 0)
    made = with_advantages(groups, recipe.advantage_estimator, recipe.scale_rewards, learner.penalties(groups))
    learner.update(_batch(made, 0), 0)
    state = [value for slots in learner.optimizer.state.values() for value in slots.values()]
    return {
        "parameters": shape_of_policy(policy).parameters,
        "masters": size_of(masters.weights),
        "optimizer": size_of([value for value in state if isinstance(value, Tensor) and value.ndim]),
        "sums": sums[0],
        "model": size_of(policy.model.parameters()),
    }


def size_of(tensors: object) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)  # type: ignore[attr-defined]


if __name__ == "__main__":
    torch.set_num_threads(1)
    world = join(60, "cpu")
    found = {sharding: held(sharding) for sharding in ("none", "grads", "full")}
    (Path(sys.argv[1]) / f"rank-{world.rank}.json").write_text(json.dumps(found))
