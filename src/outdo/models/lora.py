"""LoRA: a low-rank change of some weights, W = W0 + (alpha / r) B A, that the optimizer trains instead of them.

The model always holds the sum, in place: sampling and training read one set of ordinary weights, at full speed. A copy
of W0 is stored, for the adapted weights only. The gradients of A and B are computed from a layer's input and its
output's gradient (`factor_gradients`), and that of W never is. The layers written out in `stack.py` do so themselves,
others have a hook. The head, and a weight that a class multiplies without calling its layer, get the gradient of W as
usual, which is projected at once.

Files are in PEFT's format: `peft.PeftModel.from_pretrained(base, folder)` loads them.

Not covered: dropout, biases, DoRA, ranks that differ by layer, layers that are not `nn.Linear`.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outdo.errors import ModelError
from outdo.models.ops import wide_product
from outdo.seeds import seed_of
from outdo.untrusted.parse import parse_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ALL = "all-linear"
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Lora:
    """The adapter that a recipe describes."""

    r: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = (ALL,)
    seed: int = 0
    four_bit: bool = False


class Factors(NamedTuple):
    """A and B of each adapted layer, by its name, and the scale of their product."""

    pairs: dict[str, tuple[Tensor, Tensor]]
    scale: float


class Adapter:
    """The factors of some of a model's weights, and the original weights. `pairs` is A, B, A, B, …"""

    def __init__(self, model: nn.Module, factors: Factors) -> None:
        self.names = [name for name, _ in model.named_modules() if name in factors.pairs]  # in the model's order
        self.scale = factors.scale
        self.own = [model.get_parameter(f"{name}.weight") for name in self.names]
        self.base = [weight.detach().clone() for weight in self.own]
        device = self.own[0].device
        self.pairs = [nn.Parameter(f.to(device, torch.float32)) for name in self.names for f in factors.pairs[name]]
        self._index = {name: i for i, name in enumerate(self.names)}
        self.publish()

    @property
    def r(self) -> int:
        return len(self.pairs[0])

    @property
    def keys(self) -> list[str]:
        return [f"{_PREFIX}{name}.lora_{part}.weight" for name in self.names for part in "AB"]

    @property
    def description(self) -> str:
        return f"{sum(p.numel() for p in self.pairs):,} (rank {self.r}, {len(self.names)} layers)"

    @property
    def facts(self) -> dict[str, Any]:
        parameters = sum(p.numel() for p in self.pairs)
        return {"r": self.r, "alpha": self.scale * self.r, "layers": len(self.names), "parameters": parameters}

    @property
    def base_bytes(self) -> int:
        """Of the original weights."""
        return sum(weight.numel() * weight.element_size() for weight in self.base)

    def factors(self, name: str) -> tuple[Tensor, Tensor] | None:
        """A and B of a layer, where it has them."""
        at = self._index.get(name)
        return None if at is None else (self.pairs[2 * at], self.pairs[2 * at + 1])

    def train_only_this(self, model: nn.Module, called: Container[str]) -> None:
        """Freezes the rest of the model. From here on a backward leaves the gradients of the factors on them.

        `called` has the layers whose module a forward calls; the weights of others are used in another way."""
        model.requires_grad_(False)
        me = weakref.ref(self)  # Python cannot collect a cycle through a hook: the weights would never be freed
        for i, (name, weight) in enumerate(zip(self.names, self.own, strict=True)):
            if name in called:
                model.get_submodule(name).register_forward_hook(lambda _, args, y, i=i: _attached(me(), i, args[0], y))
            else:
                weight.requires_grad_(True)
                weight.register_post_accumulate_grad_hook(lambda w, i=i: _project(me(), i, w))

    def drop(self) -> None:
        """Drops all gradients, also those of weights that were not projected yet."""
        for tensor in (*self.pairs, *self.own):
            tensor.grad = None

    @torch.no_grad()
    def _sum(self, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(base.float(), b, a, alpha=self.scale).to(base.dtype)

    @torch.no_grad()
    def publish(self) -> None:
        """Writes the current sum to the model's weights."""
        for weight, base, a, b in zip(self.own, self.base, self.pairs[::2], self.pairs[1::2], strict=True):
            weight.data.copy_(self._sum(base, a, b))

    def weights_of(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        """The adapted weights with other factors: `base` itself where those change nothing, as a new adapter's do."""
        pairs = [state[key].to(self.base[0].device) for key in self.keys]
        if not any(bool(b.any()) for b in pairs[1::2]):
            return self.base
        return [self._sum(*parts) for parts in zip(self.base, pairs[::2], pairs[1::2], strict=True)]

    @contextmanager
    def instead(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """The model with other weights in the adapted places, such as `base`: the adapter switched off."""
        current = [weight.data for weight in self.own]
        try:
            for weight, other in zip(self.own, weights, strict=True):
                weight.data = other
            yield
        finally:
            for weight, data in zip(self.own, current, strict=True):
                weight.data = data

    def state_dict(self) -> dict[str, Tensor]:
        """The factors, by PEFT's names."""
        return {key: p.detach() for key, p in zip(self.keys, self.pairs, strict=True)}

    def save(self, folder: Path, base: str, state: Mapping[str, Tensor] | None = None) -> None:
        """Writes PEFT's files; of `state` where given."""
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base}
        config |= {"r": self.r, "lora_alpha": self.scale * self.r, "target_modules": sorted(self.names)}
        config |= {"lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "inference_mode": True}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {key: value.cpu() for key, value in (state or self.state_dict()).items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def factor_gradients(x_NI: Tensor, dy_NO: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """dA = s (dy B)ᵀ x and dB = s dyᵀ (x Aᵀ), for y = x Wᵀ: products in the type of x, sums in float32."""
    da = wide_product((dy_NO @ b.to(dy_NO.dtype)).T, x_NI)
    db = wide_product(dy_NO.T, x_NI @ a.to(x_NI.dtype).T)
    return da.mul_(scale), db.mul_(scale)


class _Attached(torch.autograd.Function):
    """A layer's output as it is. The backward computes the gradients of the factors too."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, a, b)
        ctx.scale = scale
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b = ctx.saved_tensors
        da, db = factor_gradients(x.flatten(0, -2), dy.flatten(0, -2), a, b, ctx.scale)
        return dy, None, da, db, None


def _attached(adapter: Adapter | None, i: int, x: Tensor, y: Tensor) -> Tensor | None:
    """The output of an adapted layer, for the backward; None: as it is."""
    if adapter is None or not torch.is_grad_enabled():
        return None
    return _Attached.apply(y, x.detach(), adapter.pairs[2 * i], adapter.pairs[2 * i + 1], adapter.scale)


@torch.no_grad()
def _project(adapter: Adapter | None, i: int, weight: Tensor) -> None:
    """dA = s Bᵀ dW, dB = s dW Aᵀ; and dW is freed before the next layer's is computed."""
    assert weight.grad is not None
    grad, weight.grad = weight.grad.float(), None
    if adapter is None:
        return
    a, b = adapter.pairs[2 * i], adapter.pairs[2 * i + 1]
    for factor, value in ((a, b.T @ grad), (b, grad @ a.T)):
        scaled = value.mul_(adapter.scale)
        factor.grad = scaled if factor.grad is None else factor.grad.add_(scaled)


@torch.no_grad()
def called_layers(model: Any, forward: Callable[[], None]) -> set[str]:
    """The linear layers whose modules a forward calls. The head is not one: its product is computed in chunks."""
    called: set[str] = set()
    head = model.get_output_embeddings()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
    hooks = [m.register_forward_hook(lambda *_, name=name: called.add(name)) for name, m in linear.items()]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return called


def new_factors(model: Any, lora: Lora) -> Factors:
    """New factors that change nothing yet: A is random, by a hash of the seed and the layer's name; B is 0."""
    pairs = {}
    for name, module in targets(model, lora.targets).items():
        generator = torch.Generator().manual_seed(seed_of("lora", lora.seed, name) % 2**63)
        bound = 1.0 / math.sqrt(module.in_features)  # kaiming_uniform_ with a = sqrt(5), as PEFT's
        a = (torch.rand((lora.r, module.in_features), generator=generator) * 2.0 - 1.0) * bound
        pairs[name] = a, torch.zeros(module.out_features, lora.r)
    return Factors(pairs, lora.alpha / lora.r)


def read_factors(model: nn.Module, folder: Path) -> Factors:
    """The factors in an adapter's folder. Raises ModelError where they cannot be read or do not fit the model."""
    try:
        config = dict(parse_json((folder / CONFIG).read_text(encoding="utf-8")))
        tensors = load_file(folder / WEIGHTS)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"{folder}: not a readable adapter ({error!r:.200}); it needs {CONFIG} and {WEIGHTS}"
        ) from None
    _refuse_other_kinds(folder, config)
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for key, a in tensors.items():
        name = key.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        if key.endswith(".lora_A.weight"):
            b = tensors.get(key.replace(".lora_A.", ".lora_B."))
            pairs[name] = _fitting(model, folder, name, a, b)
    if not pairs or 2 * len(pairs) != len(tensors):
        raise ModelError(f"{folder}: {WEIGHTS} holds tensors other than pairs of lora_A and lora_B")
    return Factors(pairs, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _fitting(model: nn.Module, folder: Path, name: str, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    try:
        layer: Any = model.get_submodule(name)
        shape = layer.out_features, layer.in_features
    except AttributeError:
        raise ModelError(f"{folder} is an adapter of another model: this one has no layer {name}") from None
    if b is None or a.ndim != 2 or b.ndim != 2 or (len(b), a.shape[1]) != shape or b.shape[1] != len(a):
        shapes = f"A {tuple(a.shape)} and B {tuple(b.shape) if b is not None else 'missing'}"
        raise ModelError(
            f"{folder} is an adapter of another model: for {name} it has {shapes}, where this model's weight is {shape}"
        )
    return a, b


def _refuse_other_kinds(folder: Path, config: Mapping[str, Any]) -> None:
    keys = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
    unsupported = [key for key in keys if config.get(key)]
    if config.get("peft_type") != "LORA":
        unsupported.append(f"peft_type={config.get('peft_type')}")
    if config.get("bias", "none") != "none":
        unsupported.append(f"bias={config['bias']}")
    if unsupported:
        raise ModelError(
            f"{folder}: an adapter with {', '.join(unsupported)}; only plain LoRA is supported: merge it with PEFT "
            "(merge_and_unload) and give the merged folder"
        )


def targets(model: Any, wanted: Sequence[str]) -> dict[str, nn.Linear]:
    """The linear layers to adapt: by the ends of their names, as in PEFT; `all-linear` means all but the head."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    head = model.get_output_embeddings()
    inner = {name: module for name, module in linear.items() if module is not head}
    if tuple(wanted) == (ALL,):
        chosen = inner
    else:
        ends = {word: {n: m for n, m in linear.items() if n == word or n.endswith("." + word)} for word in wanted}
        for word, matches in ends.items():
            if not matches:
                names = sorted({name.rpartition(".")[2] for name in inner})
                raise ModelError(f"lora_target_modules: no linear layer is named {word}; there are {', '.join(names)}")
        matched = set().union(*ends.values())
        chosen = {name: module for name, module in linear.items() if name in matched}
        if any(m.weight is model.get_input_embeddings().weight for m in chosen.values()):
            raise ModelError(
                "lora_target_modules: this model's head shares its weight with the embedding: leave it out"
            )
    if not chosen:
        raise ModelError(
            f"use_peft=true: {type(model).__name__} has no linear layer to adapt: use_peft=false trains it"
        )
    return chosen
