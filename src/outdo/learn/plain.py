"""Log-probabilities of a micro-batch: from our attention and head, or where they do not support the model, from its own
forward. There each answer is run with its prompt and all logits are held at once: slow and large, but always correct.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from outdo.learn.logprobs import restrict, token_logprobs
from outdo.learn.packing import Packed, forward, unpack
from outdo.models.load import Policy


def answer_logprobs(
    policy: Policy, packed: Packed, temperature: float, recompute: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the answers' tokens, [B, T]."""
    if policy.plain:
        chosen_M, entropy_M = plain_logprobs(policy, packed, temperature)
    else:
        at = forward(policy, packed, recompute), policy.head, packed.targets_M
        chosen_M, entropy_M = token_logprobs(*at, temperature, packed.support_MK, policy.cap)
    return unpack(chosen_M, packed), unpack(entropy_M, packed)


def plain_logprobs(policy: Policy, packed: Packed, temperature: float) -> tuple[Tensor, Tensor]:
    """log p and entropy of the M trained tokens, as from `token_logprobs`."""
    layout = packed.layout
    texts = packed.ids_N[: layout.num_prompt_tokens].split(layout.prompt_lens)
    lasts = packed.last_B.split(1)
    if layout.prompt_of:
        fed = packed.ids_N[layout.num_prompt_tokens :].split(layout.answer_lens)
        parts = zip(layout.prompt_of, fed, lasts, strict=True)
        rows = [torch.cat([texts[p], answer, last]) for p, answer, last in parts]
    else:  # each text is a prompt and its answer, except the last token
        rows = [torch.cat([text, last]) for text, last in zip(texts, lasts, strict=True)]
    ids_BN = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id)
    lens_B = torch.tensor([len(row) for row in rows], device=ids_BN.device)
    seen_BN = torch.arange(ids_BN.shape[1], device=ids_BN.device) < lens_B[:, None]
    logits_BNV = policy.model(input_ids=ids_BN, attention_mask=seen_BN.long(), use_cache=False).logits
    lens = zip(map(len, rows), packed.answer_lens, strict=True)
    logits_MV = torch.cat([logits_BNV[i, total - own - 1 : total - 1] for i, (total, own) in enumerate(lens)]).float()
    if packed.trained_A is not None:
        logits_MV = logits_MV[packed.trained_A]
    if packed.support_MK is not None:
        logits_MV = restrict(logits_MV, packed.support_MK)
    logp_MV = (logits_MV / temperature).log_softmax(-1)
    return logp_MV.gather(-1, packed.targets_M[:, None])[:, 0], -(logp_MV.exp() * logp_MV).sum(-1)
