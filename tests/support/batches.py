"""A small batch that the learner's tests share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outdo.algo.prepare import prepare, with_advantages
from outdo.learn.learner import LocalLearner
from outdo.models.load import Policy
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.types import Batch, Group
from support.basics import group_of, prompt_of

ANSWERS = [[[20, 30, 4], [21, 4], [22, 33, 44, 55, 4], [23, 4]], [[60, 61, 62, 4], [63, 4], [64, 65, 4], [4]]]
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.5]]


def groups() -> list[Group]:
    prompts = [(2, 12, 16, 3), (2, 13, 14, 15, 90, 91, 3)]
    made = [
        group_of(prompt_of(f"p{i}"), ids, answers, rewards)
        for i, (ids, answers, rewards) in enumerate(zip(prompts, ANSWERS, REWARDS, strict=True))
    ]
    return with_advantages(made)


def batch() -> Batch:
    return prepare(groups())


def recipe(**keys: object) -> Recipe:
    base = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8}
    base |= {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "beta": 0.0}
    return load_recipe(None, {**base, **keys})


def gradients_of(learner: LocalLearner) -> list[torch.Tensor]:
    """The gradient of one update on fresh answers, taken before the optimizer sees it."""
    learner.version = 0
    caught: list[torch.Tensor] = []
    learner.optimizer.step = lambda *a: caught.extend(w.grad.clone() for w in learner.masters.weights)  # type: ignore
    learner.update(batch(), 0)
    return caught


def gradients_after(policy: Policy, keys: dict[str, object]) -> list[torch.Tensor]:
    learner = LocalLearner(policy, recipe(max_grad_norm=1e9, **keys))
    return gradients_of(learner)


def assert_same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-4)
