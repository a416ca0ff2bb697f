"""Asking a model for a score or a label, over any OpenAI-compatible chat endpoint.

The server is OPENAI_BASE_URL (else OpenAI's own), the key OPENAI_API_KEY; a server of your own may need none. Whatever
goes wrong on the way, or cannot be read, raises JudgeFailure: the caller makes that answer broken, never 0. The judge
reads the answer that it judges, so a prompt can be attacked through it; nothing here can tell.
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

OFFICIAL = "https://api.openai.com/v1"
LARGEST = 1_000_000  # bytes of a reply
LONGEST_PAUSE = 30.0  # seconds between two tries, whatever the server asks for
RETRIED = frozenset({408, 429, 500, 502, 503, 504, 529})
_ADDRESS = re.compile(r"https?://(?:[^\s/:@\[\]]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?(?:/[!-~]*)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_STEPS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
        "required": ["description", "conclusion"],
        "additionalProperties": False,
    },
}


class JudgeFailure(ValueError):
    """The judge gave no verdict that can be read."""


@dataclass(frozen=True)
class Endpoint:
    """Where judges are asked, and with how much patience."""

    url: str = OFFICIAL
    key: str = field(default="", repr=False)
    seconds: float = 120.0  # for one try
    tries: int = 4
    pause: float = 1.0  # seconds before the second try; it doubles from there


def endpoint() -> Endpoint:
    """The one that the environment names. Raises GraderError where it can be no endpoint."""
    url = os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/") or OFFICIAL
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not _ADDRESS.fullmatch(url):
        raise GraderError(f"OPENAI_BASE_URL={url!r} is no address such as http://localhost:8000/v1")
    if not (key.isascii() and key.isprintable()):
        raise GraderError("OPENAI_API_KEY holds signs that no key has")
    if url == OFFICIAL and not key:
        raise GraderError(
            "a grader asks a model, and OPENAI_API_KEY is not set: set it, or OPENAI_BASE_URL to a server of your own"
        )
    return Endpoint(url, key)


def ask_score(
    model: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Mapping[str, Any],
    bounds: tuple[float, float],
    at: Endpoint,
) -> float:
    """The judge's number, within the bounds. Raises JudgeFailure."""
    reply = _ask(model, messages, sampling, {"type": "number"}, at)
    result = _result(reply)
    if isinstance(result, str) and _NUMBER.fullmatch(result):
        result = float(result)
    if not isinstance(result, (int, float)) or not is_finite(result):
        raise JudgeFailure(f"the judge's reply {clipped(reply)} is not a number")
    low, high = bounds
    if not low <= result <= high:
        raise JudgeFailure(f"the judge's score {result:g} is not within {low:g} and {high:g}")
    return float(result)


def ask_label(model: str, messages: Sequence[Mapping[str, str]], labels: Sequence[str], at: Endpoint) -> str:
    """The judge's label, exactly one of those. Raises JudgeFailure."""
    reply = _ask(model, messages, {}, {"type": "string", "enum": list(labels)}, at)
    result = _result(reply)
    if not isinstance(result, str) or result not in labels:
        raise JudgeFailure(f"the judge's reply {clipped(reply)} is none of the labels {', '.join(labels)}")
    return result


def _result(reply: str) -> object:
    """What `{"result": …}` holds, or the bare text where the reply is no JSON object."""
    text = reply.strip()
    if not text.startswith("{"):
        return text
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read.get("result") if isinstance(read, dict) else None


def _ask(
    model: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Mapping[str, Any],
    result: Mapping[str, Any],
    at: Endpoint,
) -> str:
    """The text of the judge's reply, asked for in the form that OpenAI's graders use: steps, then the result."""
    schema = {
        "type": "object",
        "properties": {"steps": _STEPS, "result": result},
        "required": ["steps", "result"],
        "additionalProperties": False,
    }
    body = {
        "model": model,
        "messages": [{**message, "content": _sendable(message["content"])} for message in messages],
        "response_format": {"type": "json_schema", "json_schema": {"name": "grade", "strict": True, "schema": schema}},
        **sampling,
    }
    return _content(_posted(json.dumps(body).encode(), at))


def _sendable(text: str) -> str:
    """The text with `?` for lone surrogates, which no server takes."""
    return text.encode("utf-8", "replace").decode()


def _content(raw: bytes) -> str:
    try:
        message = json.loads(raw)["choices"][0]["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise JudgeFailure(
            f"the judge's server sent no chat completion: {clipped(raw[:200].decode(errors='replace'))}"
        ) from None
    if not isinstance(content, str):
        raise JudgeFailure(
            f"the judge refused: {clipped(refusal)}" if isinstance(refusal, str) else "the judge said nothing"
        )
    return content


def _posted(body: bytes, at: Endpoint) -> bytes:
    """The reply's bytes. A busy or failing server is asked again, at.tries times in all; a silent one is not."""
    for attempt in range(1, at.tries + 1):
        try:
            return _once(body, at)
        except urllib.error.HTTPError as error:
            failure = f"the judge's server answered {error.code} {error.reason}: {_said(error)}"
            wait = _asked_pause(error.headers.get("Retry-After"))
            if error.code not in RETRIED:
                raise JudgeFailure(failure) from None
        except TimeoutError:
            raise JudgeFailure(f"the judge's server gave no answer within {at.seconds:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise JudgeFailure(
                    f"the judge's server at {at.url} could not be reached in {at.seconds:g} seconds"
                ) from None
            failure, wait = f"the judge's server at {at.url} cannot be reached: {error}", 0.0
        if attempt < at.tries:
            time.sleep(min(LONGEST_PAUSE, max(wait, at.pause * 2 ** (attempt - 1))))
    raise JudgeFailure(f"{failure} ({at.tries} tries)")


def _said(error: urllib.error.HTTPError) -> str:
    """How the server explains itself, shortly; nothing where even that hangs."""
    with suppress(OSError, http.client.HTTPException):
        return clipped(error.read(200).decode(errors="replace"))
    return "…"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows none: a redirect would carry the key to wherever it points."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _once(body: bytes, at: Endpoint) -> bytes:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if at.key:
        headers["Authorization"] = f"Bearer {at.key}"
    request = urllib.request.Request(f"{at.url}/chat/completions", data=body, headers=headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    until = time.monotonic() + at.seconds
    read = bytearray()
    with opener.open(request, timeout=at.seconds) as reply:
        while chunk := reply.read1(65_536):  # what has come, so that a trickle cannot outlast the limit
            read += chunk
            if len(read) > LARGEST:
                raise JudgeFailure(f"the judge's reply is larger than {LARGEST} bytes")
            if time.monotonic() > until:
                raise TimeoutError
    return bytes(read)


def _asked_pause(header: str | None) -> float:
    """The seconds of a Retry-After header; a date there counts as none."""
    return float(header) if header and header.isascii() and header.isdigit() else 0.0
