"""The rows that are being decoded: their state on the device, and the step that adds a token to each.

A step never waits for the host, so on a GPU it is captured once for each number of rows and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from outdo.models.cache import PagedCache, SlotCache
from outdo.models.fp8 import RoundedLayer
from outdo.models.load import Policy
from outdo.models.ops import kernels, sent
from outdo.models.stack import Layer
from outdo.rollout.sampling import MAX_SUPPORT, Picked, choose
from outdo.types import SampleParams

SIZES = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096,
)  # fmt: skip


class DecodeState:
    """`rows` rows at once, writing into `answers` answers. Row r is fed `token_B[r]` next."""

    def __init__(self, policy: Policy, cache: SlotCache | PagedCache, answers: int, params: SampleParams) -> None:
        rows, device, limit = cache.rows, policy.device, params.max_completion_length
        self.policy, self.cache, self.params = policy, cache, params
        self.answers = answers
        self.token_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.seed_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.answer_B = torch.full((rows,), answers, dtype=torch.long, device=device)  # the last one is a dummy
        self.ended_B = torch.zeros(rows, dtype=torch.bool, device=device)
        self.tokens_AT = torch.full((answers + 1, limit), policy.pad_id, device=device)
        self.logprobs_AT = torch.zeros(answers + 1, limit, device=device)
        self.lengths_A = torch.zeros(answers + 1, dtype=torch.long, device=device)
        self.support_ATK: Tensor | None = None
        if params.truncates:
            width = min(params.top_k or MAX_SUPPORT, policy.head.weight.shape[0])
            self.support_ATK = torch.full((answers + 1, limit, width), -1, dtype=torch.int32, device=device)
        self.eos = torch.tensor([*policy.eos_ids, *params.stop_ids], device=device)

    def fits(self, answers: int, params: SampleParams) -> bool:
        """Whether these buffers, and the graphs captured over them, can be reused."""
        return answers <= self.answers and params == self.params

    def begin(self, rows: Sequence[int], tokens: Sequence[int], seeds: Sequence[int], answers: Sequence[int]) -> None:
        """Starts rows: the first token each is fed, its seed, and the answer that it writes."""
        index = sent(rows, self.token_B.device)
        for tensor, values in ((self.token_B, tokens), (self.seed_B, seeds), (self.answer_B, answers)):
            tensor[index] = sent(values, tensor.device)
        self.cache.idle_B[index] = self.ended_B[index] = False

    def pause(self, rows: Collection[int]) -> None:
        """These rows write nothing from here on."""
        if rows:
            self.cache.idle_B[sent(list(rows), self.token_B.device)] = True

    def release(self, rows: Collection[int]) -> None:
        """Paused rows continue, except those that have ended, which the host may not know yet."""
        if rows:
            index = sent(list(rows), self.token_B.device)
            self.cache.idle_B[index] = self.ended_B[index]

    def keep(self, rows: Sequence[int]) -> None:
        """These rows become 0, 1, 2, …; the others write to the dummy answer."""
        index, n = sent(rows, self.token_B.device), len(rows)
        for tensor in (self.token_B, self.seed_B, self.answer_B, self.ended_B):
            tensor[:n] = tensor[index]
        self.answer_B[n:] = self.answers

    def step(self, rows: int, layers: Sequence[Layer] | Sequence[RoundedLayer] | None) -> None:
        """One more token for each of the first `rows` rows that is not idle."""
        cache = self.cache
        cache.begin(rows)
        own_B = cache.own_B[:rows]
        hidden_BD = self.policy.hidden(self.token_B[:rows], cache.prompt_B[:rows] + own_B, cache, layers)
        self.advance(choose(self.policy.logits(hidden_BD), self.seed_B[:rows], own_B, self.params))

    def advance(self, picked: Picked) -> None:
        """Stores the picked tokens, marks the rows that end with them, and advances the others."""
        rows, limit = len(picked.tokens_B), self.params.max_completion_length
        token_B, own_B, idle_B = self.token_B[:rows], self.cache.own_B[:rows], self.cache.idle_B[:rows]
        if (k := kernels(token_B)) and self.support_ATK is None:
            state = token_B, own_B, idle_B, self.ended_B[:rows], self.answer_B[:rows]
            k.advance(*picked[:2], *state, self.tokens_AT, self.logprobs_AT, self.lengths_A, self.eos)
            return
        answer_B, at_B = torch.where(idle_B, self.answers, self.answer_B[:rows]), own_B.long().clamp(max=limit - 1)
        if self.support_ATK is not None and picked.support_BK is not None:
            self.support_ATK[answer_B, at_B] = picked.support_BK.int()
        self.tokens_AT[answer_B, at_B] = picked.tokens_B
        self.logprobs_AT[answer_B, at_B] = picked.logprobs_B
        self.lengths_A[answer_B] = at_B + 1
        ended_B = (torch.isin(picked.tokens_B, self.eos) | (at_B + 1 == limit)) & ~idle_B
        token_B.copy_(torch.where(idle_B, token_B, picked.tokens_B))
        self.ended_B[:rows] |= ended_B
        idle_B |= ended_B
        own_B += (~idle_B).to(own_B.dtype)


class Graphs:
    """Steps captured as CUDA graphs, one for each number of rows. Each replay reads and writes the same memory."""

    def __init__(self) -> None:
        self.captured: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, rows: int, step: Callable[[], None]) -> None:
        if rows in self.captured:
            self.captured[rows].replay()
            return
        # The first step of a size runs uncaptured, so that kernels are compiled. It is a step like the others.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            step()
        self.captured[rows] = graph


def size_for(rows: int, max_rows: int) -> int:
    """The number of rows to run where `rows` are needed: one of few sizes, so that few graphs are captured."""
    return next((size for size in SIZES if rows <= size <= max_rows), max_rows)
