"""SFT, with the same update as GRPO. The loss covers the answers' tokens only; nothing is padded.

An end-of-turn token follows each answer, so that the model learns where to stop. An answer longer than `sft_max_length`
allows is truncated and gets no such token. An example whose prompt leaves no room for an answer is skipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outdo.algo.schedules import rate_at
from outdo.errors import TaskError
from outdo.learn.conversations import Dialect, encode_answers
from outdo.learn.optimizers import set_rate
from outdo.learn.packing import Packed, pack, shares_of
from outdo.learn.update import BaseLearner, Stats, Sums, tokens_of
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.demonstrations import Demonstration, Demonstrations
from outdo.types import Sample

BETAS = (0.9, 0.98)
ENCODE_BATCH = 512  # examples tokenised at once, in the background
MAX_UNREAD = 10  # updates on a GPU before their losses are read, since reading waits for the device


@dataclass(frozen=True)
class EncodedExample:
    """A demonstration in tokens."""

    index: int  # in the order of all examples
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    mask: tuple[bool, ...] = ()  # empty: every token is trained on

    @property
    def num_trained(self) -> int:
        return sum(self.mask) if self.mask else len(self.answer_ids)


class SFTLearner(BaseLearner):
    """Trains `policy` on demonstrations. `steps` is the total number of updates, for the schedule."""

    length_key = "sft_max_length"

    def __init__(self, policy: Policy, recipe: Recipe, steps: int) -> None:
        super().__init__(policy, recipe, recipe.sft_learning_rate, recipe.sft_weight_decay, BETAS)
        self.steps = steps
        self.done = 0  # updates
        self.taken = 0  # examples, skipped ones included
        self.seen = 0  # tokens since this was made, prompts included
        self.max_unread = MAX_UNREAD if policy.device.type == "cuda" else 1
        self._unread: list[tuple[dict[str, Any], Tensor]] = []

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, plain = super().state()
        return tensors, {**plain, "done": self.done, "taken": self.taken, "skipped": self.skipped}

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        super().load_state(tensors, plain)
        self.done, self.taken, self.skipped = int(plain["done"]), int(plain["taken"]), int(plain["skipped"])

    def update(self, batch: Sequence[EncodedExample]) -> None:
        """One update. `read` returns its loss later: nothing here waits for the device."""
        recipe, step = self.recipe, self.done
        warmup = max(1, int(self.steps * recipe.sft_warmup_ratio)) if recipe.sft_warmup_ratio else 0
        rate = rate_at(step, self.steps, recipe.sft_learning_rate, recipe.sft_lr_scheduler_type, warmup)
        set_rate(self.optimizer, rate)
        torch.manual_seed(seed_of("dropout", "sft", recipe.seed, step) % 2**63)  # for models with dropout
        prompts, samples = as_samples(batch)
        num_tokens = sum(sample.num_trained for sample in samples)
        loss_of = partial(self._loss, num_tokens=num_tokens)
        norm_and_loss = self._gradient(prompts, samples, loss_of, Sums())
        self.masters.apply(self.optimizer, norm_and_loss.isfinite().all())
        self.optimizer.zero_grad(set_to_none=True)
        self.masters.cancel()
        self.done, self.taken = step + 1, batch[-1].index + 1
        self.seen += tokens_of(samples, prompts)
        self._unread.append(({"step": self.done, "lr": rate, "tokens": num_tokens}, norm_and_loss))

    def read(self, if_due: bool = False) -> list[dict[str, Any]]:
        """A row for each update that was not read yet; with `if_due`, none until `max_unread` have accumulated."""
        if not self._unread or (if_due and len(self._unread) < self.max_unread):
            return []
        unread, self._unread = self._unread, []
        values = torch.stack([norm_and_loss for _, norm_and_loss in unread]).tolist()
        rows = [{**row, "loss": loss, "grad_norm": norm} for (row, _), (norm, loss) in zip(unread, values, strict=True)]
        remedy = f"sft_learning_rate (now {self.recipe.sft_learning_rate:g})"
        for norm, loss in values:
            self._count_skipped(math.isfinite(loss) and math.isfinite(norm), "loss or gradient", remedy)
        return rows

    @torch.no_grad()
    def loss_on(self, examples: Iterable[EncodedExample]) -> tuple[float, int]:
        """The loss per answer token, and the number of those tokens."""
        self.policy.set_training(False)
        prompts, samples = as_samples(list(examples))
        num_tokens = sum(sample.num_trained for sample in samples)
        total = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        share = shares_of(prompts, samples, self.world.size)[self.world.rank]
        for part in self._micro_batches(prompts, share):
            loss, _ = self._loss(pack(prompts, part, self.policy.device), num_tokens)
            total += loss
        return float(self.world.all_reduce(total)), num_tokens

    def _loss(self, packed: Packed, num_tokens: int) -> tuple[Tensor, Stats]:
        logprobs_BT, _ = self._logprobs(self.policy, packed, temperature=1.0)
        return -logprobs_BT.sum() / num_tokens, {}


def run_sft_updates(
    learner: SFTLearner,
    demonstrations: Demonstrations,
    record: Callable[[list[dict[str, Any]]], None],
    after_update: Callable[[], bool | None] = lambda: True,
    uninterruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    dialect: Dialect | None = None,
) -> None:
    """Trains on the demonstrations that the learner has not taken yet. `record` gets a row for each update;
    `after_update` is called when an update is complete, and False ends the training there. Raises TaskError if no
    example fits."""
    examples = demonstrations.examples(learner.taken)
    encoded = encode(learner.policy, examples, learner.recipe.sft_max_length, learner.taken, dialect)
    while batch := list(itertools.islice(encoded, demonstrations.batch_size)):
        with uninterruptible():
            learner.update(batch)
            record(learner.read(if_due=True))
        if after_update() is False:
            break
    if not learner.done:
        name = demonstrations.name
        raise TaskError(f"{name}: no example has a prompt that leaves room for an answer: raise sft_max_length")
    record(learner.read())


def encode(
    policy: Policy,
    examples: Iterator[Demonstration],
    max_length: int | None,
    start: int = 0,
    dialect: Dialect | None = None,
) -> Iterator[EncodedExample]:
    """Tokenises in batches, in the background: the next batch while the current one is trained on."""
    indices, dialect = itertools.count(start), dialect or Dialect()

    def next_batch() -> tuple[int, list[EncodedExample]]:
        batch = list(itertools.islice(examples, ENCODE_BATCH))
        return len(batch), _encode_batch(
            policy, batch, min(max_length or policy.context, policy.context), indices, dialect
        )

    with ThreadPoolExecutor(1, "encode") as pool:
        pending = pool.submit(next_batch)
        while (batch := pending.result())[0]:
            pending = pool.submit(next_batch)
            yield from batch[1]


def _encode_batch(
    policy: Policy, examples: Sequence[Demonstration], max_length: int, indices: Iterator[int], dialect: Dialect
) -> list[EncodedExample]:
    encoded = []
    for one, index in zip(encode_answers(policy, examples, dialect), indices, strict=False):  # the indices are endless
        room = max(0, max_length - len(one.prompt_ids))
        if one.answer_ids[:room] and (not one.mask or any(one.mask[:room])):
            encoded.append(EncodedExample(index, one.prompt_ids, one.answer_ids[:room], one.mask[:room]))
    return encoded


def as_samples(examples: Sequence[EncodedExample]) -> tuple[list[tuple[int, ...]], list[Sample]]:
    """Prompts and samples, as `pack` takes them."""
    samples = [Sample(i, one.answer_ids, (0.0,) * one.num_trained, 0.0, (), one.mask) for i, one in enumerate(examples)]
    return [one.prompt_ids for one in examples], samples
