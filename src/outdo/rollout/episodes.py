"""Answers of several turns: one environment for each, all of them at once over one engine.

Environments live on an event loop in a thread of its own; the engine runs in the caller's. An answer that waits for its
environment holds no row of the engine, and its next turn starts from what the engine has cached. Tokens are carried as
they were sampled; what an environment says is encoded as the difference that the chat template adds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from outdo.envs.environment import MakeEnvironment, Observation
from outdo.errors import OutdoError, TaskError, describe
from outdo.models.bridge import Bridge, Extension, TurnEnd
from outdo.models.renderer import TOOLS
from outdo.rollout.answer import Answer, Audience
from outdo.rollout.turns import CLOSE_SECONDS, Idle, TurnQueue, in_loop, run_all, serve_groups
from outdo.seeds import seed_of
from outdo.types import Engine, Group, Message, Prompt, SampleParams, WeightSource

if TYPE_CHECKING:
    from outdo.models.renderer import Renderer
    from outdo.models.tool_formats import ToolFormat

T = TypeVar("T")
END_OF_MARK = ">>"  # after the result of a call that is part of the model's text
SLOW_SECONDS = 0.01  # that an environment takes before the engine may continue without its answer
GATHER_SECONDS = 0.002  # that conversations wait for others, so that they are rendered together


@dataclass(frozen=True)
class EpisodeSampler:
    """A `Sampler` that plays an environment for every answer. `max_completion_length` bounds all tokens after the
    prompt, the environment's included; `max_turns` the model's turns. With an audience, what a prompt has after its
    first answer is a stranger's text."""

    engine: Engine
    renderer: Renderer
    tool_format: ToolFormat
    make: MakeEnvironment
    max_turns: int
    bridges: dict[str, Bridge] = field(default_factory=dict)  # by the tools that are shown
    audience: Audience | None = None
    idle: Idle = field(default_factory=Idle)

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """Groups of `n` answers, each once its last answer is done, in any order. The seed of an answer's first turn is
        that of an answer of one turn; each later turn has one of its own."""
        stop_ids = (*params.stop_ids, *self.tool_format.stop_ids(self.renderer.tokenizer))
        table = _Table(self, prompts, n, replace(params, stop_ids=stop_ids), seed)
        try:
            queue = in_loop(table.open()).result()
        except BaseException:
            with suppress(TimeoutError):
                in_loop(table.close()).result(CLOSE_SECONDS)
            raise
        yield from serve_groups(self.engine, queue, in_loop(table.play()), table.done, table.close)

    def update(self, source: WeightSource, version: int) -> None:
        self.engine.update(source, version)

    def bridge(self, tools: Sequence[Mapping[str, Any]]) -> Bridge:
        key = json.dumps(tools, sort_keys=True, default=str)
        if key not in self.bridges:
            self.bridges[key] = Bridge(self.renderer, tools, self.tool_format)
        return self.bridges[key]


