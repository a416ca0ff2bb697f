"""The slow reference: transformers' own `generate`, one prompt at a time. For checking, and for models that the local
sampler cannot serve. Its draws come from torch's generator, so they differ from the local sampler's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from outdo.models import attention
from outdo.models.load import Policy
from outdo.rollout.sampling import MOST_KEPT
from outdo.seeds import seed_of
from outdo.types import Completion, Finish, Group, Prompt, SampleParams


class HFSampler:
    def __init__(self, policy: Policy) -> None:
        self.policy, self.version = policy, 0

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self.version = version

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        for prompt in prompts:
            with torch.random.fork_rng():
                torch.manual_seed(seed_of(seed, prompt.id))
                yield self._group(prompt, n, params)

    @torch.no_grad()
    def _group(self, prompt: Prompt, n: int, params: SampleParams) -> Group:
        policy, ids = self.policy, self.policy.encode(prompt)
        how: dict[str, Any] = {"do_sample": False}
        if params.temperature > 0:
            how = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
            if params.truncates:  # as the local sampler does: what is left to choose from has an end
                how |= {"top_k": params.top_k or MOST_KEPT, "min_p": params.min_p or None}
        policy.model.eval()
        policy.model.set_attn_implementation("sdpa" if policy.softcap is None else "eager")  # SDPA cannot cap scores
        try:
            out = policy.model.generate(
                torch.tensor([ids] * n, device=policy.device),
                attention_mask=torch.ones(n, len(ids), dtype=torch.long, device=policy.device),
                max_new_tokens=params.max_completion_length,
                eos_token_id=list(policy.eos_ids),
                pad_token_id=policy.pad_id,
                return_dict_in_generate=True,
                output_logits=True,
                **how,
            )
        finally:
            policy.model.set_attn_implementation(attention.NAME)
        chosen_BT = out.sequences[:, len(ids) :]
        logits_BTV = torch.stack(out.logits, dim=1).float() / (params.temperature or 1.0)
        logprobs_BT = logits_BTV.log_softmax(-1).gather(-1, chosen_BT[..., None])[..., 0]
        rows = zip(chosen_BT.tolist(), logprobs_BT.tolist(), strict=True)
        return Group(prompt, ids, tuple(self._completion(*row) for row in rows))

    def _completion(self, ids: list[int], logprobs: list[float]) -> Completion:
        ends = [i for i, token in enumerate(ids) if token in self.policy.eos_ids]
        length = ends[0] + 1 if ends else len(ids)
        text = self.policy.decode(tuple(ids[: length - 1] if ends else ids))
        finish: Finish = "stop" if ends else "length"
        return Completion(tuple(ids[:length]), tuple(logprobs[:length]), text, finish, self.version)
