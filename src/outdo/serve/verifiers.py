"""Plays tasks of the library verifiers: an answer is one episode of the environment, its reward that of the trace.

The environment runs in this process as it does under verifiers: its harness calls the interception server, which
records the trace and passes the call on, here to the answer's own client. What was sampled is recorded there, token by
token, as it is for any agent.
"""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydantic import PrivateAttr
from verifiers import v1
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.interception import Interception
from verifiers.v1.utils.loaders import default_harness_id

from outdo.serve import chat_harness
from outdo.serve.api import TOO_LONG
from outdo.serve.errors import ApiError
from outdo.tasks.verifiers import COLUMN, config_of, trained_agents
from outdo.types import Prompt

LIMITS = ("session_limit", TOO_LONG)  # codes of errors that end an answer which is then scored
NO_HARNESS = "bash"  # verifiers' default where a taskset brings none
MAX_STARTED = 32  # episodes of an environment at once, each of which starts processes
MAX_EPISODES = 4096  # of other environments
END_SECONDS = 5.0  # for servers to end with the process


class EpisodeError(Exception):
    """An episode that says nothing about its answer."""


async def play(client: Any, prompt: Prompt) -> dict[str, float] | None:
    """The reward of one episode. Raises EpisodeError with what verifiers says of one that failed."""
    if (column := prompt.meta.get(COLUMN)) is None:
        raise EpisodeError("the prompt is no task of verifiers: set dataset_name=verifiers:NAME, and no agent")
    env, gate = await _served(column["name"], column["args"])
    task_type = type(env.taskset).task_type()
    task = task_type(task_type.data_type().model_validate(column["data"]), env.config.taskset.task)
    first = prompt.messages[0]
    if task.data.system_prompt is None and first["role"] == "system" and not isinstance(task.data.prompt, list):
        task = task.with_system_prompt(first["content"])  # the recipe's
    context = v1.ModelContext(model=client.model, client=AnswerConfig.of(client))
    async with gate:
        episode = await env.run_episode(task, context)
    return _outcome(episode, *trained_agents(env.config))


def _outcome(episode: Any, agent: str) -> dict[str, float] | None:
    errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
    if errors or not episode.ok:
        said = f"{errors[-1].type}: {errors[-1].message}" if errors else "it did not complete"
        raise EpisodeError(said)
    traces = [trace for trace in episode.traces if trace.agent.name == agent]
    if len(traces) != 1:
        raise EpisodeError(f"the environment ran the agent {agent} {len(traces)} times: an answer is one run")
    (trace,) = traces
    if missing := [name for name, reward in trace.rewards.items() if reward is None]:
        raise EpisodeError(f"it was stopped ({trace.stop_condition}) before {missing[0]} had scored it")
    return {"reward": trace.reward} if trace.rewards else None


class AnswerConfig(v1.TrainClientConfig):  # type: ignore[misc]
    """Says which client an episode's calls go to. A client for training gives whole answers: what a program asks to be
    streamed, verifiers streams."""

    _client: Any = PrivateAttr(None)

    @classmethod
    def of(cls, client: Any) -> AnswerConfig:
        config = cls(base_url="http://localhost", api_key_var="NONE")  # neither is used
        config._client = client
        return config


class AnswerClient(v1.Client):  # type: ignore[misc]
    """Passes calls on to an answer's client in this process."""

    def __init__(self, client: Any, trace: Any) -> None:
        self.client, self.trace = client, trace

    async def get_response(self, dialect: Any, body: Mapping[str, Any], sampling: Any, *args: Any, **named: Any) -> Any:
        if not isinstance(dialect, ChatDialect):
            reason = "only OpenAI's chat completions are answered: choose another harness"
            raise v1.ProviderError(reason, status_code=400)
        fields = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        try:
            raw = (await self.client.chat.completions.create(**fields)).model_dump()
        except ApiError as error:
            if error.code in LIMITS:
                self.trace.stop(error.code)  # scored with what there is
            raise v1.ProviderError(str(error), status_code=error.status) from error
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


