"""What training takes of a device's memory, planned before the first step."""

from __future__ import annotations

import gc
import resource

import torch

from outdo.models.load import Policy
from outdo.recipe.schema import Recipe

TOKENS = {"cpu": 8192, "cuda": 65536}  # at most in one forward and backward, unless the recipe says
SHARE = 0.3  # of a GPU's free memory for activations
GIB = 2**30


def tokens_at_once(policy: Policy, recipe: Recipe) -> int:
    """Of a micro-batch: what the recipe says, or as many as the memory allows; more would not be faster."""
    most = TOKENS.get(policy.device.type, TOKENS["cpu"])
    if recipe.tokens_per_micro_batch or policy.device.type != "cuda":
        return recipe.tokens_per_micro_batch or most
    room = SHARE * (free_bytes(policy.device) - sum(training_bytes(policy, recipe).values()))
    while most > 1024 and most * activation_bytes(policy, recipe) > room:
        most //= 2
    return most


def activation_bytes(policy: Policy, recipe: Recipe) -> int:
    """What the backward needs of one token: by layer the residual twice in float32, queries, keys and values, what
    attention saw, and the gate's inputs; or with gradient_checkpointing the residual alone."""
    c, each = policy.model.config, policy.model.dtype.itemsize
    heads = c.num_attention_heads + (getattr(c, "num_key_value_heads", None) or c.num_attention_heads)
    attention = 2 * heads * policy.head_size
    gate = 2 * (getattr(c, "intermediate_size", None) or 4 * c.hidden_size)
    layer = 8 * c.hidden_size + each * (attention + gate)
    return (
        6 * c.hidden_size * c.num_hidden_layers + layer
        if recipe.gradient_checkpointing
        else layer * c.num_hidden_layers
    )


def give_back(device: torch.device) -> None:
    """What nobody holds any more: of a step that did not fit, of the warm-up, of a run before in the same process."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Of a GPU. What torch has put by for later counts as taken until it is given back."""
    give_back(device)
    return torch.cuda.mem_get_info(device)[0]


def most_held(device: torch.device) -> int:
    """Bytes that were in use at most so far: by tensors on a GPU, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def training_bytes(policy: Policy, recipe: Recipe) -> dict[str, int]:
    """What the learner will hold beside the weights, whatever the batch."""
    if adapter := policy.adapter:
        warmed_up = recipe.beta > 0 and bool(recipe.sft_steps or recipe.sft_epochs)
        return adapter_bytes(sum(p.numel() for p in adapter.pairs), adapter.base_bytes if warmed_up else 0)
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    return whole_bytes(trained, policy.model.dtype.itemsize, recipe.beta > 0)


def whole_bytes(parameters: int, each: int, reference: bool) -> dict[str, int]:
    """Of training all weights, of so many bytes each."""
    masters = 0 if each == 4 else 4 * parameters
    return {
        "masters": masters,
        "gradients": 4 * parameters + masters // 2,
        "optimizer": 8 * parameters,
        "reference": each * parameters if reference else 0,
    }


def adapter_bytes(factors: int, reference: int) -> dict[str, int]:
    """Of training an adapter. Its reference is the adapter switched off, which takes nothing, or after a warm-up the
    adapted weights once more."""
    return {"gradients": 8 * factors, "optimizer": 8 * factors, "reference": reference}


def cache_budget(policy: Policy, recipe: Recipe | None = None, learns: bool = True) -> int | None:
    """Bytes that the sampler may take for keys and values: what was asked for, or on a GPU half of what will be free
    when the learner, where there is one, has taken its part; the other half is for activations."""
    if recipe and recipe.rollout_memory is not None:
        return int(recipe.rollout_memory * GIB)
    if policy.device.type != "cuda":
        return None
    taken = sum(training_bytes(policy, recipe).values()) if recipe and learns else 0
    return max(0, free_bytes(policy.device) - taken) // 2


def too_long(tokens: int, recipe: Recipe, longest: str = "max_completion_length") -> str:
    """What to do where an answer and its prompt do not fit; `longest` is the key that bounds them."""
    ways = [f"lower {longest} (now {getattr(recipe, longest)})"]
    if not recipe.gradient_checkpointing:
        ways.append("set gradient_checkpointing=true")
    if recipe.dtype == "float32":
        ways.append("set dtype=bfloat16")
    return f"out of memory with one answer of {tokens:,} tokens, its prompt included: {', or '.join(ways)}"


def in_words(policy: Policy, recipe: Recipe, tokens: int, peak: int) -> str:
    """The plan in a line, once the longest micro-batch has been tried."""
    parts = {"weights": sum(p.numel() * p.element_size() for p in policy.model.parameters())}
    parts |= training_bytes(policy, recipe)
    told = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    _, total = torch.cuda.mem_get_info(policy.device)
    return f"memory in GiB: {told}; at most {peak / GIB:.1f} of {total / GIB:.0f} with {tokens:,} tokens at once"
