"""From ragged rows to the tensors of one forward pass: prompts once each, then the answers that share them.

No padding: N tokens in one row. Legend: B answers of up to T tokens, M real answer tokens in all. An answer's last
token is never fed in: nothing follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

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
    fed = [len(row.token_ids) - 1 for row in rows]
    prompt_of = [place[row.prompt] for row in rows]
    ends = torch.tensor([len(ids) for ids in prompts]).cumsum(0)  # where each prompt ends, in the row of N
    starts = torch.tensor(fed).cumsum(0) - torch.tensor(fed) + int(ends[-1])
    fed_B, last_B = torch.tensor(fed), ends[torch.tensor(prompt_of)] - 1
    mask_BT = torch.arange(max(fed) + 1) <= fed_B[:, None]
    # An answer's first token follows its prompt's last, each further one the one before.
    before_BT = torch.cat([last_B[:, None], starts[:, None] + torch.arange(max(fed))], dim=1)
    lengths_B = torch.tensor([len(prompts[p]) for p in prompt_of])
    positions_BT = lengths_B[:, None] + torch.arange(max(fed))
    ids = [*chain(*prompts), *chain(*(row.token_ids[:-1] for row in rows))]
    at = [torch.arange(len(p)) for p in prompts]
    sampler = torch.zeros(mask_BT.shape)
    sampler[mask_BT] = torch.tensor([*chain(*(row.logprobs for row in rows))])
    return Packed(
        ids_N=_sent(torch.tensor(ids), device),
        positions_N=_sent(torch.cat([*at, positions_BT[mask_BT[:, 1:]]]), device),
        layout=SharedPrompts([len(p) for p in prompts], prompt_of, fed, device),
        before_M=_sent(before_BT[mask_BT], device),
        targets_M=_sent(torch.tensor([*chain(*(row.token_ids for row in rows))]), device),
        mask_BT=_sent(mask_BT, device),
        sampler_logprobs_BT=_sent(sampler, device),
        advantages_B=_sent(torch.tensor([row.advantage for row in rows]), device),
        support_MK=_support(rows, device),
    )


def _sent(x: Tensor, device: torch.device) -> Tensor:
    """On its device, without waiting for what the device is at."""
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
    return _sent(torch.tensor([[*ids, *[-1] * (widest - len(ids))] for ids in kept]), device)
