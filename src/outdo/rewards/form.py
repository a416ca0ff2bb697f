"""Rewards for the form of an answer, not its content.

Names and formulas are those of open-r1, Kimi 1.5 and DAPO. Lengths are in tokens; statistics are those of one call,
which is one prompt's group. All run in time linear in the text.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Sequence
from unicodedata import category

from outdo.rewards.vocabulary import NUMBER_WORDS
from outdo.types import Verdict

MIN_VALUE_CORRECT, MAX_VALUE_CORRECT = 0.5, 1.0  # `cosine`: a right answer at the limit, and of length 0
MIN_VALUE_WRONG, MAX_VALUE_WRONG = -1.0, -0.5  # `cosine`: a wrong answer of length 0, and at the limit
NGRAM_SIZE = 3  # `repetition`: tokens of one n-gram
MAX_PENALTY = -1.0  # `repetition`: where everything repeats
STEPS = 3  # `reasoning_steps`: this many score 1

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_STEP = re.compile(
    r"^[ \t]*(?:([0-9]{1,3}\.)(?![0-9])|[-*](?=[ \t]))|\b(Step [0-9]{1,3}:|First,|Second,|Next,|Finally,)", re.MULTILINE
)
_MAX_BLANK = 1000  # characters beside a tag: content after more does not count
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0\ufffd"  # letters and symbols that show nothing
_CONTENT = re.compile(rf"[^\W_{_BLANKS}]")
_EMPTY_TAGS = "br wbr hr p div span b i u s em strong small sub sup center pre code ul ol li table tr td th h[1-6]"
_BLANK = (  # markup that shows nothing: bare tags and comments of HTML, escapes of white space, spaces of LaTeX
    rf"</?(?:{_EMPTY_TAGS.replace(' ', '|')})[ \t]*/?>|<!--[^<>]{{0,200}}-->|&nbsp;|&#160;|\\[nrtfv](?![a-z])"
    r"|\\(?:q?quad|newline|par|hfill|null|relax)(?![a-z])|\\(?:begin|end)\{[a-z*]{1,20}\}"
    r"|\\(?:[hv]space|[hv]?phantom|mspace|hskip)\*?\{[^{}]{0,100}\}"
    r"|\\[a-z]{1,20}\*?[ \t]*(?=\{)"  # of `\text{…}` only the content counts
)
_CODED = r"&#?[A-Za-z0-9]{1,31};?|\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})"  # a character by its name or number
_BLANK_OR_CODED = re.compile(rf"(?:{_BLANK})+|({_CODED})", re.IGNORECASE)
_CONTENT_OR_MARKUP = re.compile(rf"([^\W_{_BLANKS}])|(?:{_BLANK})+|({_CODED})", re.IGNORECASE)
_MARKUP = re.compile(r"[<>&;\\{}]")
_ANSWER = re.compile(r"\s*<answer>")
_SIGNS = ("Sm", "So", "Sc")  # categories of Unicode
_NOT_ALPHANUMERIC = re.compile(rf"[\W_{_BLANKS}]+")
_WORD = re.compile(rf"[^\W\d_{_BLANKS}]+")
_CALCULATION = re.compile(r"[0-9)] *[-+*/×÷^−] *[0-9(][^=]*= *[-−(]?[0-9]")
_EMPTY_WORDS = {  # a step of these alone says nothing
    *("step", "steps", "first", "firstly", "second", "secondly", "third", "thirdly", "fourth", "fifth", "next", "then"),
    *("finally", "lastly", "last", "item", "point", "part", "bullet", "number", "nothing", "none", "nil", "null", "na"),
    *(
        "empty",
        "blank",
        "todo",
        "tbd",
        "placeholder",
        "etc",
        "here",
        "there",
        "the",
        "an",
        "and",
        "or",
        "is",
        "it",
        "so",
    ),
    *("of", "to", "this", "that", "ok", "okay", "yes", "no", "not", "hmm", "um", "uh", "thing", "stuff", "something"),
    *NUMBER_WORDS,
}
_MAX_STEP_TEXT = 100_000  # characters: later steps do not count
_STEP_PREFIX = 200  # characters: steps that share them are one
_MIN_STEP_CHARS = 3  # letters or digits


def format(completions: list[str], **columns: object) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each tag once, with nothing before, between or after; else 0.

    Both parts must have content: a letter, a digit or a symbol, not only punctuation, invisible characters and
    markup that shows nothing, such as `<br>` and `&nbsp;`.
    """
    return [float(_well_formed(text)) for text in completions]


