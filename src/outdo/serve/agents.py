"""Agents: functions that play an answer as they like through OpenAI's client, and are trained on what they sampled.

`async def agent(client, prompt)` is called once for every answer, hundreds at a time. Its client records each call,
token by token, in a session of its own, which becomes the answer's trajectory: calls that continue a conversation are
one text, any other begins a branch. What the agent returns, if anything, is the text that rewards judge, its own
reward, or both.

An exception of the agent makes its answer broken, never wrong, unless it was refused a call because a limit was
reached: then the answer was cut off.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outdo.envs import threads
from outdo.errors import ToolError, describe
from outdo.models.renderer import TOOLS
from outdo.recipe import plugins
from outdo.rollout.turns import Idle, TurnQueue, in_loop, run_all, serve_groups
from outdo.seeds import seed_of
from outdo.serve.api import Api
from outdo.serve.backend import QueueBackend
from outdo.serve.client import Client, plain
from outdo.serve.recording import Call, Recorder, Session, segments_of, session_trajectory
from outdo.types import (
    Engine,
    Episode,
    Finish,
    Group,
    Message,
    Origin,
    Prompt,
    SampleParams,
    Segment,
    Trajectory,
    WeightSource,
)

if TYPE_CHECKING:
    from outdo.models.renderer import Renderer
    from outdo.recipe.schema import Recipe


async def verifiers(client: Any, prompt: Prompt) -> Any:
    """Plays tasks of the library verifiers (docs/verifiers.md)."""
    from outdo.serve.verifiers import play

    return await play(client, prompt)


verifiers.idle_seconds = 1800.0  # type: ignore[attr-defined]  # it has time limits of its own, and may start containers

AGENTS: dict[str, Callable[..., Any]] = {"verifiers": verifiers}  # built-in ones, by name
GROUP = "outdo.agents"  # of entry points
IDLE_SECONDS = 60.0  # that an agent may neither return nor wait for the model, if it has no `idle_seconds` of its own
STARTS = 32  # agents that start before others wait until those have taken their first step
PROMPT_TOKENS = 2048  # of one call of an agent, where max_prompt_length is not set


@dataclass(frozen=True)
class AgentPlay:
    """By an agent. `max_calls` and the recipe's max_completion_length bound what it may sample for one answer."""

    agent: Callable[..., Any]
    name: str
    max_calls: int
    max_prompt_length: int = PROMPT_TOKENS
    tool_format: str = "auto"

    def tools_of(self, prompt: Prompt) -> Sequence[Mapping[str, Any]]:
        return prompt.meta.get(TOOLS) or ()

    def sampler(self, engine: Engine, renderer: Renderer) -> AgentSampler:
        return AgentSampler(engine, renderer, self)


def agent_of(recipe: Recipe, given: Callable[..., Any] | None = None, own: str = "") -> AgentPlay | None:
    """By the recipe's key `agent`, or by a function in its place, else the task's `own`; None where there is none.
    Raises ToolError."""
    if not (agent := given or recipe.agent or own):
        return None
    if others := [key for key in ("tools", "environment_factory") if getattr(recipe, key)]:
        raise ToolError(f"agent and {others[0]} are both set: an agent calls its tools itself; leave one of them out")
    name = agent if isinstance(agent, str) else getattr(agent, "__name__", type(agent).__name__)
    function = plugins.find(agent, AGENTS, GROUP, ToolError) if isinstance(agent, str) else agent
    _refuse_unfit(name, function)
    return AgentPlay(
        function, name, recipe.max_turns, recipe.max_prompt_length or PROMPT_TOKENS, tool_format=recipe.tool_format
    )


def _refuse_unfit(name: str, function: Any) -> None:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    if not callable(function) or not inspect.iscoroutinefunction(call):
        raise ToolError(f"agent {name} must be an async function: async def agent(client, prompt)")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ToolError(f"agent {name} must take two arguments, the client and the prompt: {error}") from None


class AgentClient(Client):
    """Of one answer. `base_url` and `api_key` are for programs that speak HTTP, such as OpenAI's own client."""

    api_key = "none"  # the address itself holds the session's key

    def __init__(self, api: Api, session: Session, open_http: Callable[[], str]) -> None:
        super().__init__(api, session.key)
        self.model, self._open_http = api.model, open_http

    @property
    def base_url(self) -> str:
        """This session's address on this machine. The server starts when it is first read."""
        return f"{self._open_http()}/s/{self.session}/v1"


