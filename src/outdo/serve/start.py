"""A model loaded for serving: its engine on a thread of its own, and the endpoints in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from outdo.learn.memory import cache_budget
from outdo.models.load import Policy, load_policy, pick_device
from outdo.models.tool_formats import ToolFormat
from outdo.rollout import ENGINES, SLOW
from outdo.serve.api import MAX_ANSWER, Api
from outdo.serve.client import Client
from outdo.serve.engine_host import EngineHost
from outdo.serve.recording import Recorder

ROWS_GPU, ROWS_CPU = 256, 8  # answers side by side, unless told


def name_of(model: str) -> str:
    """What the endpoints call it: the name on the hub, or of its folder."""
    return Path(model).resolve().name if Path(model).exists() else model


@contextmanager
def open_api(
    policy: Policy,
    name: str,
    *,
    rows: int | None = None,
    context: int | None = None,
    max_answer: int = MAX_ANSWER,
    tool_format: ToolFormat | None = None,
    recorder: Recorder | None = None,
    notify: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Api]:
    """The endpoints of a policy for the duration of the block. `notify` gets a line a request, `warn` what is odd."""
    kind = "hf" if policy.plain else "local"
    if policy.plain and warn:
        warn(SLOW.format(type(policy.model).__name__))
    memory = None if policy.plain else cache_budget(policy, None, learns=False)
    rows = rows or (ROWS_GPU if policy.device.type == "cuda" else ROWS_CPU)
    longest = min(context or policy.context, policy.context)
    here = partial(pick_device, str(policy.device))  # of several GPUs, each thread chooses its own
    host = EngineHost(ENGINES[kind](policy, rows, memory, None), longest, prepare=here).start()
    api = Api(
        policy.renderer,
        host,
        name,
        context=longest,
        max_answer=max_answer,
        tool_format=tool_format,
        recorder=recorder,
        notify=notify,
    )
    try:
        yield api
    finally:
        api.close()
        host.join()


@asynccontextmanager
async def load_client(
    model: str, *, dtype: str = "float32", device: str = "auto", rows: int | None = None, context: int | None = None
) -> AsyncIterator[Client]:
    """A client of a model in this process, without a server."""
    policy = load_policy(model, dtype=dtype, device=device)
    with open_api(policy, name_of(model), rows=rows, context=context) as api:
        yield Client(api)
