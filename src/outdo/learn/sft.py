"""Supervised training, by the updates that GRPO has too. Loss on the answers' tokens only, nothing padded.

An answer is followed by the token that ends a turn, so that the model learns where to stop. One that is longer than
`sft_max_length` allows is cut, without that token; an example whose prompt leaves no room at all is left out.
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
from outdo.errors import NumericsError, TaskError
from outdo.learn.optim import set_rate
from outdo.learn.packing import Packed, pack
from outdo.learn.update import Stats, Sums, Updates, tokens_of
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.demonstrations import Demonstration, Demonstrations
from outdo.types import Sample

BETAS = (0.9, 0.98)
AHEAD = 512  # examples that are tokenised at once, while the ones before are learnt
LATE = 10  # updates of a GPU after which it is asked what they came to
MOST_SKIPPED = 3  # updates in a row with a gradient that is no number, before the run halts


@dataclass(frozen=True)
class Example:
    """A demonstration in tokens."""

    place: int  # in the order of all examples
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class Imitator(Updates):
    """Moves `policy` towards what it is shown. `steps` is how many updates there will be, for the schedule."""

    def __init__(self, policy: Policy, recipe: Recipe, steps: int) -> None:
        super().__init__(policy, recipe, recipe.sft_learning_rate, recipe.sft_weight_decay, BETAS, "sft_max_length")
        self.steps = steps
        self.done = 0  # updates
        self.taken = 0  # examples, those that were left out included
        self.skipped = 0  # updates in a row that were not applied
        self.seen = 0  # tokens that this process has gone through, prompts included
        self.late = LATE if policy.device.type == "cuda" else 1
        self._unread: list[tuple[dict[str, Any], Tensor]] = []

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, plain = super().state()
        return tensors, {**plain, "done": self.done, "taken": self.taken, "skipped": self.skipped}

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        super().load_state(tensors, plain)
        self.done, self.taken, self.skipped = int(plain["done"]), int(plain["taken"]), int(plain["skipped"])

    def update(self, batch: Sequence[Example]) -> None:
        """One update. What it came to is read later: nothing here waits for the device."""
        recipe, step = self.recipe, self.done
        climb = max(1, int(self.steps * recipe.sft_warmup_ratio)) if recipe.sft_warmup_ratio else 0
        rate = rate_at(step, self.steps, recipe.sft_learning_rate, recipe.sft_lr_scheduler_type, climb)
        set_rate(self.optimizer, rate)
        torch.manual_seed(seed_of("dropout", "sft", recipe.seed, step) % 2**63)  # for models that have any
        prompts, rows = as_rows(batch)
        num_tokens = sum(len(row.token_ids) for row in rows)
        loss_of = partial(self._loss, num_tokens=num_tokens)
        norm_and_loss = self._gradient(prompts, rows, loss_of, Sums())
        # A step by no number is not taken. The optimizer looks at this itself, on the device.
        self.optimizer.found_inf = 1.0 - norm_and_loss.isfinite().all().float()  # type: ignore[attr-defined]
        self._apply()
        self.optimizer.zero_grad(set_to_none=True)
        self.done, self.taken = step + 1, batch[-1].place + 1
        self.seen += tokens_of(rows, prompts)
        self._unread.append(({"step": step, "lr": rate, "tokens": num_tokens}, norm_and_loss))

    def read(self, late: bool = False) -> list[dict[str, Any]]:
        """What the updates came to that were not read yet; with `late`, only once waiting is worth it."""
        if not self._unread or (late and len(self._unread) < self.late):
            return []
        found, self._unread = self._unread, []
        numbers = torch.stack([values for _, values in found]).tolist()
        rows = [{**row, "loss": loss, "grad_norm": norm} for (row, _), (norm, loss) in zip(found, numbers, strict=True)]
        for row in rows:
            sound = math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])
            self.skipped = 0 if sound else self.skipped + 1
            if self.skipped >= MOST_SKIPPED:
                raise NumericsError(
                    f"{self.skipped} updates in a row had a loss or gradient that is no number, and were not applied: "
                    f"lower sft_learning_rate (now {self.recipe.sft_learning_rate:g})"
                )
        return rows

    @torch.no_grad()
    def loss_on(self, examples: Iterable[Example]) -> tuple[float, int]:
        """The loss per answer token, and the number of those tokens."""
        self.policy.set_training(False)
        prompts, rows = as_rows(list(examples))
        num_tokens = sum(len(row.token_ids) for row in rows)
        total = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        for part in self._micro_batches(prompts, rows):
            loss, _ = self._loss(pack(prompts, part, self.policy.device), num_tokens)
            total += loss
        return float(total), num_tokens

    def _loss(self, packed: Packed, num_tokens: int) -> tuple[Tensor, Stats]:
        logprobs_BT, _ = self._logprobs(self.policy, packed, temperature=1.0)
        return -logprobs_BT.sum() / num_tokens, {}


def imitate(
    learner: Imitator,
    demonstrations: Demonstrations,
    told: Callable[[list[dict[str, Any]]], None],
    after: Callable[[], None] = lambda: None,
    undivided: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Trains on the demonstrations from where the learner stands. `told` gets a row for each update, `after` is called
    between two of them, when nothing is half done. Raises TaskError where no example fits."""
    examples = demonstrations.examples(learner.taken)
    encoded = encode(learner.policy, examples, learner.recipe.sft_max_length, learner.taken)
    while batch := list(itertools.islice(encoded, demonstrations.batch_size)):
        with undivided():
            learner.update(batch)
            told(learner.read(late=True))
        after()
    if not learner.done:
        name = demonstrations.name
        raise TaskError(f"{name}: no example has a prompt that leaves room for an answer: raise sft_max_length")
    told(learner.read())


def encode(
    policy: Policy, examples: Iterator[Demonstration], max_length: int | None, start: int = 0
) -> Iterator[Example]:
    """In tokens, many examples at once and ahead of their use."""
    places = itertools.count(start)

    def some() -> tuple[int, list[Example]]:
        part = list(itertools.islice(examples, AHEAD))
        return len(part), _encoded(policy, part, min(max_length or policy.context, policy.context), places)

    with ThreadPoolExecutor(1, "encode") as pool:
        ahead = pool.submit(some)
        while (found := ahead.result())[0]:
            ahead = pool.submit(some)
            yield from found[1]


def _encoded(policy: Policy, examples: Sequence[Demonstration], longest: int, places: Iterator[int]) -> list[Example]:
    if not examples:
        return []
    prompts = policy.renderer.encode_all([prompt for prompt, _ in examples])
    answers = policy.renderer.encode_texts([text for _, text in examples])
    found = []
    for prompt_ids, answer, place in zip(prompts, answers, places, strict=False):  # the places go on
        answer_ids = (*answer, policy.eos_ids[0])[: max(0, longest - len(prompt_ids))]
        if answer_ids:
            found.append(Example(place, prompt_ids, answer_ids))
    return found


def as_rows(examples: Sequence[Example]) -> tuple[list[tuple[int, ...]], list[Sample]]:
    """As the packing takes them: prompts, and the answers to each."""
    rows = [Sample(i, one.answer_ids, (0.0,) * len(one.answer_ids), 0.0) for i, one in enumerate(examples)]
    return [one.prompt_ids for one in examples], rows
