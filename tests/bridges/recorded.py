"""Runs a converted script as its user would, without outdo, and records what TRL's trainer saw of it."""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any

sys.modules["outdo"] = None  # type: ignore[assignment]  # the script may not import it
sys.path.insert(0, "")

from trl import GRPOTrainer  # noqa: E402

steps: list[dict[str, Any]] = []
score, calculate, train = (
    GRPOTrainer._generate_and_score_completions,
    GRPOTrainer._calculate_rewards,
    GRPOTrainer.train,
)


def recorded_score(self: Any, inputs: Any) -> Any:
    out = score(self, inputs)
    if self.model.training:
        prompts = [row[mask.bool()].tolist() for row, mask in zip(out["prompt_ids"], out["prompt_mask"], strict=True)]
        own = {"prompts": [row["prompt"] for row in inputs], "prompt_ids": prompts}
        steps[-1] |= own | {"advantages": out["advantages"].tolist()}
    return out


def recorded_rewards(self: Any, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
    rewards = calculate(self, inputs, prompts, completions, ids)
    if self.model.training:
        steps.append({"rewards": rewards.tolist(), "completion_ids": ids})
    return rewards


def recorded_train(self: Any) -> None:
    start = self.model.config._name_or_path
    train(self)
    rows = [row for row in self.state.log_history if "loss" in row]
    with open("recorded.json", "w") as file:
        json.dump({"steps": steps, "logs": rows, "start": start}, file)


GRPOTrainer._generate_and_score_completions = recorded_score
GRPOTrainer._calculate_rewards = recorded_rewards
GRPOTrainer.train = recorded_train
runpy.run_path("train.py", run_name="__main__")
