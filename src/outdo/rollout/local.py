"""The local sampler: in process, on the learner's own weights, so there is nothing to send and nothing to drift.

A prompt is read once for its whole group. As many answers as there is room for are decoded side by side; groups that
wait take the rows of those that are done, and when none wait the batch shrinks. Tokens and their log-probabilities
stay on the device until a group is done, and the host looks every few steps only. What is sampled depends on the
answer's own seed and, but for rounding, on nothing else: not on its neighbours, its row, nor on having been put off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outdo.errors import ModelError
from outdo.models.cache import PAGE, PagedCache, SlotCache
from outdo.models.load import Policy
from outdo.models.ops import kernels, sent
from outdo.models.stack import Layer
from outdo.rollout.deck import Deck, Graphs, size_for
from outdo.rollout.sampling import stop_at
from outdo.seeds import seed_of
from outdo.types import Finish, Group, Prompt, SampleParams, Trajectory, WeightSource

READ_AT_ONCE = 16384  # prompt tokens in one forward
SHRINK_AT = 8  # on the CPU, leave done rows out once more than 1 in 8 is: copying the cache is not free


class LocalSampler:
    """`rows` bounds how many answers are decoded side by side: more is faster and takes more memory. `memory` bounds
    the bytes of the cache on a GPU; where it is short, fewer run at once."""

    def __init__(self, policy: Policy, rows: int | None = None, memory: int | None = None) -> None:
        self.policy, self.version, self.memory = policy, 0, memory
        self.paged = kernels(policy.head.weight, policy.head_size) is not None and policy.softcap is None
        self.graphed = self.late = self.paged  # late: the host looks one turn behind
        self.rows = rows or (1024 if self.paged else 512)
        self.look_every = 4  # steps between two looks from the host at who is done
        self.watch: Callable[[list[int]], None] | None = None  # is shown the first answer's tokens before each look
        self.layers: list[Layer] | None = None
        self._stale = True
        self._cache: PagedCache | None = None
        self._decks: dict[SampleParams, tuple[Deck, Graphs | None]] = {}

    def update(self, source: WeightSource, version: int) -> None:
        """The weights are the learner's own: only their version is new."""
        self.version, self._stale = version, True

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """Groups of `n` answers, each as soon as it is done."""
        encoded = self.policy.encode_all(prompts, params.max_completion_length)
        if prompts:
            self.policy.set_training(False)
            self._refresh()
            yield from _Call(self, prompts, encoded, n, params, seed).groups()

    def _refresh(self) -> None:
        """The fused weights, as the learner left them; in place, since captured steps read them where they are."""
        if not self._stale or not self.policy.stack:
            return
        new = self.policy.stack.fused()
        if self.layers is None or not self.graphed:
            self.layers = new
        for old, fresh in zip(self.layers, new, strict=True):
            for into, value in zip(old, fresh, strict=True):
                if into is not None and value is not None and into is not value:
                    into.copy_(value)
        self._stale = False

    def stage(self, longest: int, n: int, answers: int, params: SampleParams) -> tuple[Deck, Graphs | None]:
        """Rows and a cache for answers up to that length. On a GPU those of the last call serve again."""
        rows = min(max(self.rows, n), answers)
        if not self.paged or (self.policy.window or longest) < longest:
            slots = SlotCache(rows, longest, self.policy.device)
            return Deck(self.policy, slots, answers, params), None
        all_rows = max(self.rows, n)
        least, pages = self._num_pages(all_rows, longest, n)
        had = self._cache
        if had is None or had.longest < longest or had.rows < rows or had.num_pages < least:
            self._cache = had = None
            self._decks.clear()
            roomy = -(-longest // 256) * 256  # the next prompt may be a little longer, and shall not need a new one
            self._cache = PagedCache(all_rows, roomy, self.policy.device, pages)
        cache = self._cache
        assert cache
        cache.reset()
        if params not in self._decks or not self._decks[params][0].fits(answers, params):
            deck = Deck(self.policy, cache, answers, params)
            self._decks[params] = deck, Graphs() if self.graphed else None
        deck, graphs = self._decks[params]
        deck.ended_B.fill_(False)
        deck.answer_B.fill_(deck.answers)
        return deck, graphs

    def _num_pages(self, rows: int, longest: int, n: int) -> tuple[int, int]:
        """The least that one group takes; and pages for all rows at their longest, or as many as the memory allows."""
        each = 2 + longest // PAGE
        least = (n + 1) * each + 1
        most = max(least, rows * each + 1)
        if self.memory is None:
            return least, most
        size = PAGE * self.policy.cache_bytes
        if self.memory < least * size:
            raise ModelError(
                f"{self.memory / 2**30:.3g} GiB for the cache cannot hold one group of {n} answers of {longest} "
                f"tokens, which takes {least * size / 2**30:.3g}: lower num_generations or max_completion_length, or "
                "raise rollout_memory"
            )
        return least, min(most, self.memory // size)

    def step(self, deck: Deck, graphs: Graphs | None, rows: int) -> None:
        def once() -> None:
            deck.step(rows, self.layers)

        if graphs:
            graphs.run(rows, once)
        else:
            once()


class Glance(NamedTuple):
    """What the host will see of who is done, when the steps up to here have been taken."""

    ended: Tensor  # on its way to the host
    arrived: torch.cuda.Event | None
    rows: dict[int, int]  # who wrote what then: row, answer


@dataclass
class _Call:
    """One call of `sample`: which prompts wait, which rows are at work on which answers.

    The host looks one turn late: the next steps are on their way before it knows who ended in the last ones, so that
    the device never waits for it. Rows that have ended stand still, and their pages are given away from then on only.
    """

    sampler: LocalSampler
    prompts: Sequence[Prompt]
    encoded: Sequence[tuple[int, ...]]
    n: int
    params: SampleParams
    seed: int
    live: dict[int, int] = field(default_factory=dict)  # row: the answer that it writes
    paused: set[int] = field(default_factory=set)  # rows
    left: dict[int, int] = field(default_factory=dict)  # prompt: its answers that are not done
    cut: dict[int, int] = field(default_factory=dict)  # answer: where a stop text ends it
    unseen: deque[Glance] = field(default_factory=deque)  # not looked at yet, oldest first

    def groups(self) -> Iterator[Group]:
        longest = max(map(len, self.encoded)) + self.params.max_completion_length
        # Prompts of like length side by side need little padding. What is sampled does not depend on the order.
        self.waiting = deque(sorted(range(len(self.prompts)), key=lambda p: len(self.encoded[p])))
        self.deck, self.graphs = self.sampler.stage(longest, self.n, len(self.prompts) * self.n, self.params)
        self.cache = self.deck.cache
        late = self.sampler.late and not self.params.stop  # a stop text is seen by the host, and must be seen in time
        self.aside = torch.cuda.Stream() if self.graphs and late else None
        while self.waiting or self.live:
            self._admit()
            self.unseen.append(self._run())
            if self.sampler.watch:
                self.sampler.watch(self.deck.tokens_AT[0, : int(self.deck.lengths_A[0])].tolist())
            self._make_room()  # for the steps after these
            if len(self.unseen) > late:
                yield from self._look(self.unseen.popleft())

    def _run(self) -> Glance:
        """The steps until the next look."""
        size = max(self.live) + 1
        size = size_for(size, self.cache.rows) if self.graphs else size
        self.cache.tell()
        for _ in range(self.sampler.look_every):
            self.sampler.step(self.deck, self.graphs, size)
        if not self.graphs:
            return Glance(self.deck.ended_B.clone(), None, dict(self.live))
        ended = torch.empty(size, dtype=torch.bool, pin_memory=True)
        ended.copy_(self.deck.ended_B[:size], non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Glance(ended, arrived, dict(self.live))

    def _admit(self) -> None:
        """Waiting groups take free rows: many at once, not one for every row that comes free."""
        if not self.waiting:
            return
        free = [row for row in range(self.cache.rows) if row not in self.live]
        if self.live and (self.paused or len(free) < max(self.n, self.cache.rows // 8)):
            return
        begun: list[tuple[int, list[int]]] = []  # prompt, rows
        taken: list[int] = []
        tokens = 0
        while self.waiting and len(free) >= self.n:
            prompt = self.waiting[0]
            length = len(self.encoded[prompt]) - 1
            # Half of what they may write: should they write more, some will have to pause.
            expected = max(self.params.max_completion_length // 2, self.sampler.look_every)
            if self.live and not self.cache.has_room(length, self.n, expected):
                break
            if begun and tokens + length > READ_AT_ONCE:
                self._read(begun)
                begun, tokens = [], 0
            self.waiting.popleft()
            rows, free = free[: self.n], free[self.n :]
            self.cache.place(length, rows)
            taken += rows
            self.live.update((row, prompt * self.n + i) for i, row in enumerate(rows))
            self.left[prompt] = self.n
            begun.append((prompt, rows))
            tokens += length
        if begun:
            self._read(begun)
        refused = self.cache.grow(taken, self.sampler.look_every)
        assert not refused, "there was room for it"

    def _read(self, begun: Sequence[tuple[int, list[int]]]) -> None:
        """The prompts but for their last tokens, which are the first that their rows are fed."""
        policy, lengths = self.sampler.policy, [len(self.encoded[p]) - 1 for p, _ in begun]
        layout = self.cache.reading([(length, rows) for length, (_, rows) in zip(lengths, begun, strict=True)])
        if any(lengths):
            ids = [token for p, _ in begun for token in self.encoded[p][:-1]]
            at = np.concatenate([np.arange(length) for length in lengths])
            policy.hidden(sent(ids, policy.device), sent(at, policy.device), layout, self.sampler.layers)
        rows = [row for _, rows in begun for row in rows]
        firsts = [self.encoded[p][-1] for p, rows in begun for _ in rows]
        seeds = [seed_of(self.seed, self.prompts[p].id, i) for p, _ in begun for i in range(self.n)]
        self.deck.begin(rows, firsts, seeds, [self.live[row] for row in rows])

    def _make_room(self) -> None:
        """Pages for the steps after the next look. Rows without pause; if nobody could go on, the last group is put
        off: it will be begun again, and comes out the same."""
        while True:
            refused = set(self.cache.grow(list(self.live), self.sampler.look_every))
            self.deck.hold(refused - self.paused)
            self.deck.let_go(self.paused - refused)
            self.paused = refused
            if not self.live or len(refused) < len(self.live):
                return
            self._put_off(max(self.live.values()) // self.n)

    def _put_off(self, prompt: int) -> None:
        """What has been seen of its answers is of no account any more: they may have been begun again by then."""
        rows = [row for row, answer in self.live.items() if answer // self.n == prompt]
        self.deck.hold(rows)
        self._drop(rows)
        self.cut = {answer: end for answer, end in self.cut.items() if answer // self.n != prompt}
        for glance in self.unseen:
            for row in [row for row, answer in glance.rows.items() if answer // self.n == prompt]:
                del glance.rows[row]
        self.waiting.appendleft(prompt)

    def _drop(self, rows: Sequence[int]) -> None:
        """Rows that stand still."""
        self.cache.release(rows)
        for row in rows:
            del self.live[row]
        self.paused -= set(rows)

    def _look(self, glance: Glance) -> Iterator[Group]:
        """Hands on the groups that are done, and closes the ranks."""
        if glance.arrived:
            glance.arrived.synchronize()
        ended = glance.ended.tolist()
        done = {answer for row, answer in glance.rows.items() if ended[row]}
        if self.params.stop:
            done |= self._stopped(glance.rows)
        rows = [row for row, answer in self.live.items() if answer in done]
        answers = [self.live[row] for row in rows]
        if self.params.stop:
            self.deck.hold(rows)  # the device does not know of these
        self._drop(rows)
        for answer in answers:
            self.left[answer // self.n] -= 1
        finished = sorted({a // self.n for a in answers if not self.left[a // self.n]})
        # Their tokens do not change any more, so they are read beside the steps that are under way.
        with torch.cuda.stream(self.aside) if self.aside else nullcontext():
            groups = self._groups(finished) if finished else []
        if self.live and not self.waiting:
            self._shrink()
        yield from groups

    def _shrink(self) -> None:
        used, rows = max(self.live) + 1, len(self.live)
        if self.graphs:
            smaller = size_for(rows, self.cache.rows) < size_for(used, self.cache.rows)
        else:
            smaller = (used - rows) * SHRINK_AT > used
        if smaller:
            kept = sorted(self.live)
            self.cache.keep(kept)
            self.deck.keep(kept)
            self.live = {place: self.live[row] for place, row in enumerate(kept)}
            self.paused = {place for place, row in enumerate(kept) if row in self.paused}

    def _stopped(self, written: dict[int, int]) -> set[int]:
        """The answers that have come to one of the stop texts."""
        answers = [answer for answer in written.values() if answer not in self.cut]
        index = torch.tensor(answers, dtype=torch.long, device=self.sampler.policy.device)
        lengths, tokens = self.deck.lengths_A[index].tolist(), self.deck.tokens_AT[index].tolist()
        for answer, length, ids in zip(answers, lengths, tokens, strict=True):
            if end := stop_at(self.sampler.policy.spell, ids[:length], self.params.stop):
                self.cut[answer] = end
        return set(self.cut)

    def _groups(self, finished: Sequence[int]) -> list[Group]:
        deck, n, policy = self.deck, self.n, self.sampler.policy
        answers = [prompt * n + i for prompt in finished for i in range(n)]
        index = torch.tensor(answers, device=policy.device)
        lengths = [self.cut.get(a, length) for a, length in zip(answers, deck.lengths_A[index].tolist(), strict=True)]
        most = max(lengths)

        def read(buffer: Tensor) -> list[Any]:
            return [row[:k] for row, k in zip(buffer[index, :most].tolist(), lengths, strict=True)]

        ids, logprobs = read(deck.tokens_AT), read(deck.logprobs_AT)
        support: list[Any] = [()] * len(answers) if deck.support_ATK is None else read(deck.support_ATK)
        ended = [row[-1] in policy.eos_ids for row in ids]
        texts = policy.decode_all([row[:-1] if stop else row for row, stop in zip(ids, ended, strict=True)])
        completions = []
        for i, answer in enumerate(answers):
            finish: Finish = "stop" if ended[i] or answer in self.cut else "length"
            kept = tuple(tuple(token for token in at if token >= 0) for at in support[i])
            parts = tuple(ids[i]), tuple(logprobs[i]), texts[i], finish, self.sampler.version, kept
            completions.append(Trajectory.single(*parts))
        return [
            Group(self.prompts[prompt], self.encoded[prompt], tuple(completions[at * n : (at + 1) * n]))
            for at, prompt in enumerate(finished)
        ]
