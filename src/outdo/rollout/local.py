"""The local engine: in process, on the learner's own weights, so that no weights are copied and none differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from outdo.errors import ModelError
from outdo.models import fp8
from outdo.models.cache import PAGE, PagedCache, SlotCache
from outdo.models.fp8 import RoundedLayer
from outdo.models.load import Policy
from outdo.models.ops import kernels
from outdo.models.stack import Layer
from outdo.rollout import OnTokens
from outdo.rollout.decode import DecodeState, Graphs
from outdo.rollout.scheduler import BatchScheduler
from outdo.rollout.turns import Listed
from outdo.types import Generation, Request, RequestStream, SampleParams, WeightSource

MAX_STATES = 8  # of sets of parameters, with their buffers and graphs
POLL_EVERY = 4  # decode steps between two polls of the device


class LocalEngine:
    """`rows` bounds how many answers are decoded side by side: more is faster and takes more memory. `memory` bounds
    the bytes of the cache on a GPU; where it is short, fewer run at once. `watch` is called with the tokens of a
    call's first answer after every step. `rounds`: the MLPs' products are in 8 bits, faster and less exact."""

    def __init__(
        self,
        policy: Policy,
        rows: int | None = None,
        memory: int | None = None,
        watch: OnTokens | None = None,
        rounds: bool = False,
    ) -> None:
        if rounds and not (policy.stack and fp8.supports(policy.device)):
            raise ModelError(
                "sampler=fp8 needs a model that docs/engine.md lists as written out, and a GPU of NVIDIA's Hopper "
                "generation or newer: use sampler=local"
            )
        self.rounds = rounds
        self.policy, self.version, self.memory, self.watch = policy, 0, memory, watch
        self.paged = kernels(policy.head.weight, policy.head_size) is not None and policy.softcap is None
        self.graphed = self.late = self.paged  # late: the host polls one turn behind
        self.rows = self.capacity = rows or (1024 if self.paged else 512)
        self.poll_every = 1 if watch else POLL_EVERY
        self.layers: list[Layer] | list[RoundedLayer] | None = None
        self.num_aborts = 0
        self._stale = True
        self._cache: PagedCache | None = None
        self._states: dict[SampleParams, tuple[DecodeState, Graphs | None]] = {}

    def update(self, source: WeightSource, version: int) -> None:
        """The weights are the learner's own and already new: only their version is noted."""
        self.version, self._stale = version, True

    def abort(self) -> None:
        """Every running `generate` ends at its next turn, without its unfinished requests."""
        self.num_aborts += 1

    @torch.no_grad()
    def generate(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """Requests with other parameters or another number of seeds run one set after the other."""
        batches: dict[tuple[SampleParams, int], list[Request]] = {}
        for request in requests:
            batches.setdefault((request.params, len(request.seeds)), []).append(request)
        num_aborts = self.num_aborts
        for batch in batches.values():
            if self.num_aborts != num_aborts:
                return
            yield from self._run(Listed(batch), len(batch[0].seeds), num_aborts)

    @torch.no_grad()
    def serve(self, stream: RequestStream, n: int = 1) -> Iterator[Generation]:
        """Requests that come while others run. Where one follows another, the tokens that they share are read once."""
        yield from self._run(stream, n, self.num_aborts, slack=3 * self.poll_every)

    def _run(self, stream: RequestStream, n: int, num_aborts: int, slack: int = 0) -> Iterator[Generation]:
        self.policy.set_training(False)
        self._refresh()
        yield from BatchScheduler(self, stream, n, num_aborts, slack).run()

    def _refresh(self) -> None:
        """Fuses the learner's new weights; in place, since captured graphs read them where they are."""
        if not self._stale or not self.policy.stack:
            return
        new = self.policy.stack.rounded() if self.rounds else self.policy.stack.fused()
        if self.layers is None or not self.graphed:
            self.layers = new
        for old, fresh in zip(self.layers, new, strict=True):
            for into, value in zip(old, fresh, strict=True):
                if into is not None and value is not None and into.data_ptr() != value.data_ptr():
                    into.copy_(value)
        self._stale = False

    def allocate(
        self, max_length: int, n: int, answers: int, params: SampleParams
    ) -> tuple[DecodeState, Graphs | None]:
        """Rows and a cache for texts up to that length. On a GPU those of earlier calls are reused."""
        rows = min(max(self.rows, n), answers)
        if not self.paged or (self.policy.window or max_length) < max_length:
            slots = SlotCache(rows, max_length, self.policy.device)
            return DecodeState(self.policy, slots, answers, params), None
        all_rows = max(self.rows, n)
        min_pages, num_pages = self._num_pages(all_rows, max_length, n)
        cache = self._cache
        if cache is None or cache.longest < max_length or cache.rows < rows or cache.num_pages < min_pages:
            self._cache = cache = None  # frees the old one before the new one is allocated
            self._states.clear()
            rounded = -(-max_length // 256) * 256  # a slightly longer prompt later needs no new cache
            self._cache = cache = PagedCache(all_rows, rounded, self.policy.device, num_pages)
        cache.reset()
        if params not in self._states or not self._states[params][0].fits(answers, params):
            while len(self._states) >= MAX_STATES:  # a server's clients may ask for any parameters
                del self._states[next(iter(self._states))]
            state = DecodeState(self.policy, cache, answers, params)
            self._states[params] = state, Graphs() if self.graphed else None
        state, graphs = self._states[params]
        state.ended_B.fill_(False)
        state.answer_B.fill_(state.answers)
        return state, graphs

    def _num_pages(self, rows: int, max_length: int, n: int) -> tuple[int, int]:
        """The pages that one request needs; and those of all rows at full length, or as many as the memory allows."""
        each = 2 + max_length // PAGE
        needed = (n + 1) * each + 1
        full = max(needed, rows * each + 1)
        if self.memory is None:
            return needed, full
        size = PAGE * self.policy.cache_bytes
        if self.memory < needed * size:
            raise ModelError(
                f"{self.memory / 2**30:.3g} GiB for the cache cannot hold one group of {n} answers of {max_length} "
                f"tokens, which takes {needed * size / 2**30:.3g}: lower num_generations or max_completion_length, or "
                "raise rollout_memory"
            )
        return needed, min(full, self.memory // size)

    def step(self, state: DecodeState, graphs: Graphs | None, rows: int) -> None:
        if graphs:
            graphs.run(rows, partial(state.step, rows, self.layers))
        else:
            state.step(rows, self.layers)
