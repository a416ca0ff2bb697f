"""Device memory of training: one estimate, for the plan before a run and for the learner in it."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from outdo.host import available_memory
from outdo.learn.logprobs import CHUNK, CHUNK_ON_GPU
from outdo.learn.optimizers import OPTIMIZERS
from outdo.models.load import Policy
from outdo.models.shape import ModelShape, shape_of_policy
from outdo.parallel.mesh import BUCKET
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe

MAX_TOKENS = {"cpu": 8192, "cuda": 65536}  # in one forward and backward, unless the recipe sets it
MAX_ROWS = {"cpu": 512, "cuda": 1024}  # answers decoded at once, unless the recipe sets it
ACTIVATION_SHARE = 0.3  # of a GPU's free memory
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TYPICAL_PROMPT = 128  # tokens, assumed before the prompts are known
CHUNK_OF_WEIGHTS = 2**26  # updated at once where they are streamed; a larger matrix is a chunk of its own
GIB = 2**30
SMALL = 50_000_000  # parameters up to which KL is measured at every step even with beta 0
KL_STEPS = 10  # steps from one measurement to the next of a larger model
REFERENCE_SHARE = 0.2  # of the memory beside training that a reference may take for measuring alone


def tokens_at_once(policy: Policy, recipe: Recipe) -> int:
    """Tokens of a micro-batch: what the recipe sets, or as many as fit, up to MAX_TOKENS: more would not be faster."""
    device = policy.device
    if recipe.tokens_per_micro_batch or device.type != "cuda":
        return recipe.tokens_per_micro_batch or MAX_TOKENS.get(device.type, MAX_TOKENS["cpu"])
    free = free_bytes(device) - sum(training_bytes_here(policy, recipe).values())
    return _tokens_that_fit(as_loaded(policy, recipe), shape_of_policy(policy), free)


def as_loaded(policy: Policy, recipe: Recipe) -> Recipe:
    """The recipe with the type and the adapter that the policy has, which a caller may have loaded otherwise."""
    dtype = str(policy.model.dtype).removeprefix("torch.")
    return recipe.model_copy(update={"dtype": dtype, "use_peft": policy.adapter is not None})


def _tokens_that_fit(recipe: Recipe, shape: ModelShape, free: int) -> int:
    """On a GPU with `free` bytes for activations and the cache."""
    tokens = MAX_TOKENS["cuda"]
    while tokens > 1024 and tokens * activation_bytes(recipe, shape, "cuda") > ACTIVATION_SHARE * free:
        tokens //= 2
    return tokens


def activation_bytes(recipe: Recipe, shape: ModelShape, device: str) -> int:
    """Bytes that the backward keeps per token. On a GPU, per layer: the residual twice in float32, queries, keys and
    values, the attention's output and the gate's inputs; with gradient_checkpointing only the residual. On a CPU
    autograd keeps more: about ten hidden and four intermediate widths."""
    each = BYTES[recipe.dtype]
    if device != "cuda":
        return shape.layers * (10 * shape.hidden + 4 * shape.intermediate) * each
    layer = 8 * shape.hidden + each * (2 * (shape.query_width + shape.kv_width) + 2 * shape.intermediate)
    return 6 * shape.hidden * shape.layers + layer if recipe.gradient_checkpointing else layer * shape.layers


def offloads(recipe: Recipe) -> bool:
    """Whether masters and optimizer state are in the host's memory: on a GPU, but for an adapter's, which are small."""
    on_gpu = recipe.device.startswith("cuda") or (recipe.device == "auto" and torch.cuda.is_available())
    return recipe.parallel_offload != "none" and on_gpu and not recipe.use_peft


def held_bytes(recipe: Recipe, shape: ModelShape, learns: bool = True) -> dict[str, int]:
    """Bytes held for the whole run, whatever the batches; only the weights unless it `learns`."""
    each = BYTES[recipe.dtype]
    weights, adapted = shape.parameters * each, shape.adapted * each
    if recipe.load_in_4bit:  # four bits and a scale for each block of 64
        weights, adapted = weights - adapted + shape.adapted * 9 // 16, 0
    if not learns:
        return {"weights": weights}
    adapter = {"weights without the adapter": adapted, "adapter": 4 * shape.factors} if recipe.use_peft else {}
    return {"weights": weights, **adapter, **training_bytes(recipe, shape)}


def training_bytes(
    recipe: Recipe, shape: ModelShape, sharding: str = "none", shards: int = 1, replicas: int = 1
) -> dict[str, int]:
    """Bytes that the learner of one process holds besides the weights that sample, whatever the batch; spread over
    `shards` x `replicas` processes as `sharding` has it (`learn/sharded.py`)."""
    each, state = BYTES[recipe.dtype], OPTIMIZERS[recipe.optim].bytes
    reference = reference_bytes(recipe, shape) if recipe.beta > 0 or recipe.kl_steps else 0
    if recipe.use_peft:
        return {"gradients": 8 * shape.factors, "optimizer": int(state * shape.factors), "reference": reference}
    if sharding == "none":
        return {**bytes_of_all_weights(recipe, shape), "reference": reference}
    part = -(-shape.parameters // shards)
    parts = {"masters": 4 * part, "gradients": 4 * part, "optimizer": int(state * part), "reference": reference}
    if sharding == "full":
        parts["gathered layers"] = gathered_bytes(recipe, shape)
    else:  # those that are exchanged, in float32 and as they were computed
        parts["gradients"] += 8 * min(BUCKET, shape.parameters) + each * shape.parameters // max(shape.layers, 1)
    return parts


def training_bytes_here(policy: Policy, recipe: Recipe) -> dict[str, int]:
    """Of a policy that is loaded, in this launch. In a run `parallel_sharding` is no longer auto."""
    size, replicas = get_world().size, recipe.parallel_replicas
    sharding = "none" if recipe.parallel_sharding == "auto" else recipe.parallel_sharding
    shards, copies = (1, size) if sharding == "none" else (max(1, size // replicas), replicas)
    sharding = "none" if sharding == "grads" and size == 1 else sharding
    return training_bytes(as_loaded(policy, recipe), shape_of_policy(policy), sharding, shards, copies)


def gathered_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Of the layers that are whole at one time where weights are sharded: the embedding, the layer in use and the one
    that is fetched, in the model's dtype, and the largest of their gradients in float32."""
    embedding = shape.vocabulary * shape.hidden
    layer = max(0, shape.parameters - embedding) // max(1, shape.layers)
    return BYTES[recipe.dtype] * (embedding + 2 * layer) + 4 * max(embedding, layer)


