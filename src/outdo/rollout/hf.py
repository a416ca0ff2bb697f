"""The slow reference engine: transformers' own `generate`, one request at a time. For checking, and for models that the
local engine cannot serve. It draws from torch's generator, so its answers differ from the local engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from outdo.models import attention
from outdo.models.load import Policy
from outdo.rollout import OnTokens
from outdo.rollout.sampling import MAX_SUPPORT, stop_at
from outdo.types import Finish, Generation, Request, RequestStream, SampleParams, Segment, Support, WeightSource


class HFEngine:
    """All answers to a request are drawn by `request.seed`. `watch`, the engine's or the request's, is called with an
    answer's tokens as they come; the request must then have one seed."""

    capacity = 1  # one request at a time

    def __init__(self, policy: Policy, watch: OnTokens | None = None) -> None:
        self.policy, self.watch, self.version, self.num_aborts = policy, watch, 0, 0

    def update(self, source: WeightSource, version: int) -> None:
        """The weights are the learner's own and already new: only their version is noted."""
        self.version = version

    def abort(self) -> None:
        """Every running `generate` ends after the request in hand."""
        self.num_aborts += 1

    def generate(self, requests: Iterable[Request]) -> Iterator[Generation]:
        num_aborts = self.num_aborts
        for request in requests:
            with torch.random.fork_rng():
                torch.manual_seed(request.seed)
                generation = self._generation(request)
            if self.num_aborts != num_aborts:
                return
            yield generation

    def serve(self, stream: RequestStream, n: int = 1) -> Iterator[Generation]:
        """One request after the other, each with its whole prompt."""
        num_aborts = self.num_aborts
        while (requests := stream.take(wait=True)) is not None:
            for request in requests:
                limit = min(request.limit or request.params.max_completion_length, request.params.max_completion_length)
                params = replace(request.params, max_completion_length=limit)
                for one in self.generate([replace(request, params=params)]):
                    yield replace(one, request=request)
                if self.num_aborts != num_aborts:
                    return

    @torch.no_grad()
    def _generation(self, request: Request) -> Generation:
        params, n = request.params, len(request.seeds)
        out = self._generate(request.prompt_ids, n, params, request.watch or self.watch)
        chosen_BT = out.sequences[:, len(request.prompt_ids) :]
        # Scores are logits after temperature and cuts: what was cut off is -inf. Greedy ones are at temperature 1.
        scores_BTV = torch.stack(out.scores if params.temperature > 0 else out.logits, dim=1).float()
        logprobs_BT = scores_BTV.log_softmax(-1).gather(-1, chosen_BT[..., None])[..., 0]
        support = [_support(scores_TV) for scores_TV in scores_BTV] if params.truncates else [()] * n
        answers = zip(chosen_BT.tolist(), logprobs_BT.tolist(), support, strict=True)
        segments, finishes = zip(*(self._segment(*answer, params) for answer in answers), strict=True)
        return Generation(request, segments, finishes)

    def _generate(self, ids: tuple[int, ...], n: int, params: SampleParams, watch: OnTokens | None) -> Any:
        policy, model = self.policy, self.policy.model
        how: dict[str, Any] = {"do_sample": False}
        if params.temperature > 0:
            how = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
            if params.truncates:  # bounded, as the local engine's support is
                how |= {"top_k": params.top_k or MAX_SUPPORT, "min_p": params.min_p or None}
        model.eval()
        own, model.generation_config = model.generation_config, GenerationConfig()  # else its penalties would apply
        if not policy.plain:
            model.set_attn_implementation("sdpa" if policy.softcap is None else "eager")  # SDPA cannot cap scores
        try:
            return model.generate(
                torch.tensor([ids] * n, device=policy.device),
                attention_mask=torch.ones(n, len(ids), dtype=torch.long, device=policy.device),
                max_new_tokens=params.max_completion_length,
                eos_token_id=[*policy.eos_ids, *params.stop_ids],
                pad_token_id=policy.pad_id,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                streamer=_Streamer(watch) if watch else None,
                **how,
            )
        finally:
            model.generation_config = own
            if not policy.plain:
                model.set_attn_implementation(attention.NAME)

    def _segment(
        self, ids: list[int], logprobs: list[float], support: Support, params: SampleParams
    ) -> tuple[Segment, Finish]:
        policy, ends = self.policy, {*self.policy.eos_ids, *params.stop_ids}
        length = next((i for i, token in enumerate(ids, 1) if token in ends), len(ids))
        cut = stop_at(policy.renderer.spell, ids[:length], params.stop)
        own = tuple(ids[: cut or length])
        finish: Finish = "stop" if cut or own[-1] in ends else "length"
        return Segment(own, tuple(logprobs[: len(own)]), self.version, support[: len(own)]), finish


class _Streamer:
    """By transformers' protocol: `put` gets the prompt first, then token by token."""

    def __init__(self, watch: OnTokens) -> None:
        self.watch, self.ids = watch, list[int]()
        self.has_prompt = False

    def put(self, value: Tensor) -> None:
        if self.has_prompt:
            self.ids += value.flatten().tolist()
            self.watch(list(self.ids))
        self.has_prompt = True

    def end(self) -> None: ...


def _support(scores_TV: Tensor) -> Support:
    """The tokens that the cuts kept, likeliest first."""
    return tuple(tuple(row.topk(int(row.isfinite().sum())).indices.tolist()) for row in scores_TV)