class _Table:
    """The answers of one call."""

    def __init__(
        self, sampler: EpisodeSampler, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int
    ) -> None:
        self.sampler, self.prompts, self.n, self.params = sampler, prompts, n, params
        seeds = [[seed_of(seed, prompt.id, i) for i in range(n)] for prompt in prompts]
        self.groups = [[Answer(p, i, s) for i, s in enumerate(row)] for p, row in zip(prompts, seeds, strict=True)]
        self.answers = [answer for group in self.groups for answer in group]
        self.done: deque[Group] = deque()
        self.queue: TurnQueue | None = None
        self.task: asyncio.Task[None] | None = None
        self.extend = _Gathered(_extend_all)
        self.waiting: dict[Answer, float] = {}  # for their environments, since when; inf: it has left the queue

    async def open(self) -> TurnQueue:
        """Resets all environments, and encodes what they begin with."""
        start = time.monotonic()
        await asyncio.gather(*map(self._reset, self.answers))
        self.sampler.idle.seconds += time.monotonic() - start
        renderer, room = self.sampler.renderer, self.params.max_completion_length
        by_bridge: dict[int, list[Answer]] = {}
        for answer in (one for one in self.answers if not one.broken):
            tools = _tools(answer)
            answer.bridge, answer.num_tools = self.sampler.bridge(tools), len(tools)
            by_bridge.setdefault(id(answer.bridge), []).append(answer)
        for part in by_bridge.values():
            bridge = part[0].bridge
            assert bridge
            if self.sampler.audience:
                starts = [bridge.conversation(one.messages) for one in part]
            else:
                starts = bridge.start_all([Prompt(one.prompt.id, tuple(one.messages)) for one in part])
            for answer, answer.start in zip(part, starts, strict=True):
                if len(answer.start) + room > renderer.context:
                    raise TaskError(
                        f"prompt {answer.prompt.id!r:.60} has {len(answer.start)} tokens with tools and what its "
                        f"environment adds; with max_completion_length={room} it does not fit the model's "
                        f"{renderer.context}"
                    )
        longest = max(len(answer.start) for answer in self.answers) + room
        self.queue = TurnQueue(self.params, longest, len(self.answers), self.sampler.idle)
        self.queue.enter(len(self.answers))
        return self.queue

    async def play(self) -> None:
        self.task = asyncio.current_task()
        assert self.queue
        watch = asyncio.create_task(self._leave_slow())
        try:
            await run_all(map(self._play_group, self.groups))
        finally:
            watch.cancel()
            self.queue.close()

    async def close(self) -> None:
        """Ends what is still played, and closes every environment."""
        if self.task and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
        await asyncio.gather(*map(self._close, self.answers))

    async def _play_group(self, group: Sequence[Answer]) -> None:
        await asyncio.gather(*map(self._play, group))
        self.done.append(_group(group, getattr(self.sampler.engine, "version", 0)))

    async def _reset(self, answer: Answer) -> None:
        try:
            answer.environment, answer.is_open = self.sampler.make(answer.prompt), True
            answer.messages = list(await self._waited(answer, answer.environment.reset(answer.prompt)))
            answer.num_first = len(answer.messages)
        except OutdoError:  # the recipe's or the data's fault, not this answer's
            raise
        except Exception as error:
            answer.broken = f"the environment failed in reset: {describe(error.__cause__ or error)}"

    async def _play(self, answer: Answer) -> None:
        assert self.queue
        try:
            await self._play_out(answer)
        finally:
            self.queue.leave()

    async def _play_out(self, answer: Answer) -> None:
        if answer.broken:
            return
        try:
            await self._turns(answer)
            get_reward = getattr(answer.environment, "get_reward", None)
            if answer.reward is None and get_reward is not None:
                answer.reward = await self._waited(answer, get_reward())
        except _Broken as error:
            answer.broken = f"the environment failed: {describe(error.__cause__ or error)}"
            if answer.turn_ids:
                self._end_turn(answer)
        await self._close(answer)

    async def _turns(self, answer: Answer) -> None:
        """The model's turns and what the environment says to them, until it is done or a limit is reached."""
        queue, audience = self.queue, self.sampler.audience
        assert queue
        ids, room, before, number = answer.start, self.params.max_completion_length, "", 0
        context: tuple[int, ...] | None = None  # of the next segment, where it is not what precedes
        while True:
            seed = seed_of(answer.seed, number) if number else answer.seed
            watch = audience.writing if audience else None
            turn = await queue.generate(ids, seed, limit=room, follows=before, keep=True, watch=watch, busy=True)
            if audience:
                audience.written(turn.segment.token_ids)
            number += 1
            answer.segments.append(replace(turn.segment, prompt_ids=context))
            answer.turn_ids += turn.segment.token_ids
            room -= len(turn.segment.token_ids)
            if turn.finish == "length" or room <= 0:
                self._end_turn(answer)
                added = None
            else:
                added = await self._answered(answer)
            context = added.prompt_ids if added else None
            if added and context is None:
                room -= len(added.token_ids)
            elif context:
                room = min(room, queue.max_length - len(context))
            if added is None or room <= 0:
                queue.drop(turn.id)
                if added and answer.turn_ids:  # what was inserted into the turn does not fit
                    answer.drop_inserted(len(added.token_ids))
                    self._end_turn(answer)
                break
            if context is None:
                ids, before = (*ids, *turn.segment.token_ids, *added.token_ids), turn.id
            else:
                queue.drop(turn.id)
                ids, before = context, ""
            if added.token_ids:
                answer.add_context(added.token_ids)
        answer.finish = "stop" if answer.is_done else "length"

    async def _answered(self, answer: Answer) -> Extension | None:
        """What follows the model's turn, in tokens; None where the answer ends here."""
        assert answer.bridge and answer.environment
        inline = self.sampler.tool_format.inline
        message = answer.bridge.read(answer.turn_ids)
        ended = answer.turn_ids[-1] in self.sampler.renderer.eos_ids
        if inline and not ended and not message.get("tool_calls"):
            return Extension()  # it stopped where a call might have been, and continues its own turn
        audience = self.sampler.audience
        if audience:
            audience.turn(message)
        observation: Observation = await self._waited(answer, answer.environment.step(message))
        answer.num_calls += observation.num_calls
        answer.num_failed_calls += observation.num_failed_calls
        answer.failures.update(observation.failures)
        if observation.reward is not None:
            answer.reward = observation.reward
        inserted = observation.inserted
        if inline and not ended and not observation.done:
            results = [str(one["content"]) for one in observation.messages]
            inserted = ("error" if observation.num_failed_calls else "".join(results)) + END_OF_MARK
        if audience:
            audience.answered(message, observation, inserted)
        if inserted:
            (token_ids,), start = answer.bridge.insert_all([inserted]), len(message["content"])
            answer.inserted.append((start, start + len(inserted)))
            answer.turn_ids += token_ids
            return Extension(token_ids)
        before = list(answer.messages)
        self._end_turn(answer, message)
        answer.add_messages(observation)
        answer.is_done = observation.done
        is_last = answer.num_turns >= self.sampler.max_turns
        answer.out_of_turns = observation.out_of_turns if observation.done else is_last
        if observation.done or is_last:
            return None
        turn_end = TurnEnd(before, message, ended, tuple(observation.messages))
        extension: Extension = await self.extend((answer.bridge, turn_end))
        if extension.problem:
            raise _Broken from ValueError(extension.problem)
        return extension

    def _end_turn(self, answer: Answer, message: Message | None = None) -> None:
        """The model's turn is part of the conversation; its text is what rewards see, if it is the last."""
        (text,) = self.sampler.renderer.decode_answers([answer.turn_ids])
        answer.add_message(message or {"role": "assistant", "content": text}, text)

    async def _waited(self, answer: Answer, result: Awaitable[T] | T) -> T:
        """The environment's result. What it raises makes the answer broken."""
        start = time.monotonic()
        self.waiting[answer] = start
        try:
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise _Broken from error
        finally:
            answer.wait_seconds += time.monotonic() - start
            if self.waiting.pop(answer) == math.inf and self.queue:
                self.queue.enter()

    async def _leave_slow(self) -> None:
        """An answer whose environment takes long is not about to request a turn: the engine continues without it."""
        assert self.queue
        while True:
            await asyncio.sleep(SLOW_SECONDS)
            late = time.monotonic() - SLOW_SECONDS
            for answer in [one for one, start in self.waiting.items() if start < late]:
                self.waiting[answer] = math.inf
                self.queue.leave()

    async def _close(self, answer: Answer) -> None:
        if answer.environment is None or not answer.is_open:
            return
        answer.is_open = False
        with suppress(Exception):  # what it raises now changes nothing: the answer is complete
            result: Any = answer.environment.close()
            if inspect.isawaitable(result):
                await result


