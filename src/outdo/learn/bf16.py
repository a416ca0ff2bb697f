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

from outdo.models.ops import kernels
from outdo.seeds import seed_of

SLICE = 2**23  # weights handled at once without kernels: the float32 copies in between take a few times 32 MiB
MOST = 2**30  # elements that a kernel handles


def noise_seed(*key: object) -> int:
    """The seed of the random numbers of that key."""
    return seed_of("rounding", *key) % 2**63


def round_stochastically(x: Tensor, noise: torch.Generator) -> Tensor:
    """float32 values in bfloat16. Values that bfloat16 has are kept."""
    bits = torch.empty(x.shape, dtype=torch.int32, device=x.device).random_(0, 2**16, generator=noise)
    return bits.add_(x.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


@torch.no_grad()
def store_rounded(target: Tensor, values: Tensor, *key: object) -> None:
    """Writes float32 values to a bfloat16 tensor of the same shape, both contiguous, with the noise of that key."""
    k = kernels(values)
    noise = None if k else _generator(values.device, noise_seed(*key))
    size = MOST if k else SLICE
    pairs = zip(target.view(-1).split(size), values.view(-1).split(size), strict=True)
    for number, (into, part) in enumerate(pairs):
        if k:
            k.store_rounded(into, part, noise_seed(*key, number))
        elif noise:
            into.copy_(round_stochastically(part, noise))


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
        assert p.grad is not None
        tensors = p.view(-1), p.grad.reshape(-1), state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1)
        k, key = kernels(p), ("moments", *place, state["step"])
        rate = float(group["lr"])
        numbers = {"rate": rate, "decay": 1.0 - rate * group["weight_decay"], "step": state["step"]}
        numbers |= {"betas": group["betas"], "eps": group["eps"]}
        noise = None if k else _generator(p.device, noise_seed(*key))
        for number, slices in enumerate(zip(*(t.split(MOST if k else SLICE) for t in tensors), strict=True)):
            if k:
                k.adamw_bf16(*slices, **numbers, seed=noise_seed(*key, number))
            elif noise:
                adamw(slices, noise, **numbers)


def adamw(
    tensors: tuple[Tensor, ...], noise: torch.Generator, *, rate: float, decay: float, betas: tuple[float, float],
    eps: float, step: int,
) -> None:  # fmt: skip
    """One step, in place, of a slice of the weight, its gradient and the moments."""
    weight, grad, mean, square = tensors
    wide_grad, wide_mean, wide_square = grad.float(), mean.float(), square.float()
    wide_mean.lerp_(wide_grad, 1.0 - betas[0])
    wide_square.mul_(betas[1]).addcmul_(wide_grad, wide_grad, value=1.0 - betas[1])
    mean.copy_(round_stochastically(wide_mean, noise))
    square.copy_(round_stochastically(wide_square, noise))
    scale = wide_square.div_(1.0 - betas[1] ** step).sqrt_().add_(eps)
    weight.mul_(decay).addcdiv_(wide_mean, scale, value=-rate / (1.0 - betas[0] ** step))


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