class AnswerInterception(Interception):  # type: ignore[misc]
    """An environment's own interception servers, with the clients of answers in place of those over HTTP."""

    def __init__(self, servers: Any) -> None:
        super().__init__()
        self.servers = servers

    async def start(self) -> None: ...

    @asynccontextmanager
    async def acquire(self, session: Any) -> AsyncIterator[Any]:
        async with self.servers.acquire(session) as slot:
            if isinstance(session.ctx.client, AnswerConfig):
                session.client = AnswerClient(session.ctx.client._client, session.trace)
            yield slot


Loop = asyncio.AbstractEventLoop
_SERVED: dict[tuple[Loop, str, str], asyncio.Task[Any]] = {}  # environments by event loop and configuration
_KEEPERS: dict[asyncio.Task[None], Loop] = {}  # they hold the servers of environments


async def _served(name: str, args: Mapping[str, Any]) -> tuple[Any, asyncio.Semaphore]:
    """The environment with its servers running, until the process ends; and what bounds its episodes."""
    key = (asyncio.get_running_loop(), name, json.dumps(args, sort_keys=True))
    if key not in _SERVED or (_SERVED[key].done() and _SERVED[key].exception()):
        _SERVED[key] = asyncio.create_task(_serve(name, args))
    return await asyncio.shield(_SERVED[key])


async def _serve(name: str, args: Mapping[str, Any]) -> tuple[Any, asyncio.Semaphore]:
    env, ready = v1.load_environment(with_defaults(config_of(name, args))), asyncio.Event()
    keeper = asyncio.create_task(_keep(env, ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([waiting, keeper], return_when=asyncio.FIRST_COMPLETED)
    if keeper.done():
        waiting.cancel()
        keeper.result()  # raises what went wrong
    _KEEPERS[keeper] = asyncio.get_running_loop()
    return env, asyncio.Semaphore(MAX_STARTED if _starts_processes(env) else MAX_EPISODES)


def _starts_processes(env: Any) -> bool:
    """Whether an episode starts any: a program, tools of its own, or a container."""
    agent = getattr(env.config, *trained_agents(env.config))
    own_tools = type(env.taskset).task_type().toolsets(env.config.taskset.task)
    return bool(own_tools) or not isinstance(agent.harness, chat_harness.ChatConfig)


async def _keep(env: Any, ready: asyncio.Event) -> None:
    async with env.serving():
        env._interception = AnswerInterception(env._interception)  # verifiers has no other place for it
        ready.set()
        await asyncio.Event().wait()


@atexit.register
def _end() -> None:
    for loop in {*_KEEPERS.values()}:
        with suppress(Exception):  # a loop that is blocked
            asyncio.run_coroutine_threadsafe(_close(loop), loop).result(END_SECONDS)


async def _close(loop: Loop) -> None:
    keepers = [keeper for keeper, own in _KEEPERS.items() if own is loop]
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
    await chat_harness.close(loop)


def with_defaults(config: Any) -> Any:
    """With the chat loop in this process for each agent for which neither the configuration nor the taskset names a
    harness; named ones run where verifiers runs them. An answer is one attempt: what another one had sampled would be
    trained on too."""
    chat_harness.register()
    updates: dict[str, Any] = {}
    for name, agent in agent_config_fields(config).items():
        given: dict[str, Any] = {"retries": v1.RetryConfig()}
        is_here = "runtime" not in agent.model_fields_set or isinstance(agent.runtime, v1.SubprocessConfig)
        if is_here and agent.harness is None and default_harness_id(config.taskset.id) == NO_HARNESS:
            given |= {"harness": chat_harness.ChatConfig(), "runtime": v1.SubprocessConfig()}
        updates[name] = agent.model_copy(update=given)
    return config.model_copy(update=updates)
