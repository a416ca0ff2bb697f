"""Rows of groups/ as they are shown: cut to size, with what a group came to; filtered and sorted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from outdo.dash.blocks import Place, Reader
from outdo.dash.files import Row, as_float, as_int, plain, text_of
from outdo.dash.shapes import Answer, Group, Token

Sort = Literal["spread", "reward", "length", "prompt", "id"]
Show = Literal["all", "informative", "all_right", "all_wrong", "broken"]

SHORT, LONG = 2_000, 200_000  # characters of a text in a list, and of one that is looked at alone
MOST = 4096  # answers of a group that are shown
BYTES = 256 << 20  # of one step's groups that are read


def read_groups(root: Path, places: Sequence[Place], limit: int = SHORT) -> tuple[list[Group], list[str]]:
    """The groups at those places, and why some are not whole."""
    found, trouble, spent = list[Group](), list[str](), 0
    with Reader(root) as reader:
        for place in places:
            spent += place.length
            if spent > BYTES:
                trouble.append(f"the step has more than {BYTES >> 20} MB of answers: {len(found)} groups are shown")
                break
            try:
                found.append(group_of(reader.row(place), limit))
            except (OSError, ValueError) as error:
                trouble.append(str(error))
    return found, trouble


def group_of(row: Row, limit: int = SHORT) -> Group:
    """One line of groups/. What is not as it should be is left out."""
    told = row.get("completions")
    each = [answer for answer in told if isinstance(answer, dict)][:MOST] if isinstance(told, list) else []
    answers = [answer_of(i, answer, limit) for i, answer in enumerate(each)]
    messages = messages_of(row, limit)
    return Group(
        step=as_int(row.get("step")) or 0,
        prompt_id=text_of(row.get("prompt_id")),
        prompt=prompt_of(row, limit),
        messages=messages,
        answer=plain(row.get("answer")),
        version=as_int(row.get("version")),
        **worth(answers),
        answers=answers,
    )


def messages_of(row: Row, limit: int) -> list[dict[str, Any]]:
    told = row.get("messages")
    found = [plain(message) for message in told if isinstance(message, dict)] if isinstance(told, list) else []
    for message in found:
        if isinstance(message.get("content"), str):
            message["content"] = message["content"][:limit]
    return found[:64]


def prompt_of(row: Row, limit: int = SHORT) -> str:
    """The text of the last message."""
    messages = messages_of(row, limit)
    content = messages[-1].get("content") if messages else ""
    return text_of(content if isinstance(content, str) else str(content))[:limit]


def answer_of(index: int, row: Row, limit: int) -> Answer:
    text, parts = text_of(row.get("text")), row.get("parts")
    return Answer(
        index=index,
        text=text[:limit],
        cut=len(text) > limit,
        length=as_int(row.get("num_tokens")),
        finish=text_of(row.get("finish"))[:200],
        reward=as_float(row.get("reward")),
        parts={text_of(name): as_float(x) for name, x in parts.items()} if isinstance(parts, dict) else {},
        verdict=text_of(row.get("verdict"))[:200],
        reason=text_of(row.get("reason"))[:limit],
        advantage=as_float(row.get("advantage")),
        has_tokens=bool(row.get("tokens")) and isinstance(row["tokens"], list),
    )


def mean_reward(row: Row) -> float | None:
    """The same as a group's mean, for those who need nothing else."""
    told = row.get("completions")
    each = [as_float(a.get("reward")) for a in told if isinstance(a, dict)][:MOST] if isinstance(told, list) else []
    rewards = [reward for reward in each if reward is not None]
    return _finite(lambda: statistics.fmean(rewards)) if rewards else None


def worth(answers: Sequence[Answer]) -> dict[str, Any]:
    """What a group came to: its mean reward, how far apart its answers are, and the verdicts."""
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    count = {name: sum(answer.verdict == name for answer in answers) for name in ("right", "wrong", "broken")}
    mean = _finite(lambda: statistics.fmean(rewards)) if rewards else None
    spread = _finite(lambda: statistics.pstdev(rewards)) if rewards else None
    return {"mean": mean, "spread": spread, **count}


def _finite(measure: Callable[[], float]) -> float | None:
    try:
        value = measure()
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


SHOWN: dict[Show, Callable[[Group], bool]] = {
    "all": lambda group: True,
    "informative": lambda group: bool(group.spread),
    "all_right": lambda group: group.right > 0 and not group.wrong and not group.spread,
    "all_wrong": lambda group: group.wrong > 0 and not group.right and not group.spread,
    "broken": lambda group: group.broken > 0,
}


def _length(group: Group) -> float:
    lengths = [answer.length for answer in group.answers if answer.length is not None]
    return statistics.fmean(lengths) if lengths else 0.0


SORTED: dict[Sort, Callable[[Group], Any]] = {
    "spread": lambda group: group.spread or 0.0,
    "reward": lambda group: -math.inf if group.mean is None else group.mean,
    "length": _length,
    "prompt": lambda group: group.prompt,
    "id": lambda group: group.prompt_id,
}


def tokens_of(row: Row, index: int) -> list[Token] | None:
    """The tokens of one answer; None where they were not kept."""
    told = row.get("completions")
    answers = [answer for answer in told if isinstance(answer, dict)] if isinstance(told, list) else []
    kept = answers[index].get("tokens") if index < len(answers) else None
    if not kept or not isinstance(kept, list):
        return None
    whole = [token for token in kept if isinstance(token, list) and token]
    return [
        Token(text=text_of(token[0])[:2000], logprob=as_float(_at(token, 1)), ratio=as_float(_at(token, 2)))
        for token in whole
    ]


def _at(token: list[Any], index: int) -> Any:
    return token[index] if index < len(token) else None
