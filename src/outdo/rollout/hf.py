"""The slow reference: transformers' own `generate`, one prompt at a time. For checking, and for models that the local
sampler cannot serve. Its draws come from torch's generator, so they differ from the local sampler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from outdo.models import attention
from outdo.models.load import Policy
from outdo.rollout.sampling import MOST_KEPT, stop_at
from outdo.seeds import seed_of
from outdo.types import Finish, Group, Prompt, SampleParams, Support, Trajectory, WeightSource


class HFSampler:
    def __init__(self, policy: Policy) -> None:
        self.policy, self.version = policy, 0
        self.watch: Callable[[list[int]], None] | None = None  # is shown an answer's tokens as they come; n must be 1

    def update(self, source: WeightSource, version: int) -> None:
        self.version = version

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        encoded = self.policy.encode_all(prompts, params.max_completion_length)
        for prompt, ids in zip(prompts, encoded, strict=True):
            with torch.random.fork_rng():
                torch.manual_seed(seed_of(seed, prompt.id))
                group = self._group(prompt, ids, n, params)
            yield group

    @torch.no_grad()
    def _group(self, prompt: Prompt, ids: tuple[int, ...], n: int, params: SampleParams) -> Group:
        out = self._generate(ids, n, params)
        chosen_BT = out.sequences[:, len(ids) :]
        # Scores are logits after temperature and cuts: what was cut off is -inf. Greedy ones are at temperature 1.
        scores_BTV = torch.stack(out.scores if params.temperature > 0 else out.logits, dim=1).float()
        logprobs_BT = scores_BTV.log_softmax(-1).gather(-1, chosen_BT[..., None])[..., 0]
        kept = [_support(scores_TV) for scores_TV in scores_BTV] if params.truncates else [()] * n
        rows = zip(chosen_BT.tolist(), logprobs_BT.tolist(), kept, strict=True)
        return Group(prompt, ids, tuple(self._completion(*row, params.stop) for row in rows))

    def _generate(self, ids: Sequence[int], n: int, params: SampleParams) -> Any:
        policy, model = self.policy, self.policy.model
        how: dict[str, Any] = {"do_sample": False}
        if params.temperature > 0:
            how = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
            if params.truncates:  # as the local sampler does: what is left to choose from has an end
                how |= {"top_k": params.top_k or MOST_KEPT, "min_p": params.min_p or None}
        model.eval()
        own, model.generation_config = model.generation_config, GenerationConfig()  # else its penalties would hold too
        if not policy.plain:
            model.set_attn_implementation("sdpa" if policy.softcap is None else "eager")  # SDPA cannot cap scores
        try:
            return model.generate(
                torch.tensor([ids] * n, device=policy.device),
                attention_mask=torch.ones(n, len(ids), dtype=torch.long, device=policy.device),
                max_new_tokens=params.max_completion_length,
                eos_token_id=list(policy.eos_ids),
                pad_token_id=policy.pad_id,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                streamer=_Watched(self.watch) if self.watch else None,
                **how,
            )
        finally:
            model.generation_config = own
            if not policy.plain:
                model.set_attn_implementation(attention.NAME)

    def _completion(self, ids: list[int], logprobs: list[float], kept: Support, stop: Sequence[str]) -> Trajectory:
        policy = self.policy
        length = next((i for i, token in enumerate(ids, 1) if token in policy.eos_ids), len(ids))
        cut = stop_at(policy.spell, ids[:length], stop)
        own = tuple(ids[: cut or length])
        closed = own[-1] in policy.eos_ids
        finish: Finish = "stop" if cut or closed else "length"
        text = policy.decode(own[:-1] if closed else own)
        return Trajectory.single(own, tuple(logprobs[: len(own)]), text, finish, self.version, kept[: len(own)])


class _Watched:
    """What transformers calls a streamer: it is put the prompt first, then token by token."""

    def __init__(self, watch: Callable[[list[int]], None]) -> None:
        self.watch, self.ids = watch, list[int]()
        self.begun = False

    def put(self, value: Tensor) -> None:
        if self.begun:
            self.ids += value.flatten().tolist()
            self.watch(list(self.ids))
        self.begun = True

    def end(self) -> None: ...


def _support(scores_TV: Tensor) -> Support:
    """The tokens that the cuts left, likeliest first."""
    return tuple(tuple(row.topk(int(row.isfinite().sum())).indices.tolist()) for row in scores_TV)
