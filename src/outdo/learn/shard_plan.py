"""What each process of a launch holds, for every way to shard: pure functions of a recipe and a model's shape.

none    every process has all: the model that it samples with, float32 masters, the optimizer, float32 sums
grads   the model is whole; masters, optimizer and sums are 1/S of theirs (ZeRO-2)
full    float32 masters, optimizer and sums are 1/S; layers are gathered one by one, and the sampler has a copy (FSDP2)

S is the number of shards: processes / parallel_replicas. An adapter (LoRA) is always replicated: it is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from outdo.errors import ModelError, RecipeError
from outdo.learn.logprobs import CHUNK, CHUNK_ON_GPU
from outdo.learn.memory import (
    ACTIVATION_SHARE,
    BYTES,
    GIB,
    MAX_ROWS,
    MAX_TOKENS,
    TYPICAL_PROMPT,
    activation_bytes,
    as_loaded,
    free_memory,
    held_bytes,
    training_bytes,
)
from outdo.learn.optimizers import OPTIMIZERS
from outdo.models.load import Policy
from outdo.models.shape import ModelShape, shape_of_policy
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe

Sharding = Literal["none", "grads", "full"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
BATCH_PARTS = ("cache", "activations")  # that take what the rest allows
LEAST_TOKENS = 1024  # of a micro-batch: smaller ones would waste the device
# Parts that parallel_offload keeps on the host; the weights only where they are not the sampler's too.
_ON_HOST: dict[Sharding, tuple[str, ...]] = {
    "none": ("masters", "optimizer"),
    "grads": ("masters", "optimizer"),
    "full": ("masters", "gradients", "optimizer"),
}
_NOTHING: dict[Sharding, tuple[str, ...]] = {"none": (), "grads": (), "full": ()}
OFFLOADED = {"none": _NOTHING, "optimizer": _ON_HOST, "parameters": _ON_HOST}


@dataclass(frozen=True)
class Plan:
    """What one process holds. All processes hold the same."""

    sharding: Sharding
    shards: int  # processes over which it is split
    replicas: int  # copies of the whole: processes / shards
    bytes_by_part: Mapping[str, int]  # on its device, with the cache and activations that the rest allows
    least: int  # bytes on its device with the smallest batch: one answer trained, one group sampled
    memory: int | None  # bytes of the device that may be used; None: unknown
    tokens: int  # of a micro-batch
    rows: int  # answers that are decoded at once
    host_bytes: Mapping[str, int] = field(default_factory=dict)  # offloaded to the host

    @property
    def total(self) -> int:
        return sum(self.bytes_by_part.values())

    @property
    def fits(self) -> bool:
        return self.memory is None or self.least <= self.memory

    @property
    def missing(self) -> int:
        """Bytes by which the device is too small; 0 where it fits."""
        return 0 if self.memory is None else max(0, self.least - self.memory)

    def describe(self) -> list[str]:
        """The parts in one line, and what is on the host in another."""
        parts = ", ".join(f"{name} {size_text(count)}" for name, count in self.bytes_by_part.items() if count)
        verdict = "fits" if self.fits else f"{size_text(self.missing)} too much"
        lines = [f"{size_text(self.total)}, {verdict}: {parts}"]
        if offloaded := ", ".join(f"{name} {size_text(count)}" for name, count in self.host_bytes.items() if count):
            lines.append(f"on the host, for each process: {offloaded}")
        return lines


def pick_sharding(recipe: Recipe, shape: ModelShape, world_size: int, memory: int | None, device: str = "cuda") -> Plan:
    """The plan by `parallel_sharding`; for auto the first of none, grads and full that fits, else the smallest, whose
    `fits` is False. `memory`: bytes of one device that may be used. Raises RecipeError for replicas that do not divide
    the processes."""
    plans = all_plans(recipe, shape, world_size, memory, device)
    return next((plan for plan in plans if plan.fits), min(plans, key=lambda plan: plan.least))


def all_plans(
    recipe: Recipe, shape: ModelShape, world_size: int, memory: int | None, device: str = "cuda"
) -> list[Plan]:
    """The plans that `parallel_sharding` allows, in the order of preference."""
    shards, wanted = shard_count(recipe, world_size), recipe.parallel_sharding
    if recipe.use_peft or (shards == 1 and wanted != "full"):  # nothing to split
        return [plan_for(recipe, shape, "none", 1, world_size, memory, device)]
    names = SHARDINGS if wanted == "auto" else (wanted,)
    if wanted == "auto" and (recipe.stochastic_rounding or not OPTIMIZERS[recipe.optim].splits):
        names = ("none",)  # the others cut weights into parts
    split = [(one, 1 if one == "none" else shards) for one in names]
    return [plan_for(recipe, shape, one, count, world_size // count, memory, device) for one, count in split]


def shard_count(recipe: Recipe, world_size: int) -> int:
    """Processes over which a copy is split. Raises RecipeError."""
    if world_size % recipe.parallel_replicas:
        raise RecipeError(
            f"parallel_replicas={recipe.parallel_replicas} does not divide the {world_size} processes: each copy is "
            "split over the same number of them"
        )
    return world_size // recipe.parallel_replicas


def refuse_unfit(recipe: Recipe, shape: ModelShape, world_size: int, memory: int | None, device: str = "cuda") -> Plan:
    """The picked plan. Raises ModelError where none fits, with the numbers and what would fit."""
    plan = pick_sharding(recipe, shape, world_size, memory, device)
    if plan.fits or memory is None:
        return plan
    needs = [f"{one.sharding} {size_text(one.least)}" for one in all_plans(recipe, shape, world_size, memory, device)]
    raise ModelError(
        f"model {recipe.model_name_or_path}: training it on {world_size} {_processes(world_size, device)} takes "
        f"{', '.join(needs)} on each with the smallest batch, and each has {size_text(memory)}: "
        f"{_what_fits(recipe, shape, world_size, memory, device)}"
    )


def with_sharding(policy: Policy, recipe: Recipe) -> Recipe:
    """The recipe with `parallel_sharding` resolved for a policy that is loaded: what fits the process that has the
    least memory. All processes call it. Raises ModelError where nothing fits."""
    world = get_world()
    if not world.is_shared or recipe.parallel_sharding != "auto":
        return recipe
    shares = world.launch.local_size if policy.device.type == "cpu" else 1  # processes that have one memory
    free = world.gather(lambda: free_memory(policy.device), "measuring memory")
    known = [one for one in free if one is not None]
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    memory = min(known) // shares + weights if len(known) == len(free) else None
    plan = refuse_unfit(as_loaded(policy, recipe), shape_of_policy(policy), world.size, memory, policy.device.type)
    return recipe.model_copy(update={"parallel_sharding": plan.sharding})


def _processes(count: int, device: str) -> str:
    return ("GPU" if device == "cuda" else "process") + ("" if count == 1 else "s" if device == "cuda" else "es")


def _what_fits(recipe: Recipe, shape: ModelShape, world_size: int, memory: int, device: str) -> str:
    """The changes that would make it fit, each by itself."""
    keys: tuple[tuple[str, object], ...] = (
        ("parallel_sharding", "auto"),
        ("parallel_offload", "optimizer"),
        ("parallel_offload", "parameters"),
        ("gradient_checkpointing", True),
        ("dtype", "bfloat16"),
        ("optim", "adamw_8bit"),
        ("beta", 0.0),
    )
    ways = []
    for key, value in keys:
        other = recipe.model_copy(update={key: value})
        if getattr(recipe, key) != value and (plan := pick_sharding(other, shape, world_size, memory, device)).fits:
            name = key.replace("parallel_", "parallel.")
            ways.append(f"{name}={str(value).lower()} takes {size_text(plan.least)} ({plan.sharding})")
    more = world_size
    while recipe.parallel_sharding != "none" and not recipe.use_peft and more < 64 * world_size:
        more *= 2
        if pick_sharding(recipe, shape, more, memory, device).fits:
            ways.append(f"{more} processes are enough")
            break
    return ", or ".join([*ways, *([] if recipe.use_peft else ["train an adapter (use_peft=true)"]), "a smaller model"])


def plan_for(
    recipe: Recipe,
    shape: ModelShape,
    sharding: Sharding,
    shards: int,
    replicas: int,
    memory: int | None,
    device: str = "cuda",
) -> Plan:
    """The plan of one way to shard. The cache and the activations take what the rest allows, as in a run."""
    held = rank_bytes(recipe, shape, sharding, shards, replicas)
    kept = OFFLOADED[recipe.parallel_offload][sharding] if not recipe.use_peft else ()
    host = {name: held.pop(name) for name in kept if held.get(name)}
    base = sum(held.values())
    free = None if memory is None else max(0, memory - base)
    answers = share_of_answers(recipe, shards * replicas)
    of_a_token, of_a_row = activation_bytes(recipe, shape, device), row_bytes(recipe, shape)
    longest = TYPICAL_PROMPT + recipe.max_completion_length
    tokens = _micro_batch(recipe, of_a_token, free, device, min(answers * longest, max(longest, LEAST_TOKENS)))
    tokens = min(tokens, answers * longest)
    group = min(recipe.num_generations, answers)
    rows = _rows(recipe, of_a_row, free, device, answers, group)
    smallest = min(tokens, longest) if recipe.tokens_per_micro_batch is None else tokens
    logits = logits_bytes(tokens, shape, device)
    least = base + group * of_a_row + smallest * of_a_token + logits_bytes(smallest, shape, device)
    parts = {**held, "cache": rows * of_a_row, "activations": tokens * of_a_token + logits}
    return Plan(sharding, shards, replicas, parts, least, memory, tokens, rows, host)


def rank_bytes(recipe: Recipe, shape: ModelShape, sharding: Sharding, shards: int, replicas: int = 1) -> dict[str, int]:
    """Bytes that one process holds for the whole run, whatever the batches; nothing is offloaded. The reference is a
    whole model everywhere, as the sampler's is."""
    if recipe.use_peft:
        return held_bytes(recipe, shape)
    model = "sampler's copy" if sharding == "full" else "weights"
    weights = BYTES[recipe.dtype] * shape.parameters
    return {model: weights, **training_bytes(recipe, shape, sharding, shards, replicas)}


