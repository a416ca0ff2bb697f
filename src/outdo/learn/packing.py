"""From ragged rows to the tensors of one forward pass: prompts once each, then the answers that share them; or, where
none is shared, a prompt and its answer as one text.

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
from outdo.models.ops import sent
from outdo.types import Row

Laid = tuple[np.ndarray, np.ndarray, np.ndarray, SharedPrompts]  # ids_N, positions_N, before_M, layout


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
    lens_B = np.array([len(row.token_ids) for row in rows])
    targets_M = _chained([row.token_ids for row in rows])
    mask_BT = np.arange(lens_B.max()) < lens_B[:, None]
    sampler_BT = np.zeros(mask_BT.shape, np.float32)
    sampler_BT[mask_BT] = np.fromiter(chain.from_iterable(row.logprobs for row in rows), np.float32, len(targets_M))
    lone = len({row.prompt for row in rows}) == len(rows)
    ids_N, positions_N, before_M, layout = (_texts if lone else _shared)(prompt_ids, rows, device)
    return Packed(
        ids_N=sent(ids_N, device),
        positions_N=sent(positions_N, device),
        layout=layout,
        before_M=sent(before_M, device),
        targets_M=sent(targets_M, device),
        mask_BT=sent(mask_BT, device),
        sampler_logprobs_BT=sent(sampler_BT, device),
        advantages_B=sent(np.array([row.advantage for row in rows], np.float32), device),
        support_MK=_support(rows, device),
    )


def _shared(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Row], device: torch.device) -> Laid:
    """Each prompt once, then all answers."""
    used = sorted({row.prompt for row in rows})
    place = {prompt: i for i, prompt in enumerate(used)}
    prompts = [prompt_ids[prompt] for prompt in used]
    prompt_of = [place[row.prompt] for row in rows]
    lens_P, lens_B = np.array([len(ids) for ids in prompts]), np.array([len(row.token_ids) for row in rows])
    num_prompt, num_fed = int(lens_P.sum()), int((lens_B - 1).sum())
    # An answer's first token is predicted from its prompt's last, each further one from the one before.
    before_M = np.empty(num_fed + len(rows), np.int64)
    first_M = np.zeros(len(before_M), bool)
    first_M[lens_B.cumsum() - lens_B] = True
    before_M[first_M] = (lens_P.cumsum() - 1)[prompt_of]
    before_M[~first_M] = num_prompt + np.arange(num_fed)
    ids_N = _chained([*prompts, *(row.token_ids[:-1] for row in rows)])
    positions_N = np.concatenate([_counted(lens_P), _counted(lens_B - 1) + np.repeat(lens_P[prompt_of], lens_B - 1)])
    return ids_N, positions_N, before_M, SharedPrompts(lens_P.tolist(), prompt_of, (lens_B - 1).tolist(), device)


def _texts(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Row], device: torch.device) -> Laid:
    """Where no prompt is shared, each with its answer is one text: attention is then one call instead of three."""
    lens_P = np.array([len(prompt_ids[row.prompt]) for row in rows])
    lens_B = np.array([len(row.token_ids) for row in rows])
    lens_R = lens_P + lens_B - 1
    starts_R = lens_R.cumsum() - lens_R
    before_M = np.repeat(starts_R + lens_P - 1, lens_B) + _counted(lens_B)
    ids_N = _chained([ids for row in rows for ids in (prompt_ids[row.prompt], row.token_ids[:-1])])
    return ids_N, _counted(lens_R), before_M, SharedPrompts(lens_R.tolist(), [], [], device)


def _chained(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), np.int64, sum(map(len, parts)))


def _counted(lens: np.ndarray) -> np.ndarray:
    """0, 1, 2, … for each length, one after the other."""
    return np.arange(int(lens.sum())) - np.repeat(lens.cumsum() - lens, lens)


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
    return sent(np.array([[*ids, *[-1] * (widest - len(ids))] for ids in kept]), device)
