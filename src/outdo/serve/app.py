"""The endpoints over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from outdo.serve.api import Api, Chunks
from outdo.serve.errors import ApiError, error_json
from outdo.untrusted.parse import parse_json
from outdo.web.guard import Guard, Refusals
from outdo.web.sockets import Bound, own_names

MAX_BODY = 16 << 20  # bytes
MAX_DISCARDED = 256 << 20  # bytes of a larger one that are read, so that the client gets the answer
SESSION = "x-outdo-session"
REFUSALS = Refusals(
    foreign_host="use the address that outdo serve printed: this host name is not this machine's",
    no_token="this server requires its token as the API key: Authorization: Bearer TOKEN",
    too_many="too many wrong tokens came from your address: wait a little, then use the token of outdo serve",
    body=error_json,
)
Endpoint = Callable[[Any, str | None], Awaitable[dict[str, Any] | Chunks]]


def guarded(app: FastAPI, bound: Bound) -> Guard:
    return Guard(app, bound.token, own_names(bound.ip) if bound.is_local else None, REFUSALS)


def make_app(api: Api) -> FastAPI:
    app = FastAPI(title="outdo serve", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(ApiError)
    def refused(request: Request, error: ApiError) -> Response:
        if api.notify:
            api.notify(f"{error.status}: {error}")
        headers = {"retry-after": "1"} if error.status == 503 else None
        return JSONResponse(error.body, error.status, headers)

    @app.exception_handler(HTTPException)
    def unknown(request: Request, error: HTTPException) -> Response:
        hint = {404: "no such address: the API is under /v1", 405: "this address takes another method"}
        reason = hint.get(error.status_code, str(error.detail))
        return Response(error_json(error.status_code, reason), error.status_code, media_type="application/json")

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> Response:
        body = error_json(500, f"this was not expected: {type(error).__name__}: {error}")
        return Response(body, 500, media_type="application/json")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    for prefix in ("/v1", "/s/{session}/v1"):
        _add_endpoints(app, api, prefix)
    return app


def _add_endpoints(app: FastAPI, api: Api, prefix: str) -> None:
    """Also under the address of a session."""

    @app.get(f"{prefix}/models")
    def models() -> dict[str, Any]:
        return api.models()

    @app.get(prefix + "/models/{model:path}")
    def model(model: str) -> dict[str, Any]:
        return api.describe(model)

    @app.post(f"{prefix}/chat/completions")
    async def chat(request: Request) -> Response:
        return await _respond(api, request, api.chat)

    @app.post(f"{prefix}/completions")
    async def completions(request: Request) -> Response:
        return await _respond(api, request, api.complete)


async def _respond(api: Api, request: Request, endpoint: Endpoint) -> Response:
    key = request.path_params.get("session") or request.headers.get(SESSION)
    try:
        body = await api.in_thread(_parse, await _read(request))
        answered = await _unless_gone(request, endpoint(body, key))
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    if isinstance(answered, dict):
        return JSONResponse(answered)
    return StreamingResponse(_events(api, answered), media_type="text/event-stream")


async def _read(request: Request) -> bytes:
    """The body. Raises ApiError where it is too large or no JSON is announced: browsers send that to other sites only
    after they asked them."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError("send JSON, with the header Content-Type: application/json", status=415)
    length, waits = request.headers.get("content-length", ""), "expect" in request.headers
    size = int(length) if length.isascii() and length.isdecimal() else 0
    pieces, total = [], 0
    if size <= MAX_BODY or (size <= MAX_DISCARDED and not waits):
        async for piece in request.stream():
            total += len(piece)
            if total <= MAX_BODY:
                pieces.append(piece)
            elif total > MAX_DISCARDED:
                break
            else:
                pieces.clear()
    if max(total, size) > MAX_BODY:
        raise ApiError(f"the request is larger than {MAX_BODY >> 20} MB, the most that is read", status=413)
    return b"".join(pieces)


def _parse(data: bytes) -> Any:
    try:
        return parse_json(data.decode())
    except UnicodeDecodeError:
        raise ApiError("the request is not valid UTF-8") from None
    except ValueError as error:
        raise ApiError(f"the request is not valid JSON: {error}") from None


async def _unless_gone(request: Request, answering: Awaitable[dict[str, Any] | Chunks]) -> dict[str, Any] | Chunks:
    """Raises ClientDisconnect where the client leaves first; what waits for the engine is then dropped."""
    task = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(api: Api, chunks: Chunks) -> AsyncIterator[str]:
    """Server-sent events. An error in the middle is an event too, after which nothing comes."""
    started = time.monotonic()
    try:
        async for chunk in chunks:
            yield f"data: {json.dumps(chunk, allow_nan=False)}\n\n"
    except ApiError as error:
        if api.notify:
            api.notify(f"{error.status}: {error}, after {time.monotonic() - started:.2f} s")
        yield f"data: {json.dumps(error.body)}\n\n"
        return
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]
    yield "data: [DONE]\n\n"
