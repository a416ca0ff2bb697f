"""A real output folder of TRL's GRPOTrainer, for the viewers: `python -m bench.peers.trl_folder FOLDER`.

A Llama of some ten thousand parameters with random weights, eight steps. What stays is what the viewers read: the
newest `trainer_state.json`, the completions of every step, TensorBoard's event file, the model's config.json.
`tests/runs/data/trl/` holds one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from bench import work as w
from bench.peers.trl_log import wordy_reward

STEPS = 8
KEPT = ("config.json", "completions", "runs", f"checkpoint-{STEPS}/trainer_state.json")


def accuracy_reward(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Right is an answer that has one of the first eight words of the vocabulary."""
    return [float(any(int(word[1:]) < 8 for word in text.split())) for text in completions]


def log(folder: Path) -> None:
    tokenizer = w.tokenizer("toy")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, max_position_embeddings=64))
    model.save_pretrained(folder / "start")
    rows = [{"prompt": f"w{i} w{i + 1}", "answer": f"w{i}"} for i in range(8)]
    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=12,
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="steps",
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        per_device_eval_batch_size=8,
        learning_rate=1e-2,
        beta=0.04,
        reward_weights=[1.0, 0.5],
        log_completions=True,
        num_completions_to_print=0,
        use_cpu=True,
        bf16=False,
        report_to=["tensorboard"],
    )
    trainer = GRPOTrainer(
        model=str(folder / "start"),
        processing_class=tokenizer,
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:4]),
        reward_funcs=[accuracy_reward, wordy_reward],
    )
    trainer.train()
    shutil.copy(folder / "start" / "config.json", folder)
    _keep(folder)


def _keep(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(KEPT):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


if __name__ == "__main__":
    torch.set_num_threads(1)
    log(Path(sys.argv[1]))
