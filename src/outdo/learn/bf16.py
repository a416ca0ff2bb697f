"""Training with bfloat16 state: stochastic rounding, and an AdamW whose moments are in bfloat16.

Neighbouring bfloat16 values are 0.4% to 0.8% apart. Rounded to the nearest, a smaller change is lost every time: of a
weight, most steps; of Adam's second moment with beta2 0.999, nearly all of its decay. Rounded up or down at random, the
mean is exact, and changes add up. The noise is drawn from a hash of what is rounded and when: a resumed run repeats it.
It differs between a CPU and a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outdo.seeds import seed_of

SLICE = 2**23  # weights handled at once: the float32 copies in between take a few times 32 MiB


def noise_of(device: torch.device, *key: object) -> torch.Generator:
    """The random numbers of that key."""
    return torch.Generator(device).manual_seed(seed_of("rounding", *key) % 2**63)


def round_stochastically(x: Tensor, noise: torch.Generator) -> Tensor:
    """float32 values in bfloat16. Values that bfloat16 has are kept."""
    bits = torch.empty(x.shape, dtype=torch.int32, device=x.device).random_(0, 2**16, generator=noise)
    return bits.add_(x.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


@torch.no_grad()
def store_rounded(target: Tensor, values: Tensor, noise: torch.Generator) -> None:
    """Writes float32 values to a bfloat16 tensor of the same shape."""
    flat, into = values.reshape(-1), target.view(-1)
    for start in range(0, len(flat), SLICE):
        part = slice(start, start + SLICE)
        into[part] = round_stochastically(flat[part], noise)


class AdamWBf16(torch.optim.Optimizer):
    """AdamW with both moments in bfloat16, rounded stochastically; its arithmetic is in float32. Weights are float32
    and contiguous."""

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float], eps: float = 1e-8) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for number, group in enumerate(self.param_groups):
            for index, p in enumerate(group["params"]):
                if p.grad is not None:
                    self._step_one(p, group, (number, index))

    def _step_one(self, p: Tensor, group: dict[str, Any], place: tuple[int, int]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, dtype=torch.bfloat16)
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.bfloat16)
        state["step"] += 1
        noise = noise_of(p.device, "moments", *place, state["step"])
        assert p.grad is not None
        tensors = p.view(-1), p.grad.reshape(-1), state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1)
        for slices in zip(*(t.split(SLICE) for t in tensors), strict=True):
            _adamw(slices, group, state["step"], noise)


def _adamw(tensors: tuple[Tensor, ...], group: dict[str, Any], step: int, noise: torch.Generator) -> None:
    """One step, in place, of a slice of the weight, its gradient and the moments."""
    weight, grad, mean, square = tensors
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    grad, wide_mean, wide_square = grad.float(), mean.float(), square.float()
    wide_mean.lerp_(grad, 1.0 - beta1)
    wide_square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    mean.copy_(round_stochastically(wide_mean, noise))
    square.copy_(round_stochastically(wide_square, noise))
    scale = wide_square.div_(1.0 - beta2**step).sqrt_().add_(group["eps"])
    weight.mul_(1.0 - lr * group["weight_decay"]).addcdiv_(wide_mean, scale, value=-lr / (1.0 - beta1**step))
