"""From ragged rows to the tensors of one forward pass: prompts once each, then the answers that share them.

No padding: N tokens in one row. Legend: B answers of up to T tokens, M real answer tokens in all. An answer's last
token is never fed in: nothing follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from outdo.models.attention import SharedPrompts
from outdo.models.load import Policy
from outdo.types import Row


@dataclass(frozen=True)
class Packed:
    """One micro-batch on its device."""

    ids_N: Tensor
    positions_N: Tensor
    layout: SharedPrompts
    before_M: Tensor  # the token from which each answer token is predicted
    targets_M: Tensor
    mask_BT: Tensor  # where the M stand in a rectangle
    sampler_logprobs_BT: Tensor
    advantages_B: Tensor
    support_MK: Tensor | None  # the tokens that were left to choose from, -1 for none; None: all were


def pack(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Row], device: torch.device) -> Packed:
    """Tensors for these rows, which stand beside those of the same prompt. Prompts that no row answers are left out."""
    used = sorted({row.prompt for row in rows})
    place = {prompt: i for i, prompt in enumerate(used)}
    prompts = [prompt_ids[prompt] for prompt in used]
    prompt_of = [place[row.prompt] for row in rows]
    lens_P, lens_B = np.array([len(ids) for ids in prompts]), np.array([len(row.token_ids) for row in rows])
    num_prompt, num_answer = int(lens_P.sum()), int(lens_B.sum())
    targets_M = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, num_answer)
    ids_P = np.fromiter(chain.from_iterable(prompts), np.int64, num_prompt)

    ends_B = lens_B.cumsum()
    first_M, last_M = np.zeros(num_answer, bool), np.zeros(num_answer, bool)  # of an answer
    first_M[ends_B - lens_B] = last_M[ends_B - 1] = True
    at_M = np.arange(num_answer) - np.repeat(ends_B - lens_B, lens_B)  # place in its answer
    # An answer's first token is predicted from its prompt's last, each further one from the one before.
    before_M = np.empty(num_answer, np.int64)
    before_M[first_M] = (lens_P.cumsum() - 1)[prompt_of]
    before_M[~first_M] = num_prompt + np.arange(num_answer - len(rows))
    mask_BT = np.arange(lens_B.max()) < lens_B[:, None]
    sampler_BT = np.zeros(mask_BT.shape, np.float32)
    sampler_BT[mask_BT] = np.fromiter(chain.from_iterable(row.logprobs for row in rows), np.float32, num_answer)
    at_P = np.arange(num_prompt) - np.repeat(lens_P.cumsum() - lens_P, lens_P)
    position_M = at_M + np.repeat(lens_P[prompt_of], lens_B)
    return Packed(
        ids_N=_sent(np.concatenate([ids_P, targets_M[~last_M]]), device),
        positions_N=_sent(np.concatenate([at_P, position_M[~last_M]]), device),
        layout=SharedPrompts(lens_P.tolist(), prompt_of, (lens_B - 1).tolist(), device),
        before_M=_sent(before_M, device),
        targets_M=_sent(targets_M, device),
        mask_BT=_sent(mask_BT, device),
        sampler_logprobs_BT=_sent(sampler_BT, device),
        advantages_B=_sent(np.array([row.advantage for row in rows], np.float32), device),
        support_MK=_support(rows, device),
    )


def _sent(values: np.ndarray, device: torch.device) -> Tensor:
    """On its device, without waiting for what the device is at."""
    x = torch.from_numpy(values)
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def forward(policy: Policy, packed: Packed, recompute: bool = False) -> Tensor:
    """Hidden states [M, D] from which the answer tokens are predicted."""
    hidden_ND = policy.hidden(packed.ids_N, packed.positions_N, packed.layout, recompute=recompute)
    return hidden_ND.index_select(0, packed.before_M)


def unpack(values_M: Tensor, packed: Packed) -> Tensor:
    """Values of the answer tokens in their places, [B, T], 0 elsewhere."""
    return values_M.new_zeros(packed.mask_BT.shape).masked_scatter(packed.mask_BT, values_M)


def _support(rows: Sequence[Row], device: torch.device) -> Tensor | None:
    kept = [*chain(*(row.support for row in rows))]
    if not kept:
        return None
    widest = max(map(len, kept))
    return _sent(np.array([[*ids, *[-1] * (widest - len(ids))] for ids in kept]), device)