class AgentSampler:
    """A `Sampler` that calls an agent for every answer."""

    def __init__(self, engine: Engine, renderer: Renderer, play: AgentPlay) -> None:
        from outdo.models.tool_formats import FORMATS

        self.engine, self.play = engine, play
        self.tool_format = FORMATS.get(play.tool_format)  # None: the chat template's, found with the first call
        recorder = Recorder(play.max_calls)
        self.backend, self.idle = QueueBackend(), Idle()
        self.api = Api(renderer, self.backend, "policy", tool_format=self.tool_format, recorder=recorder)
        self.api.longer = ", or raise the recipe's max_prompt_length"
        self._origin, self._opening = "", threading.Lock()

    def open_http(self) -> str:
        """Where sessions are served over HTTP, until the process ends."""
        from outdo.serve.server import EXTRA, serve_in_thread
        from outdo.web.sockets import bind, require

        with self._opening:
            if not self._origin:
                require(*EXTRA)
                self._origin = serve_in_thread(self.api, bind())
            return self._origin

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """Groups of `n` answers, each once its last answer is done, in any order."""
        api, recorder, room = self.api, self.api.recorder, params.max_completion_length
        assert recorder
        recorder.max_tokens = api.max_answer = room
        api.context = min(api.renderer.context, self.play.max_prompt_length + room)
        self.backend.queue = queue = TurnQueue(params, api.context, len(prompts) * n, self.idle)
        table = _Table(self, prompts, n, seed, queue)
        yield from serve_groups(self.engine, queue, in_loop(table.play()), table.done, table.close)

    def update(self, source: WeightSource, version: int) -> None:
        self.engine.update(source, version)


@dataclass(frozen=True)
class Outcome:
    """What an agent returned."""

    text: str | None = None  # of the answer, for rewards; None: the model's last message
    reward: float | None = None


@dataclass(eq=False)
class _Answer:
    """One answer on its way."""

    prompt: Prompt
    session: Session
    outcome: Outcome = Outcome()
    broken: str = ""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


class _Table:
    """The answers of one call."""

    def __init__(self, sampler: AgentSampler, prompts: Sequence[Prompt], n: int, seed: int, queue: TurnQueue) -> None:
        self.api, self.agent, self.open_http, self.queue = sampler.api, sampler.play.agent, sampler.open_http, queue
        self.version = getattr(sampler.engine, "version", 0)
        recorder = self.api.recorder
        assert recorder
        seeds = [[seed_of(seed, prompt.id, i) for i in range(n)] for prompt in prompts]
        self.groups = [
            [_Answer(prompt, recorder.open(seed=one)) for one in row]
            for prompt, row in zip(prompts, seeds, strict=True)
        ]
        self.done: deque[Group] = deque()
        self.task: asyncio.Task[None] | None = None
        self.door, self.num_started = asyncio.Lock(), 0

    async def play(self) -> None:
        self.task = asyncio.current_task()
        try:
            await run_all(map(self._play_group, self.groups))
        finally:
            self.queue.close()

    async def close(self) -> None:
        """Ends the agents that still run, and their sessions."""
        if self.task and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
        for answer in (one for group in self.groups for one in group if not one.session.closed):
            self.api.close_session(answer.session.key)

    async def _play_group(self, group: Sequence[_Answer]) -> None:
        await asyncio.gather(*map(self._play, group))
        calls = [self.api.close_session(answer.session.key) for answer in group]
        self.done.append(_group(group, calls, self.version))

    async def _enter(self) -> None:
        """Agents start a few at a time: thousands at once that take a while to make a client would seem idle."""
        async with self.door:
            self.num_started += 1
            if self.num_started % STARTS == 0:
                await threads.run(asyncio.sleep, 0, seconds=None)

    async def _play(self, answer: _Answer) -> None:
        await self._enter()
        answer.started = answer.session.since = time.monotonic()
        client = AgentClient(self.api, answer.session, self.open_http)
        running = asyncio.ensure_future(threads.run(self.agent, client, answer.prompt, seconds=None))
        try:
            await _until_done(running, answer.session, getattr(self.agent, "idle_seconds", IDLE_SECONDS))
            answer.outcome = outcome_of(running.result())
        except Exception as error:
            if not answer.session.exhausted:  # else it was cut off, and may not have known what to do then
                answer.broken = f"the agent failed: {describe(error)}"
        finally:
            running.cancel()
            answer.seconds = time.monotonic() - answer.started


