"""The local sampler: in process, on the learner's own weights, so there is nothing to send and nothing to drift.

A prompt is encoded once for its whole group; rows that have ended leave the batch; a group is handed on as soon as
its last answer is done. Answers and their log-probabilities stay on the device until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.errors import TaskError
from outdo.models.attention import DecodeCache
from outdo.models.fused import FusedDecoder, can_fuse
from outdo.models.load import Policy
from outdo.rollout.sampling import pick, uniforms
from outdo.seeds import seed_of
from outdo.types import Completion, Finish, Group, Prompt, SampleParams

LOOK_EVERY = 4  # decode steps between two looks from the host at who has ended
SHRINK_AT = 8  # leave ended rows out once more than 1 in 8 has: copying the cache is not free


class LocalSampler:
    """`rows` bounds how many answers are decoded side by side: larger is faster and takes more memory."""

    def __init__(self, policy: Policy, rows: int = 512) -> None:
        self.policy, self.rows, self.version = policy, rows, 0

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """The weights are the learner's own: only their version is new."""
        self.version = version

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """Groups of `n` answers, each as soon as it is done."""
        encoded = [self.policy.encode(prompt) for prompt in prompts]
        for prompt, ids in zip(prompts, encoded, strict=True):
            if len(ids) + params.max_completion_length > self.policy.context:
                raise TaskError(
                    f"prompt {prompt.id!r} has {len(ids)} tokens; with max_completion_length="
                    f"{params.max_completion_length} it does not fit the model's {self.policy.context}"
                )
        # Prompts of like length side by side need little padding. What is sampled does not depend on the order.
        order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
        at_once = max(1, self.rows // n)
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            yield from self._decode([prompts[i] for i in chosen], [encoded[i] for i in chosen], n, params, seed)

    @torch.no_grad()
    def _decode(
        self, prompts: list[Prompt], encoded: list[tuple[int, ...]], n: int, params: SampleParams, seed: int
    ) -> Iterator[Group]:
        policy, device, limit = self.policy, self.policy.device, params.max_completion_length
        policy.model.eval()
        hidden_of = FusedDecoder(policy.model).hidden if can_fuse(policy.model, device) else policy.hidden
        lens_P = torch.tensor([len(ids) for ids in encoded], device=device)
        width = int(lens_P.max())
        padded = [ids + (policy.pad_id,) * (width - len(ids)) for ids in encoded]
        cache = DecodeCache(lens_P, width, n, limit)
        hidden = hidden_of(
            torch.tensor(padded, device=device), torch.arange(width, device=device).expand(len(prompts), -1), cache
        )
        cache.advance()
        last_PD = hidden[torch.arange(len(prompts), device=device), lens_P - 1]
        logits_BV = policy.head(last_PD).repeat_interleave(n, dim=0)

        rows_B = torch.arange(len(prompts) * n, device=device)  # which answers are still being written
        seeds_B = torch.tensor([seed_of(seed, p.id, i) for p in prompts for i in range(n)], device=device)
        eos = torch.tensor(policy.eos_ids, device=device)
        tokens = torch.full((len(rows_B), limit), policy.pad_id, device=device)
        logprobs = torch.zeros(len(rows_B), limit, device=device)
        lengths = torch.full((len(rows_B),), limit, device=device)
        open_groups, done_B = set(range(len(prompts))), torch.zeros_like(rows_B, dtype=torch.bool)
        for t in range(limit):
            chosen_B, logprob_B = pick(logits_BV, uniforms(seeds_B, t), params)
            tokens[rows_B, t], logprobs[rows_B, t] = chosen_B, logprob_B
            ended_B = torch.isin(chosen_B, eos) & ~done_B
            lengths[rows_B[ended_B]] = t + 1
            done_B = done_B | ended_B
            if t + 1 == limit or (t + 1) % LOOK_EVERY == 0:
                still = set() if t + 1 == limit else set((rows_B[~done_B] // n).tolist())
                for p in sorted(open_groups - still):
                    yield self._group(prompts[p], encoded[p], n, p, tokens, logprobs, lengths)
                open_groups &= still
                if not open_groups:
                    return
                if int(done_B.sum()) * SHRINK_AT > len(done_B):
                    rows_B, seeds_B, chosen_B, done_B = _keep(cache, ~done_B, rows_B, seeds_B, chosen_B, done_B)
            positions_B1 = (cache.prompt_lens_B + t)[:, None]
            logits_BV = policy.head(hidden_of(chosen_B[:, None], positions_B1, cache)[:, -1])
            cache.advance()

    def _group(
        self, prompt: Prompt, ids: tuple[int, ...], n: int, p: int, tokens: Tensor, logprobs: Tensor, lengths: Tensor
    ) -> Group:
        span = slice(p * n, (p + 1) * n)
        completions = []
        for row_ids, row_logprobs, length in zip(
            tokens[span].tolist(), logprobs[span].tolist(), lengths[span].tolist(), strict=True
        ):
            kept = tuple(row_ids[:length])
            stopped = kept[-1] in self.policy.eos_ids
            text = self.policy.decode(kept[:-1] if stopped else kept)
            finish: Finish = "stop" if stopped else "length"
            completions.append(Completion(kept, tuple(row_logprobs[:length]), text, finish, self.version))
        return Group(prompt, ids, tuple(completions))


def _keep(cache: DecodeCache, keep_B: Tensor, *columns: Tensor) -> list[Tensor]:
    rows = keep_B.nonzero()[:, 0]
    cache.keep(rows)
    return [column[rows] for column in columns]
