"""Our side of the step benchmark: `python -m bench.ours_step WORK_JSON REPORT`. Called by `bench.cpu_step`.

The steps are those of `outdo.training.loop.run_loop`, with the curriculum, sampler, learner and
measuring of any run; only the writing of the run folder is left out, as the peer's saving and logging are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import torch

from bench import work as w
from outdo.host import keep_memory
from outdo.learn.learner import LocalLearner
from outdo.metrics.measure import Metrics
from outdo.models import attention
from outdo.models.load import Policy
from outdo.models.lora import Adapter, Lora, new_factors
from outdo.models.renderer import Renderer
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import find_rewards
from outdo.rollout import make_sampler
from outdo.rollout.source import SyncSource
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.task import Task
from outdo.training.loop import run_loop
from outdo.types import Group, Prompt

NO_TOKEN = -1  # as the end of an answer: never sampled, so every answer has its full length


class Watch:
    """Hears of each step, and keeps nothing else."""

    def __init__(self, record: Callable[[int, Metrics, Sequence[Group]], None]) -> None:
        self.step = record

    def step_end(self, done: int) -> bool:
        return True

    def step_failed(self, step: int, groups: Sequence[Group]) -> None: ...


def policy_of(work: w.Work) -> Policy:
    """The work's model as outdo holds it."""
    kind = torch.float32 if work.device == "cpu" else torch.bfloat16
    device, model = torch.device(work.device), w.model(attention.NAME, work.shape, work.device).to(kind)
    adapter = Adapter(model, new_factors(model, Lora(r=work.lora_r))) if work.lora_r else None
    renderer = Renderer(w.tokenizer(work.shape), (NO_TOKEN,), w.END, w.CONTEXT)
    policy = Policy(model, renderer, device, adapter=adapter)
    policy.train_only_adapter()
    return policy


def main(work: w.Work, report: str) -> None:
    torch.set_num_threads(work.threads)
    keep_memory()
    sizes = {"num_generations": work.group, "max_completion_length": work.new_tokens, "max_steps": work.steps}
    sizes |= {"per_device_train_batch_size": work.micro_batch}
    sizes |= {"gradient_accumulation_steps": work.answers // work.micro_batch}
    dtype = "float32" if work.device == "cpu" else "bfloat16"
    own = {"dtype": dtype, "device": work.device, "use_peft": bool(work.lora_r), **work.keys}
    recipe = Recipe(**sizes, learning_rate=w.LEARNING_RATE, kl_limit=None, **own)
    policy = policy_of(work)
    if work.device == "cuda":
        torch.cuda.empty_cache()  # of the weights in float32
        torch.cuda.reset_peak_memory_stats()
    rewards = find_rewards(["spread"], [], "spread", work.new_tokens, {"spread": w.spread})
    texts = w.prompt_texts(work)

    def words(split: str, seed: int) -> Iterator[Prompt]:
        yield from (Prompt(f"{i:06d}", ({"role": "user", "content": text},)) for i, text in enumerate(texts))

    curriculum = Curriculum(Task("words", words, ("spread",), splits=("train",)), recipe)
    steps: list[w.Step] = []
    start = w.clocks()

    def record(step: int, row: Metrics, groups: Sequence[Group]) -> None:
        nonlocal start
        seconds = w.since(start)
        answers = [(group, answer) for group in groups for answer in group.trajectories]
        steps.append(
            w.Step(
                *seconds,
                sum(len(answer.token_ids) for _, answer in answers),
                sum(len(group.prompt_ids) for group, _ in answers),
                {phase: float(row[f"time/{phase}"] or 0.0) for phase in ("rollout", "update")},
            )
        )
        start = w.clocks()

    source = SyncSource(recipe, curriculum, make_sampler(policy), rewards)
    learner = LocalLearner(policy, recipe)
    run_loop(recipe, source, learner, Watch(record))
    peak = torch.cuda.max_memory_allocated() if work.device == "cuda" else 0
    sizes = {"peak_bytes": peak, "tokens_at_once": learner.tokens_at_once}
    w.write_steps(report, work, steps, w.versions("torch", "transformers"), **sizes)


if __name__ == "__main__":
    main(w.read_work(sys.argv[1]), sys.argv[2])
