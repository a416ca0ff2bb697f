"""Runs the cases of `trl_cases.py` through TRL's own code and through ours.

TRL's methods are executed on a trainer that has no model: its `_get_per_token_logps_and_entropies` gives tensors that
were made here, its `_generate` answers, its `_calculate_rewards` rewards. Ours go through the recipe and the learner.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

from outdo.algo.prepare import with_advantages
from outdo.learn.choice import with_choice
from outdo.learn.learner import LocalLearner
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.types import Grade, Group, Prompt, Sample, Trajectory
from support.trl_cases import ADVANTAGE_CASES, LOSS_CASES, SAMPLE, TRL_VERSION, AdvantageCase, LossCase

LENGTHS = (3, 7, 1, 5, 7, 2)
LIMIT = 9  # max_completion_length
GROUP = 3
ADVANTAGES = (1.3, -0.7, -1.1, 0.9, 0.0, -0.4)
Result = tuple[float, Tensor]  # the loss, and its gradient by every log-probability and entropy


def tensors(case: LossCase, dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Log-probabilities and entropies of uneven answers; ratios that reach every regime."""
    generator = torch.Generator().manual_seed(11)
    shape = (len(lengths), max(lengths))
    a, b, c, d = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(4))
    entropy = torch.rand(*shape, generator=generator, dtype=torch.float64)
    new = -a.abs() - 0.1
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    trained = mask.clone()
    if case.turns:
        trained[1, 2:4] = trained[4, 0] = trained[3, 4] = False
    old = new + 0.4 * b if case.moved else new
    values = {"new": new, "old": old, "ref": new + 0.3 * c, "entropy": entropy}
    values["sampler"] = old + 0.3 * d if case.sampler else old
    values["advantages"] = torch.tensor(ADVANTAGES, dtype=torch.float64)[: len(lengths)]
    return {key: value.to(dtype) for key, value in values.items()} | {"mask": mask, "trained": trained}


class _Model(nn.Module):
    is_gradient_checkpointing = False


def _trainer(kind: type[GRPOTrainer], keys: dict[str, Any], functions: int = 1) -> Any:
    """TRL's trainer without a model: what its methods read, from its own configuration."""
    keys = {**keys, "num_generations": keys.pop("num_generations", GROUP), "max_completion_length": LIMIT}
    args = GRPOConfig("out", bf16=False, use_cpu=True, per_device_train_batch_size=12, report_to=[], **keys)
    t = object.__new__(kind)
    same = ("loss_type", "importance_sampling_level", "beta", "top_entropy_quantile", "entropy_coef", "use_vllm")
    same += ("off_policy_mask_threshold", "use_adaptive_entropy", "max_completion_length", "num_generations")
    same += ("vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "multi_objective_aggregation")
    same += ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "mask_truncated_completions")
    same += ("scale_rewards", "num_iterations")
    t.__dict__ |= {key: getattr(args, key) for key in same}
    t.args, t.model, t.ref_model = args, _Model(), _Model()
    t.epsilon_low = args.epsilon
    t.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    t._entropy_bonus_enabled, t.aux_loss_enabled = args.entropy_coef != 0.0, False
    t.current_gradient_accumulation_steps, t._metrics = 1, {"train": defaultdict(list)}
    t._logs = defaultdict(list, rewards=defaultdict(list))
    t._pending_extra_logs, t._pending_metrics = defaultdict(list), defaultdict(list)
    t.environment_factories, t.environments, t.tools, t._is_vlm, t.log_multimodal = None, None, None, False, False
    t._tokenizer, t.pad_to_multiple_of = SimpleNamespace(pad_token_id=0), None
    t.eos_token_ids = [1]
    t.reward_funcs, t.reward_func_names = [None] * functions, [f"r{i}" for i in range(functions)]
    weights = args.reward_weights or [1.0] * functions
    t.reward_weights = torch.tensor(weights, dtype=torch.float64)
    t.accelerator = SimpleNamespace(
        **{"device": torch.device("cpu"), "num_processes": 1, "process_index": 0, "sync_gradients": True},
        **{name: lambda x, *a, **k: x for name in ("gather", "pad_across_processes", "reduce", "gather_for_metrics")},
    )
    return t


