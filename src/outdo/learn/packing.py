"""From ragged samples to the tensors of one forward pass: each prompt once, then the answers that share it; or, if no
prompt is shared, each prompt and its answer as one text.

No padding: N tokens in one row. Legend: A answer tokens in all, M of them trained on, B answers of up to T trained
tokens. Tokens of an environment are inputs but not targets: they are in N and A, never in M or T. An answer's last
token is never an input, because nothing follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from outdo.models.attention import SharedPrompts
from outdo.models.load import Policy
from outdo.models.ops import sent
from outdo.types import Sample

Layout = tuple[np.ndarray, np.ndarray, np.ndarray, SharedPrompts]  # ids_N, positions_N, before_A, layout


@dataclass(frozen=True)
class Packed:
    """One micro-batch on its device."""

    ids_N: Tensor
    positions_N: Tensor
    layout: SharedPrompts
    before_M: Tensor  # the token from which each trained token is predicted
    targets_M: Tensor
    answer_lens: list[int]  # tokens of each answer, the environment's included
    last_B: Tensor  # each answer's last token, which is not an input
    trained_A: Tensor | None  # which answer tokens are trained on; None: all
    mask_BT: Tensor  # which entries hold one of the M tokens
    sampler_logprobs_BT: Tensor
    advantages_B: Tensor
    support_MK: Tensor | None  # the tokens that could be sampled, padded with -1; None: all
    chosen_BT: Tensor | None = None  # tokens that the loss treats apart; None: it treats all alike


def pack(prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], device: torch.device) -> Packed:
    """Tensors for these samples; those of one prompt are adjacent. Prompts without a sample are left out."""
    lens_B = np.array([sample.num_trained for sample in samples])
    targets_M = _concatenated([sample.token_ids for sample in samples])
    none_shared = len({sample.prompt for sample in samples}) == len(samples)
    ids_N, positions_N, before_M, layout = (_texts if none_shared else _shared)(prompt_ids, samples, device)
    trained_A = _trained(samples)
    if trained_A is not None:
        targets_M, before_M = targets_M[trained_A], before_M[trained_A]
    mask_BT = np.arange(lens_B.max()) < lens_B[:, None]
    sampler_BT = np.zeros(mask_BT.shape, np.float32)
    logprobs = chain.from_iterable(sample.logprobs for sample in samples)
    sampler_BT[mask_BT] = np.fromiter(logprobs, np.float32, len(targets_M))
    return Packed(
        ids_N=sent(ids_N, device),
        positions_N=sent(positions_N, device),
        layout=layout,
        before_M=sent(before_M, device),
        targets_M=sent(targets_M, device),
        answer_lens=[len(sample.token_ids) for sample in samples],
        last_B=sent(np.array([sample.token_ids[-1] for sample in samples]), device),
        trained_A=None if trained_A is None else sent(trained_A, device),
        mask_BT=sent(mask_BT, device),
        sampler_logprobs_BT=sent(sampler_BT, device),
        advantages_B=sent(np.array([sample.advantage for sample in samples], np.float32), device),
        support_MK=_support(samples, device),
        chosen_BT=_chosen(samples, mask_BT, device),
    )


def _shared(prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], device: torch.device) -> Layout:
    """Each prompt once, then all answers."""
    used = sorted({sample.prompt for sample in samples})
    place = {prompt: i for i, prompt in enumerate(used)}
    prompts = [prompt_ids[prompt] for prompt in used]
    prompt_of = [place[sample.prompt] for sample in samples]
    lens_P, lens_B = np.array([len(ids) for ids in prompts]), np.array([len(sample.token_ids) for sample in samples])
    num_prompt, num_fed = int(lens_P.sum()), int((lens_B - 1).sum())
    # An answer's first token is predicted from its prompt's last, each later one from the one before it.
    before_A = np.empty(num_fed + len(samples), np.int64)
    first_A = np.zeros(len(before_A), bool)
    first_A[lens_B.cumsum() - lens_B] = True
    before_A[first_A] = (lens_P.cumsum() - 1)[prompt_of]
    before_A[~first_A] = num_prompt + np.arange(num_fed)
    ids_N = _concatenated([*prompts, *(sample.token_ids[:-1] for sample in samples)])
    positions_N = np.concatenate([_ranges(lens_P), _ranges(lens_B - 1) + np.repeat(lens_P[prompt_of], lens_B - 1)])
    return ids_N, positions_N, before_A, SharedPrompts(lens_P.tolist(), prompt_of, (lens_B - 1).tolist(), device)


def _texts(prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], device: torch.device) -> Layout:
    """If no prompt is shared, each prompt and its answer is one text: attention is one call instead of three."""
    lens_P = np.array([len(prompt_ids[sample.prompt]) for sample in samples])
    lens_B = np.array([len(sample.token_ids) for sample in samples])
    lens_R = lens_P + lens_B - 1
    starts_R = lens_R.cumsum() - lens_R
    before_A = np.repeat(starts_R + lens_P - 1, lens_B) + _ranges(lens_B)
    ids_N = _concatenated([ids for sample in samples for ids in (prompt_ids[sample.prompt], sample.token_ids[:-1])])
    return ids_N, _ranges(lens_R), before_A, SharedPrompts(lens_R.tolist(), [], [], device)


def _concatenated(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), np.int64, sum(map(len, parts)))


def _ranges(lens: np.ndarray) -> np.ndarray:
    """0, 1, 2, … for each length, one after the other."""
    return np.arange(int(lens.sum())) - np.repeat(lens.cumsum() - lens, lens)


def micro_batches(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample], tokens: int) -> list[list[Sample]]:
    """Consecutive samples of at most so many tokens; a longer one alone. A prompt counts once for its samples."""
    parts: list[list[Sample]] = []
    room = 0
    for row in rows:
        shares = bool(parts) and parts[-1][-1].prompt == row.prompt
        cost = len(row.token_ids) + (0 if shares else len(prompt_ids[row.prompt]))
        if not parts or cost > room:
            parts.append([])
            room, cost = tokens, len(row.token_ids) + len(prompt_ids[row.prompt])
        parts[-1].append(row)
        room -= cost
    return parts


def shares_of(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample], count: int) -> list[list[Sample]]:
    """The samples for each of so many processes: consecutive ones, of about as many tokens. Some may get none."""
    costs = list(_costs(prompt_ids, rows))
    shares: list[list[Sample]] = [[] for _ in range(count)]
    for row, cost, end in zip(rows, costs, accumulate(costs), strict=True):
        middle = end - cost / 2
        shares[int(count * middle / sum(costs))].append(row)
    return shares


def _costs(prompt_ids: Sequence[Sequence[int]], rows: Sequence[Sample]) -> Iterator[int]:
    """Tokens of each sample; a prompt counts once for its samples."""
    last = -1
    for row in rows:
        yield len(row.token_ids) + (0 if row.prompt == last else len(prompt_ids[row.prompt]))
        last = row.prompt


def forward(policy: Policy, packed: Packed, recompute: bool = False) -> Tensor:
    """Hidden states [M, D] from which the trained tokens are predicted."""
    hidden_ND = policy.hidden(packed.ids_N, packed.positions_N, packed.layout, recompute=recompute)
    return hidden_ND.index_select(0, packed.before_M)


def unpack(values_M: Tensor, packed: Packed) -> Tensor:
    """Values of the trained tokens as [B, T], 0 elsewhere."""
    return values_M.new_zeros(packed.mask_BT.shape).masked_scatter(packed.mask_BT, values_M)


def _trained(samples: Sequence[Sample]) -> np.ndarray | None:
    """Which of the answers' tokens are trained on; None: all."""
    if not any(sample.mask for sample in samples):
        return None
    return np.concatenate([np.array(sample.mask or (True,) * len(sample.token_ids), bool) for sample in samples])


def _chosen(samples: Sequence[Sample], mask_BT: np.ndarray, device: torch.device) -> Tensor | None:
    if not any(sample.chosen for sample in samples):
        return None
    chosen_BT = np.zeros(mask_BT.shape, bool)
    chosen_BT[mask_BT] = np.concatenate([np.array(sample.chosen, bool) for sample in samples])
    return sent(chosen_BT, device)


def _support(samples: Sequence[Sample], device: torch.device) -> Tensor | None:
    supports = [*chain(*(sample.support for sample in samples))]
    if not supports:
        return None
    width = max(map(len, supports))
    return sent(np.array([[*ids, *[-1] * (width - len(ids))] for ids in supports]), device)
