"""Triton kernels of the fast path on a GPU. Each has its plain form elsewhere, which is what runs on other machines and
what the tests compare with.

Numbers come in and go out in the type of their tensors; everything between is float32.
"""

from outdo.models.kernels import few
from outdo.models.kernels.attention import merge, paged_attention
from outdo.models.kernels.choice import advance, draw
from outdo.models.kernels.layer import add_norm, norm_backward, rotate, swiglu, swiglu_backward
from outdo.models.kernels.logprobs import logprobs, logprobs_backward

__all__ = [
    "add_norm",
    "advance",
    "draw",
    "few",
    "logprobs",
    "logprobs_backward",
    "merge",
    "norm_backward",
    "paged_attention",
    "rotate",
    "swiglu",
    "swiglu_backward",
]
