"""The learner's numbers on any number of processes, for comparison: what one process gives, or those of a launch.

torchrun --nproc-per-node 2 tests/support/rank_cases.py FOLDER grads   # writes FOLDER/rank-R.pt
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outdo.algo.losses import LOSSES
from outdo.algo.prepare import prepare, with_advantages
from outdo.learn.learner import LocalLearner
from outdo.learn.sft import EncodedExample, SFTLearner
from outdo.models.load import Policy, load_policy
from outdo.models.lora import Lora
from outdo.parallel.world import join
from outdo.recipe.load import load_recipe
from outdo.types import Batch, Group
from support.basics import group_of, prompt_of
from support.families import make

STEPS = 5
ADAPTER = Lora(4, 8.0, ("all-linear",), 0)


@dataclass(frozen=True)
class Case:
    """Some steps of a learner."""

    family: str = "Llama"
    keys: dict[str, Any] = field(default_factory=dict)
    spread: Callable[[int], bool] = lambda number: number != 1  # which groups have different rewards
    lora: Lora | None = None
    groups: int = 3
    longest: int = 12
    sft: bool = False


LOSS_KEYS: dict[str, dict[str, Any]] = {  # beside its name
    "luspo": {"importance_sampling_level": "sequence"},
    "clip_cov": {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.05},
    "kl_cov": {"kl_cov_ratio": 0.2},
}
LATER = {"steps_per_generation": 4, "num_iterations": 2}
CASES: dict[str, Case] = {
    **{f"loss {name}": Case(keys={"loss_type": name, **LOSS_KEYS.get(name, {})}) for name in sorted(LOSSES)},
    **{f"{name}, later": Case(keys={"loss_type": name, **LATER, **LOSS_KEYS[name]}) for name in ("clip_cov", "kl_cov")},
    "top entropy": Case(keys={"top_entropy_quantile": 0.3, "entropy_coef": 0.01, **LATER}),
    "stale answers": Case(keys={"off_policy_mask_threshold": 0.01, **LATER}),
    **{f"family {name}": Case(name) for name in ("Qwen2", "Qwen3", "Gemma2")},
    "KL": Case(keys={"beta": 0.1, "entropy_coef": 0.01}),
    "KL in the reward": Case(keys={"beta": 0.1, "kl_in_reward": True}),
    "KL measured alone": Case(keys={"kl_steps": 1}),
    "several updates": Case(keys={"steps_per_generation": 4, "num_iterations": 2, "epsilon_high": 0.28}),
    "small micro-batches": Case(keys={"tokens_per_micro_batch": 20}),
    "small micro-batches of uneven answers": Case(groups=4, longest=60, keys={"tokens_per_micro_batch": 70}),
    "checkpointing": Case(keys={"gradient_checkpointing": True}),
    "one group": Case(groups=1, longest=2, keys={"optim": "sgd"}),
    "one group of many has spread": Case(spread=lambda number: number == 0, groups=5),
    "no group has spread": Case(spread=lambda number: False),
    "uneven lengths": Case(groups=4, longest=60),
    "adapter": Case(lora=ADAPTER),
    "adapter with KL": Case(lora=ADAPTER, keys={"beta": 0.1}),
    "SFT": Case(sft=True),
    "sgd": Case(keys={"optim": "sgd"}),
}


def run_case(case: Case, folder: Path, sharding: str) -> dict[str, Any]:
    """Its statistics by step, and its weights at the end. `grads+replicas`: two copies of what is sharded;
    `grads+offload`: on the host."""
    sharding, _, more = sharding.partition("+")
    keys = {"per_device_train_batch_size": 4 * case.groups, "num_generations": 4, "max_completion_length": 64}
    keys |= {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_steps": 0, "beta": 0.0}
    keys |= {"parallel_sharding": sharding, "parallel_replicas": 2 if more == "replicas" else 1}
    keys |= {"parallel_offload": "optimizer" if more == "offload" else "none"}
    recipe = load_recipe(None, {**keys, **case.keys})
    policy = load_policy(str(folder / case.family), device="cpu", lora=case.lora)
    rows = _sft_steps(policy, recipe) if case.sft else _grpo_steps(policy, recipe, case)
    weights = policy.adapter.state_dict() if policy.adapter else policy.model.state_dict()
    return {"rows": rows, "weights": {name: value.clone() for name, value in weights.items()}}


def _grpo_steps(policy: Policy, recipe: Any, case: Case) -> list[dict[str, float]]:
    learner = LocalLearner(policy, recipe)
    rows = []
    for step in range(STEPS):
        groups = _groups(case, step)
        made = with_advantages(groups, recipe.advantage_estimator, recipe.scale_rewards, learner.penalties(groups))
        rows.append(learner.update(_batch(made, step), step))
    return rows


def _sft_steps(policy: Policy, recipe: Any) -> list[dict[str, float]]:
    learner = SFTLearner(policy, recipe, STEPS)
    rng = random.Random(7)
    rows = []
    for step in range(STEPS):
        made = [_example(rng, 5 * step + i) for i in range(5)]
        learner.update(made)
        (row,) = learner.read()
        rows.append({**row, "held out": learner.loss_on(made)[0]})
    return rows


def _example(rng: random.Random, index: int) -> EncodedExample:
    return EncodedExample(index, tuple(_ids(rng, 2, 9)), (*_ids(rng, 1, 20), 4))


def _groups(case: Case, step: int) -> list[Group]:
    rng = random.Random(step)
    groups = []
    for number in range(case.groups):
        answers = [[*_ids(rng, 1, case.longest), 4] for _ in range(4)]
        rewards = [float(i % 2) if case.spread(number) else 1.0 for i in range(4)]
        prompt = prompt_of(f"{step} {number}")
        groups.append(group_of(prompt, [2, *_ids(rng, 2, 9), 3], answers, rewards))
    return groups


def _ids(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(10, 90) for _ in range(rng.randint(least, most))]


def _batch(groups: list[Group], step: int) -> Batch:
    batch = prepare(groups)
    return Batch(batch.prompt_ids, batch.samples, step, batch.group_of)


def make_families(folder: Path) -> None:
    for family in sorted({case.family for case in CASES.values()}):
        make(folder / family, family, **({"head_dim": 8} if family == "Gemma2" else {}))


def run_all(folder: Path, sharding: str) -> dict[str, dict[str, Any]]:
    return {name: run_case(case, folder, sharding) for name, case in CASES.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, world = Path(sys.argv[1]), join(60, "cpu")
    for wanted in sys.argv[2:]:
        torch.save(run_all(where, wanted), where / f"{wanted}-{world.size}-rank-{world.rank}.pt")
