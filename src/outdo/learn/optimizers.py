"""Optimizers by name, as a recipe's `optim` has them; and their state as plain tensors, for checkpoints.

Names are those of transformers. To add one, write a function that makes it and a line in `OPTIMIZERS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from outdo.errors import ModelError, RecipeError
from outdo.learn.bf16 import AdamWBf16

Groups = list[dict[str, Any]]
Betas = tuple[float, float]
INSTALL = "pip install 'outdo[8bit]'"
EIGHT_BIT = ("bitsandbytes", "torchao")  # packages with 8-bit optimizers, the preferred first
PART = ":"  # between a slot and one of its tensors, where the slot's value consists of several


@dataclass(frozen=True)
class Kind:
    """One optimizer: how it is made, and what it costs."""

    make: Callable[[Groups, float, Betas], torch.optim.Optimizer]
    bytes: float  # of state for each trained weight
    packages: tuple[str, ...] = ()  # any one of which it needs
    splits: bool = True  # a part of a weight is updated as it would be with the rest of it


def _adamw(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8, fused=True)


def _adamw_bf16(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    return AdamWBf16(groups, lr, betas)


def _sgd(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=lr)


def _adafactor(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    """With the rate as given, as transformers' trainer has it."""
    from transformers.optimization import Adafactor

    return Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False)


def _bitsandbytes(name: str) -> Callable[[Groups, float, Betas], torch.optim.Optimizer]:
    def make(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
        return getattr(importlib.import_module("bitsandbytes.optim"), name)(groups, lr=lr, betas=betas, eps=1e-8)

    return make


def _torchao(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    base = importlib.import_module("torchao.optim").AdamW8bit

    class AdamW8bit(base):  # type: ignore[misc, valid-type]
        """Compiled on a GPU. On a CPU compiling would take longer than most runs."""

        def step(self, closure: Any = None) -> Any:
            is_gpu = self.param_groups[0]["params"][0].device.type == "cuda"
            with torch.compiler.set_stance("default" if is_gpu else "force_eager"):
                return super().step(closure)

    return AdamW8bit(groups, lr=lr, betas=betas, eps=1e-8)


def _eight_bit(groups: Groups, lr: float, betas: Betas) -> torch.optim.Optimizer:
    make = _bitsandbytes("AdamW8bit") if find_spec("bitsandbytes") else _torchao
    return make(groups, lr, betas)


ADAMW = Kind(_adamw, 8)
ADAMW_8BIT = Kind(_eight_bit, 2.1, EIGHT_BIT, splits=False)  # two bytes, and a scale for each block
OPTIMIZERS: dict[str, Kind] = {
    "adamw_torch_fused": ADAMW,
    "adamw_torch": ADAMW,
    "adamw": ADAMW,
    "adamw_bf16": Kind(_adamw_bf16, 4),
    "adamw_8bit": ADAMW_8BIT,
    "adamw_bnb_8bit": ADAMW_8BIT,
    "adamw_torch_8bit": Kind(_torchao, 2.1, ("torchao",), splits=False),
    "paged_adamw_8bit": Kind(_bitsandbytes("PagedAdamW8bit"), 2.1, ("bitsandbytes",), splits=False),
    "paged_adamw": Kind(_bitsandbytes("PagedAdamW"), 8, ("bitsandbytes",)),
    "paged_adamw_32bit": Kind(_bitsandbytes("PagedAdamW"), 8, ("bitsandbytes",)),
    "adafactor": Kind(_adafactor, 0.1, splits=False),
    "sgd": Kind(_sgd, 0),
}


def require_optimizer(name: str) -> None:
    """Raises ModelError where the package that it needs is not installed."""
    packages = OPTIMIZERS[name].packages
    if packages and not any(map(find_spec, packages)):
        needed = " or ".join(packages)
        install = f"pip install {packages[0]}" if packages[0] != EIGHT_BIT[0] else INSTALL
        raise ModelError(f"optim={name} needs {needed}, which is not installed: {install}; or use optim=adamw_torch")


def make_optimizer(
    name: str, trained: Sequence[nn.Parameter], lr: float, weight_decay: float, betas: Betas
) -> torch.optim.Optimizer:
    """The optimizer of that name, with weight decay on matrices only, not on norms and biases. Raises ModelError."""
    require_optimizer(name)
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return OPTIMIZERS[name].make([group for group in groups if group["params"]], lr, betas)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def step_if_finite(optimizer: torch.optim.Optimizer, is_finite: Tensor) -> None:
    """A step, skipped where the loss or gradient is not finite. A fused optimizer decides that on the device."""
    if optimizer.defaults.get("fused"):
        optimizer.found_inf = 1.0 - is_finite.float()  # type: ignore[attr-defined]
        optimizer.step()
    elif is_finite:
        optimizer.step()


def package_of(optimizer: torch.optim.Optimizer) -> str:
    """Where its class is from: states of two packages differ though the optimizer's name is the same."""
    classes = [kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__]
    return next((name for name in classes if name in EIGHT_BIT), classes[0])


def read_state(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Its state for one weight: tensors (copies on the CPU) and numbers, by slot."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for slot, value in optimizer.state[weight].items():
        if hasattr(value, "__tensor_flatten__"):
            for part in value.__tensor_flatten__()[0]:
                tensors[f"{slot}{PART}{part}"] = getattr(value, part).to("cpu", copy=True)
        elif isinstance(value, Tensor):
            tensors[slot] = value.detach().to("cpu", copy=True)
        elif value is not None:
            numbers[slot] = value
    return tensors, numbers


@torch.no_grad()
def write_state(
    optimizer: torch.optim.Optimizer, weight: nn.Parameter, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Restores what `read_state` returned."""
    state = optimizer.state[weight]
    if package_of(optimizer) == "bitsandbytes":  # makes its own buffers, which may be paged
        group, index = _place(optimizer, weight)
        optimizer.init_state(optimizer.param_groups[group], weight, group, index)  # type: ignore[attr-defined]
    for slot, value in tensors.items():
        name, _, part = slot.partition(PART)
        if part:
            if name not in state:
                state[name] = optimizer._new_buffer(weight, name == "exp_avg")  # type: ignore[attr-defined]
            getattr(state[name], part).copy_(value)
        elif name in state:
            state[name].copy_(value)
        else:  # "step" is on the device too where the optimizer is fused
            on_host = package_of(optimizer) == "torchao" and name == "step"
            state[name] = value.to("cpu" if on_host else weight.device, copy=True)
    state.update(numbers)


def _place(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> tuple[int, int]:
    """The group of a weight, and its position in there."""
    for number, group in enumerate(optimizer.param_groups):
        for index, param in enumerate(group["params"]):
            if param is weight:
                return number, index
    raise KeyError(weight)


def refuse_other_package(optimizer: torch.optim.Optimizer, saved: str | None, name: str) -> None:
    """Raises RecipeError where a checkpoint has the state of another package's optimizer."""
    if saved not in (None, package_of(optimizer)):
        raise RecipeError(
            f"the checkpoint has the optimizer state of {saved}, and optim={name} is {package_of(optimizer)}'s here: "
            f"install {saved}"
        )
