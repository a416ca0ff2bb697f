"""How models are evaluated: problems, samples, decoding and device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from outdo.errors import RecipeError
from outdo.evals.held_out import describe_limits
from outdo.types import SampleParams

DTYPES = ("float32", "bfloat16")
_TYPES: tuple[tuple[tuple[str, ...], Any, str], ...] = (  # of the fields, for callers from Python
    (("size", "samples", "max_completion_length", "top_k", "seed"), Integral, "an integer"),
    (("temperature", "top_p", "min_p"), Real, "a number"),
    (("ks", "stop"), (tuple, list), "a list"),
    (("dtype", "device"), str, "a name"),
)


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """The defaults are the recipe's. Raises RecipeError for a value that is invalid."""

    size: int = 200  # problems of each split; 0: all of them
    samples: int = 10  # sampled answers to each problem, for pass@k; 0: greedy only
    ks: tuple[int, ...] = ()  # of pass@k; empty: those that suit `samples`
    max_completion_length: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    pass_threshold: float | None = None  # a reward from which an answer is right; None: 1, or the grader's own verdict
    dtype: str = "float32"
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for names, kind, expected in _TYPES:
            for name in names:
                if not isinstance(value := getattr(self, name), kind) or isinstance(value, bool):
                    raise RecipeError(f"{name}={value!r:.80}: expected {expected}")
        bar = self.pass_threshold
        if bar is not None and (isinstance(bar, bool) or not isinstance(bar, Real) or not math.isfinite(bar)):
            raise RecipeError(f"pass_threshold={bar!r:.80}: expected a number, or nothing")
        if not all(isinstance(k, Integral) for k in self.ks) or not all(isinstance(text, str) for text in self.stop):
            raise RecipeError(f"ks={self.ks}, stop={self.stop}: expected integers, and strings")
        if self.size < 0 or self.samples < 0:
            raise RecipeError(f"size={self.size}, samples={self.samples}: both must be 0 or more")
        if self.dtype not in DTYPES:
            raise RecipeError(f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")
        if not all(1 <= k <= self.samples for k in self.ks):
            raise RecipeError(f"k={','.join(map(str, self.ks))}: pass@k needs k from 1 to samples={self.samples}")
        try:
            self.params(self.max_completion_length)
        except ValueError as error:
            raise RecipeError(str(error)) from None

    def params(self, limit: int) -> SampleParams:
        """Of the sampled answers, with at most `limit` tokens each."""
        return SampleParams(limit, self.temperature, self.top_p, self.top_k, self.min_p, tuple(self.stop))


def describe_sampling(settings: EvalSettings) -> str:
    """`10 samples at temperature 1, top_p 0.95`."""
    if not settings.samples:
        return "greedy only"
    return f"{settings.samples} samples at temperature {settings.temperature:g}{describe_limits(settings)}"