async def _until_done(running: asyncio.Future[Any], session: Session, seconds: float) -> None:
    """Raises TimeoutError where the agent neither returns nor calls the model."""
    while not running.done():
        await asyncio.wait([running], timeout=max(seconds - session.idle_seconds, 0.1))
        if not running.done() and session.idle_seconds >= seconds:
            raise TimeoutError(f"it has neither called the model nor returned for {seconds:g} s")


def outcome_of(returned: Any) -> Outcome:
    """Raises TypeError for what an agent may not return."""
    message = plain(returned)
    if message is None or isinstance(message, str):
        return Outcome(message)
    if isinstance(message, (int, float)):
        message = {"reward": message}
    if not isinstance(message, Mapping) or not {"content", "reward"} & message.keys():
        raise TypeError(
            f"it returned a {type(returned).__name__}: return None, the answer's text, its reward, or both as "
            '{"content": text, "reward": number}'
        )
    text, reward = message.get("content"), message.get("reward")
    if not isinstance(text, (str, type(None))):
        raise TypeError(f"it returned a {type(text).__name__} for its content: return text")
    if reward is not None and not (isinstance(reward, (int, float)) and math.isfinite(reward)):
        raise TypeError(f"it returned {reward!r:.40} for its reward: return a finite number")
    return Outcome(text, None if reward is None else float(reward))


def _group(answers: Sequence[_Answer], calls: Sequence[Sequence[Call]], version: int) -> Group:
    """The group of a prompt's answers. Those whose first call has another prompt than the first answer's have a prompt
    of their own."""
    prompt_ids = next((each[0].prompt_ids for each in calls if each), ())
    trajectories = []
    for answer, each in zip(answers, calls, strict=True):
        if not each and not answer.broken:
            answer.broken = "the agent made no call of the model"
        start, trajectory = session_trajectory(each) if each else (prompt_ids, _nothing(version))
        if start != prompt_ids:
            first = replace(trajectory.segments[0], prompt_ids=start)
            trajectory = replace(trajectory, segments=(first, *trajectory.segments[1:]))
        trajectories.append(_finished(answer, each, trajectory))
    return Group(answers[0].prompt, prompt_ids, tuple(trajectories))


def _nothing(version: int) -> Trajectory:
    return Trajectory((Segment((), (), version),), "", "stop")


def _finished(answer: _Answer, calls: Sequence[Call], trajectory: Trajectory) -> Trajectory:
    messages, origins = _conversation(answer.prompt, calls)
    episode = Episode(
        messages=tuple(messages),
        num_turns=len(calls),
        num_calls=sum(len(message.get("tool_calls", ())) for message in messages if message["role"] == "assistant"),
        num_failed_calls=None,
        num_tools=max((len(call.tools) for call in calls), default=0),
        out_of_turns=answer.session.out_of_calls,
        wait_seconds=max(answer.seconds - answer.session.waited, 0.0),
        reward=answer.outcome.reward,
        broken=answer.broken,
        origins=tuple(origins),
    )
    text = trajectory.text if answer.outcome.text is None else answer.outcome.text
    finish: Finish = "length" if answer.session.exhausted else "stop"
    return replace(trajectory, text=text, finish=finish, tool_calls=None, episode=episode)


def _conversation(prompt: Prompt, calls: Sequence[Call]) -> tuple[list[Message], list[Origin]]:
    """What was said after the prompt: of each call what it adds to an earlier one, and the model's answer. And which
    of the trajectory's segments each message is: what was added has its tokens with the first message."""
    histories: list[tuple[Message, ...]] = [tuple(map(dict, prompt.messages))]
    conversation: list[Message] = []
    origins: list[Origin] = []
    for call, segments in zip(calls, segments_of(calls), strict=True):
        before = call.messages or ({"role": "user", "content": call.prompt_text or ""},)
        shared = max((len(history) for history in histories if before[: len(history)] == history), default=0)
        reply = call.reply or {"role": "assistant", "content": call.text}
        histories.append((*before, reply))
        conversation += [_with_plain_calls(message) for message in (*before[shared:], reply)]
        if added := len(before) - shared:
            origins += [Origin(segments[:-1]), *[Origin()] * (added - 1), Origin(segments[-1:])]
        else:
            origins.append(Origin(segments))
    return conversation, origins


def _with_plain_calls(message: Message) -> Message:
    """With calls as {"name": …, "arguments": …}, as episodes have them."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [call["function"] for call in message["tool_calls"]]}
