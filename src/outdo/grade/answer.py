"""The final answer of a text, and whether it is the right one.

An answer counts where a reader would look for it: in `<answer>` tags, after GSM8K's `####`, or in a `\\boxed{}`; what
stands in the thinking part does not count, and two different final answers are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from outdo.types import Grade

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(r"####([^\n]*)")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_AROUND = re.compile(r"^(?:[$€£¥]|\\\$)|(?:[%$€£¥]|\\%)$")
_LONGEST = 200  # characters of a final answer; more is no answer


def final_answers(text: str) -> list[str]:
    """Every final answer that the text gives, outside its thinking part."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return []  # still thinking, or thinking again, when it was cut off
    closed, end, rest = text.rpartition("</answer>")
    blocks = _TAGGED.findall(closed + end)  # up to the last closing tag: nothing scans to the end in vain
    found = [answer for block in blocks for answer in (_marked(block) or [block])]
    return [answer.strip() for answer in found + _marked(_TAGGED.sub("", closed + end) + rest)]


def _marked(text: str) -> list[str]:
    return _MARKED.findall(text) + _BOXED.findall(text)


def number(text: str) -> Fraction | None:
    """The number that a text is, exactly, or None. `1,234.50`, `$5`, `+7`, `12.` and a Unicode minus are numbers."""
    text = text.strip().replace("\u2212", "-")
    text = _AROUND.sub("", _AROUND.sub("", text).strip()).strip().removesuffix(".")
    if len(text) > _LONGEST or not text.isascii() or not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    return Fraction(text.replace(",", ""))


def numeric(completions: list[str], answer: list[object], **columns: object) -> list[Grade]:
    """1 where the final answer is the gold number, however it is written; else 0."""
    return [_compare(text, str(gold), number) for text, gold in zip(completions, answer, strict=True)]


def exact(completions: list[str], answer: list[object], **columns: object) -> list[Grade]:
    """1 where the final answer is the gold text, outer spaces aside; else 0."""
    golds = ["" if gold is None else str(gold) for gold in answer]
    return [_compare(text, gold, str.strip) for text, gold in zip(completions, golds, strict=True)]


def gsm8k(completions: list[str], answer: list[object], **columns: object) -> list[Grade]:
    """As `numeric`; the gold may be a worked solution that ends in `#### N`."""
    golds = [str(gold).rpartition("####")[2] for gold in answer]
    return [_compare(text, gold, number) for text, gold in zip(completions, golds, strict=True)]


def _compare(text: str, gold: str, read: Callable[[str], object]) -> Grade:
    want = read(gold)
    if want is None or want == "" or len(gold.strip()) > _LONGEST:
        return Grade(None, "broken", reason=f"the gold answer {gold[:40]!r} is not one")
    found = final_answers(text)
    if not found:
        return Grade(0.0, "wrong", reason="no final answer")
    got: set[object] = set()
    for answer in set(found):  # a flood of equal answers is one; of different ones, the second ends it
        got.add(read(answer) if len(answer) <= _LONGEST else answer)
        if len(got) > 1:
            return Grade(0.0, "wrong", reason=f"{len(found)} final answers that disagree")
    if got == {want}:
        return Grade(1.0, "right")
    return Grade(0.0, "wrong", reason=f"answered {found[-1][:40]!r}, not {gold.strip()[:40]!r}")