def _well_formed(text: str) -> bool:
    # Each tag once, the first and last at the ends and the middle two adjacent: this fixes their order.
    text = text.strip()
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    close = text.find("</think>")
    opened = _ANSWER.match(text, close + len("</think>"))
    if close < 0 or not opened:
        return False
    start, end = opened.end(), len(text) - len("</answer>")
    repeated = (
        text.find("<think>", 1) >= 0
        or text.find("</think>", close + 1) >= 0
        or text.find("<answer>") != start - len("<answer>")
        or text.find("<answer>", start) >= 0
        or text.find("</answer>") != end
    )
    return not repeated and _has_content(text, len("<think>"), close) and _has_content(text, start, end)


def _has_content(text: str, start: int, end: int) -> bool:
    """Whether a text has a letter, a digit or a sign such as ∞: not only spaces, punctuation, markup that shows
    nothing (`<br>`, `&nbsp;`, `\\n` written out)."""
    first = _CONTENT.search(text, start, end)
    if first and not _MARKUP.search(text, start, first.start()):
        return True
    for match in _CONTENT_OR_MARKUP.finditer(text, start, end) if first else ():
        shown = match[1] or _decoded(match)
        if _CONTENT.search(shown) or _has_sign(shown):
            return True
    return _has_sign(text[start : min(end, start + _MAX_BLANK)])


def _decoded(match: re.Match[str]) -> str:
    """What the markup of a match shows: the character that an entity of HTML or an escape names, else nothing."""
    code = match[match.re.groups] or ""
    return chr(int(code[2:], 16)) if code.startswith("\\") else html.unescape(code)


def _has_sign(signs: str) -> bool:
    return not signs.isascii() and any(category(c) in _SIGNS and c not in _BLANKS for c in signs if c > "~")


def tag_count(completions: list[str], **columns: object) -> list[float]:
    """0.25 for each of `<think>`, `</think>`, `<answer>` and `</answer>` that occurs once and in its place.

    In its place means: in this order relative to every other tag that occurs once (of two swapped tags neither
    scores), and for `</answer>`, with only white space after it. A tag must have content inside: an opening one before
    the next tag, a closing one after the previous. Text before and between is ignored.
    """
    return [_tag_count(text) for text in completions]


def _tag_count(text: str) -> float:
    positions = {tag: text.find(tag) for tag in _TAGS if text.count(tag) == 1}
    ordered = list(positions.items())  # in the required order
    scored = [
        tag
        for i, (tag, start) in enumerate(ordered)
        if all(before < start for _, before in ordered[:i]) and all(start < after for _, after in ordered[i + 1 :])
    ]
    if "</answer>" in scored and text[positions["</answer>"] + len("</answer>") :].strip():
        scored.remove("</answer>")
    if len(scored) == len(_TAGS):  # two pairs
        (_, think), (_, close), (_, answer), (_, end) = ordered
        thought = _has_content(text, think + len("<think>"), close)
        return 0.5 * (thought + _has_content(text, answer + len("<answer>"), end))
    return 0.25 * sum(_is_filled(text, tag, positions[tag]) for tag in scored)


def _is_filled(text: str, tag: str, at: int) -> bool:
    """Whether a tag has content inside: up to the next tag, or from the previous one."""
    if tag.startswith("</"):
        tail = text[max(0, at - 12) : at]
        if not _MARKUP.search(tail) and _CONTENT.search(tail):  # not a letter of another tag or of markup
            return True
        first = max(0, at - _MAX_BLANK)
        before = [(text.rfind(other, first, at), other) for other in _TAGS]
        return _has_content(text, max([start + len(other) for start, other in before if start >= 0], default=first), at)
    start = at + len(tag)
    if _CONTENT.match(text, start):
        return True
    last = min(len(text), start + _MAX_BLANK)
    after = [text.find(other, start, last) for other in _TAGS]
    return _has_content(text, start, min([end for end in after if end >= 0], default=last))


