"""What GRPO and SFT share: float32 weights, the optimizer, and micro-batches that fit the memory.

The loss of a micro-batch uses the denominators of its whole update, so that its size changes no gradient.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from outdo.errors import ModelError, NumericsError
from outdo.learn import memory
from outdo.learn.optimizers import (
    make_optimizer,
    package_of,
    read_state,
    refuse_other_package,
    write_state,
)
from outdo.learn.packing import Packed, micro_batches, pack, shares_of
from outdo.learn.plain import answer_logprobs
from outdo.learn.sharded import shared_masters
from outdo.models.load import Policy
from outdo.parallel.world import World, get_world
from outdo.recipe.schema import Recipe
from outdo.types import Sample

Stats = dict[str, Tensor | float]
MASTER = "master"  # the slot of a float32 copy, beside the optimizer's slots
MAX_SKIPPED = 3  # updates in a row with a non-finite loss or gradient, before the run halts
LossOf = Callable[[Packed], tuple[Tensor, Stats]]  # the loss of a micro-batch, and sums over its tokens


class Part(NamedTuple):
    """The samples of a micro-batch."""

    rows: list[Sample]
    is_idle: bool = False  # it takes part in the exchange, and adds nothing


class BaseLearner:
    """Trains `policy` in place. Where several processes train, all call every method with the same arguments, and each
    computes its share."""

    length_key: ClassVar[str]  # the recipe key that bounds an answer; errors name it

    def __init__(
        self, policy: Policy, recipe: Recipe, rate: float, weight_decay: float, betas: tuple[float, float]
    ) -> None:
        self.policy, self.recipe = policy, recipe
        self.world = get_world()
        fits = self.world.gather(lambda: memory.tokens_at_once(policy, recipe), "measuring memory")
        self.tokens_at_once = min(fits)
        self.skipped = 0  # updates in a row that were not applied
        self.notify: Callable[[str], None] = lambda line: None
        if recipe.gradient_checkpointing and not policy.stack:  # first: a sharded copy has it too
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.masters = shared_masters(policy, recipe)
        self.optimizer = make_optimizer(recipe.optim, self.masters.weights, rate, weight_decay, betas)

    @property
    def is_between_steps(self) -> bool:
        """Whether no update of an unfinished step was applied, so that the last step's end can be saved."""
        return False

    def is_finite(self) -> bool:
        """Whether all weights are."""
        return self.masters.is_finite()

    def weights(self) -> Mapping[str, Any]:
        """What is trained, by parameter name: the model, or its adapter."""
        adapter = self.policy.adapter
        return adapter.state_dict() if adapter else self.policy.model.state_dict()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint holds besides the weights: tensors (copies) by parameter name, and plain values."""
        named = list(zip(self.masters.names, self.masters.weights, strict=True))
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, dict[str, Any]] = {}
        for name, weight in named:
            slots, numbers[name] = read_state(self.optimizer, weight)
            tensors |= {f"{name}.{slot}": value for slot, value in slots.items()}
        for name, weight in (named[index] for index in self.masters.copies):
            tensors[f"{name}.{MASTER}"] = weight.detach().to("cpu", copy=True)
        plain: dict[str, Any] = {"tokens_at_once": self.tokens_at_once, "optimizer": package_of(self.optimizer)}
        plain["optimizer_updates"] = self.masters.num_updates
        if numbers := {name: values for name, values in numbers.items() if values}:
            plain["optimizer_numbers"] = numbers
        return tensors, plain

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restores what `state` returned. The caller restores the weights."""
        refuse_other_package(self.optimizer, plain.get("optimizer"), self.recipe.optim)
        weights = dict(zip(self.masters.names, self.masters.weights, strict=True))
        slots: dict[str, dict[str, Tensor]] = defaultdict(dict)
        shapes = dict(zip(self.masters.names, self.masters.shapes(), strict=True))
        for key, whole in self._by_name(tensors).items():
            name, _, slot = key.rpartition(".")
            value = self.masters.part(whole) if whole.shape == shapes[name] else whole
            if slot == MASTER:
                weights[name].data.copy_(value)
            else:
                slots[name][slot] = value
        numbers = plain.get("optimizer_numbers", {})
        for name in {**slots, **numbers}:
            write_state(self.optimizer, weights[name], slots[name], numbers.get(name, {}))
            self.masters.stow(self.optimizer, weights[name])
        self.masters.num_updates = int(plain.get("optimizer_updates", 0))
        self.tokens_at_once = min(self.tokens_at_once, int(plain["tokens_at_once"]))

    def _by_name(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Converts a checkpoint of version 0.1, which has parameters by their position in the optimizer."""
        if not all(any(part.isdecimal() for part in key.split(".")) and key.count(".") == 1 for key in tensors):
            return dict(tensors)
        names = {id(p): name for name, p in zip(self.masters.names, self.masters.weights, strict=True)}
        order = [names[id(param)] for group in self.optimizer.param_groups for param in group["params"]]
        named = {}
        for key, value in tensors.items():
            first, _, second = key.partition(".")
            is_master = first == MASTER
            name = self.masters.names[int(second)] if is_master else order[int(first)]
            named[f"{name}.{MASTER if is_master else second}"] = value
        return named

    def _gradient(
        self, prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample], loss_of: LossOf, sums: Sums
    ) -> Tensor:
        """Sets the clipped gradient of these samples. Returns its norm before clipping and the loss, on the device."""
        self.policy.set_training(True)
        loss, of_parts = torch.zeros((), device=self.policy.device), Sums()

        def begin() -> list[Part]:
            nonlocal of_parts
            loss.zero_()
            of_parts = Sums()
            self.masters.begin()
            return self._own_parts(prompt_ids, rows)

        for part, stats in self._trained_on(prompt_ids, begin, loss_of):
            self.masters.collect()
            loss += part
            of_parts.add(stats)
        sums.add(of_parts.values)
        norm = self.masters.finish(self.recipe.max_grad_norm)
        loss = self.world.all_reduce(loss)
        return torch.stack([norm.to(loss.device), loss])  # without any gradient the norm is a 0 on the CPU

    def _count_skipped(self, is_applied: bool, values: str, remedy: str) -> None:
        """Raises NumericsError after MAX_SKIPPED updates in a row."""
        self.skipped = 0 if is_applied else self.skipped + 1
        if self.skipped >= MAX_SKIPPED:
            in_a_row = f"{self.skipped} updates in a row had a non-finite {values} and were not applied"
            raise NumericsError(f"{in_a_row}: lower {remedy}")

    def _trained_on(
        self, prompt_ids: Sequence[Sequence[int]], begin: Callable[[], list[Part]], loss_of: LossOf
    ) -> Iterator[tuple[Tensor, Stats]]:
        """Forward and backward of each micro-batch, which leaves its gradients on the model. Yields loss and stats.

        A micro-batch that does not fit the memory is split in two and repeated; its partial gradients are dropped.
        Where they are in the sums already, all of the update is restarted in smaller micro-batches: `begin` starts it
        and returns them. Raises ModelError if a single answer does not fit, and OutOfMemoryError where others wait for
        this process.
        """
        parts = deque(begin())
        while parts:
            part, is_idle = parts.popleft()
            self.masters.announce(is_last=not parts)
            try:
                loss, stats = loss_of(pack(prompt_ids, part, self.policy.device))
                if is_idle:
                    loss, stats = loss * 0.0, {}
                loss.backward()
            except torch.OutOfMemoryError:
                if self.masters.is_in_step:
                    raise
                failed = True
            else:
                failed = False
            if failed:  # outside the handler, whose traceback would keep the tensors alive
                loss = stats = None  # type: ignore[assignment]
                self.masters.cancel() if self.masters.folds else self.masters.drop()
                memory.release_memory(self.policy.device)
                if len(part) == 1:
                    raise ModelError(memory.too_long_message(tokens_of(part, prompt_ids), self.recipe, self.length_key))
                self._shrink(part, prompt_ids)
                if self.masters.folds:
                    parts = deque(begin())
                else:
                    middle = len(part) // 2
                    parts.extendleft([Part(part[middle:]), Part(part[:middle])])
            else:
                yield loss.detach(), stats

    def _shrink(self, part: Sequence[Sample], prompt_ids: Sequence[Sequence[int]]) -> None:
        smaller = max(1, tokens_of(part, prompt_ids) // 2)
        if smaller < self.tokens_at_once:
            self.tokens_at_once = smaller
            self.notify(f"  out of memory: micro-batches of {smaller:,} tokens from here on, with the same gradients")

    def _own_parts(self, prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample]) -> list[Part]:
        """This process's share in micro-batches. Where the processes go in step, all have as many: those that have
        fewer run one of a sample that counts for nothing."""
        shares = shares_of(prompt_ids, rows, self.world.size)
        if not self.masters.is_in_step or not rows:
            return [Part(one) for one in self._micro_batches(prompt_ids, shares[self.world.rank])]
        batches = [self._micro_batches(prompt_ids, share) for share in shares]
        idle = Part([min(rows, key=lambda row: len(row.token_ids))], is_idle=True)
        mine = [Part(one) for one in batches[self.world.rank]]
        return mine + [idle] * (max(map(len, batches)) - len(mine))

    def _micro_batches(self, prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample]) -> list[list[Sample]]:
        return micro_batches(prompt_ids, rows, self.tokens_at_once)

    def _logprobs(self, policy: Policy, packed: Packed, temperature: float) -> tuple[Tensor, Tensor]:
        """With gradients, of the weights that are trained, which are the policy's."""
        if not torch.is_grad_enabled():
            return answer_logprobs(policy, packed, temperature)
        recompute = self.recipe.gradient_checkpointing
        return self.masters.forward(policy, lambda trained: answer_logprobs(trained, packed, temperature, recompute))


class Sums:
    """Running sums that stay on the device until all are read at once."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor | float] = defaultdict(float)

    def add(self, values: Stats) -> None:
        for key, value in values.items():
            self.values[key] = self.values[key] + value

    def read(self) -> dict[str, float]:
        """Of this process."""
        on_device = {key: value for key, value in self.values.items() if isinstance(value, Tensor)}
        read = torch.stack([value.double() for value in on_device.values()]).tolist() if on_device else []
        plain = {key: value for key, value in self.values.items() if not isinstance(value, Tensor)}
        return defaultdict(float, plain | dict(zip(on_device, read, strict=True)))

    def read_all(self, world: World) -> dict[str, float]:
        """Of all processes together."""
        totals: dict[str, float] = defaultdict(float)
        for sums in world.gather(lambda: dict(self.read()), "adding up statistics"):
            for key, value in sums.items():
                totals[key] += value
        return totals


def tokens_of(rows: Sequence[Sample], prompt_ids: Sequence[Sequence[int]]) -> int:
    return sum(len(row.token_ids) for row in rows) + sum(len(prompt_ids[p]) for p in {row.prompt for row in rows})
