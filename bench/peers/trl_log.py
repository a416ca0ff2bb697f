"""Real logs of TRL's GRPOTrainer, for the doctor: `python -m bench.peers.trl_log FOLDER [NAME …]`, with TRL's Python.

A Llama with random weights that writes random words, three runs of it: `sane`, and two that are ill on purpose. What is
kept of each is `trainer_state.json` as TRL leaves it in its checkpoint folder. `tests/doctor/data/` holds them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from bench import work as w

SHAPE = "toy"
STEPS = 24
Reward = Callable[..., list[float]]


def accuracy_reward(completions: list[str], **columns: Any) -> list[float]:
    """Right is an answer most of whose words are in the lower half of the vocabulary: half of the random ones are."""
    return [float(_low(text) > 0.5) for text in completions]


def wordy_reward(completions: list[str], **columns: Any) -> list[float]:
    """Pays for words, whichever they are."""
    return [len(text.split()) / 40 for text in completions]


def _low(text: str) -> float:
    words = [int(word[1:]) for word in text.split()]
    return sum(2 * word < w.SHAPES[SHAPE]["vocab_size"] for word in words) / max(1, len(words))


RUNS: dict[str, tuple[list[Reward], dict[str, Any]]] = {
    "sane": ([accuracy_reward], {"learning_rate": 3e-4, "beta": 0.04}),
    "hasty": ([accuracy_reward], {"learning_rate": 2e-2, "beta": 1e-4}),
    "wordy": ([accuracy_reward, wordy_reward], {"learning_rate": 1e-3, "beta": 0.01, "reward_weights": [0.0, 1.0]}),
}


def log(name: str, out: Path) -> None:
    rewards, keys = RUNS[name]
    asked = w.Work(prompts=8, group=8, prompt_tokens=4, steps=STEPS, shape=SHAPE)
    prompts = Dataset.from_list([{"prompt": text} for text in w.prompt_texts(asked)])
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/start"  # TRL loads it twice: the policy, and what KL is measured from
        w.model("sdpa", SHAPE).save_pretrained(model)
        settings = {
            "output_dir": folder,
            "per_device_train_batch_size": asked.answers,
            "per_device_eval_batch_size": asked.answers,
            "num_generations": asked.group,
            "max_completion_length": 64,
            "max_steps": asked.steps,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": asked.steps // 2,
            "save_strategy": "steps",
            "save_steps": asked.steps,
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
        }
        trainer = GRPOTrainer(
            model=model,
            processing_class=w.tokenizer(SHAPE),
            args=GRPOConfig(**settings, **keys),
            train_dataset=prompts,
            eval_dataset=prompts.select(range(32)),
            reward_funcs=rewards,
        )
        trainer.train()
        shutil.copy(Path(folder) / f"checkpoint-{asked.steps}" / "trainer_state.json", out / f"trl-{name}.json")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for run in sys.argv[2:] or RUNS:
        log(run, Path(sys.argv[1]))
