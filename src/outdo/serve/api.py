"""What the endpoints do, without HTTP: the server and the client in this process both call it."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from outdo.errors import EngineError, ModelError, OutdoError, RunError, TaskError
from outdo.models.bridge import Bridge
from outdo.models.message_form import shows_tools
from outdo.models.renderer import Renderer
from outdo.models.tool_formats import ToolFormat
from outdo.rollout import OnTokens
from outdo.rollout.turns import Turn
from outdo.seeds import seed_of
from outdo.serve.backend import STOPPED, Backend
from outdo.serve.calls import CallReader
from outdo.serve.continuing import Rendered, render_chat, render_ids, render_text
from outdo.serve.engine_host import Busy
from outdo.serve.errors import ApiError
from outdo.serve.following import Piece, follow_all, gather_turns
from outdo.serve.messages import read_messages
from outdo.serve.recording import Call, Recorder, Session
from outdo.serve.replies import Answer, Reply
from outdo.serve.requests import ChatRequest, Sampling, read_chat, read_completion
from outdo.serve.texts import AnswerText
from outdo.types import SampleParams

MAX_BRIDGES = 64  # sets of tools that are remembered
TOO_LONG = "context_length_exceeded"  # the code where a prompt leaves no room for an answer
MAX_ANSWER = 2048  # tokens of an answer to a request that names no limit
Chunks = AsyncIterator[dict[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class _Choice:
    """One answer that is wanted."""

    index: int
    prompt: Rendered
    params: SampleParams
    seed: int
    place: int  # in the session


@dataclass(frozen=True)
class _Job:
    """One request: its choices, and how they are answered."""

    choices: Sequence[_Choice]
    reply: Reply
    session: Session | None
    chat: ChatRequest | None = None
    calls: CallReader | None = None  # where tools are shown
    started: float = 0.0


class Api:
    """One model's endpoints. `context` is the most tokens of a prompt and its answer, `max_answer` those of an answer
    where the request names no limit. With a `recorder`, calls may name a session. `notify` gets a line a request."""

    def __init__(
        self,
        renderer: Renderer,
        backend: Backend,
        model: str,
        *,
        context: int | None = None,
        max_answer: int = MAX_ANSWER,
        tool_format: ToolFormat | None = None,
        recorder: Recorder | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.renderer, self.backend, self.model, self.recorder = renderer, backend, model, recorder
        self.context, self.max_answer = min(context or renderer.context, renderer.context), max_answer
        self.longer = ""  # how more context is had
        self.notify, self.created = notify, int(time.time())
        self.tool_format, self._bridges = tool_format, dict[str, Bridge]()
        self.vocab = len(renderer.tokenizer)
        self._closed = False
        self._encoder = ThreadPoolExecutor(1, "encoder")  # one: what is large is encoded one after the other

    def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self.describe(self.model)]}

    def describe(self, model: str) -> dict[str, Any]:
        self._check_model(model)
        about = {"id": self.model, "object": "model", "created": self.created, "owned_by": "outdo"}
        return {**about, "max_model_len": self.context}

    async def chat(self, body: Any, session: str | None = None) -> dict[str, Any] | Chunks:
        """The reply, or its chunks where `stream` is asked for. Raises ApiError."""
        started, found = time.monotonic(), self._session(session)
        with _refusals(), _answering(found):
            request = read_chat(body)
            self._check_model(request.model)
            bridge = await self.in_thread(self._bridge, request.tools)
            earlier = found.calls if found else ()
            prompt = await self.in_thread(render_chat, bridge, request.messages, request.tools, earlier)
            job = self._job([prompt], request.sampling, found, started)
            calls = CallReader.of(bridge) if request.tools else None
            return await self._answer(replace(job, chat=request, calls=calls, reply=replace(job.reply, chat=True)))

    async def complete(self, body: Any, session: str | None = None) -> dict[str, Any] | Chunks:
        """As `chat`, of /v1/completions."""
        started, found = time.monotonic(), self._session(session)
        with _refusals(), _answering(found):
            request = read_completion(body)
            self._check_model(request.model)
            prompts = await self.in_thread(self._render_all, request.prompts, found.calls if found else ())
            job = self._job(prompts, request.sampling, found, started)
            return await self._answer(job)

    def close_session(self, key: str) -> list[Call]:
        """What it sampled. The engine forgets what it has kept of it."""
        assert self.recorder, "it keeps no sessions"
        calls = self.recorder.close(key)
        for call in calls:
            self.backend.drop(call.turn)
        return calls

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """What may take a while, beside the event loop."""
        if self._closed:
            raise ApiError(STOPPED, status=503)
        return await asyncio.get_running_loop().run_in_executor(self._encoder, partial(function, *args))

    def close(self) -> None:
        """Does not wait: requests that are being answered end with an error."""
        self._closed = True
        self.backend.close()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    def _bridge(self, tools: Sequence[Mapping[str, Any]]) -> Bridge:
        """Of these tools. Raises ApiError where the model cannot be shown any, ModelError where its calls have an
        unknown form."""
        key = json.dumps(tools)
        if key not in self._bridges:
            if tools and not shows_tools(self.renderer.tokenizer):
                raise ApiError(
                    "tools: this model's chat template has no place for them: leave them out, or describe them in the "
                    "prompt",
                    param="tools",
                )
            while len(self._bridges) >= MAX_BRIDGES:
                del self._bridges[next(iter(self._bridges))]
            self._bridges[key] = Bridge(self.renderer, tools, self.tool_format)
        return self._bridges[key]

    def _render_all(self, prompts: Sequence[str | tuple[int, ...]], earlier: Sequence[Call]) -> list[Rendered]:
        return [self._render(prompt, earlier) for prompt in prompts]

    def _render(self, prompt: str | tuple[int, ...], earlier: Sequence[Call]) -> Rendered:
        if isinstance(prompt, str):
            return render_text(self.renderer, prompt, earlier)
        if not all(0 <= token < self.vocab for token in prompt):
            raise ApiError(f"prompt: token ids are from 0 to {self.vocab - 1:,}", param="prompt")
        return render_ids(prompt, earlier)

    def _check_model(self, model: str | None) -> None:
        if model not in (None, self.model):
            raise ApiError(
                f"model {model!r:.100} is not served here: the model is {self.model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _session(self, key: str | None) -> Session | None:
        if key is None:
            return None
        if self.recorder is None:
            raise ApiError("this server keeps no sessions: leave the session's key out", code="no_sessions")
        return self.recorder.find(key)

    def _job(
        self,
        prompts: Sequence[Rendered],
        sampling: Sampling,
        session: Session | None,
        started: float,
    ) -> _Job:
        try:
            limits = [self._limit(len(prompt.ids), sampling) for prompt in prompts]
        except ApiError as error:
            if session and error.code == TOO_LONG and error.param == "messages":
                session.exhausted = True
            raise
        if session:
            limits = [session.room(prompt.ids, limit) for prompt, limit in zip(prompts, limits, strict=True)]
        place = session.begin(len(prompts) * sampling.n) if session else 0
        seed = session.seed_at(place, sampling.seed) if session else sampling.seed
        seed = secrets.randbits(62) if seed is None else seed
        choices = []
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            params = replace(sampling.params, max_completion_length=limit)
            for i in range(sampling.n):
                index = number * sampling.n + i
                choices.append(_Choice(index, prompt, params, seed_of(seed, number, i), place + index))
        read = sum(len(prompt.ids) for prompt in prompts)
        reply = Reply(False, self.model, sampling, self.renderer, read)
        return _Job(choices, reply, session, started=started)

    def _limit(self, length: int, sampling: Sampling) -> int:
        """Tokens of the answer to a prompt of that length. Raises ApiError where they do not fit."""
        room, wanted = self.context - length, sampling.max_tokens
        if not length:
            raise ApiError("the prompt is empty: nothing to answer", param="prompt")
        if room >= (wanted or 1):
            return wanted or min(room, self.max_answer)
        needs = f", and max_tokens asks for {wanted:,}" if wanted else ""
        raise ApiError(
            f"the prompt has {length:,} tokens{needs}: at most {self.context:,} fit in the context; shorten the prompt"
            + (", or lower max_tokens" if wanted and room > 0 else self.longer),
            param="max_tokens" if wanted and room > 0 else "messages",
            code=TOO_LONG,
        )

    async def _answer(self, job: _Job) -> dict[str, Any] | Chunks:
        if job.reply.sampling.stream:
            return self._stream(job)
        turns = await gather_turns([self._generate(job, choice) for choice in job.choices])
        pairs = zip(job.choices, turns, strict=True)
        answers = [self._finished(job, choice, self._text(job, choice), turn) for choice, turn in pairs]
        self._report(job, answers)
        return job.reply.whole(answers)

    async def _stream(self, job: _Job) -> Chunks:
        reply, texts = job.reply, [self._text(job, choice) for choice in job.choices]
        asks = [partial(self._generate, job, choice) for choice in job.choices]
        answers: list[Answer] = []
        if reply.chat:
            for choice in job.choices:
                yield reply.first(choice.index)
        with _refusals():
            async for index, piece, turn in _awaited(follow_all(asks, texts), job.session):
                if turn is None:
                    yield reply.piece(index, piece)
                    continue
                answer = self._finished(job, job.choices[index], texts[index], turn)
                if rest := texts[index].rest(answer.text):
                    yield reply.piece(index, rest)
                for chunk in reply.last(answer):
                    yield chunk
                answers.append(answer)
        if reply.sampling.with_usage:
            yield reply.end(answers)
        self._report(job, answers)

    def _generate(self, job: _Job, choice: _Choice, watch: OnTokens | None = None) -> Any:
        prompt, keep = choice.prompt, job.session is not None
        return self.backend.generate(
            prompt.ids, choice.seed, choice.params, follows=prompt.follows, keep=keep, watch=watch
        )

    def _text(self, job: _Job, choice: _Choice) -> AnswerText:
        stop, limit = choice.params.stop, choice.params.max_completion_length
        if job.calls is None:
            return AnswerText(self.renderer, stop, limit=limit)
        return AnswerText(self.renderer, stop, job.calls.marks, limit, job.calls.specials)

    def _finished(self, job: _Job, choice: _Choice, text: AnswerText, turn: Turn) -> Answer:
        content, calls = text.whole(turn.segment.token_ids), list[dict[str, Any]]()
        if job.chat and job.calls:
            ids = partial(seed_of, choice.seed, len(choice.prompt.ids))
            content, calls = job.calls.read(content, ids, most=1 if job.chat.one_call else None)
        answer = Answer(choice.index, choice.prompt.ids, turn, content, calls)
        if job.session:
            self._record(job, job.session, choice, answer)
        return answer

    def _record(self, job: _Job, session: Session, choice: _Choice, answer: Answer) -> None:
        prompt, turn = choice.prompt, answer.turn
        call = Call(prompt.ids, turn.segment, turn.finish, answer.text, prompt.text, turn=turn.id)
        if job.chat:
            (reply,) = read_messages([answer.message])
            call = replace(call, messages=job.chat.messages, tools=job.chat.tools, reply=reply)
        session.slots[choice.place] = call
        wanted = job.reply.sampling.max_tokens
        if turn.finish == "length" and (wanted is None or wanted > choice.params.max_completion_length):
            session.exhausted = True
        if session.closed:
            self.backend.drop(turn.id)

    def _report(self, job: _Job, answers: Sequence[Answer]) -> None:
        if self.notify:
            usage, kind = job.reply.usage(answers), "chat" if job.chat else "completion"
            ends = ", ".join(sorted({answer.finish_reason for answer in answers}))
            seconds = time.monotonic() - job.started
            tokens = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens"
            self.notify(f"{kind}: {tokens}, {ends}, {seconds:.2f} s")


async def _awaited(pieces: AsyncIterator[Piece], session: Session | None) -> AsyncIterator[Piece]:
    """The same pieces. Between two of them the agent works."""
    while True:
        with _answering(session):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece


def _answering(session: Session | None) -> AbstractContextManager[None]:
    return session.answering() if session else nullcontext()


@contextmanager
def _refusals() -> Iterator[None]:
    """What cannot be answered, as an ApiError."""
    try:
        yield
    except ApiError:
        raise
    except Busy as error:
        raise ApiError(str(error), status=503) from error
    except (EngineError, RunError) as error:
        raise ApiError(str(error), status=500) from error
    except (TaskError, ModelError) as error:
        raise ApiError(str(error)) from error
    except OutdoError as error:
        raise ApiError(str(error), status=500) from error
