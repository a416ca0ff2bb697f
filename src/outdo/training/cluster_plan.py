"""The plan of several processes for `outdo train --dry-run`: this launch, or a cluster that is not here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from outdo.errors import RecipeError
from outdo.learn.memory import free_memory
from outdo.learn.shard_plan import Plan, all_plans, pick_sharding, size_text
from outdo.learn.traffic import StepEstimate, estimate_step
from outdo.models.load import pick_device
from outdo.models.shape import ModelShape
from outdo.parallel.clusters import NODE, Cluster, launched_cluster, parse_cluster
from outdo.recipe.schema import Recipe


def cluster_of(recipe: Recipe, environment: Mapping[str, str] | None = None) -> Cluster:
    """The cluster that `parallel_pretend` names, or that of this launch. Raises RecipeError, ModelError."""
    if recipe.parallel_pretend:
        return parse_cluster(recipe.parallel_pretend)
    device = pick_device(recipe.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return launched_cluster(os.environ if environment is None else environment, device.type, name, free_memory(device))


def refuse_pretended(recipe: Recipe) -> None:
    """Raises RecipeError where a run would start on a cluster that is not here."""
    if recipe.parallel_pretend:
        raise RecipeError(
            f"parallel.pretend={recipe.parallel_pretend} plans for a cluster that is not here: add --dry-run, or leave "
            "the key out to train on what is here"
        )


def plan_lines(recipe: Recipe, shape: ModelShape, cluster: Cluster) -> Iterator[str]:
    """What each process would hold with every sharding, which is picked, what a step takes, and how that scales."""
    picked = pick_sharding(recipe, shape, cluster.size, cluster.memory, cluster.device)
    yield f"cluster   {cluster.describe()}; bytes are of each process"
    every = recipe.model_copy(update={"parallel_sharding": "auto"})
    for plan in all_plans(every, shape, cluster.size, cluster.memory, cluster.device):
        first, *more = plan.describe()
        yield f"{plan.sharding:<10}{first}"
        yield from (f"{'':<10}{line}" for line in more)
    yield f"picked    {_picked(recipe, picked, cluster)}"
    if picked.fits and (step := estimate_step(recipe, shape, picked, cluster)):
        yield from _step_lines(step)
        if line := "; ".join(_scaling(recipe, shape, cluster)):
            yield f"scaling   {line}"


def _picked(recipe: Recipe, plan: Plan, cluster: Cluster) -> str:
    why = "the first that fits" if recipe.parallel_sharding == "auto" else "parallel.sharding"
    if recipe.use_peft:
        why = "an adapter is always replicated"
    elif cluster.size == recipe.parallel_replicas:
        why = "there is nothing to split"
    over = f", {plan.shards} shards" if plan.shards > 1 else ""
    copies = f", {plan.replicas} replicas" if plan.replicas > 1 else ""
    size = f"micro-batches of {plan.tokens:,} tokens, {plan.rows:,} answers decoded at once"
    return f"{plan.sharding}{over}{copies} ({why}); {size}" if plan.fits else "none fits"


def _step_lines(step: StepEstimate) -> Iterator[str]:
    parts = {"sampling": step.sampling, "update": step.update, "optimizer": step.optimizer}
    parts |= {"communication": step.communication} if step.transfers else {}
    listed = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in parts.items())
    yield f"a step    about {_seconds(step.seconds)} with answers of full length: {listed}; bound by {step.bound}"
    for transfer in step.transfers:
        each = f"{transfer.times} x {size_text(transfer.sent / transfer.times)}"
        yield f"{'sends':<10}{transfer.name}: {each} from each process, {_seconds(transfer.seconds)} in all"


def _scaling(recipe: Recipe, shape: ModelShape, cluster: Cluster) -> Iterator[str]:
    """The same step on one GPU, one node and eight nodes of this kind, and on the cluster itself."""
    node = cluster.per_node if cluster.per_node > 1 else NODE
    sizes = {1: (1, 1), node: (1, node), NODE * node: (NODE, node), cluster.size: (cluster.nodes, cluster.per_node)}
    for size, (nodes, per_node) in sorted(sizes.items()):
        other = replace(cluster, nodes=nodes, per_node=per_node)
        if size % recipe.parallel_replicas:
            continue
        plan = pick_sharding(recipe, shape, size, other.memory, other.device)
        step = estimate_step(recipe, shape, plan, other) if plan.fits else None
        name = f"{size} {'GPU' if size == 1 else 'GPUs'}"
        rate = f"{_seconds(step.seconds)}, {step.tokens_per_second:,.0f} tokens/s ({plan.sharding})" if step else ""
        yield f"{name} {rate or 'too small'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms" if seconds >= 1e-4 else "0 ms"
