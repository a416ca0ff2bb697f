"""`llm_judge`: a model behind an OpenAI-compatible address scores each answer by a rubric.

    reward_args:
      llm_judge: {model: NAME, base_url: http://localhost:8000/v1, rubric: "…"}

The answers of a group are judged in parallel. Scores are cached. An answer is broken, never 0, where the judge does not
reply or the budget is spent, and where it replies to no answer with exactly the JSON that was asked for. An answer that
alone gets such a reply, twice, is to blame for it: it scores the bottom of the scale. The key comes from an environment
variable and is neither logged nor stored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outdo.errors import GraderError
from outdo.rewards.blame import Worst
from outdo.rewards.judge.client import Budget, Client
from outdo.rewards.judge.prompt import RUBRIC, Question, Rubric
from outdo.rewards.judge.scores import Scores
from outdo.rewards.rft.models import ADDRESS, OPENAI_URL, Endpoint, JudgeFailure, Unreadable
from outdo.types import Grade

CONTROL = "I do not know."  # an answer that any judge can score
_clients: dict[str, Client] = {}  # by their settings: the budget and the connections are the process's
_lock = threading.Lock()


def llm_judge(
    completions: list[str],
    messages: Sequence[Sequence[Mapping[str, str]]],
    answer: Sequence[Any],
    model: str = "",
    base_url: str = "",
    api_key_env: str = "OPENAI_API_KEY",
    rubric: str = RUBRIC,
    template: str = "",
    scale: Sequence[float] = (0, 10),
    pass_score: float | None = None,
    temperature: float | None = 0.0,
    max_reply_tokens: int | None = 1024,
    response_format: str = "json_schema",
    timeout: float = 60.0,
    attempts: int = 5,
    max_concurrent: int = 16,
    max_calls: int | None = None,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    input_price: float = 0.0,
    output_price: float = 0.0,
    cache_dir: str = "",
    cache_folder: str = "",
    **columns: object,
) -> list[Grade]:
    """The score that a judge model gives by a rubric, from 0 at the bottom of its scale to 1 at the top."""
    judged_by = Rubric(rubric, template, _scale(scale), response_format, temperature, max_reply_tokens)
    endpoint = Endpoint(_address(base_url), _key(api_key_env, base_url), timeout, attempts)
    if not model:
        raise GraderError("llm_judge needs a model: reward_args.llm_judge.model=NAME")
    if (max_cost is not None) and not (input_price or output_price):
        raise GraderError("llm_judge: max_cost needs input_price and output_price, per million tokens")
    budget = Budget(max_calls, max_tokens, max_cost, input_price, output_price)
    client = _client(endpoint, model, judged_by, budget, max_concurrent, cache_dir or cache_folder)
    low, high = judged_by.scale
    passing = high if pass_score is None else float(pass_score)

    def judge(index: int, text: str | None = None) -> Grade | Unreadable:
        gold = None if answer[index] is None else str(answer[index])
        question = Question(_text(messages[index]), gold, completions[index] if text is None else text)
        try:
            score, reason = client.score(question)
        except Unreadable as failure:
            return failure
        except JudgeFailure as failure:
            return Grade(None, "broken", reason=f"llm_judge: {failure}")
        return Grade((score - low) / (high - low), "right" if score >= passing else "wrong", reason=reason)

    with ThreadPoolExecutor(max(1, min(len(completions), max_concurrent)), "judge") as pool:
        graded = list(pool.map(judge, range(len(completions))))
    return [_settled(one, index, graded, judge) for index, one in enumerate(graded)]


def _settled(
    one: Grade | Unreadable, index: int, graded: Sequence[Grade | Unreadable], judge: Callable[..., Grade | Unreadable]
) -> Grade:
    """The grade of an answer to which the reply was unreadable: of another try; or, where the judge can score others,
    the worst; else broken."""
    if isinstance(one, Grade):
        return one
    scores_others = any(_is_score(other) for other in graded) or _is_score(judge(index, CONTROL))
    again = judge(index) if scores_others else one
    if isinstance(again, Grade):
        return again
    if scores_others:
        return Worst(0.0, "wrong", reason=f"llm_judge: {again}; it scores other answers", highest=1.0)
    return Grade(None, "broken", reason=f"llm_judge: {one}")


def _is_score(grade: Grade | Unreadable) -> bool:
    return isinstance(grade, Grade) and grade.reward is not None


llm_judge.costly = True  # type: ignore[attr-defined]  # an audit calls it less often


def _client(endpoint: Endpoint, model: str, rubric: Rubric, budget: Budget, concurrent: int, folder: str) -> Client:
    """One for all calls with the same settings."""
    key = repr((endpoint, hash(endpoint.key), model, rubric, budget.limits, concurrent, folder))
    with _lock:
        if key not in _clients:
            _clients[key] = Client(endpoint, model, rubric, budget, concurrent, Scores(folder))
        return _clients[key]


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt; of a conversation all turns, with their roles."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def _scale(scale: Sequence[float]) -> tuple[float, float]:
    numbers = isinstance(scale, (list, tuple)) and all(isinstance(s, (int, float)) for s in scale)
    if not numbers or len(scale) != 2 or not scale[0] < scale[1]:
        raise GraderError(f"llm_judge: scale={scale!r:.40}: expected the lowest and the highest score, such as [0, 10]")
    return float(scale[0]), float(scale[1])


def _address(base_url: str) -> str:
    url = (base_url or os.environ.get("OPENAI_BASE_URL", "")).strip().rstrip("/") or OPENAI_URL
    if not ADDRESS.fullmatch(url):
        raise GraderError(f"llm_judge: base_url={url!r:.80} is not an address such as http://localhost:8000/v1")
    return url


def _key(variable: str, base_url: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise GraderError(f"the environment variable {variable} contains characters that are not allowed in a key")
    if not key and _address(base_url) == OPENAI_URL:
        raise GraderError(f"llm_judge needs the key of {OPENAI_URL} in {variable}, or base_url of your own server")
    return key
