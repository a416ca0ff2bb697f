"""Loads the policy of a recipe where it fits memory and disk, and describes a run for `outdo train --dry-run`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import GenerationConfig

from outdo.errors import ModelError, PlaceError
from outdo.learn.memory import BYTES, free_memory, held_bytes, kl_interval, planned_bytes, reference_bytes
from outdo.learn.optimizers import OPTIMIZERS, require_optimizer
from outdo.learn.shard_plan import BATCH_PARTS, pick_sharding, refuse_unfit, size_text
from outdo.models.load import LoadedModel, Policy, load_policy, load_tokenizer, pick_device, policy_of
from outdo.models.lora import Lora
from outdo.models.renderer import Renderer
from outdo.models.shape import ModelShape, shape_of
from outdo.models.sources import Source, find_source
from outdo.parallel.clusters import Cluster
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe
from outdo.runs.writer import default_folder
from outdo.training.cluster_plan import cluster_of, plan_lines


def lora_of(recipe: Recipe) -> Lora | None:
    """The adapter that a recipe asks for."""
    if not recipe.use_peft:
        return None
    return Lora(recipe.lora_r, recipe.lora_alpha, tuple(recipe.lora_target_modules), recipe.seed, recipe.load_in_4bit)


def policy_for(
    recipe: Recipe,
    name: str | None = None,
    learns: bool = True,
    folder: Path | None = None,
    given: LoadedModel | None = None,
) -> Policy:
    """The policy that a recipe trains, or the one by that `name` in its place. Refused where it cannot fit, or what a
    new run of it writes does not fit on the disk of that `folder`. One that does not learn is only sampled from, and
    has a new adapter only where four bits are not had without. A `given` model is used as it is."""
    if learns:
        require_optimizer(recipe.optim)
    if given:
        where = Path(recipe.model_name_or_path)
        return policy_of(given, where, dtype=recipe.dtype, device=recipe.device, lora=lora_of(recipe))
    name = name or recipe.model_name_or_path
    lora = lora_of(recipe) if learns or recipe.load_in_4bit else None
    shape = shape_of(find_source(name), lora)
    refuse_too_large(recipe, shape, learns)
    if folder:
        refuse_full_disk(disk(recipe, shape, folder), folder)
    return load_policy(name, dtype=recipe.dtype, device=recipe.device, seed=recipe.seed, lora=lora)


def refuse_too_large(recipe: Recipe, shape: ModelShape, learns: bool = True) -> None:
    """Raises ModelError where what is held all along is more than there is. Batches fit themselves to the rest."""
    device = pick_device(recipe.device)
    free = free_memory(device)
    world = get_world()
    if learns and world.is_shared:
        shared_by = world.launch.local_size if device.type == "cpu" else 1  # processes that have one memory
        refuse_unfit(recipe, shape, world.size, free and free // shared_by, device.type)
        return
    parts = held_bytes(recipe, shape, learns)
    if free is None or sum(parts.values()) <= free:
        return
    told = ", ".join(f"{name} {size_text(n)}" for name, n in parts.items() if n)
    raise ModelError(
        f"model {recipe.model_name_or_path}: {'training' if learns else 'sampling from'} it takes "
        f"{size_text(sum(parts.values()))} ({told}) before the first batch, and {device} has {size_text(free)} free: "
        f"{_smaller(recipe, shape, free, learns)}"
    )


def _smaller(recipe: Recipe, shape: ModelShape, free: int, learns: bool) -> str:
    """What would fit."""
    # Where no adapter was asked for, none was counted: one of a hundredth of the weights is a large one.
    guess = replace(shape, adapted=shape.parameters, factors=shape.parameters // 100)
    ways = []
    changes = [("use_peft", True), ("dtype", "bfloat16"), ("optim", "adamw_8bit"), ("beta", 0.0)]
    if recipe.dtype == "bfloat16" and not recipe.use_peft and learns:
        changes += [("stochastic_rounding", True), ("parallel_offload", "optimizer")]
    for key, value in changes:
        other = recipe.model_copy(update={key: value})
        need = sum(held_bytes(other, shape if recipe.use_peft else guess, learns).values())
        if getattr(recipe, key) != value and need <= free:
            ways.append(f"{key}={str(value).lower()} needs {size_text(need)}")
    return ", or ".join([*ways, "take a smaller model"])


@dataclass(frozen=True)
class Disk:
    """Bytes that a run writes, and that are free where it writes them. Its rows are small beside these."""

    always: int  # the model that it ends with, and the one that KL is measured to
    checkpoint: int
    kept: int  # checkpoints at one time, with the best one and one that is being written
    free: int

    @property
    def most(self) -> int:
        return self.always + self.kept * self.checkpoint

    @property
    def least(self) -> int:
        """No run gets by with less: the next checkpoint is written before the last one goes."""
        return self.always + min(self.kept, 2) * self.checkpoint


def disk(recipe: Recipe, shape: ModelShape, folder: Path) -> Disk:
    """A checkpoint has the weights, what the optimizer knows of each, and their originals where they are no float32."""
    each = BYTES[recipe.dtype]
    has_copy = not recipe.use_peft and bool(recipe.beta or recipe.kl_steps)
    always = shape.parameters * each * (2 if has_copy else 1) + 4 * shape.factors
    state = OPTIMIZERS[recipe.optim].bytes
    of_a_weight = each + state + (0 if each == 4 or recipe.stochastic_rounding else 4)
    checkpoint = int((4 + state) * shape.factors if recipe.use_peft else of_a_weight * shape.parameters)
    place = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.is_dir())
    most = 2 + (recipe.max_steps // recipe.save_steps if recipe.save_steps else 1)  # all that are ever saved
    kept = min(most, (recipe.save_total_limit or most) + 2) if recipe.save_steps else 1
    return Disk(always, checkpoint, kept, shutil.disk_usage(place).free)


def refuse_full_disk(found: Disk, folder: Path) -> None:
    """Raises PlaceError where a run would end with what it learnt and no room to keep it."""
    if found.least > found.free:
        raise PlaceError(
            f"{folder}: the disk has {size_text(found.free)} free, and a run needs {size_text(found.least)} for the "
            f"model and checkpoints of {size_text(found.checkpoint)}: make room, or write elsewhere with output_dir"
        )


def token_lines(source: Source) -> str:
    """What ends an answer and what pads, as training will have it."""
    tokenizer = load_tokenizer(source)
    try:
        generation = GenerationConfig.from_pretrained((source.base or source).where, local_files_only=source.offline)
    except Exception:  # most have none, and then the tokenizer decides
        generation = None
    facts = Renderer.of(source.name, tokenizer, generation, context=0).facts
    ends = ", ".join(f"{text!r} ({i})" for i, text in zip(facts["eos_ids"], facts["eos_tokens"], strict=True))
    chat = "a chat template" if facts["chat_template"] else "no chat template: prompts are plain text"
    return f"{chat}; an answer ends with {ends}; padding is {facts['pad_token']!r} ({facts['pad_id']})"


def describe(recipe: Recipe) -> list[str]:
    """The plan, line by line."""
    r, source = recipe, find_source(recipe.model_name_or_path)
    shape = shape_of(source, lora_of(r))
    cluster = cluster_of(r)
    is_one = cluster.size == 1 and not r.parallel_pretend
    every = kl_interval(r, shape, _rest(r, shape, cluster))
    r = r.model_copy(update={"kl_steps": every if not r.beta else r.kl_steps})
    folder = Path(r.output_dir) if r.output_dir else default_folder(r.dataset_name, r.run_name)
    room = disk(r, shape, folder)
    long = f"{r.sft_steps} steps" if r.sft_steps else f"{r.sft_epochs:g} epochs in steps" if r.sft_epochs else ""
    warm = f"{long} of {r.sft_batch_size} demonstrations, then " if long else ""
    whole = f"{len(r.stages)} stages, as below" if r.stages else f"{warm}{r.max_steps} GRPO steps"
    adapter = f", of which an adapter of {shape.factors:,} learns" if r.use_peft else ""
    own = "their own verifiers" if r.dataset_mixture else "its own verifier"
    lines = [
        f"model     {source.description}: {shape.parameters:,} parameters{adapter}, {r.dtype}, "
        f"on {_where(r, cluster)}, sees {shape.context:,} tokens",
        f"tokens    {token_lines(source)}",
        f"task      {_tasks(r)}, rewarded by {', '.join(r.reward_funcs) or own}",
        f"run       {whole}",
        f"a step    {r.prompts_per_step} prompts x {r.num_generations} answers = {r.answers_per_step} answers of up to "
        f"{r.max_completion_length} tokens, {r.answers_per_step * r.max_completion_length:,} in all",
        f"updates   {r.updates_per_step * r.num_iterations} a step, of {r.answers_per_step // r.updates_per_step} "
        f"answers each; {r.optim}, learning_rate {_rates(r)}",
        f"KL        {_kl(r, shape, every)}",
        *([_memory(r, shape)] if is_one else plan_lines(r, shape, cluster)),
        f"writes    {folder}: {_writes(r, room)}",
    ]
    if is_one:
        refuse_too_large(r, shape)
    else:
        refuse_unfit(r, shape, cluster.size, cluster.memory, cluster.device)
    if not r.parallel_pretend:
        require_optimizer(r.optim)
        refuse_full_disk(room, folder)
    return lines


def _where(r: Recipe, cluster: Cluster) -> str:
    return r.parallel_pretend or f"{f'{cluster.size} x ' if cluster.size > 1 else ''}{pick_device(r.device)}"


def _rest(r: Recipe, shape: ModelShape, cluster: Cluster) -> int | None:
    """Bytes of a device that a run does not hold all along. None: unknown."""
    if cluster.memory is None:
        return None
    plan = pick_sharding(r, shape, cluster.size, cluster.memory, cluster.device)
    return cluster.memory - sum(n for part, n in plan.bytes_by_part.items() if part not in BATCH_PARTS)


def _memory(r: Recipe, shape: ModelShape) -> str:
    """Of one process on this machine."""
    parts = planned_bytes(r, shape, pick_device(r.device))
    taken = ", ".join(f"{name} {size_text(n)}" for name, n in parts.items() if n)
    return f"memory    about {size_text(sum(parts.values()))} beyond Python's own: {taken}"


def _writes(r: Recipe, found: Disk) -> str:
    learns = sum(stage.get("stage") != "harvest" for stage in r.stages) or 1
    each = " in each stage that learns" if learns > 1 else ""
    free = f"; {'only ' if learns * found.most > found.free else ''}{size_text(found.free)} free"
    free = "" if r.parallel_pretend else free  # of another machine's disk nothing is known
    return f"up to {size_text(found.most)}{each}, checkpoints of {size_text(found.checkpoint)} and the model{free}"


def _kl(r: Recipe, shape: ModelShape, every: int) -> str:
    """How often KL to the starting model is measured, and at what cost."""
    if r.beta:
        return f"part of the loss, with beta {r.beta:g}: measured at every step"
    need = reference_bytes(r, shape)
    if not every:
        cost = f"the reference would take {size_text(need)} of memory; " if need else ""
        return f"not measured: {cost}kl_steps=10 measures it every 10 steps, and kl_guard needs it"
    memory = f"{size_text(need)} of memory for the starting model" if need else "no memory: the adapter is switched off"
    often = "every step" if every == 1 else f"every {every} steps"
    return f"measured {often}, not trained on (beta 0); costs {memory}, and a forward pass over the step's answers"


def _rates(r: Recipe) -> str:
    """Of GRPO, and of a warm-up where there is one."""
    warm = f", in the warm-up {r.sft_learning_rate:g} {r.sft_lr_scheduler_type}" if r.sft_steps or r.sft_epochs else ""
    return f"{r.learning_rate:g} {r.lr_scheduler_type}, beta {r.beta:g}{warm}"


def _tasks(recipe: Recipe) -> str:
    """The task's name, or those of a mixture with how often each comes up."""
    total = sum(float(entry.get("weight", 1)) for entry in recipe.dataset_mixture)
    shares = [
        f"{float(entry.get('weight', 1)) / total:.0%} {entry.get('name') or entry['dataset_name']}"
        for entry in recipe.dataset_mixture
    ]
    return " and ".join(shares) if shares else recipe.dataset_name
