"""Which requests run when: continuous batching over the rows of a `DecodeState`.

A prompt is prefilled once for all its answers. As many answers as there is room for are decoded side by side; waiting
requests take the rows of those that are done, and when none wait the batch shrinks. Tokens and their log-probabilities
stay on the device until a request is done, and the host polls every few steps only. What is sampled depends on the
answer's own seed and, except for rounding, on nothing else: not on its neighbours, its row, nor on being preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outdo.models.ops import sent
from outdo.rollout.decode import size_for
from outdo.rollout.sampling import stop_at
from outdo.types import Finish, Generation, Request, Segment

if TYPE_CHECKING:
    from outdo.rollout.local import LocalEngine

MAX_PREFILL_TOKENS = 16384  # in one forward
SHRINK_AT = 8  # on the CPU, drop done rows once more than 1 in 8 is done: copying the cache is not free


class DonePoll(NamedTuple):
    """Which rows had ended after some steps: on its way from the device to the host."""

    ended: Tensor
    arrived: torch.cuda.Event | None
    rows: dict[int, int]  # row: the answer that it wrote then


@dataclass
class BatchScheduler:
    """Runs requests of one set of parameters and one number of seeds. Answer `request * n + i` is of its i-th seed.

    The host polls one turn late: the next steps are launched before it knows which rows ended in the last ones, so
    that the device never waits for it. Ended rows write nothing more; their pages are freed when the host learns of it.
    """

    engine: LocalEngine
    requests: Sequence[Request]
    num_aborts: int  # of the engine when this call began: more end it
    live: dict[int, int] = field(default_factory=dict)  # row: the answer that it writes
    paused: set[int] = field(default_factory=set)  # rows
    remaining: dict[int, int] = field(default_factory=dict)  # request: its answers that are not done
    stops: dict[int, int] = field(default_factory=dict)  # answer: its length up to a stop text
    polls: deque[DonePoll] = field(default_factory=deque)  # not looked at yet, oldest first

    def __post_init__(self) -> None:
        self.params, self.n = self.requests[0].params, len(self.requests[0].seeds)
        self.prompts = [request.prompt_ids for request in self.requests]

    def run(self) -> Iterator[Generation]:
        max_length = max(map(len, self.prompts)) + self.params.max_completion_length
        # Prompts of similar length side by side need little padding. What is sampled does not depend on the order.
        self.waiting = deque(sorted(range(len(self.prompts)), key=lambda p: len(self.prompts[p])))
        num_answers = len(self.prompts) * self.n
        self.state, self.graphs = self.engine.allocate(max_length, self.n, num_answers, self.params)
        self.cache = self.state.cache
        late = self.engine.late and not self.params.stop  # the host finds stop texts, and must find them in time
        self.side_stream = torch.cuda.Stream() if self.graphs and late else None
        while (self.waiting or self.live) and self.engine.num_aborts == self.num_aborts:
            self._admit()
            self.polls.append(self._launch())
            if self.engine.watch:
                self.engine.watch(self.state.tokens_AT[0, : int(self.state.lengths_A[0])].tolist())
            self._reserve()  # for the steps after these
            if len(self.polls) > late:
                yield from self._finish(self.polls.popleft())

    def _launch(self) -> DonePoll:
        """The steps until the next poll."""
        size = max(self.live) + 1
        size = size_for(size, self.cache.rows) if self.graphs else size
        self.cache.upload()
        for _ in range(self.engine.poll_every):
            self.engine.step(self.state, self.graphs, size)
        if not self.graphs:
            return DonePoll(self.state.ended_B.clone(), None, dict(self.live))
        ended = torch.empty(size, dtype=torch.bool, pin_memory=True)
        ended.copy_(self.state.ended_B[:size], non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return DonePoll(ended, arrived, dict(self.live))

    def _admit(self) -> None:
        """Gives free rows to waiting requests: many at once, not one for every row that becomes free."""
        if not self.waiting:
            return
        free = [row for row in range(self.cache.rows) if row not in self.live]
        if self.live and (self.paused or len(free) < max(self.n, self.cache.rows // 8)):
            return
        starting: list[tuple[int, list[int]]] = []  # request, rows
        taken: list[int] = []
        tokens = 0
        while self.waiting and len(free) >= self.n:
            request = self.waiting[0]
            length = len(self.prompts[request]) - 1
            # Half of the longest answer: where answers are longer, some rows will have to pause.
            expected = max(self.params.max_completion_length // 2, self.engine.poll_every)
            if self.live and not self.cache.has_room(length, self.n, expected):
                break
            if starting and tokens + length > MAX_PREFILL_TOKENS:
                self._prefill(starting)
                starting, tokens = [], 0
            self.waiting.popleft()
            rows, free = free[: self.n], free[self.n :]
            self.cache.place(length, rows)
            taken += rows
            self.live.update((row, request * self.n + i) for i, row in enumerate(rows))
            self.remaining[request] = self.n
            starting.append((request, rows))
            tokens += length
        if starting:
            self._prefill(starting)
        refused = self.cache.grow(taken, self.engine.poll_every)
        assert not refused, "there was room for it"

    def _prefill(self, starting: Sequence[tuple[int, list[int]]]) -> None:
        """Reads the prompts except their last tokens, which are the first that their rows are fed."""
        policy, lengths = self.engine.policy, [len(self.prompts[p]) - 1 for p, _ in starting]
        layout = self.cache.reading([(length, rows) for length, (_, rows) in zip(lengths, starting, strict=True)])
        if any(lengths):
            ids = [token for p, _ in starting for token in self.prompts[p][:-1]]
            at = np.concatenate([np.arange(length) for length in lengths])
            policy.hidden(sent(ids, policy.device), sent(at, policy.device), layout, self.engine.layers)
        rows = [row for _, rows in starting for row in rows]
        firsts = [self.prompts[p][-1] for p, rows in starting for _ in rows]
        seeds = [seed for p, _ in starting for seed in self.requests[p].seeds]
        self.state.begin(rows, firsts, seeds, [self.live[row] for row in rows])

    def _reserve(self) -> None:
        """Reserves pages for the steps after the next poll. Rows without pause; if all would, the last request is
        preempted: it starts again later, and its answers are the same."""
        while True:
            refused = set(self.cache.grow(list(self.live), self.engine.poll_every))
            self.state.pause(refused - self.paused)
            self.state.release(self.paused - refused)
            self.paused = refused
            if not self.live or len(refused) < len(self.live):
                return
            self._preempt(max(self.live.values()) // self.n)

    def _preempt(self, request: int) -> None:
        """Polls and stop texts of the attempt are forgotten: they must not end the next one."""
        rows = [row for row, answer in self.live.items() if answer // self.n == request]
        self.state.pause(rows)
        self._free(rows)
        self.stops = {answer: end for answer, end in self.stops.items() if answer // self.n != request}
        for poll in self.polls:
            for row in [row for row, answer in poll.rows.items() if answer // self.n == request]:
                del poll.rows[row]
        self.waiting.appendleft(request)

    def _free(self, rows: Sequence[int]) -> None:
        """Frees rows that write nothing more."""
        self.cache.release(rows)
        for row in rows:
            del self.live[row]
        self.paused -= set(rows)

    def _finish(self, poll: DonePoll) -> Iterator[Generation]:
        """Frees the rows that are done, and yields the requests whose last answer that was."""
        if poll.arrived:
            poll.arrived.synchronize()
        ended = poll.ended.tolist()
        done = {answer for row, answer in poll.rows.items() if ended[row]}
        if self.params.stop:
            done |= self._stopped(poll.rows)
        rows = [row for row, answer in self.live.items() if answer in done]
        answers = [self.live[row] for row in rows]
        if self.params.stop:
            self.state.pause(rows)  # the device does not know that they have ended
        self._free(rows)
        for answer in answers:
            self.remaining[answer // self.n] -= 1
        finished = sorted({a // self.n for a in answers if not self.remaining[a // self.n]})
        # Their tokens do not change any more, so they are copied while the launched steps run.
        with torch.cuda.stream(self.side_stream) if self.side_stream else nullcontext():
            generations = self._generations(finished) if finished else []
        if self.live and not self.waiting:
            self._shrink()
        yield from generations

    def _shrink(self) -> None:
        """Moves the live rows to the front where that makes steps cheaper."""
        used, rows = max(self.live) + 1, len(self.live)
        if self.graphs:
            smaller = size_for(rows, self.cache.rows) < size_for(used, self.cache.rows)
        else:
            smaller = (used - rows) * SHRINK_AT > used
        if smaller:
            kept = sorted(self.live)
            self.cache.keep(kept)
            self.state.keep(kept)
            self.live = {place: self.live[row] for place, row in enumerate(kept)}
            self.paused = {place for place, row in enumerate(kept) if row in self.paused}

    def _stopped(self, written: dict[int, int]) -> set[int]:
        """The answers that contain a stop text."""
        answers = [answer for answer in written.values() if answer not in self.stops]
        index = torch.tensor(answers, dtype=torch.long, device=self.engine.policy.device)
        lengths, tokens = self.state.lengths_A[index].tolist(), self.state.tokens_AT[index].tolist()
        for answer, length, ids in zip(answers, lengths, tokens, strict=True):
            if end := stop_at(self.engine.policy.renderer.spell, ids[:length], self.params.stop):
                self.stops[answer] = end
        return set(self.stops)

    def _generations(self, finished: Sequence[int]) -> list[Generation]:
        state, n, policy = self.state, self.n, self.engine.policy
        answers = [request * n + i for request in finished for i in range(n)]
        index = torch.tensor(answers, device=policy.device)
        lengths = [
            self.stops.get(a, length) for a, length in zip(answers, state.lengths_A[index].tolist(), strict=True)
        ]
        longest = max(lengths)

        def read(buffer: Tensor) -> list[Any]:
            return [row[:k] for row, k in zip(buffer[index, :longest].tolist(), lengths, strict=True)]

        ids, logprobs = read(state.tokens_AT), read(state.logprobs_AT)
        support: list[Any] = [()] * len(answers) if state.support_ATK is None else read(state.support_ATK)
        segments, finishes = [], list[Finish]()
        for i, answer in enumerate(answers):
            kept = tuple(tuple(token for token in at if token >= 0) for at in support[i])
            segments.append(Segment(tuple(ids[i]), tuple(logprobs[i]), self.engine.version, kept))
            finishes.append("stop" if ids[i][-1] in policy.eos_ids or answer in self.stops else "length")
        return [
            Generation(self.requests[request], tuple(segments[at : at + n]), tuple(finishes[at : at + n]))
            for at, request in zip(range(0, len(answers), n), finished, strict=True)
        ]