class _Broken(Exception):
    """The environment raised its cause."""


class _Gathered:
    """Calls a function of many items for items that come one by one at about the same time."""

    def __init__(self, function: Callable[[list[Any]], list[Any]]) -> None:
        self.function, self.items, self.futures = function, list[Any](), list[asyncio.Future[Any]]()

    async def __call__(self, item: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.items.append(item)
        self.futures.append(future)
        if len(self.items) == 1:
            await asyncio.sleep(GATHER_SECONDS)
            items, futures, self.items, self.futures = self.items, self.futures, [], []
            try:
                results = await asyncio.to_thread(self.function, items)
            except BaseException as error:
                for one in futures:
                    one.set_exception(error) if not one.done() else None
                raise
            for one, result in zip(futures, results, strict=True):
                one.set_result(result) if not one.done() else None
        return await future


def _tools(answer: Answer) -> Sequence[Mapping[str, Any]]:
    """The environment's, or those of the data."""
    return (answer.environment.tools if answer.environment else ()) or answer.prompt.meta.get(TOOLS) or ()


def _extend_all(items: list[tuple[Bridge, TurnEnd]]) -> list[Extension]:
    """Of several bridges, each called once."""
    out: list[Extension] = [Extension()] * len(items)
    for bridge in {id(one): one for one, _ in items}.values():
        places = [i for i, (one, _) in enumerate(items) if one is bridge]
        for i, extension in zip(places, bridge.extend_all([items[i][1] for i in places]), strict=True):
            out[i] = extension
    return out


def _group(answers: Sequence[Answer], version: int) -> Group:
    """The group of a prompt's answers. Those that begin otherwise than the first have a prompt of their own."""
    prompt_ids = next((answer.start for answer in answers if answer.start), ())
    return Group(answers[0].prompt, prompt_ids, tuple(answer.trajectory(prompt_ids, version) for answer in answers))