def bytes_of_all_weights(recipe: Recipe, shape: ModelShape) -> dict[str, int]:
    """Of masters, gradients and optimizer in a process that has them whole, and of what it streams."""
    each, state = BYTES[recipe.dtype], OPTIMIZERS[recipe.optim].bytes
    of_a_layer = each * shape.parameters // max(shape.layers, 1)
    gradients = 4 * shape.parameters + of_a_layer  # each is added to its sum, and freed, when it is computed
    largest = max(CHUNK_OF_WEIGHTS, shape.vocabulary * shape.hidden)
    if offloads(recipe):  # on their way to the GPU, in use there, and on their way back
        streamed = int((4 + state) * (largest + 2 * CHUNK_OF_WEIGHTS))
        return {"masters": 0, "gradients": gradients, "optimizer": 0, "streamed": min(streamed, 12 * shape.parameters)}
    masters = 0 if each == 4 or recipe.stochastic_rounding else 4 * shape.parameters
    streamed = 8 * min(largest, shape.parameters) if recipe.stochastic_rounding else 0  # in float32
    optimizer = int(state * shape.parameters)
    return {"masters": masters, "gradients": gradients, "optimizer": optimizer, "streamed": streamed}


def host_bytes(recipe: Recipe, shape: ModelShape) -> dict[str, int]:
    """Bytes of pinned host memory. A checkpoint copies them once more while it is written."""
    if not offloads(recipe):
        return {}
    has_masters = BYTES[recipe.dtype] != 4 and not recipe.stochastic_rounding
    masters = {"masters": 4 * shape.parameters} if has_masters else {}
    return {**masters, "optimizer": int(OPTIMIZERS[recipe.optim].bytes * shape.parameters)}


