"""From token losses to one number. Denominators are arguments: a micro-batch gets the totals of its whole batch, so
that splitting a batch changes no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """The counts of the whole batch, of which the tensors may be a part."""

    num_sequences: int
    num_tokens: float
    max_completion_length: int | None = None
    num_chosen: int | None = None  # tokens that `top_entropy_quantile` keeps


def per_sequence(x_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over each answer's tokens, then over answers: each token of a long answer weighs less (GRPO)."""
    per_row_B = (x_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)
    return per_row_B.sum() / max(totals.num_sequences, 1)


def per_token(x_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over all tokens: every token weighs the same (DAPO, BNPO, CISPO)."""
    return (x_BT * mask_BT).sum() / max(totals.num_tokens, 1)


def per_answer_sum(x_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over each answer's tokens, then the mean over answers: a long answer weighs more (LUSPO)."""
    return (x_BT * mask_BT).sum() / max(totals.num_sequences, 1)


def by_constant(x_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over tokens, divided by a constant that does not depend on the answers' lengths (Dr. GRPO)."""
    if totals.max_completion_length is None:
        raise ValueError("dr_grpo divides by max_completion_length: pass it")
    return (x_BT * mask_BT).sum() / max(totals.num_sequences * totals.max_completion_length, 1)
