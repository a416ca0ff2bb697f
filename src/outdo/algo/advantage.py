"""Advantages: how much better an answer scored than the other answers to its prompt. Groups never mix prompts.

Legend: N rewards = P prompts x G answers, in that order; `None` marks an answer that could not be judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Rewards = Sequence[float | None] | Tensor
MAX_REWARD = torch.finfo(torch.float32).max  # advantages are returned in float32; its square fits in double


def group_advantages(
    rewards: Rewards,
    group_size: int,
    scale: str = "group",
    eps: float = 1e-4,
    correction: int = 0,
    earned: Rewards | None = None,
) -> Tensor:
    """`(r - mean) / (std + eps)` inside each group: the advantage of GRPO.

    scale: `group` divides by the group's std, `batch` by the std over all rewards, `none` not at all (Dr. GRPO).
    correction: 0 is the population std, 1 the sample std.
    earned: the rewards before a penalty was subtracted; their std is then the divisor. If they are all equal, nothing
    is divided: otherwise even a tiny penalty would be scaled up to the size of a reward.
    A group with equal rewards gets exactly 0. An unjudged answer (None) gets 0 and is excluded from its group's
    statistics. Raises ValueError if `group_size` does not divide the length or is below 2, or a reward is non-finite.
    """
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale={scale!r} is not one of group, batch, none")
    r_PG, judged_PG = _as_groups(rewards, group_size)
    centred_PG = _centred(r_PG, judged_PG)
    if scale != "none":
        centred_PG = _scaled(centred_PG, r_PG, judged_PG, earned, scale == "batch", correction, eps)
    return _as_given(centred_PG, rewards)


def rloo_advantages(rewards: Rewards, group_size: int) -> Tensor:
    """RLOO: the reward minus the mean of the *other* answers to the same prompt, without scaling."""
    r_PG, judged_PG = _as_groups(rewards, group_size)
    n_P1 = judged_PG.sum(1, keepdim=True)
    return _as_given(_centred(r_PG, judged_PG) * n_P1 / (n_P1 - 1).clamp(min=1), rewards)


def reinforce_pp_advantages(
    rewards: Rewards, group_size: int, eps: float = 1e-4, correction: int = 0, earned: Rewards | None = None
) -> Tensor:
    """REINFORCE++: rewards normalised over the whole batch, across prompts."""
    r_PG, judged_PG = _as_groups(rewards, group_size)
    centred_1N = _centred(r_PG.reshape(1, -1), judged_PG.reshape(1, -1))
    return _as_given(_scaled(centred_1N, r_PG, judged_PG, earned, True, correction, eps), rewards)


def maxrl_advantages(rewards: Rewards, group_size: int, eps: float = 1e-4, earned: Rewards | None = None) -> Tensor:
    """MaxRL: `(r - mean) / (mean + eps)` inside each group, for rewards that are not negative.

    With rewards of 0 and 1 the mean is the pass rate: the gradient is that of log(pass rate) instead of the pass rate.
    `earned`: the rewards before a penalty was subtracted; their mean is then the divisor, and nothing is divided where
    it is 0. Raises ValueError for a negative reward.
    """
    r_PG, judged_PG = _as_groups(rewards, group_size)
    paid_PG = r_PG if earned is None else _as_groups(earned, group_size)[0]
    if bool((paid_PG < 0).any()):
        raise ValueError(
            f"advantage_estimator=maxrl divides by a group's mean reward, and there is a reward of {paid_PG.min():g}: "
            "use rewards that are 0 or more, or another estimator"
        )
    mean_P1 = (paid_PG * judged_PG).sum(1, keepdim=True) / judged_PG.sum(1, keepdim=True).clamp(min=1)
    centred_PG = _centred(r_PG, judged_PG)
    by_P1 = mean_P1 + eps if earned is None else torch.where(mean_P1 > 0, mean_P1 + eps, 1.0)
    return _as_given(torch.where(centred_PG == 0, 0.0, centred_PG / by_P1), rewards)


def gdpo_advantages(
    parts: Sequence[tuple[float, Sequence[float | None]]],
    judged: Sequence[bool],
    group_size: int,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """GDPO: each reward normalised inside its group, then weighted and summed, then normalised over the batch.

    So a reward with a small spread counts as much as one with a large one. `parts` are the rewards, each with its
    weight and in the order of the answers. A reward that says nothing of an answer (None) is left out of its group's
    statistics and of that answer's sum; an unjudged answer gets 0 and is excluded from all statistics.
    """
    total_N = torch.zeros(len(judged), dtype=torch.float64)
    for weight, values in parts:
        given = [value if is_judged else None for value, is_judged in zip(values, judged, strict=True)]
        r_PG, known_PG = _as_groups(given, group_size)
        scaled_PG = _scaled(_centred(r_PG, known_PG), r_PG, known_PG, None, False, correction, eps)
        total_N += weight * scaled_PG.flatten()
    sums = [value if is_judged else None for value, is_judged in zip(total_N.tolist(), judged, strict=True)]
    return reinforce_pp_advantages(sums, group_size, eps, correction)


def _grpo(r: Rewards, size: int, scale: str = "group", earned: Rewards | None = None, **divisor: Any) -> Tensor:
    return group_advantages(r, size, scale, earned=earned, **divisor)


def _rloo(r: Rewards, size: int, scale: str = "", earned: Rewards | None = None, **divisor: Any) -> Tensor:
    return rloo_advantages(r, size)


def _reinforce_pp(r: Rewards, size: int, scale: str = "", earned: Rewards | None = None, **divisor: Any) -> Tensor:
    return reinforce_pp_advantages(r, size, earned=earned, **divisor)


def _maxrl(r: Rewards, size: int, scale: str = "", earned: Rewards | None = None, **divisor: Any) -> Tensor:
    return maxrl_advantages(r, size, divisor.get("eps", 1e-4), earned)


# Recipe key `advantage_estimator`. Each takes (rewards, group_size, scale, earned), and the divisor's eps and
# correction by name; only grpo uses the scale.
ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "reinforce_plus_plus": _reinforce_pp,
    "maxrl": _maxrl,  # Tajwar et al. 2026, arXiv 2602.02710
}
CORRECTIONS = {"population": 0, "sample": 1}  # recipe key `adv_std`


def _as_groups(rewards: Rewards, group_size: int) -> tuple[Tensor, Tensor]:
    """Rewards in double precision as [P, G], and a mask of the judged ones; unjudged ones hold 0."""
    values = rewards.detach().flatten().tolist() if isinstance(rewards, Tensor) else list(rewards)
    if group_size < 2:
        raise ValueError(f"group_size={group_size}: an answer is compared with others of its group, so use 2 or more")
    if len(values) % group_size:
        raise ValueError(f"{len(values)} rewards cannot be split into groups of group_size={group_size}")
    for i, value in enumerate(values):
        if value is not None and not abs(value) <= MAX_REWARD:
            raise ValueError(
                f"reward {i} of {len(values)} (group {i // group_size}) is {value}: rewards must be finite numbers, "
                "or None where the answer cannot be judged"
            )
    r_N = torch.tensor([0.0 if v is None else float(v) for v in values], dtype=torch.float64)
    judged_N = torch.tensor([v is not None for v in values], dtype=torch.bool)
    return r_N.view(-1, group_size), judged_N.view(-1, group_size)


def _centred(r_PG: Tensor, judged_PG: Tensor) -> Tensor:
    """Rewards minus their row's mean; exactly 0 for unjudged answers and in rows without spread."""
    if not r_PG.numel():
        return r_PG
    mean_P1 = (r_PG * judged_PG).sum(1, keepdim=True) / judged_PG.sum(1, keepdim=True).clamp(min=1)
    high_P1 = r_PG.masked_fill(~judged_PG, -math.inf).amax(1, keepdim=True)
    low_P1 = r_PG.masked_fill(~judged_PG, math.inf).amin(1, keepdim=True)
    return torch.where(judged_PG & (high_P1 > low_P1), r_PG - mean_P1, 0.0)


