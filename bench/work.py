"""The work that every trainer is timed on, in one place so that it is the same for all: model, prompts and reward.

Random weights and answers of a fixed length: what is timed is the machinery, and no luck of sampling changes its
amount. Imported on both sides of the benchmark, so it needs nothing but transformers and tokenizers.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

# The shapes of models that people train on one machine; the weights are random.
SHAPES: dict[str, dict[str, Any]] = {
    "toy": {"vocab_size": 24, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
    "tiny": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32},
    "smollm2-135m": {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                     "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64},
    "qwen2.5-0.5b": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                     "num_attention_heads": 14, "num_key_value_heads": 2},
    "qwen2.5-1.5b": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                     "num_attention_heads": 12, "num_key_value_heads": 2},
    "qwen2.5-7b": {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                   "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
}  # fmt: skip
CONTEXT = 8192
UNKNOWN, END = 0, 1  # ids; all others are words. Their names share no beginning with a word, else words would be split
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Work:
    """One update a step, at temperature 1 and without a KL term."""

    prompts: int = 16
    group: int = 8
    prompt_tokens: int = 16
    new_tokens: int = 16
    micro_batch: int = 64  # answers in one forward and backward
    steps: int = 8  # in one process; the first warms up and is not counted
    threads: int = 1
    shape: str = "tiny"
    device: str = "cpu"  # cuda: bfloat16, with whatever each side keeps in float32
    lora_r: int = 0  # train an adapter of that rank on all linear layers; 0: all weights
    keys: dict[str, Any] = field(default_factory=dict)  # of our recipe, on our side alone

    @property
    def answers(self) -> int:
        return self.prompts * self.group

    @property
    def completion_tokens(self) -> int:
        return self.answers * self.new_tokens

    @property
    def prompt_tokens_seen(self) -> int:
        """Counted once for each answer, as TRL counts them, however often they are computed."""
        return self.answers * self.prompt_tokens


@dataclass(frozen=True)
class Step:
    seconds: float
    cpu_seconds: float  # of the process, all threads together: what other programs on the machine disturb least
    completion_tokens: int
    prompt_tokens: int  # for each answer once
    parts: dict[str, float] = field(default_factory=dict)  # seconds by phase, where the trainer tells


def tokenizer(shape: str = "tiny") -> Any:
    """A word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "<end>", *(f"w{i}" for i in range(2, SHAPES[shape]["vocab_size"]))]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "eos_token": "<end>", "pad_token": "<end>", "bos_token": "<end>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)


def model(attention: str, shape: str = "tiny", device: str = "cpu") -> Any:
    """A model of that shape in float32, the same weights each time on one device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    of_config, of_model = (
        (Qwen2Config, Qwen2ForCausalLM) if shape.startswith("qwen") else (LlamaConfig, LlamaForCausalLM)
    )
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    config = of_config(**{"tie_word_embeddings": True, **SHAPES[shape]}, max_position_embeddings=CONTEXT, **ends)
    with torch.device(device):
        made = of_model(config).to(torch.float32)
    made.set_attn_implementation(attention)
    return made


def prompt_texts(work: Work) -> list[str]:
    """Random words: the prompts of all steps."""
    rng = random.Random(0)
    count, words = work.prompts * work.steps, SHAPES[work.shape]["vocab_size"]
    return [" ".join(f"w{rng.randrange(2, words)}" for _ in range(work.prompt_tokens)) for _ in range(count)]


def spread(completions: list[str], **columns: Any) -> list[float]:
    """A reward that means nothing and differs within nearly every group, so that all of it has to be trained on."""
    return [float(len(text) % 7) for text in completions]


def clocks() -> tuple[float, float]:
    """Now, on the clock and in the process's CPU time, when all that was asked of the device is done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    now = clocks()
    return now[0] - start[0], now[1] - start[1]


def versions(*packages: str) -> dict[str, str]:
    return {package: version(package) for package in packages}


def read_work(text: str) -> Work:
    return Work(**json.loads(text))


def write_steps(path: str, work: Work, steps: list[Step], packages: dict[str, str], **more: Any) -> None:
    """A side's report. Refuses one in which any step did another amount of work than was asked for."""
    if len(steps) != work.steps:
        raise SystemExit(f"{len(steps)} steps were taken, and {work.steps} asked for")
    for step in steps:
        done, asked = (step.completion_tokens, step.prompt_tokens), (work.completion_tokens, work.prompt_tokens_seen)
        if done != asked:
            raise SystemExit(
                f"a step had {done[0]} completion and {done[1]} prompt tokens; asked: {asked[0]}, {asked[1]}"
            )
    Path(path).write_text(json.dumps({"versions": packages, "steps": [asdict(step) for step in steps], **more}))
