"""Mathematical equivalence: `\\frac{1}{2}`, `0.5` and `\\dfrac12` are one answer.

What is plainly equal or plainly different is decided here, exactly. The rest goes to math-verify, in processes that
can be killed: some answers make sympy run for ever. At the deadline such an answer is wrong. A gold answer that cannot
be read is broken, whatever was answered.

Where the gold is a number, an answer is one too: `17 \\cdot 23` is not worked out, and wrong for 391. A fraction, a
power or a root is a number, unless it stands in the question. `numeric` wants the digits themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache

from outdo.errors import GraderError
from outdo.rewards.answer import CHANGES, NUMBER_WORDS, boxed, final_answers, without_echoes
from outdo.rewards.latex import LONGEST, NAME, TEXT, bases, parts, same_in_base, squeezed, value, worked_out
from outdo.sandbox.pool import Pool, Reply
from outdo.types import Grade

SECONDS = 5.0  # for one answer
MEMORY_MB = 128
_MOST = 3  # different spellings of one answer
_AN_ECHO = "an expression of the question?"  # equal to nothing

_COMMAND = re.compile(r"\\[A-Za-z]+")
_JOINS = {  # what stands between two answers, of which math-verify reads one
    *("\\approx", "\\equiv", "\\sim", "\\simeq", "\\cong", "\\ne", "\\neq", "\\not", "\\lor", "\\vee", "\\land"),
    *("\\wedge", "\\to", "\\rightarrow", "\\Rightarrow", "\\implies", "\\iff", "\\mid", "\\quad", "\\qquad", "\\boxed"),
}


def math(
    completions: list[str],
    answer: Sequence[object],
    messages: Sequence[object] = (),
    reward_timeout: float = SECONDS,
    **columns: object,
) -> list[Grade]:
    """1 where the final answer is mathematically the gold one; else 0."""
    golds = [_gold(gold) for gold in answer]
    finals = [_finals(text) for text in without_echoes(completions, messages)]
    for gold, found, asked in zip(golds, finals, messages, strict=bool(messages)):
        found[:] = [_AN_ECHO if gold and _repeats(gold, final, asked) else final for final in found]
    undecided = {
        (gold, final)
        for gold, found in zip(golds, finals, strict=True)
        for final in found
        if gold and len(found) <= _MOST and _plainly(gold, final) is None
    }
    seconds = min(reward_timeout, SECONDS)
    replies = _asked("equal", sorted(undecided), seconds)
    told = {gold for (gold, _), reply in replies.items() if reply.value is not None}
    unsure = {(gold,) for gold in golds if gold and gold not in told and value(gold) is None}
    replies |= _asked("readable", sorted(unsure), seconds)
    return [_verdict(gold, found, replies) for gold, found in zip(golds, finals, strict=True)]


def _asked(function: str, arguments: Sequence[tuple[str, ...]], seconds: float) -> dict[tuple[str, ...], Reply]:
    jobs = [(f"outdo.rewards.equivalence:{function}", args) for args in arguments]
    return dict(zip(arguments, _pool().run(jobs, seconds) if jobs else [], strict=True))


@cache
def _pool() -> Pool:
    try:
        import math_verify  # noqa: F401
    except ImportError:
        raise GraderError("the reward math needs math-verify: pip install math-verify") from None
    return Pool(["outdo.rewards.equivalence"], MEMORY_MB)


def _verdict(gold: str, found: list[str], replies: dict[tuple[str, ...], Reply]) -> Grade:
    about = replies.get((gold,))
    if not gold or (about and about.value is not True):
        return Grade(None, "broken", reason=f"the gold answer {gold[:40]!r} cannot be read as mathematics")
    if not found:
        return Grade(0.0, "wrong", reason="no final answer")
    if len(found) > _MOST:
        return Grade(0.0, "wrong", reason=f"{len(found)} final answers")
    for final in found:
        plainly = _plainly(gold, final)
        reply = replies[gold, final] if plainly is None else Reply("value", plainly)
        if reply.kind == "died":
            return Grade(None, "broken", reason=reply.message)
        if reply.value is not True:
            several = f"{len(found)} final answers that disagree, or " if len(found) > 1 else ""
            why = reply.message or f"answered {final[:40]!r}, not {gold[:40]!r}"
            evades = _evades(gold, final) if plainly is False else ""
            return Grade(0.0, "wrong", reason=several + why + (evades and f": {evades}"))
    return Grade(1.0, "right")


def _finals(text: str) -> list[str]:
    """The different final answers, as LaTeX. One that is too long stands as itself, and equals nothing."""
    return list(dict.fromkeys(squeezed(answer) for answer in final_answers(text)))


def _gold(answer: object) -> str:
    """The gold as LaTeX; of a worked solution its last box, or what follows its `####`."""
    text = "" if answer is None else str(answer)
    text = (boxed(text) or [text])[-1] if "\\boxed" in text else text.rpartition("####")[2]
    latex = squeezed(text)
    return latex if len(latex) <= LONGEST else ""


def _same_number(gold: Fraction, value: Fraction) -> bool:
    """Exactly; a fraction that no decimal is, like 1/3, has six digits."""
    terminates = all(pow(10, 400, number.denominator) == 0 for number in (gold, value))
    return gold == value or (not terminates and abs(gold - value) <= abs(gold) / 10**6)


def _evades(gold: str, latex: str) -> str:
    """How an answer avoids to be one. Empty: it does not."""
    texts, rest = " ".join(TEXT.findall(latex)), TEXT.sub("", latex)
    words = set(re.split(r"[^a-z]+", texts.lower())) - set(re.split(r"[^a-z]+", gold.lower()))
    if _joins(gold, latex) or "or" in words or _says_two_numbers(texts, rest, words):
        return "several answers in one"
    if CHANGES & words:
        return "words that change a number"
    if (below := bases(latex)) and below != bases(gold):
        return "another base"
    return "" if worked_out(gold, latex) else "not worked out"


def _joins(gold: str, latex: str) -> bool:
    commands = set(_COMMAND.findall(latex)) - set(_COMMAND.findall(gold))
    return bool(commands & _JOINS) or latex.count("=") > max(1, gold.count("=")) or ("?" in latex and "?" not in gold)


def _says_two_numbers(texts: str, rest: str, words: set[str]) -> bool:
    """In words beside the formula one that is not the formula's own: `5\\text{ (five)}` says the same twice."""
    others = {NUMBER_WORDS[word] for word in words & NUMBER_WORDS.keys()} - {value(rest)}
    return any(map(str.isdigit, rest)) and (bool(others) or any(map(str.isdigit, texts)))