def _batch(t: Any, x: dict[str, Tensor], sampled: bool, rewards: Tensor | None = None) -> dict[str, Any]:
    """What TRL makes of sampled answers, and of rewards."""
    lengths = x["mask"].sum(-1).tolist()
    answers = [[5] * (n - 1) + [1] for n in lengths]
    sampler = [row[:n].tolist() for row, n in zip(x["sampler"], lengths, strict=True)] if sampled else None
    turns = [row[:n].int().tolist() for row, n in zip(x["trained"], lengths, strict=True)]
    tool_mask = turns if not torch.equal(x["mask"], x["trained"]) else None
    t._generate = lambda prompts: ([[3]] * len(lengths), answers, tool_mask, answers, sampler, {}, None, None)
    given = rewards if rewards is not None else torch.zeros(len(lengths), 1, dtype=torch.float64)
    t._calculate_rewards = lambda *a: given
    by_model = {id(t.model): x["old"], id(t.ref_model): x["ref"]}
    t._get_per_token_logps_and_entropies = lambda model, *a, **k: (by_model[id(model)], x["entropy"], None)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(x["old"].dtype)  # of the sampler's log-probabilities
    try:
        return GRPOTrainer._generate_and_score_completions(t, [{"prompt": "p"}] * len(lengths))
    finally:
        torch.set_default_dtype(dtype)


def their_loss(case: LossCase, x: dict[str, Tensor], parts: Iterable[slice] = (slice(None),)) -> Result:
    keys = {**case.keys, **case.theirs}
    kind = GMPOTrainer if keys["loss_type"] == "gmpo" else GRPOTrainer
    if kind is GMPOTrainer:
        keys.pop("loss_type")
    if case.moved:
        keys["num_iterations"] = 2  # then it keeps the old log-probabilities
    t = _trainer(kind, keys)
    inputs = _batch(t, x, sampled=case.sampler)
    inputs["advantages"] = x["advantages"]
    parts = list(parts)
    t.current_gradient_accumulation_steps = t.args.steps_per_generation = len(parts)
    total, gradients = 0.0, torch.zeros(2, *x["new"].shape, dtype=x["new"].dtype)
    for rows in parts:
        leaves = [x[key][rows].clone().requires_grad_(True) for key in ("new", "entropy")]
        t._get_per_token_logps_and_entropies = lambda *a, now=leaves, **k: (*now, None)
        one = {key: value[rows] if value.ndim else value for key, value in inputs.items()}
        loss = kind._compute_loss(t, t.model, one)
        gradients[:, rows] += _gradient(loss, leaves)
        total += loss.item()
    return total, gradients


def recipe_of(case: LossCase) -> Recipe:
    sizes = {"per_device_train_batch_size": 6, "num_generations": GROUP, "max_completion_length": LIMIT}
    return load_recipe(None, {"beta": 0.0, "kl_steps": 0, **sizes, **case.keys, **case.ours})


