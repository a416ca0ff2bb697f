"""Requests a score or a label from a judge model, over any OpenAI-compatible chat endpoint.

The server is OPENAI_BASE_URL (default: OpenAI's), the key OPENAI_API_KEY; your own server may need none. Any failure or
unreadable reply raises JudgeFailure: the caller makes that answer broken, never 0.

Not covered: the judge reads the answer that it grades, so an answer can attack it by prompt injection.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from outdo.errors import GraderError
from outdo.rewards.rft.spec import is_finite
from outdo.rewards.rft.template import clipped

OPENAI_URL = "https://api.openai.com/v1"
MAX_REPLY_BYTES = 1_000_000
MAX_PAUSE_S = 30.0  # between two attempts, whatever the server requests
RETRY_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
ADDRESS = re.compile(r"https?://(?:[^\s/:@\[\]]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?(?:/[!-~]*)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
Messages = Sequence[Mapping[str, str]]


REFUSED_STATUSES = frozenset({400, 413, 422})  # of a request that the server cannot serve, such as one too long


class JudgeFailure(ValueError):
    """The judge gave no readable verdict."""


class Unreadable(JudgeFailure):
    """The judge replied, but gave no verdict, or refused the request. The answer in it may be the cause."""


@dataclass(frozen=True)
class Endpoint:
    """The server of the judge, with timeout and retries."""

    url: str = OPENAI_URL
    key: str = field(default="", repr=False)
    timeout_s: float = 120.0  # of one attempt
    attempts: int = 4
    pause_s: float = 1.0  # before the second attempt; doubles after each


def endpoint_from_env() -> Endpoint:
    """The endpoint of OPENAI_BASE_URL and OPENAI_API_KEY. Raises GraderError if they are invalid."""
    url = os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/") or OPENAI_URL
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not ADDRESS.fullmatch(url):
        raise GraderError(f"OPENAI_BASE_URL={url!r} is not an address such as http://localhost:8000/v1")
    if not (key.isascii() and key.isprintable()):
        raise GraderError("OPENAI_API_KEY contains characters that are not allowed in a key")
    if url == OPENAI_URL and not key:
        raise GraderError(
            "a grader needs a judge model, and OPENAI_API_KEY is not set: set it, or OPENAI_BASE_URL to your own server"
        )
    return Endpoint(url, key)


def request_score(
    model: str, messages: Messages, sampling: Mapping[str, Any], bounds: tuple[float, float], endpoint: Endpoint
) -> float:
    """The judge's number, within the bounds. Raises JudgeFailure."""
    reply, result = _request(model, messages, sampling, {"type": "number"}, endpoint)
    if isinstance(result, str) and _NUMBER.fullmatch(result):
        result = float(result)
    if not isinstance(result, (int, float)) or not is_finite(result):
        raise Unreadable(f"the judge's reply {clipped(reply)} is not a number")
    low, high = bounds
    if not low <= result <= high:
        raise Unreadable(f"the judge's score {result:g} is not between {low:g} and {high:g}")
    return float(result)


def request_label(model: str, messages: Messages, labels: Sequence[str], endpoint: Endpoint) -> str:
    """The judge's label, exactly one of these. Raises JudgeFailure."""
    reply, result = _request(model, messages, {}, {"type": "string", "enum": list(labels)}, endpoint)
    if not isinstance(result, str) or result not in labels:
        raise Unreadable(f"the judge's reply {clipped(reply)} is not one of the labels {', '.join(labels)}")
    return result


def _result(reply: str) -> object:
    """The `result` of a JSON object, or the bare text if the reply is not an object."""
    text = reply.strip()
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value.get("result") if isinstance(value, dict) else None


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _request(
    model: str, messages: Messages, sampling: Mapping[str, Any], result: Mapping[str, Any], endpoint: Endpoint
) -> tuple[str, object]:
    """The judge's reply and its result, in the format of OpenAI's graders: steps, then the result."""
    step = _object(description={"type": "string"}, conclusion={"type": "string"})
    schema = _object(steps={"type": "array", "items": step}, result=result)
    sendable = [message["content"].encode("utf-8", "replace").decode() for message in messages]  # no lone surrogates
    body = {
        "model": model,
        "messages": [{**message, "content": text} for message, text in zip(messages, sendable, strict=True)],
        "response_format": {"type": "json_schema", "json_schema": {"name": "grade", "strict": True, "schema": schema}},
        **sampling,
    }
    reply = content_of(_post(json.dumps(body).encode(), endpoint))
    return reply, _result(reply)


def content_of(raw: bytes) -> str:
    try:
        message = json.loads(raw)["choices"][0]["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        start = clipped(raw[:200].decode(errors="replace"))
        raise JudgeFailure(f"the judge's server sent an invalid chat completion: {start}") from None
    if not isinstance(content, str):
        refused = isinstance(refusal, str)
        raise Unreadable(f"the judge refused: {clipped(refusal)}" if refused else "the judge's reply is empty")
    return content


def _post(body: bytes, endpoint: Endpoint) -> bytes:
    """The reply's bytes. Retries if the server is busy, failing or unreachable, but not after a timeout."""
    for attempt in range(1, endpoint.attempts + 1):
        try:
            return post_once(body, endpoint)
        except urllib.error.HTTPError as error:
            failure = f"the judge's server answered {error.code} {error.reason}: {error_body(error)}"
            header = error.headers.get("Retry-After") or ""
            wait = float(header) if header.isascii() and header.isdigit() else 0.0  # it may be a date
            if error.code not in RETRY_STATUSES:
                raise (Unreadable if error.code in REFUSED_STATUSES else JudgeFailure)(failure) from None
        except TimeoutError:
            raise JudgeFailure(f"the judge's server gave no answer within {endpoint.timeout_s:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise JudgeFailure(
                    f"the judge's server at {endpoint.url} could not be reached in {endpoint.timeout_s:g} seconds"
                ) from None
            failure, wait = f"the judge's server at {endpoint.url} cannot be reached: {error}", 0.0
        if attempt < endpoint.attempts:
            time.sleep(min(MAX_PAUSE_S, max(wait, endpoint.pause_s * 2 ** (attempt - 1))))
    raise JudgeFailure(f"{failure} ({endpoint.attempts} attempts)")


def error_body(error: urllib.error.HTTPError) -> str:
    """The start of the server's explanation, or … if it cannot be read."""
    with suppress(OSError, http.client.HTTPException):
        return clipped(error.read(200).decode(errors="replace"))
    return "…"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would send the key to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def post_once(body: bytes, endpoint: Endpoint) -> bytes:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    request = urllib.request.Request(f"{endpoint.url}/chat/completions", data=body, headers=headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    deadline = time.monotonic() + endpoint.timeout_s
    data = bytearray()
    with opener.open(request, timeout=endpoint.timeout_s) as reply:
        while chunk := reply.read1(65_536):  # returns what has arrived, so that a slow reply cannot outlast the limit
            data += chunk
            if len(data) > MAX_REPLY_BYTES:
                raise Unreadable(f"the judge's reply is larger than {MAX_REPLY_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
    return bytes(data)