def _repeats(gold: str, latex: str, messages: object) -> bool:
    """Whether an expression stands word for word in the question whose value is asked for: it is not worked out."""
    if value(gold) is None or value(latex) is not None or not isinstance(messages, (list, tuple)):
        return False
    said = [str(message.get("content", "")) for message in messages if isinstance(message, Mapping)]
    return any(latex in squeezed(text) for text in said)


def _plainly(gold: str, latex: str) -> bool | None:
    """Equal or different, where no algebra is needed to see it."""
    if gold == latex:
        return True
    if len(latex) > LONGEST or not latex:
        return False
    if (same := same_in_base(gold, latex)) is not None:
        return same
    if _evades(gold, latex):
        return False
    x, y = value(gold), value(latex)
    if x is not None and y is not None:
        return _same_number(x, y)
    golds, answers = parts(gold), parts(latex)
    if gold[:1] == latex[:1] and gold[-1:] == latex[-1:] and len(golds) == len(answers) > 1:
        each = [_plainly(*pair) for pair in zip(golds, answers, strict=True)]
        return None if None in each and False not in each else all(each)
    left, equals, right = latex.partition("=")
    if equals and "=" not in gold and (not NAME.fullmatch(left) or "=" in right):
        return False  # `5=6` is not an answer; `x=6` is
    return None
