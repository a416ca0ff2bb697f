"""Requests scores from the judge's server: cached, a bounded number at once, with retries and a budget."""

from __future__ import annotations

import http.client
import json
import random
import re
import sys
import threading
import time
import urllib.error
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from outdo.rewards.judge.prompt import Question, Rubric
from outdo.rewards.judge.scores import Score, Scores, key_of
from outdo.rewards.rft.models import (
    REFUSED_STATUSES,
    RETRY_STATUSES,
    Endpoint,
    JudgeFailure,
    Unreadable,
    content_of,
    error_body,
    post_once,
)

MAX_PAUSE_S = 60.0  # a server that asks to wait longer is not asked again
CHARS_PER_TOKEN = 4  # where the server does not count
SECRET_CHARS = 8  # a shorter key is a placeholder, as local servers take it (`EMPTY`), and may be a part of a word
JITTER = random.Random()  # of pauses: it decides nothing about scores


@dataclass(frozen=True)
class Spent:
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Budget:
    """What may be spent, from the start of the process. A retry is a call too; a cached score is none."""

    def __init__(
        self, calls: int | None, tokens: int | None, cost: float | None, input_price: float, output_price: float
    ) -> None:
        self.limits = calls, tokens, cost, input_price, output_price
        self.spent = Spent()
        self._lock = threading.Lock()
        self._reported = False

    @property
    def cost(self) -> float:
        _, _, _, input_price, output_price = self.limits
        return (self.spent.input_tokens * input_price + self.spent.output_tokens * output_price) / 1e6

    def begin_call(self) -> None:
        """Raises JudgeFailure where a limit is reached."""
        calls, tokens, cost, _, _ = self.limits
        with self._lock:
            spent = self.spent
            for name, limit, used in (
                ("max_calls", calls, spent.calls),
                ("max_tokens", tokens, spent.input_tokens + spent.output_tokens),
                ("max_cost", cost, self.cost),
            ):
                if limit is not None and used >= limit:
                    self._report(f"{name}={limit:g} is spent")
                    raise JudgeFailure(f"the budget {name}={limit:g} is spent")
            self.spent = Spent(spent.calls + 1, spent.input_tokens, spent.output_tokens)

    def add_tokens(self, inputs: int, outputs: int) -> None:
        with self._lock:
            spent = self.spent
            self.spent = Spent(spent.calls, spent.input_tokens + inputs, spent.output_tokens + outputs)

    def _report(self, what: str) -> None:
        if not self._reported:
            self._reported = True
            print(f"llm_judge: {what} after {self.spent.calls:,} calls: further answers are broken", file=sys.stderr)


class Client:
    def __init__(
        self, endpoint: Endpoint, model: str, rubric: Rubric, budget: Budget, concurrent: int, scores: Scores
    ) -> None:
        self.endpoint, self.model, self.rubric, self.budget, self.scores = endpoint, model, rubric, budget, scores
        self._free = threading.BoundedSemaphore(max(1, concurrent))
        self._lock = threading.Lock()
        self._pending: dict[str, Future[Score]] = {}

    def score(self, question: Question) -> Score:
        """From the cache, or the judge; equal answers in flight share one call. Raises JudgeFailure."""
        key = key_of(self.endpoint.url, self.model, self.rubric, question)
        with self._lock:
            if (cached := self.scores.get(key)) is not None:
                return cached
            future = self._pending.get(key)
            asks = future is None
            future = self._pending.setdefault(key, Future())
        if not asks:
            return future.result()
        try:
            score = self._requested(question)
            self.scores.put(key, score)
            future.set_result(score)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[key]
        return score

    def _requested(self, question: Question) -> Score:
        body = json.dumps(self.rubric.request(self.model, question)).encode()
        try:
            with self._free:
                raw = self._post(body)
            reply = content_of(raw)
            self.budget.add_tokens(*_usage(raw, body, reply))
            return self.rubric.read(reply)
        except JudgeFailure as failure:
            raise type(failure)(without_key(str(failure), self.endpoint.key)) from None

    def _post(self, body: bytes) -> bytes:
        """The reply's bytes. Retries if the server is busy, failing, slow or unreachable."""
        endpoint, failure = self.endpoint, ""
        for attempt in range(1, endpoint.attempts + 1):
            self.budget.begin_call()
            wait = 0.0
            try:
                return post_once(body, endpoint)
            except urllib.error.HTTPError as error:
                failure = f"the judge's server answered {error.code} {error.reason}: {error_body(error)}"
                if error.code not in RETRY_STATUSES:
                    raise (Unreadable if error.code in REFUSED_STATUSES else JudgeFailure)(failure) from None
                wait = retry_after(error.headers.get("Retry-After") or "")
            except (OSError, http.client.HTTPException) as error:  # timeouts too
                failure = f"the judge's server at {endpoint.url} gave no reply: {error or type(error).__name__}"
            if wait > MAX_PAUSE_S:
                raise JudgeFailure(f"{failure}; it asks to wait {wait:.0f} s")
            if attempt < endpoint.attempts:
                pause = endpoint.pause_s * 2 ** (attempt - 1) * JITTER.uniform(0.5, 1.5)
                time.sleep(max(wait, min(MAX_PAUSE_S, pause)))
        raise JudgeFailure(f"{failure} ({endpoint.attempts} attempts)")


def without_key(text: str, key: str) -> str:
    """`text` with asterisks for the key; a placeholder is replaced only where it stands alone."""
    if not key:
        return text
    pattern = re.escape(key)
    return re.sub(pattern if len(key) >= SECRET_CHARS else rf"(?<!\w){pattern}(?!\w)", "***", text)


def retry_after(header: str) -> float:
    """The seconds that a server asks to wait, given as a number or a date; 0 where it cannot be read."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return 0.0


def _usage(raw: bytes, body: bytes, reply: str) -> tuple[int, int]:
    """Tokens read and written, as the server counts them, else estimated."""
    usage: Any = json.loads(raw).get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    estimated = [len(body) // CHARS_PER_TOKEN + 1, len(reply) // CHARS_PER_TOKEN + 1]
    both = [count if isinstance(count, int) else guess for count, guess in zip(counts, estimated, strict=True)]
    return both[0], both[1]