def _scaled(
    centred: Tensor, r_PG: Tensor, judged_PG: Tensor, earned: Rewards | None, batch: bool, correction: int, eps: float
) -> Tensor:
    """Divided by the std (plus eps) of each group, or of the whole `batch`. 0 stays exactly 0, even divided by 0."""
    if earned is not None:
        r_PG = _as_groups(earned, r_PG.shape[1])[0]
    if batch:
        r_PG, judged_PG = r_PG.reshape(1, -1), judged_PG.reshape(1, -1)
    n_P1 = judged_PG.sum(1, keepdim=True)
    squares_P1 = (_centred(r_PG, judged_PG) ** 2).sum(1, keepdim=True)
    std_P1 = (squares_P1 / (n_P1 - correction).clamp(min=1)).sqrt()
    by_P1 = std_P1 + eps if earned is None else torch.where(std_P1 > 0, std_P1 + eps, 1.0)
    return torch.where(centred == 0, 0.0, centred / by_P1)


def _as_given(advantages: Tensor, rewards: Rewards) -> Tensor:
    """Flat, with the rewards' dtype and device if they were a floating-point tensor, else float32."""
    flat = advantages.flatten()
    if isinstance(rewards, Tensor):
        return flat.to(rewards.device, rewards.dtype if rewards.is_floating_point() else torch.float32)
    return flat.float()
