"""Rewards for how an answer is written, not for what it says.

Each is the reward that users of open-r1, Kimi 1.5 or DAPO know by its name. Lengths are in tokens and statistics are
those of the call, which is one prompt's group. All end in time linear in the text, whatever the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from outdo.types import Verdict

MIN_VALUE_CORRECT, MAX_VALUE_CORRECT = 0.5, 1.0  # `cosine`: a right answer at the limit, and of length 0
MIN_VALUE_WRONG, MAX_VALUE_WRONG = -1.0, -0.5  # `cosine`: a wrong answer of length 0, and at the limit
NGRAM_SIZE = 3  # `repetition`: tokens of one n-gram
MAX_PENALTY = -1.0  # `repetition`: where all is repetition
STEPS = 3  # `reasoning_steps`: as many pay in full

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_STEP = re.compile(
    r"^[ \t]*(?:([0-9]{1,3}\.)(?![0-9])|[-*](?=[ \t]))|\b(Step [0-9]{1,3}:|First,|Second,|Next,|Finally,)", re.MULTILINE
)
_NO_CONTENT = re.compile(r"[\W_]+")
_STEPS_READ = 100_000  # characters: steps after them do not count
_STEP_COMPARED = 200  # characters of a step: two that open alike are one
_STEP_LEAST = 3  # letters or digits that a step must have


def format(completions: list[str], **columns: object) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each tag once, nothing before, between or after; else 0."""
    return [float(_well_formed(text)) for text in completions]


def _well_formed(text: str) -> bool:
    # Tags that occur once, the first and the last in place and the middle two with nothing between them but white
    # space: no other order is left.
    text = text.strip()
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    thought, _, rest = text.partition("</think>")
    return (
        rest.lstrip().startswith("<answer>")
        and thought.count("<think>") == 1
        and rest.count("<answer>") == 1
        and rest.count("</answer>") == 1
        and not any(tag in thought for tag in ("<answer>", "</answer>"))
        and not any(tag in rest for tag in ("<think>", "</think>"))
    )


def tag_count(completions: list[str], **columns: object) -> list[float]:
    """0.25 for each of `<think>`, `</think>`, `<answer>` and `</answer>` that occurs once and in its place.

    In its place: in this order relative to each other tag that occurs once (of two that are swapped neither pays), and
    for `</answer>`, with nothing but white space after it. Text before, between and inside costs nothing here.
    """
    return [_tag_count(text) for text in completions]


def _tag_count(text: str) -> float:
    at = {tag: text.find(tag) for tag in _TAGS if text.count(tag) == 1}
    found = list(at.items())  # in the order wanted
    paid = [
        tag
        for i, (tag, place) in enumerate(found)
        if all(before < place for _, before in found[:i]) and all(place < after for _, after in found[i + 1 :])
    ]
    if "</answer>" in paid and text[at["</answer>"] + len("</answer>") :].strip():
        paid.remove("</answer>")
    return 0.25 * len(paid)


def reasoning_steps(completions: list[str], **columns: object) -> list[float]:
    """A third for each step of the reasoning, up to 1.

    A step is a marker (`Step 1:`, a line's `1.`, `- ` or `* `, or `First,` `Second,` `Next,` `Finally,`) and what
    follows it up to the next marker: at least three letters or digits, that no earlier step says as well. A numbered
    or worded marker counts once. Only the thinking part is read where there is one.
    """
    return [min(1.0, _num_steps(_thinking(text)[:_STEPS_READ]) / STEPS) for text in completions]


def _thinking(text: str) -> str:
    """The thinking part, closed or not; the opening tag may stand in the prompt. All of a text that has none."""
    thought, close, _ = text.rpartition("</think>")
    thought = thought if close else text
    _, open_, inside = thought.partition("<think>")
    return inside if open_ else thought


def _num_steps(text: str) -> int:
    """How many different steps, counted no further than is paid."""
    markers: set[str] = set()
    said: set[str] = set()
    marker, start = "", -1
    for match in [*_STEP.finditer(text), None]:
        if start >= 0 and marker not in markers:
            content = text[start : match.start() if match else len(text)].strip()[:_STEP_COMPARED]
            content = _NO_CONTENT.sub("", content).casefold()
            if len(content) >= _STEP_LEAST and content not in said:
                said.add(content)
                markers |= {marker} - {""}
        if match is None or len(said) >= STEPS:
            break
        marker, start = match[1] or match[2] or "", match.end()
    return len(said)


