"""Mathematical equivalence: `\\frac{1}{2}`, `0.5` and `\\dfrac12` are one answer.

Simple cases are decided here, exactly. The rest goes to math-verify, in processes that can be killed: some answers make
sympy run forever. An answer that times out is wrong; a gold answer that cannot be parsed is broken.

Where the gold is a number, the answer must be evaluated: `17 \\cdot 23` is wrong for 391. A fraction, a power or a
root counts as a number, unless it stands in the question. `numeric` requires the digits themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache

from outdo.errors import GraderError
from outdo.rewards.answer import MODIFIERS, NUMBER_WORDS, RIGHT, Column, boxed, final_answers, without_echoes
from outdo.rewards.latex import MAX_CHARS, NAME, TEXT, bases, is_evaluated, normalized, parts, same_in_base, value
from outdo.sandbox.pool import Pool, Reply
from outdo.types import Grade

TIMEOUT = 5.0  # seconds for one answer
MEMORY_MB = 128
_MAX_SPELLINGS = 3  # of one answer
_ECHO = "an expression of the question?"  # equal to nothing

_COMMAND = re.compile(r"\\[A-Za-z]+")
_JOINERS = {  # stand between two answers, of which math-verify reads only one
    *("\\approx", "\\equiv", "\\sim", "\\simeq", "\\cong", "\\ne", "\\neq", "\\not", "\\lor", "\\vee", "\\land"),
    *("\\wedge", "\\to", "\\rightarrow", "\\Rightarrow", "\\implies", "\\iff", "\\mid", "\\quad", "\\qquad", "\\boxed"),
}


def math(
    completions: list[str], answer: Column, messages: Column = (), reward_timeout: float = TIMEOUT, **columns: object
) -> list[Grade]:
    """1 where the final answer is mathematically equal to the gold; else 0."""
    golds = [_gold(gold) for gold in answer]
    texts = without_echoes(completions, messages)
    finals = [list(dict.fromkeys(map(normalized, final_answers(text)))) for text in texts]  # each distinct one once
    for gold, answers, prompt in zip(golds, finals, messages, strict=bool(messages)):
        answers[:] = [_ECHO if gold and _repeats(gold, final, prompt) else final for final in answers]
    undecided = {
        (gold, final)
        for gold, answers in zip(golds, finals, strict=True)
        for final in answers
        if gold and len(answers) <= _MAX_SPELLINGS and _simple_verdict(gold, final) is None
    }
    seconds = min(reward_timeout, TIMEOUT)
    replies = _run("equal", sorted(undecided), seconds)
    readable = {gold for (gold, _), reply in replies.items() if reply.value is not None}
    unchecked = {(gold,) for gold in golds if gold and gold not in readable and value(gold) is None}
    replies |= _run("readable", sorted(unchecked), seconds)
    return [_verdict(gold, answers, replies) for gold, answers in zip(golds, finals, strict=True)]


def _run(function: str, arguments: Sequence[tuple[str, ...]], seconds: float) -> dict[tuple[str, ...], Reply]:
    jobs = [(f"outdo.rewards.equivalence:{function}", args) for args in arguments]
    return dict(zip(arguments, _pool().run(jobs, seconds) if jobs else [], strict=True))


@cache
def _pool() -> Pool:
    try:
        import math_verify  # noqa: F401
    except ImportError:
        raise GraderError("the reward math needs math-verify: pip install math-verify") from None
    return Pool(["outdo.rewards.equivalence"], MEMORY_MB)


def _verdict(gold: str, answers: list[str], replies: dict[tuple[str, ...], Reply]) -> Grade:
    readable = replies.get((gold,))
    if not gold or (readable and readable.value is not True):
        return Grade(None, "broken", reason=f"cannot parse the gold answer {gold[:40]!r} as mathematics")
    if not answers:
        return Grade(0.0, "wrong", reason="no final answer")
    if len(answers) > _MAX_SPELLINGS:
        return Grade(0.0, "wrong", reason=f"{len(answers)} final answers")
    for final in answers:
        simple = _simple_verdict(gold, final)
        reply = replies[gold, final] if simple is None else Reply("value", simple)
        if reply.kind == "died":
            return Grade(None, "broken", reason=reply.message)
        if reply.value is not True:
            several = f"{len(answers)} final answers that disagree, or " if len(answers) > 1 else ""
            why = reply.message or f"answered {final[:40]!r}, not {gold[:40]!r}"
            evades = _evades(gold, final) if simple is False else ""
            return Grade(0.0, "wrong", reason=several + why + (evades and f": {evades}"))
    return RIGHT


def _gold(answer: object) -> str:
    """The gold as LaTeX; of a worked solution its last box, or the text after its `####`."""
    text = "" if answer is None else str(answer)
    text = (boxed(text) or [text])[-1] if "\\boxed" in text else text.rpartition("####")[2]
    latex = normalized(text)
    return latex if len(latex) <= MAX_CHARS else ""


def _same_number(gold: Fraction, value: Fraction) -> bool:
    """Exact equality; to six digits for a fraction without a finite decimal, such as 1/3."""
    terminates = all(pow(10, 400, number.denominator) == 0 for number in (gold, value))
    return gold == value or (not terminates and abs(gold - value) <= abs(gold) / 10**6)


def _evades(gold: str, latex: str) -> str:
    """How an answer evades being a single, evaluated one; empty where it does not."""
    texts, rest = " ".join(TEXT.findall(latex)), TEXT.sub("", latex)
    words = set(re.split(r"[^a-z]+", texts.lower())) - set(re.split(r"[^a-z]+", gold.lower()))
    if _joins_answers(gold, latex) or "or" in words or _has_two_numbers(texts, rest, words):
        return "several answers in one"
    if MODIFIERS & words:
        return "words that change the number"
    if (subscripts := bases(latex)) and subscripts != bases(gold):
        return "another base"
    return "" if is_evaluated(gold, latex) else "not evaluated"


def _joins_answers(gold: str, latex: str) -> bool:
    commands = set(_COMMAND.findall(latex)) - set(_COMMAND.findall(gold))
    return bool(commands & _JOINERS) or latex.count("=") > max(1, gold.count("=")) or ("?" in latex and "?" not in gold)


def _has_two_numbers(texts: str, rest: str, words: set[str]) -> bool:
    """Whether the text beside a formula gives another number; `5\\text{ (five)}` repeats the same one."""
    others = {NUMBER_WORDS[word] for word in words & NUMBER_WORDS.keys()} - {value(rest)}
    return any(map(str.isdigit, rest)) and (bool(others) or any(map(str.isdigit, texts)))


def _repeats(gold: str, latex: str, messages: object) -> bool:
    """Whether the answer is an expression copied from the question instead of its value."""
    if value(gold) is None or value(latex) is not None or not isinstance(messages, (list, tuple)):
        return False
    contents = [str(message.get("content", "")) for message in messages if isinstance(message, Mapping)]
    return any(latex in normalized(text) for text in contents)


def _simple_verdict(gold: str, latex: str) -> bool | None:
    """Whether they are equal, where that needs no algebra; else None."""
    if gold == latex:
        return True
    if len(latex) > MAX_CHARS or not latex:
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
        verdicts = [_simple_verdict(*pair) for pair in zip(golds, answers, strict=True)]
        return None if None in verdicts and False not in verdicts else all(verdicts)
    left, equals, right = latex.partition("=")
    if equals and "=" not in gold and (not NAME.fullmatch(left) or "=" in right):
        return False  # `5=6` is not an answer; `x=6` is
    return None
