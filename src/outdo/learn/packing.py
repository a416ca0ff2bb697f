"""From ragged rows to the tensors of one forward pass: prompts once each, then the answers that share them.

Legend: P prompts of L tokens, B answers of T tokens. An answer's last token is never fed in: nothing follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.models.attention import SharedPrompts
from outdo.models.load import Policy
from outdo.types import Row


@dataclass(frozen=True)
class Packed:
    """One micro-batch on its device."""

    input_ids: Tensor  # [1, P x L + B x (T - 1)]
    position_ids: Tensor
    layout: SharedPrompts
    before_BT: Tensor  # index into the row of inputs: the token from which each answer token is predicted
    targets_BT: Tensor
    mask_BT: Tensor
    sampler_logprobs_BT: Tensor
    advantages_B: Tensor


def pack(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Row], pad_id: int, device: torch.device) -> Packed:
    """Tensors for these rows. Prompts that no row answers are left out."""
    used = sorted({row.prompt for row in rows})
    place = {prompt: i for i, prompt in enumerate(used)}
    prompts = [prompt_ids[prompt] for prompt in used]
    num_prompt, num_answer = max(map(len, prompts)), max(len(row.token_ids) for row in rows)
    lens_P = torch.tensor([len(ids) for ids in prompts])
    prompt_of_B = torch.tensor([place[row.prompt] for row in rows])
    prompt_PL = _pad(prompts, num_prompt, pad_id)
    targets_BT = _pad([row.token_ids for row in rows], num_answer, pad_id)
    mask_BT = torch.arange(num_answer) < torch.tensor([len(row.token_ids) for row in rows])[:, None]

    start_B = lens_P[prompt_of_B]  # an answer's first token stands at its prompt's length
    positions_BT = start_B[:, None] + torch.arange(num_answer - 1)
    first_B = prompt_of_B * num_prompt + start_B - 1
    rest_BT = len(prompts) * num_prompt + torch.arange(len(rows) * (num_answer - 1)).view(len(rows), -1)
    return Packed(
        input_ids=torch.cat([prompt_PL.flatten(), targets_BT[:, :-1].flatten()])[None].to(device),
        position_ids=torch.cat([torch.arange(num_prompt).repeat(len(prompts)), positions_BT.flatten()])[None].to(
            device
        ),
        layout=SharedPrompts(lens_P.to(device), prompt_of_B.to(device), num_prompt, num_answer - 1),
        before_BT=torch.cat([first_B[:, None], rest_BT], dim=1).to(device),
        targets_BT=targets_BT.to(device),
        mask_BT=mask_BT.to(device),
        sampler_logprobs_BT=_pad([row.logprobs for row in rows], num_answer, 0.0).to(device),
        advantages_B=torch.tensor([row.advantage for row in rows], device=device),
    )


def forward(policy: Policy, packed: Packed) -> Tensor:
    """Hidden states [M, D] from which the M real answer tokens are predicted, in the order of `mask_BT`."""
    hidden_ND = policy.hidden(packed.input_ids, packed.position_ids, packed.layout)[0]
    return hidden_ND.index_select(0, packed.before_BT[packed.mask_BT])


def unpack(values_M: Tensor, packed: Packed) -> Tensor:
    """Values of the real answer tokens back in their places, [B, T], 0 elsewhere."""
    return values_M.new_zeros(packed.mask_BT.shape).masked_scatter(packed.mask_BT, values_M)


def _pad(lists: Sequence[Sequence[float]], width: int, value: float) -> Tensor:
    return torch.tensor([[*x, *[value] * (width - len(x))] for x in lists])