def our_loss(case: LossCase, x: dict[str, Tensor], rows: slice = slice(None)) -> Result:
    """The learner's own loss of a micro-batch, with tensors in place of a model."""
    recipe = recipe_of(case)
    learner = object.__new__(LocalLearner)
    learner.recipe, learner.beta, learner.has_kl_term = recipe, recipe.beta, recipe.beta > 0
    learner.temperature, learner.mismatch, learner.policy = 1.0, 0.0, None  # type: ignore[assignment]
    trained, part = x["trained"], {key: value[rows] for key, value in x.items()}
    leaves = [part[key].clone().requires_grad_(True) for key in ("new", "entropy")]
    learner._logprobs = lambda *a: tuple(leaves)  # type: ignore[method-assign,assignment,return-value]
    learner._ref_logprobs = lambda packed: part["ref"]  # type: ignore[method-assign]
    samples = [
        Sample(0, (5,) * int(row.sum()), tuple(old[row].tolist()), float(a))
        for row, old, a in zip(trained, x["sampler"], x["advantages"], strict=True)
    ]
    samples = with_choice(recipe, samples, lambda: (x["new"][trained], x["entropy"][trained].float()), False, 0)
    chosen = torch.zeros_like(trained)
    chosen[trained] = torch.tensor(
        [flag for sample in samples for flag in sample.chosen or [False] * sample.num_trained]
    )
    packed: Any = SimpleNamespace(
        sampler_logprobs_BT=part["sampler"],
        advantages_B=part["advantages"],
        mask_BT=part["trained"],
        targets_M=range(int(part["trained"].sum())),
        chosen_BT=chosen[rows] if samples[0].chosen else None,
    )
    totals = {"num_sequences": len(trained), "num_tokens": int(trained.sum()), "num_chosen": int(chosen.sum())}
    loss, _ = learner._loss(packed, not case.moved, totals)
    return loss.item(), _gradient(loss, leaves)


def _gradient(loss: Tensor, leaves: list[Tensor]) -> Tensor:
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return torch.stack([torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)])


NAN = math.nan
REWARDS: dict[str, list[list[float]]] = {
    "binary": [[1.0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0]],
    "graded": [[0.25, 0.5, 1, 0, -1, 2, 0.125, 0, 3, 3.5, 2, 1]],
    "unjudged": [[0.25, NAN, 1, 0, -1, 2, NAN, 0, 3, 3.5, 2, 1]],
    "two": [[1.0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0], [0.3, 9, 2, -4, 5, 5.5, 7, 1, 0, 2, 8, 3]],
    "two, one abstains": [[1.0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0], [0.3, NAN, 2, -4, 5, NAN, 7, 1, NAN, 2, 8, 3]],
    "two, some unjudged": [[1.0, 0, NAN, 1, 1, 1, 1, 0, 0, NAN, 1, 0], [0.3, 9, NAN, -4, 5, 5, 7, 1, 0, NAN, 8, 3]],
}


def their_advantages(case: AdvantageCase) -> Tensor:
    rewards = torch.tensor(REWARDS[case.rewards], dtype=torch.float64).T
    t = _trainer(GRPOTrainer, {**case.keys, "num_generations": 4}, rewards.shape[1])
    x = tensors(LossCase("", {}), torch.float64, (1,) * len(rewards))
    return _batch(t, x, sampled=False, rewards=rewards)["advantages"]


def our_advantages(case: AdvantageCase, **more: Any) -> Tensor:
    rows, keys = REWARDS[case.rewards], {**case.keys, **SAMPLE, **more}
    names = [f"r{i}" for i in range(len(rows))]
    weights = dict(zip(names, keys.get("reward_weights", [1.0] * len(rows)), strict=True))
    keys |= {"reward_funcs": ["numeric", "format"][: len(rows)], "per_device_train_batch_size": 12}
    recipe = load_recipe(None, {**keys, "num_generations": 4})
    grades = [_grade(dict(zip(names, values, strict=True)), weights) for values in zip(*rows, strict=True)]
    answer = Trajectory.single((5,), (-1.0,), "", "stop", 0)
    groups = [
        Group(Prompt(str(i), ()), (3,), (answer,) * 4, tuple(grades[i : i + 4])) for i in range(0, len(grades), 4)
    ]
    each = [weights] * len(groups) if recipe.multi_objective_aggregation == "normalize_then_sum" else None
    how = recipe.advantage_estimator, recipe.scale_rewards, None, recipe.adv_eps, recipe.adv_std, each
    return torch.tensor([a for group in with_advantages(groups, *how) for a in group.advantages], dtype=torch.float64)