def overlong(
    completions: list[str],
    completion_ids: list[tuple[int, ...]],
    max_completion_length: int,
    **columns: object,
) -> list[float]:
    """DAPO's soft penalty: 0 up to four fifths of the limit, then falling linearly to -1 at the limit."""
    _need_limit("overlong", max_completion_length)
    buffer = max(1, max_completion_length // 5)
    soft = max_completion_length - buffer
    return [min(0.0, max(-1.0, (soft - len(ids)) / buffer)) for ids in completion_ids]


def length(
    completions: list[str], completion_ids: list[tuple[int, ...]], verdicts: list[Verdict], **columns: object
) -> list[float | None]:
    """Kimi 1.5's: among a group's answers the short ones gain, the long ones lose, and a wrong one never gains.

    λ = 0.5 - (tokens - shortest) / (longest - shortest); a right answer gets λ, a wrong one min(0, λ), each 0 where all
    are as long. Shortest and longest are those of the answers that could be judged; a broken one gets None.
    """
    right = [_is_right(verdict) for verdict in verdicts]
    sizes = [len(ids) for ids, ok in zip(completion_ids, right, strict=True) if ok is not None]
    shortest, longest = min(sizes, default=0), max(sizes, default=0)
    if shortest == longest:
        return [None if ok is None else 0.0 for ok in right]
    scores = [0.5 - (len(ids) - shortest) / (longest - shortest) for ids in completion_ids]
    return [None if ok is None else score if ok else min(0.0, score) for score, ok in zip(scores, right, strict=True)]


def cosine(
    completions: list[str],
    completion_ids: list[tuple[int, ...]],
    finish: list[str],
    verdicts: list[Verdict],
    max_completion_length: int,
    **columns: object,
) -> list[float | None]:
    """open-r1's cosine of the length (Yeo et al. 2025): right answers fall from 1 to 0.5 as they near the limit.

    Wrong ones rise from -1 to -0.5, since more thought may have helped. An answer that was cut at the limit gets the
    -0.5 of a wrong one there even if it said the right thing: it did not end, and running on must not pay. A broken
    one gets None.
    """
    _need_limit("cosine", max_completion_length)
    rewards: list[float | None] = []
    for ids, end, verdict in zip(completion_ids, finish, verdicts, strict=True):
        right = _is_right(verdict)
        progress = min(1.0, len(ids) / max_completion_length) if end != "length" else 1.0
        share = (1.0 + math.cos(math.pi * progress)) / 2  # 1 at length 0, 0 at the limit
        if right and end != "length":
            rewards.append(MIN_VALUE_CORRECT + share * (MAX_VALUE_CORRECT - MIN_VALUE_CORRECT))
        else:
            rewards.append(None if right is None else MAX_VALUE_WRONG + share * (MIN_VALUE_WRONG - MAX_VALUE_WRONG))
    return rewards


def repetition(
    completions: list[str], completion_ids: list[tuple[int, ...]] | None = None, **columns: object
) -> list[float]:
    """open-r1's penalty: the share of an answer's 3-grams that repeat an earlier one, times -1.

    The grams are of tokens, or of lower-case words where no tokens are given. An answer shorter than a gram gets 0.
    """
    if completion_ids is None:
        return [_repetition(text.lower().split()) for text in completions]
    return [_repetition(ids) for ids in completion_ids]


def _repetition(units: Sequence[object]) -> float:
    total = len(units) - NGRAM_SIZE + 1
    if total < 1:
        return 0.0
    repeats = total - len(set(zip(*(units[i:] for i in range(NGRAM_SIZE)), strict=False)))
    return MAX_PENALTY * repeats / total if repeats else 0.0


def _is_right(verdict: str) -> bool | None:
    if verdict not in ("right", "wrong", "broken"):
        raise ValueError(f"{verdict!r} is no verdict: right, wrong or broken")
    return None if verdict == "broken" else verdict == "right"


def _need_limit(name: str, max_completion_length: int) -> None:
    if max_completion_length < 1:
        raise ValueError(f"{name} needs max_completion_length, which is {max_completion_length}")
