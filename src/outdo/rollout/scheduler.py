"""Which requests run when: continuous batching over the rows of a `DecodeState`.

A prompt is prefilled once for all its answers. As many answers as there is room for are decoded side by side; waiting
requests take the rows of those that are done, and when none wait the batch shrinks. Tokens and their log-probabilities
stay on the device until a request is done, and the host polls every few steps only. What is sampled depends on the
answer's own seed and, except for rounding, on nothing else: not on its neighbours, its row, nor on being preempted.

Requests may come while others run (`stream`). A turn that may be continued gives its row to others and leaves its cache
parked; the turn that follows it starts from there. Where memory is short the parked ones are dropped, oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outdo.models.ops import sent
from outdo.models.resume import Parked, Resumed
from outdo.rollout.decode import size_for
from outdo.rollout.parked import ParkedTurns
from outdo.rollout.sampling import stop_at
from outdo.rollout.turns import by_length
from outdo.types import Finish, Generation, Request, RequestStream, Segment

if TYPE_CHECKING:
    from outdo.rollout.local import LocalEngine

MAX_PREFILL_TOKENS = 16384  # in one forward
MAX_RESUMED_TOKENS = 65536  # of the texts that one forward extends, padding included
MAX_HELD_BACK = 12  # polls that few new requests of a stream wait for others, to be prefilled together
SHRINK_AT = 8  # on the CPU, drop done rows once more than 1 in 8 is done: copying the cache is not free


class DonePoll(NamedTuple):
    """Which rows had ended after some steps: on its way from the device to the host."""

    ended: Tensor
    arrived: torch.cuda.Event | None
    rows: dict[int, int]  # row: the answer that it wrote then
    full: frozenset[int] = frozenset()  # answers that had reached their request's own limit


@dataclass
class BatchScheduler:
    """Runs requests of one set of parameters and of `n` seeds each. Answer `request * n + i` is of its i-th seed.

    The host polls one turn late: the next steps are launched before it knows which rows ended in the last ones, so
    that the device never waits for it. Ended rows write nothing more; their pages are freed when the host learns of it.
    """

    engine: LocalEngine
    stream: RequestStream
    n: int
    num_aborts: int  # of the engine when this call began: more end it
    slack: int = 0  # tokens that a row may write beyond a request's own limit, before the host stops it
    open: bool = True  # more requests may come
    requests: dict[int, Request] = field(default_factory=dict)  # by number
    waiting: deque[int] = field(default_factory=deque)  # requests
    live: dict[int, int] = field(default_factory=dict)  # row: the answer that it writes
    paused: set[int] = field(default_factory=set)  # rows
    remaining: dict[int, int] = field(default_factory=dict)  # request: its answers that are not done
    slots: dict[int, int] = field(default_factory=dict)  # answer: its place in the buffers
    stops: dict[int, int] = field(default_factory=dict)  # answer: its length up to a stop text or its own limit
    steps: dict[int, int] = field(default_factory=dict)  # answer with a limit: tokens that its launched steps add
    polls: deque[DonePoll] = field(default_factory=deque)  # not looked at yet, oldest first
    num_requests: int = 0
    held_back: int = 0

    def __post_init__(self) -> None:
        self.params = self.stream.params

    def run(self) -> Iterator[Generation]:
        num_answers = self.stream.capacity * self.n
        max_length = self.stream.max_length + self.slack
        self.state, self.graphs = self.engine.allocate(max_length, self.n, num_answers, self.params)
        self.cache = self.state.cache
        self.parked = ParkedTurns(self.cache)
        self.free_slots = list(range(self.state.answers - 1, -1, -1))
        late = self.engine.late and not self.params.stop  # the host finds stop texts, and must find them in time
        self.side_stream = torch.cuda.Stream() if self.graphs and late else None
        while self._receive() and self.engine.num_aborts == self.num_aborts:
            self._admit()
            self.polls.append(self._launch())
            if self.engine.watch:
                self.engine.watch(self.state.tokens_AT[0, : int(self.state.lengths_A[0])].tolist())
            self._reserve()  # for the steps after these
            if len(self.polls) > late:
                yield from self._finish(self.polls.popleft())

    def _receive(self) -> bool:
        """Takes the requests that have come; waits for one where nothing runs. False where nothing is left to do."""
        while self.open:
            idle = not (self.waiting or self.live)
            if not self.graphs:
                self.stream.settle()
            requests = self.stream.take(wait=idle)
            self.open = requests is not None
            new = range(self.num_requests, self.num_requests + len(requests or ()))
            self.num_requests = new.stop
            self.requests.update(zip(new, requests or (), strict=True))
            # Turns that have a cache come first.
            for number in sorted(new, key=lambda number: by_length(self.requests[number])):
                add = self.waiting.appendleft if self.requests[number].follows else self.waiting.append
                add(number)
            self.parked.drop(self.stream.dropped())
            if not idle or self.waiting:
                break
            if self.engine.num_aborts != self.num_aborts:
                return False
        return bool(self.waiting or self.live)

    def _launch(self) -> DonePoll:
        """The steps until the next poll."""
        size = max(self.live) + 1
        size = size_for(size, self.cache.rows) if self.graphs else size
        self.cache.upload()
        for _ in range(self.engine.poll_every):
            self.engine.step(self.state, self.graphs, size)
        full = self._full()
        if not self.graphs:
            return DonePoll(self.state.ended_B.clone(), None, dict(self.live), full)
        ended = torch.empty(size, dtype=torch.bool, pin_memory=True)
        ended.copy_(self.state.ended_B[:size], non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return DonePoll(ended, arrived, dict(self.live), full)

    def _full(self) -> frozenset[int]:
        """The answers that reach their request's own limit by the steps launched so far."""
        if not self.steps:
            return frozenset()
        for row, answer in self.live.items():
            if answer in self.steps and row not in self.paused:
                self.steps[answer] += self.engine.poll_every
        return frozenset(answer for answer, count in self.steps.items() if count >= self._limit(answer))

    def _limit(self, answer: int) -> int:
        return self.requests[answer // self.n].limit

    def _admit(self) -> None:
        """Gives free rows to waiting requests: many at once, not one for every row that becomes free."""
        if not self.waiting:
            return
        free = [row for row in range(self.cache.rows) if row not in self.live]
        if self.live and (self.paused or len(free) < max(self.n, self.cache.rows // 8) or self._hold_back()):
            return
        self.held_back = 0
        starting: list[tuple[int, list[int]]] = []  # request, rows
        resumed: list[tuple[int, Resumed]] = []
        taken: list[int] = []
        tokens = 0
        while self.waiting and len(free) >= self.n:
            request = self.waiting[0]
            length = len(self.requests[request].prompt_ids) - 1
            siblings = self._siblings(len(free))
            while len(siblings) > 1 and not self.cache.has_room(length, len(siblings), self._expected):
                siblings = siblings[: len(siblings) // 2]
            if not self._has_room(length, len(siblings) * self.n, spare=bool(self.live)):
                break
            if starting and tokens + length > MAX_PREFILL_TOKENS:
                self._prefill(starting)
                starting, tokens = [], 0
            for _ in siblings:
                self.waiting.popleft()
            rows, free = free[: len(siblings) * self.n], free[len(siblings) * self.n :]
            self.cache.place(length, rows)
            taken += rows
            self._assign(siblings, rows)
            if item := self.parked.resume(self.requests[request], rows[0]):
                resumed.append((request, item))
            else:
                starting.append((request, rows))
                tokens += length
        if starting:
            self._prefill(starting)
        self._extend(resumed)
        refused = self.cache.grow(taken, self.engine.poll_every)
        assert not refused, "there was room for it"

    def _hold_back(self) -> bool:
        """Whether a stream's few new requests wait for more: a forward for each poll would hold up the others."""
        few = self.open and len(self.waiting) * 8 < len(self.live) and self.held_back < MAX_HELD_BACK
        self.held_back += few
        return few

    def _siblings(self, most: int) -> list[int]:
        """The first waiting request and, in a stream, those after it with the same prompt: it is prefilled once."""
        first = self.requests[self.waiting[0]]
        found: list[int] = []
        for number in islice(self.waiting, 1 if self.n > 1 or first.follows else most):
            if found and (self.requests[number].follows or self.requests[number].prompt_ids != first.prompt_ids):
                break
            found.append(number)
        return found

    def _has_room(self, length: int, rows: int, spare: bool) -> bool:
        """Whether they fit beside the others, which must not run dry; drops what is parked where it is in the way."""
        while not self.cache.has_room(length, rows, self._expected if spare else self.engine.poll_every):
            if not self.parked:
                return not spare
            self.parked.drop_oldest()
        return True

    @property
    def _expected(self) -> int:
        """Tokens to have room for: half of the longest answer. Where answers are longer, some rows have to pause."""
        return max(self.params.max_completion_length // 2, self.engine.poll_every)

    def _assign(self, numbers: Sequence[int], rows: Sequence[int]) -> None:
        """The rows write the answers of these requests."""
        answers = [number * self.n + i for number in numbers for i in range(self.n)]
        self.live.update(zip(rows, answers, strict=True))
        for number in numbers:
            self.remaining[number] = self.n
        for answer in answers:
            self.slots[answer] = self.free_slots.pop()
            if self._limit(answer):
                self.steps[answer] = 0

    def _prefill(self, starting: Sequence[tuple[int, list[int]]]) -> None:
        """Reads the prompts except their last tokens, which are the first that their rows are fed."""
        policy, prompts = self.engine.policy, [self.requests[number].prompt_ids for number, _ in starting]
        lengths = [len(ids) - 1 for ids in prompts]
        layout = self.cache.reading([(length, rows) for length, (_, rows) in zip(lengths, starting, strict=True)])
        if any(lengths):
            ids = [token for prompt in prompts for token in prompt[:-1]]
            at = np.concatenate([np.arange(length) for length in lengths])
            policy.hidden(sent(ids, policy.device), sent(at, policy.device), layout, self.engine.layers)
        self._begin([row for _, rows in starting for row in rows])

    def _extend(self, resumed: Sequence[tuple[int, Resumed]]) -> None:
        """Reads what later turns add to the texts that they continue."""
        policy = self.engine.policy
        while resumed:
            longest, count = 0, 0
            for _, item in resumed:
                longest = max(longest, item.length)
                if count and longest * (count + 1) > MAX_RESUMED_TOKENS:
                    break
                count += 1
            part, resumed = resumed[:count], resumed[count:]
            layout = self.cache.resume([item for _, item in part])
            ids = [t for number, item in part for t in self.requests[number].prompt_ids[item.start : item.length]]
            if ids:
                policy.hidden(sent(ids, policy.device), sent(layout.at, policy.device), layout, self.engine.layers)
            self._begin([item.row for _, item in part])

    def _begin(self, rows: Sequence[int]) -> None:
        requests = [self.requests[self.live[row] // self.n] for row in rows]
        seeds = [one.seeds[self.live[row] % self.n] for one, row in zip(requests, rows, strict=True)]
        slots = [self.slots[self.live[row]] for row in rows]
        self.state.begin(rows, [one.prompt_ids[-1] for one in requests], seeds, slots)

    def _reserve(self) -> None:
        """Reserves pages for the steps after the next poll. Where there are too few, what is parked is dropped, then
        rows pause; if all would, the last request is preempted: it starts again later, and its answers are the same."""
        while True:
            refused = set(self.cache.grow(list(self.live), self.engine.poll_every))
            while refused and self.parked:
                self.parked.drop_oldest()
                refused = set(self.cache.grow(list(refused), self.engine.poll_every))
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
        for i in range(self.n):  # also of those that were done
            self.free_slots.append(self.slots.pop(request * self.n + i))
            self.steps.pop(request * self.n + i, None)
        self.waiting.appendleft(request)

    def _free(self, rows: Sequence[int], park: bool = False) -> dict[int, Parked]:
        """Frees rows that write nothing more. With `park`, what those have cached that may be continued, by answer."""
        kept = {}
        if park and self.n == 1:
            kept = {row: self.live[row] for row in rows if self.requests[self.live[row]].keep}
        parked = {answer: self.cache.park(row) for row, answer in kept.items()}
        self.cache.release([row for row in rows if row not in kept])
        for row in rows:
            del self.live[row]
        self.paused -= set(rows)
        return parked

    def _finish(self, poll: DonePoll) -> Iterator[Generation]:
        """Frees the rows that are done, and yields the requests whose last answer that was."""
        if poll.arrived:
            poll.arrived.synchronize()
        ended = poll.ended.tolist()
        done = {answer for row, answer in poll.rows.items() if ended[row]}
        if self.params.stop:
            done |= self._stopped(poll.rows)
        full = poll.full & self.slots.keys()
        for answer in full:
            self.stops[answer] = min(self.stops.get(answer, self._limit(answer)), self._limit(answer))
        done |= full
        rows = [row for row, answer in self.live.items() if answer in done]
        answers = [self.live[row] for row in rows]
        if self.params.stop or full:
            self.state.pause(rows)  # the device does not know that they have ended
        parked = self._free(rows, park=True)
        for answer in answers:
            self.remaining[answer // self.n] -= 1
            self.steps.pop(answer, None)
        finished = sorted({a // self.n for a in answers if not self.remaining[a // self.n]})
        # Their tokens do not change any more, so they are copied while the launched steps run.
        with torch.cuda.stream(self.side_stream) if self.side_stream else nullcontext():
            generations = self._generations(finished) if finished else []
            self._watched()
        for number, generation in zip(finished, generations, strict=True):
            if number in parked:
                self.parked.add(generation, parked[number])
            self._forget(number)
        if self.live and not self.waiting:
            self._shrink()
        yield from generations

    def _forget(self, number: int) -> None:
        """The request is answered."""
        del self.requests[number], self.remaining[number]
        for answer in range(number * self.n, (number + 1) * self.n):
            self.free_slots.append(self.slots.pop(answer))
            self.stops.pop(answer, None)

    def _watched(self) -> None:
        """Shows the tokens so far to those who watch."""
        for answer in self.live.values():
            if watch := self.requests[answer // self.n].watch:
                slot = self.slots[answer]
                watch(self.state.tokens_AT[slot, : int(self.state.lengths_A[slot])].tolist())

    def _shrink(self) -> None:
        """Moves the live rows to the front where that makes steps cheaper."""
        used, rows = max(self.live) + 1, len(self.live)
        if self.graphs:
            smaller = size_for(rows, self.cache.rows) < size_for(used, self.cache.rows)
        else:
            smaller = (used - rows) * SHRINK_AT > used
        if smaller:
            kept = sorted(self.live)
            self.cache.keep(kept, drop=not self.open)
            self.state.keep(kept)
            self.live = {place: self.live[row] for place, row in enumerate(kept)}
            self.paused = {place for place, row in enumerate(kept) if row in self.paused}

    def _stopped(self, written: dict[int, int]) -> set[int]:
        """The answers that contain a stop text."""
        answers = [answer for answer in written.values() if answer in self.slots and answer not in self.stops]
        places = [self.slots[answer] for answer in answers]
        index = torch.tensor(places, dtype=torch.long, device=self.engine.policy.device)
        lengths, tokens = self.state.lengths_A[index].tolist(), self.state.tokens_AT[index].tolist()
        for answer, length, ids in zip(answers, lengths, tokens, strict=True):
            if end := stop_at(self.engine.policy.renderer.spell, ids[:length], self.params.stop):
                self.stops[answer] = end
        return set(self.stops)

    def _generations(self, finished: Sequence[int]) -> list[Generation]:
        state, n, policy = self.state, self.n, self.engine.policy
        answers = [request * n + i for request in finished for i in range(n)]
        index = torch.tensor([self.slots[answer] for answer in answers], device=policy.device)
        lengths = [
            min(self.stops.get(a, length), length)
            for a, length in zip(answers, state.lengths_A[index].tolist(), strict=True)
        ]
        longest = max(lengths)

        def read(buffer: Tensor) -> list[Any]:
            return [row[:k] for row, k in zip(buffer[index, :longest].tolist(), lengths, strict=True)]

        ids, logprobs = read(state.tokens_AT), read(state.logprobs_AT)
        support: list[Any] = [()] * len(answers) if state.support_ATK is None else read(state.support_ATK)
        segments, finishes, ends = [], list[Finish](), {*policy.eos_ids, *self.params.stop_ids}
        for i, answer in enumerate(answers):
            kept = tuple(tuple(token for token in at if token >= 0) for at in support[i])
            segments.append(Segment(tuple(ids[i]), tuple(logprobs[i]), self.engine.version, kept))
            stopped = answer in self.stops and lengths[i] != self._limit(answer)  # by a text, not by its own limit
            finishes.append("stop" if stopped or ids[i][-1] in ends else "length")
        parts = [slice(at, at + n) for at in range(0, len(answers), n)]
        return [
            Generation(self.requests[request], tuple(segments[part]), tuple(finishes[part]), part.stop < len(answers))
            for request, part in zip(finished, parts, strict=True)
        ]
