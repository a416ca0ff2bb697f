"""vLLM's side of the rollout benchmark: `python -m bench.peers.vllm_rollout WORK_JSON…`.

Prints a line of JSON: the seconds of each work, the best of two after one that warms up.

Groups of answers of a fixed length with the log-probabilities that training needs, at temperature 1.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from importlib.util import find_spec

os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING")
if find_spec("flashinfer") is None:
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # else it is imported all the same

import torch
from vllm import LLM, SamplingParams

from bench import work as w


def main(works: list[w.Work]) -> None:
    dtype = "bfloat16" if works[0].device == "cuda" else "float32"  # as ours
    with tempfile.TemporaryDirectory() as folder:
        w.model("sdpa", works[0].shape).to(getattr(torch, dtype)).save_pretrained(folder)
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=max(work.prompt_tokens + work.new_tokens for work in works) + 16,
            gpu_memory_utilization=0.6,
            max_num_seqs=1024,
            enable_prefix_caching=True,
            seed=0,
        )
    print(json.dumps([best(llm, work) for work in works]))


def best(llm: LLM, work: w.Work) -> float:
    rng, words = random.Random(0), w.SHAPES[work.shape]["vocab_size"]
    rows = [
        {"prompt_token_ids": [rng.randrange(2, words) for _ in range(work.prompt_tokens)]} for _ in range(work.prompts)
    ]
    params = SamplingParams(
        n=work.group, temperature=1.0, max_tokens=work.new_tokens, min_tokens=work.new_tokens, ignore_eos=True,
        detokenize=False, logprobs=0,
    )  # fmt: skip
    times = []
    for _ in range(3):
        start = time.perf_counter()
        made = sum(len(o.token_ids) for r in llm.generate(rows, params, use_tqdm=False) for o in r.outputs)
        times.append(time.perf_counter() - start)
        assert made == work.completion_tokens, made
    return min(times[1:])


if __name__ == "__main__":
    main([w.read_work(text) for text in sys.argv[1:]])