def reasoning_steps(completions: list[str], **columns: object) -> list[float]:
    """A third for each step of the reasoning, up to 1.

    A step is a marker (`Step 1:`, a line's `1.`, `- ` or `* `, or `First,` `Second,` `Next,` `Finally,`) and the text
    up to the next marker: at least three letters or digits with a word or a calculation, different from every earlier
    step. Numbers, other markers (`step two`, `then`), `nothing` and `aaa` are no words. A numbered or worded marker
    counts once. Only the thinking part counts where there is one.
    """
    return [min(1.0, _num_steps(_thinking(text)[:_MAX_STEP_TEXT]) / STEPS) for text in completions]


def _thinking(text: str) -> str:
    """The thinking part, closed or not; its opening tag may be in the prompt. All of a text without one."""
    thought, close, _ = text.rpartition("</think>")
    thought = thought if close else text
    _, opened, content = thought.partition("<think>")
    return content if opened else thought


def _num_steps(text: str) -> int:
    """The number of distinct steps, counted up to STEPS."""
    markers: set[str] = set()
    contents: set[str] = set()
    marker, start = "", -1
    for match in [*_STEP.finditer(text), None]:
        if start >= 0 and marker not in markers:
            step = text[start : match.start() if match else len(text)]
            if _MARKUP.search(step):
                step = _BLANK_OR_CODED.sub(lambda blank: f" {_decoded(blank)} ", step)
            step = step.strip()[:_STEP_PREFIX].casefold()
            for tag in _TAGS if "<" in step else ():
                step = step.replace(tag, " ")
            content = _NOT_ALPHANUMERIC.sub("", step)
            if len(content) >= _MIN_STEP_CHARS and content not in contents and _says_something(step):
                contents.add(content)
                markers |= {marker} - {""}
        if match is None or len(contents) >= STEPS:
            break
        marker, start = match[1] or match[2] or "", match.end()
    return len(contents)


def _says_something(step: str) -> bool:
    for match in _WORD.finditer(step):
        if match[0] not in _EMPTY_WORDS and len(set(match[0])) > 1:
            return True
    return bool(_CALCULATION.search(step))


def overlong(
    completions: list[str], completion_ids: list[tuple[int, ...]], max_completion_length: int, **columns: object
) -> list[float]:
    """DAPO's soft length penalty: 0 up to four fifths of the limit, then linear to -1 at the limit."""
    _require_limit("overlong", max_completion_length)
    buffer = max(1, max_completion_length // 5)
    soft = max_completion_length - buffer
    return [min(0.0, max(-1.0, (soft - len(ids)) / buffer)) for ids in completion_ids]


def length(
    completions: list[str], completion_ids: list[tuple[int, ...]], verdicts: list[Verdict], **columns: object
) -> list[float | None]:
    """Kimi 1.5's length reward: in a group, short answers gain, long ones lose, and wrong ones never gain.

    λ = 0.5 - (tokens - shortest) / (longest - shortest); a right answer gets λ, a wrong one min(0, λ), and all get 0
    where all lengths are equal. Broken answers get None and do not count for shortest and longest.
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
    """open-r1's cosine length reward (Yeo et al. 2025): right answers fall from 1 to 0.5 as they near the limit.

    Wrong ones rise from -1 to -0.5, since more thought may have helped. An answer truncated at the limit gets -0.5,
    like a wrong one there, even if it holds the right answer: running on must not pay. A broken one gets None.
    """
    _require_limit("cosine", max_completion_length)
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
    """open-r1's repetition penalty: the fraction of 3-grams that repeat an earlier one, times -1.

    The n-grams are of tokens, or of lower-case words where no tokens are given. An answer shorter than one gets 0.
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


def duplicates(completions: list[str], **columns: object) -> list[float]:
    """A penalty for copies: the share of its siblings that an answer equals, ignoring white space, times -1.

    0 where no sibling is equal, -1 where all are. It does not depend on the order, and counts one call's answers: those
    of a group.
    """
    answers = [" ".join(text.split()) for text in completions]
    counts = Counter(answers)
    siblings = len(answers) - 1
    return [-(counts[text] - 1) / siblings if counts[text] > 1 else 0.0 for text in answers]


def _is_right(verdict: str) -> bool | None:
    if verdict not in ("right", "wrong", "broken"):
        raise ValueError(f"invalid verdict {verdict!r}: use right, wrong or broken")
    return None if verdict == "broken" else verdict == "right"


def _require_limit(name: str, max_completion_length: int) -> None:
    if max_completion_length < 1:
        raise ValueError(f"{name} needs max_completion_length, which is {max_completion_length}")