def reference_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Of the model that KL is measured to; an adapter that is switched off takes none (see `AdapterReference`)."""
    each = BYTES[recipe.dtype]
    if not recipe.use_peft:
        return each * shape.parameters
    is_warmed_up = bool(recipe.sft_steps or recipe.sft_epochs)
    return shape.adapted * each if is_warmed_up and not recipe.load_in_4bit else 0


def kl_interval(recipe: Recipe, shape: ModelShape, rest: int | None) -> int:
    """Every how many steps KL is measured; 0: never. `rest`: free bytes beside the weights and what training holds."""
    if recipe.beta > 0:
        return 1  # it is part of the loss
    if recipe.kl_steps is not None:
        return recipe.kl_steps
    fits = rest is None or reference_bytes(recipe, shape) <= REFERENCE_SHARE * rest
    return (1 if shape.parameters <= SMALL else KL_STEPS) if fits else 0


def with_kl_steps(policy: Policy, recipe: Recipe) -> Recipe:
    """The recipe with its default for `kl_steps` resolved, for a policy that is loaded."""
    loaded, shape, free = as_loaded(policy, recipe), shape_of_policy(policy), free_memory(policy.device)
    rest = None if free is None else free - sum(training_bytes_here(policy, recipe).values())
    return recipe.model_copy(update={"kl_steps": kl_interval(loaded, shape, rest)})


def planned_bytes(recipe: Recipe, shape: ModelShape, device: torch.device) -> dict[str, int]:
    """Bytes by purpose of a whole run on that device: an estimate, right to within a factor of about 1.5."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    held = held_bytes(recipe, shape)
    free = max(0, (free_memory(device) or 0) - sum(held.values()))
    default_tokens = _tokens_that_fit(recipe, shape, free) if kind == "cuda" else MAX_TOKENS["cpu"]
    all_tokens = recipe.answers_per_step * recipe.max_completion_length
    micro_batch = min(recipe.tokens_per_micro_batch or default_tokens, all_tokens)
    rows = min(recipe.rollout_rows or MAX_ROWS[kind], recipe.answers_per_step)
    of_a_token = shape.layers * 2 * shape.kv_width * BYTES[recipe.dtype]
    cache = rows * (TYPICAL_PROMPT + recipe.max_completion_length) * of_a_token
    if kind == "cuda":
        budget = int(recipe.rollout_memory * GIB) if recipe.rollout_memory else free // 2
        cache = min(cache, budget) if budget else cache
    logits = min(micro_batch * shape.vocabulary, CHUNK_ON_GPU if kind == "cuda" else CHUNK) * 4 * 3
    return {**held, "cache": cache, "activations": micro_batch * activation_bytes(recipe, shape, kind) + logits}


def cache_budget(policy: Policy, recipe: Recipe | None = None, learns: bool = True) -> int | None:
    """Bytes for the sampler's keys and values: as the recipe sets them, or on a GPU half of what is free beside the
    learner, if there is one; the other half is for activations."""
    if recipe and recipe.rollout_memory is not None:
        return int(recipe.rollout_memory * GIB)
    if policy.device.type != "cuda":
        return None
    parts = training_bytes_here(policy, recipe) if recipe and learns else {}
    return max(0, free_bytes(policy.device) - sum(parts.values())) // 2


def release_memory(device: torch.device) -> None:
    """Releases unused memory: of a step that did not fit, of the warm-up, of an earlier run."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Python's garbage collector skips what exists now: modules and the model. Else it halts everything for up to a
    second, again and again, to find nothing there."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. A CPU's has no class of its own in torch."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return type(error) is RuntimeError and ("can't allocate memory" in str(error) or "out of memory" in str(error))


def free_bytes(device: torch.device) -> int:
    """Free bytes of a GPU, after releasing torch's cache."""
    release_memory(device)
    return torch.cuda.mem_get_info(device)[0]


def free_memory(device: torch.device) -> int | None:
    """Free bytes of a GPU, or of the machine for a CPU. None: unknown."""
    return free_bytes(device) if device.type == "cuda" else available_memory()


def peak_memory(device: torch.device) -> int:
    """Peak bytes in use so far: by tensors on a GPU, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def too_long_message(tokens: int, recipe: Recipe, length_key: str) -> str:
    """The error for an answer that does not fit with its prompt; `length_key` is the recipe key that bounds it."""
    ways = [f"lower {length_key} (now {getattr(recipe, length_key)})"]
    if not recipe.gradient_checkpointing:
        ways.append("set gradient_checkpointing=true")
    if recipe.dtype == "float32":
        ways.append("set dtype=bfloat16")
    return f"out of memory with one answer of {tokens:,} tokens, its prompt included: {', or '.join(ways)}"


def describe_memory(policy: Policy, recipe: Recipe, tokens: int, peak: int) -> str:
    """The memory in one line, after the largest micro-batch was run."""
    parts = {"weights": sum(p.numel() * p.element_size() for p in policy.model.parameters())}
    parts |= training_bytes_here(policy, recipe)
    sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    _, total = torch.cuda.mem_get_info(policy.device)
    return f"memory in GiB: {sizes}; at most {peak / GIB:.1f} of {total / GIB:.0f} with {tokens:,} tokens at once"
