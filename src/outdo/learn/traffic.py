"""What a step costs on a cluster: bytes between processes, and an estimate of its seconds, part by part.

The estimate has every answer at its full length and hides no communication behind arithmetic: it is for comparing
clusters and ways to shard, and for seeing which part bounds a step. On one H200 sampling is within 15% of what was
measured with 0.1, 1.5 and 7 billion weights, and the update within 40%, except that 0.1 billion take twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from outdo.learn.memory import BYTES, TYPICAL_PROMPT
from outdo.learn.optimizers import OPTIMIZERS
from outdo.learn.shard_plan import Plan, share_of_answers
from outdo.models.shape import ModelShape
from outdo.parallel.clusters import Cluster, Gpu
from outdo.parallel.links import Group, gather_seconds, reduce_seconds, replica_group, shard_group
from outdo.recipe.schema import Recipe

PEAK_SHARE = 0.45  # of a GPU's stated FLOP/s, in the forward and backward
DECODE_SHARE = 0.6  # of its memory's stated rate, or of its FLOP/s, while answers are decoded
DECODE_SECONDS = 0.0005  # of each token's step beside that: launches
DRAW_PASSES = 15  # over float32 logits, to draw a token and know its log-probability
FLOAT32_SHARE = 1 / 15  # of the FLOP/s in bfloat16: no tensor cores
TOKEN_BYTES = 12  # a token id and a log-probability of a finished answer


@dataclass(frozen=True)
class Transfer:
    """One kind of exchange in a step. `sent`: bytes that each process sends in all of them."""

    name: str
    times: int
    sent: float
    seconds: float


@dataclass(frozen=True)
class StepEstimate:
    """Seconds of one step, by part."""

    sampling: float
    update: float  # forward and backward, and the reference's forward where there is one
    optimizer: float  # its pass over the weights, and what is offloaded on its way from the host and back
    transfers: tuple[Transfer, ...]
    tokens: int  # that are sampled, by all processes

    @property
    def communication(self) -> float:
        return sum(transfer.seconds for transfer in self.transfers)

    @property
    def seconds(self) -> float:
        return self.sampling + self.update + self.optimizer + self.communication

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def bound(self) -> str:
        """The longest part."""
        parts = ("sampling", "update", "optimizer", "communication")
        return max(parts, key=lambda name: float(getattr(self, name)))


def estimate_step(recipe: Recipe, shape: ModelShape, plan: Plan, cluster: Cluster) -> StepEstimate | None:
    """Of a step of that plan; None where the kind of GPU is not known."""
    if cluster.gpu is None:
        return None
    return StepEstimate(
        sampling=_sampling_seconds(recipe, shape, plan, cluster),
        update=_update_seconds(recipe, shape, cluster),
        optimizer=_optimizer_seconds(recipe, shape, plan, cluster.gpu),
        transfers=step_transfers(recipe, shape, plan, cluster),
        tokens=recipe.answers_per_step * recipe.max_completion_length,
    )


def micro_batches(recipe: Recipe, plan: Plan, size: int) -> int:
    """Of one update, in each process."""
    return max(1, -(-_trained_tokens(recipe) // recipe.updates_per_step // size // plan.tokens))


def updates(recipe: Recipe) -> int:
    """Of the weights in one step."""
    return recipe.updates_per_step * recipe.num_iterations


def step_transfers(recipe: Recipe, shape: ModelShape, plan: Plan, cluster: Cluster) -> tuple[Transfer, ...]:
    """All exchanges of a step, without those that a single process does not have."""
    gpu, each, count = cluster.gpu, BYTES[recipe.dtype], shape.parameters
    if gpu is None or cluster.size == 1:
        return ()
    everyone = Group(cluster.nodes, cluster.per_node)
    tokens = recipe.answers_per_step * recipe.max_completion_length
    rollouts = _gather("rollouts", 1, TOKEN_BYTES * tokens, everyone, gpu)
    if plan.sharding == "none":
        trained = shape.factors if recipe.use_peft else count
        return (_reduce("gradients", updates(recipe), 4 * trained, everyone, gpu), rollouts)
    shards, replicas = shard_group(cluster, plan.shards), replica_group(cluster, plan.shards)
    num_updates = updates(recipe)
    batches = num_updates * micro_batches(recipe, plan, cluster.size)
    transfers = [_gather("gradients", batches, 4 * count, shards, gpu)]
    if plan.replicas > 1:
        transfers.append(_reduce("gradients between replicas", num_updates, 4 * count / plan.shards, replicas, gpu))
    if plan.sharding == "grads":
        transfers.append(_gather("new weights", num_updates, each * count, shards, gpu))
    else:
        transfers.append(_gather("layers", 2 * batches, each * count, shards, gpu))
        transfers.append(_gather("the sampler's copy", num_updates, each * count, shards, gpu))
    return (*transfers, rollouts)


def has_reference(recipe: Recipe) -> bool:
    """Whether a step has a forward pass of the reference; one every few steps is not counted."""
    return recipe.beta > 0


def _gather(name: str, times: int, count: float, group: Group, gpu: Gpu) -> Transfer:
    return Transfer(name, times, times * count * group.share, times * gather_seconds(count, group, gpu))


def _reduce(name: str, times: int, count: float, group: Group, gpu: Gpu) -> Transfer:
    return Transfer(name, times, times * 2 * count * group.share, times * reduce_seconds(count, group, gpu))


def _trained_tokens(recipe: Recipe) -> int:
    """Of a step: the answers, and each prompt once."""
    return recipe.answers_per_step * recipe.max_completion_length + recipe.prompts_per_step * TYPICAL_PROMPT


def _sampling_seconds(recipe: Recipe, shape: ModelShape, plan: Plan, cluster: Cluster) -> float:
    """Prompts once, then token by token: a step reads the weights and the rows' keys and values."""
    gpu, each = cluster.gpu, BYTES[recipe.dtype]
    assert gpu is not None
    answers = share_of_answers(recipe, cluster.size)
    prompts = -(-recipe.prompts_per_step // cluster.size)
    rows = min(plan.rows, answers)
    waves = -(-answers // rows)
    length = recipe.max_completion_length
    per_token = shape.layers * 2 * shape.kv_width * each
    read = each * shape.parameters + rows * (TYPICAL_PROMPT + length / 2) * per_token
    draw = DRAW_PASSES * 4 * rows * shape.vocabulary / (gpu.bandwidth * 1e9 * DECODE_SHARE)
    by_memory = read / (gpu.bandwidth * 1e9 * DECODE_SHARE)
    by_arithmetic = 2 * shape.parameters * rows / (_flops(recipe, gpu) * DECODE_SHARE)
    prefill = 2 * shape.parameters * prompts * TYPICAL_PROMPT / (_flops(recipe, gpu) * PEAK_SHARE)
    return prefill + waves * length * (DECODE_SECONDS + draw + max(by_memory, by_arithmetic))


def _update_seconds(recipe: Recipe, shape: ModelShape, cluster: Cluster) -> float:
    """6 N FLOPs a token, 4 N of an adapter, whose weights need no gradient; 2 N more where layers are recomputed, and
    for a reference. Attention is not counted."""
    assert cluster.gpu is not None
    passes = (4 if recipe.use_peft else 6) + 2 * recipe.gradient_checkpointing
    per_token = passes * shape.parameters * recipe.num_iterations
    per_token += 2 * shape.parameters * has_reference(recipe)
    return per_token * _trained_tokens(recipe) / cluster.size / (_flops(recipe, cluster.gpu) * PEAK_SHARE)


def _optimizer_seconds(recipe: Recipe, shape: ModelShape, plan: Plan, gpu: Gpu) -> float:
    """Reads and writes weights and state, and reads the gradient; what is offloaded crosses to the device and back."""
    state = OPTIMIZERS[recipe.optim].bytes
    trained = shape.factors if recipe.use_peft else shape.parameters / plan.shards
    passes = trained * (2 * (4 + state) + 4) / (gpu.bandwidth * 1e9 * DECODE_SHARE)
    crossing = 2 * sum(plan.host_bytes.values()) / (gpu.host * 1e9)
    return updates(recipe) * (passes + crossing)


def _flops(recipe: Recipe, gpu: Gpu) -> float:
    return gpu.tflops * 1e12 * (1 if recipe.dtype == "bfloat16" else FLOAT32_SHARE)
