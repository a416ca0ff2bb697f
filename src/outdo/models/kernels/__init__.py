"""Triton kernels for the GPU. Each has a version in plain torch elsewhere, which runs on other machines and which the
tests compare with.

Inputs and outputs have the type of their tensors; everything between is float32.
"""

from outdo.models.kernels import few, fp8
from outdo.models.kernels.attention import merge, paged_attention
from outdo.models.kernels.bf16 import adamw_bf16, store_rounded
from outdo.models.kernels.choice import advance, draw
from outdo.models.kernels.layer import add_norm, norm_backward, rotate, swiglu, swiglu_backward
from outdo.models.kernels.logprobs import logprobs, logprobs_backward

__all__ = [
    "adamw_bf16",
    "add_norm",
    "advance",
    "draw",
    "few",
    "fp8",
    "logprobs",
    "logprobs_backward",
    "merge",
    "norm_backward",
    "paged_attention",
    "rotate",
    "store_rounded",
    "swiglu",
    "swiglu_backward",
]