def logits_bytes(tokens: int, shape: ModelShape, device: str) -> int:
    """Of the chunk of logits in use, three times in float32."""
    return min(tokens * shape.vocabulary, CHUNK_ON_GPU if device == "cuda" else CHUNK) * 4 * 3


def share_of_answers(recipe: Recipe, world_size: int) -> int:
    """Answers that a process samples in a step, at most: a group is sampled in one process."""
    return -(-recipe.prompts_per_step // world_size) * recipe.num_generations


def row_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Keys and values of one answer at its full length, with a typical prompt."""
    per_token = shape.layers * 2 * shape.kv_width * BYTES[recipe.dtype]
    return (TYPICAL_PROMPT + recipe.max_completion_length) * per_token


def _micro_batch(recipe: Recipe, of_a_token: int, free: int | None, device: str, least: int) -> int:
    """Tokens: the recipe's, or as many as fit in the share of the free memory."""
    tokens = recipe.tokens_per_micro_batch or MAX_TOKENS[device]
    if recipe.tokens_per_micro_batch or free is None or device != "cuda":
        return tokens
    while tokens > least and tokens * of_a_token > ACTIVATION_SHARE * free:
        tokens //= 2
    return max(tokens, least)


def _rows(recipe: Recipe, of_a_row: int, free: int | None, device: str, answers: int, least: int) -> int:
    """Answers decoded at once: all of the process's share, or as many as fit in the cache."""
    rows = min(recipe.rollout_rows or MAX_ROWS[device], answers)
    if device != "cuda" or (free is None and not recipe.rollout_memory):
        return rows
    budget = int(recipe.rollout_memory * GIB) if recipe.rollout_memory else (free or 0) // 2
    return max(least, min(rows, budget // of_a_row))


def size_text(count: float) -> str:
    """Bytes in the unit that is read most easily, of 10^9, 10^6 or 10^3."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