def _grade(parts: dict[str, float], weights: dict[str, float]) -> Grade:
    known = {name: None if math.isnan(value) else value for name, value in parts.items()}
    paid = [weights[name] * value for name, value in known.items() if value is not None]
    return Grade(sum(paid), "right", known) if paid else Grade(None, "broken", known)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def table() -> str:
    """The page of docs/results."""
    lines = [HEAD, "| case | loss | gradient, float64 | gradient, float32 |", "| --- | --- | --- | --- |"]
    for case in LOSS_CASES:
        x, x32 = tensors(case, torch.float64), tensors(case, torch.float32)
        (ours, g), (theirs, h) = our_loss(case, x), their_loss(case, x)
        in_32 = apart(our_loss(case, x32)[1], their_loss(case, x32)[1])
        lines.append(f"| {case.name} | {theirs:.6f} | {_shown(apart(g, h))} | {_shown(in_32)} |")
        assert abs(ours - theirs) <= 1e-6 * max(abs(theirs), 1e-3), case.name
    lines += ["", "| advantages | largest difference |", "| --- | --- |"]
    for one in ADVANTAGE_CASES:
        lines.append(f"| {one.name} | {_shown(apart(our_advantages(one), their_advantages(one)))} |")
    return "\n".join(lines) + "\n" + TAIL


def _shown(value: float) -> str:
    """Rounding differs between machines: by a power of ten."""
    return "0" if value == 0 else f"below 1e{math.floor(math.log10(value)) + 1}"


HEAD = f"""# The same numbers as TRL

Losses, gradients and advantages of this package beside those of TRL {TRL_VERSION}, whose own code is run on the same
tensors: answers of uneven lengths, ratios on both sides of every bound, advantages of both signs and 0. The keys of a
case are given to both as they are. The columns say how far the two gradients are apart, relative to the largest entry.

`tests/bridges/test_trl_numbers.py` holds every line; `python -m support.trl_numbers` writes this page.
"""
DIFFERENCES = (
    ("std that advantages are divided by", "`adv_std: population`; `sample` is TRL's", "sample"),
    ("a group whose rewards are equal", "exactly 0", "the rounding of their mean, divided by 1e-4"),
    (
        "answers cut at the limit, with `mask_truncated_completions`",
        "left out, also of the number of answers",
        "count as answers without a token",
    ),
    ("`bnpo` with several micro-batches", "divided by the tokens of the update", "by those of each micro-batch"),
    ("`top_entropy_quantile` with several micro-batches", "the quantile of the update", "that of each micro-batch"),
    ("entropy bonus with several micro-batches", "mean over the update's tokens", "mean of the micro-batches' means"),
    (
        "later updates, where the sampler's log-probabilities are not the policy's",
        "the ratio to the sampler, clipped",
        "the ratio to the policy that was, clipped, times that policy's to the sampler",
    ),
    (
        "importance weights of the sampler",
        "per token, beyond rounding error (`importance_sampling: auto`)",
        "always with vLLM, per answer unless set",
    ),
    (
        "`importance_sampling: mask` with a cap of C",
        "drops ratios below 1/C too",
        "only above C, unless `vllm_importance_sampling_clip_min` is set",
    ),
    ("`use_bias_correction_kl`", "off", "on"),
    ("`loss_type: luspo` with ratios per token", "refused", "a warning"),
    ("`loss_type: vespo` with ratios per answer", "refused", "a warning"),
    ("`delta` at or below 1 + `epsilon_high`", "refused", "as set"),
    ("GDPO with a KL in the reward, a gate or another `scale_rewards`", "refused", "has none, or ignores it"),
)
TAIL = "\n".join(
    ["", "## Where the two differ on purpose", "", "| | here | TRL |", "| --- | --- | --- |"]
    + [f"| {' | '.join(row)} |" for row in DIFFERENCES]
    + [""]
)

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table())
