"""TRL's side of the step benchmark: `python -m bench.peers.trl_step WORK_JSON REPORT [GRPOCONFIG_JSON]`.

GRPOTrainer as it comes, but for what the work asks and for the last argument. A step is timed from the trainer's own
`on_step_begin` to its `on_step_end`: sampling, reward, forward, backward and update; its logging is left out. What
comes before the reward is its sampling.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench import work as w


class Meter(TrainerCallback):
    """Seconds of each step and the answers' tokens in it; what the trainer itself counts is in its log."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []  # on the clock, and of the CPU
        self.completion_tokens: list[int] = []
        self.sampling: list[float] = []
        self._start, self._tokens, self._sampled = w.clocks(), 0, 0.0

    def reward(self, completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        self._tokens += sum(map(len, completion_ids))
        self._sampled = w.since(self._start)[0]
        return w.spread(completions)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start, self._tokens = w.clocks(), 0

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(w.since(self._start))
        self.completion_tokens.append(self._tokens)
        self.sampling.append(self._sampled)


def main(work: w.Work, report: str, extra: dict[str, Any]) -> None:
    torch.set_num_threads(work.threads)
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "output_dir": folder,
            "per_device_train_batch_size": work.micro_batch,
            "gradient_accumulation_steps": work.answers // work.micro_batch,
            "num_generations": work.group,
            "max_completion_length": work.new_tokens,
            "generation_kwargs": {"min_new_tokens": work.new_tokens},
            "max_steps": work.steps,
            "learning_rate": w.LEARNING_RATE,
            "temperature": 1.0,
            "beta": 0.0,
            "bf16": work.device != "cpu",
            "use_cpu": work.device == "cpu",
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
        }
        trainer = GRPOTrainer(
            model=w.model("sdpa", work.shape, work.device),
            processing_class=w.tokenizer(work.shape),
            args=GRPOConfig(**{**settings, **extra}),
            train_dataset=Dataset.from_list([{"prompt": text} for text in w.prompt_texts(work)]),
            reward_funcs=meter.reward,
            callbacks=[meter],
            peft_config=_adapter(work),
        )
        trainer.train()
    seen = [
        0.0,
        *(row["num_tokens"] for row in trainer.state.log_history if "num_tokens" in row),
    ]  # cumulated, with prompts
    fresh = [int(b - a) for a, b in pairwise(seen)]
    columns = zip(meter.seconds, meter.completion_tokens, fresh, meter.sampling, strict=True)
    steps = [
        w.Step(*seconds, answers, tokens - answers, {"rollout": sampling, "update": seconds[0] - sampling})
        for seconds, answers, tokens, sampling in columns
    ]
    w.write_steps(report, work, steps, w.versions("trl", "torch", "transformers"))


def _adapter(work: w.Work) -> Any:
    if not work.lora_r:
        return None
    from peft import LoraConfig

    return LoraConfig(r=work.lora_r, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


if __name__ == "__main__":
    main(w.read_work(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
