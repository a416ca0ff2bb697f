"""The final answer of a text, and whether it is the right one.

An answer counts where a reader would look for it: in `<answer>` tags, after GSM8K's `####`, or in a `\\boxed{}`. What
stands in the thinking part, or in a repetition of the prompt, does not count, nor does a heading of Markdown beside an
answer, and two different final answers are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from outdo.types import Grade

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(r"(\*{2,3})?####([^\n]*)")
_EMPHASIS = re.compile(r"(\*{1,3}|`)([^*`]+)\1(\.?)")
_BRACES = re.compile(r"\\boxed\s*\{|\\[\\{}]|[{}]")
_MARKS = ("####", "<answer>", "\\boxed", "</think>")

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?"
_PLAIN = re.compile(rf"[+-]?{_DIGITS}")
_DRESSED = re.compile(rf"([+-]?)\s*(?:\\?\$|[€£¥₹]|USD|EUR|GBP)?\s*([+-]?)({_DIGITS})(?=[^0-9,]|$)")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?:\\?%|\\?\$|[€£¥₹°]|\^?\\circ|\^\{\\circ\}|[A-Za-zµ°][A-Za-zµ°'’/. -]{0,39}[²³]?)")
CHANGES = {  # words after a number that change it
    *("hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion"),
    *("dozen", "dozens", "score", "half", "halves", "third", "thirds", "quarter", "quarters", "fifth", "fifths"),
    *("tenth", "tenths", "squared", "cubed", "factorial", "plus", "minus", "times", "over", "by", "mod", "modulo"),
    *("not", "nor", "no", "isn't", "point", "k", "mn", "bn"),
}
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {
    **{word: i for i, word in enumerate([*_SMALL.split(), "seventeen", "eighteen", "nineteen"])},
    **{word: 10 * i for i, word in enumerate(_TENS.split(), 2)},
}
_NUMBERED = re.compile(  # `Step 1`, `Part 2: what is left of the 40`, `3. The total`; not `Step 1: 40`
    r"(?:(?:step|part|case|stage|phase|section|example|question|problem|method|approach|task)s?\W*"
    r"(?:[0-9]{1,2}|one|two|three)\b|[0-9]{1,2}[.)](?=\s))(?:\W*|\W+[^\W\d_]{2}.*)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?:the\W+)?(?:final\W+|step.by.step\W+)?(?:answer|solution|calculation|computation|explanation|reasoning|"
    r"conclusion|verification|check|summary|analysis|result|approach|method|step|given)s?\W*",
    re.IGNORECASE,
)
_TITLE = re.compile(r"[^\W\d_][^\W\d_]{2}(?:[^\W\d_]|[ '’,:;&()?!/-])*")
_SAID = {  # words that make a line of words an answer
    *("no", "not", "none", "nothing", "yes", "true", "false", "or"),
    *("pi", "infinity", "infinite", "undefined", "unsure"),
    *NUMBER_WORDS,
}
_NOT_UNITS = CHANGES | {"or", "and", "to", "e", "x"}  # these join it to another
_LONGEST = 200  # characters of a final answer; more is no answer


def after_thinking(text: str) -> str | None:
    """What follows the thinking part: all of it where there is none; None where it never ended."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    return None if "<think>" in text else text  # still thinking, or thinking again, when it was cut off


def final_answers(text: str) -> list[str]:
    """Every final answer that the text gives, outside its thinking part."""
    rest = after_thinking(text)
    if rest is None:
        return []
    closed, end, rest = rest.rpartition("</answer>")
    if not end:
        return _without_headings(_marked(rest))
    blocks = _TAGGED.findall(closed + end)  # up to the last closing tag: nothing scans to the end in vain
    found = [answer for block in blocks for answer in (_marked(block) or [(block.strip(), "<answer>")])]
    return _without_headings(found + _marked(_TAGGED.sub("", closed + end) + rest))


def _marked(text: str) -> list[tuple[str, str]]:
    """What follows a mark, and the mark."""
    lines = _MARKED.findall(text) if "####" in text else []
    found = [line.strip().removesuffix(bold).strip() for bold, line in lines]
    if "\\boxed" not in text:
        return [(answer, "####") for answer in found]
    hashed = [(answer, "####") for answer in found if "\\boxed" not in answer]
    return hashed + [(answer.strip(), "\\boxed") for answer in boxed(text)]


def _without_headings(found: list[tuple[str, str]]) -> list[str]:
    """The answers less the headings: Markdown has the mark `####` too.

    Which they are does not depend on the gold, so nobody gains by giving an answer as a heading. Where there is nothing
    else, a heading is the answer. A title in free words is one only beside an answer with a digit: beside `Paris`,
    `Rome` is another answer.
    """
    lines = {answer for answer, mark in found if mark == "####"} if len(found) > 1 else set()
    headings, titles = set(filter(_is_heading, lines)), set(filter(_is_title, lines))
    answers = [answer for answer, mark in found if mark != "####" or answer not in headings | titles]
    if not answers:
        return [answer for answer, _ in found]
    if any(c.isdigit() for answer in answers for c in answer):
        headings |= titles
    return [answer for answer, mark in found if mark != "####" or answer not in headings]


def _is_heading(line: str) -> bool:
    line = line[: _LONGEST + 1].strip("#* `")
    return len(line) < _LONGEST and bool(_NUMBERED.fullmatch(line) or _NAMED.fullmatch(line))


def _is_title(line: str) -> bool:
    line = line[: _LONGEST + 1].strip("#* `")
    words = re.split(r"[^a-z]+", line.lower())
    return bool(_TITLE.fullmatch(line)) and line[0] == line[0].upper() and not _SAID.intersection(words)


def without_emphasis(text: str) -> str:
    """Of Markdown's `**5**`, `*5*` and `` `5` `` the 5."""
    emphasised = _EMPHASIS.fullmatch(text)
    return emphasised[2].strip() + emphasised[3] if emphasised else text


def boxed(text: str) -> list[str]:
    """What the outermost `\\boxed{}` hold, braces inside matched."""
    found, opened, outer = [], list[int](), -1  # opened: where each open brace's content begins
    for token in _BRACES.finditer(text):
        if token[0] == "}":
            if opened and opened.pop() == outer:
                found.append(text[outer : token.start()])
                outer = -1
        elif token[0][-1] == "{" and token[0] != "\\{":
            opened.append(token.end())
            if len(token[0]) > 1 and outer < 0:
                outer = token.end()
    return found


def number(text: str) -> Fraction | None:
    """The number that a text is, exactly, or None. `1,234.50`, `$5`, `+7`, `12.`, `5 km` and a Unicode minus are."""
    text = text.strip()
    return _number(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=2**16)
def _number(text: str) -> Fraction | None:
    text = without_emphasis(text).replace("\u2212", "-")
    bare = text.removesuffix(".")
    if _PLAIN.fullmatch(bare) and bare[-1:].isdigit():
        return Fraction(bare.replace(",", ""))
    dressed = _DRESSED.match(text)
    if not dressed or not dressed[3] or (dressed[1] and dressed[2]) or not _is_unit(text[dressed.end() :]):
        return None
    return Fraction(dressed[1] + dressed[2] + dressed[3].replace(",", ""))


def _is_unit(text: str) -> bool:
    """Whether what follows a number leaves it what it is: nothing, a currency, a percent sign, a unit in words."""
    text = _WRAPPED.sub(r" \1", text.replace("\\,", " ").replace("\\ ", " ")).strip().removesuffix(".").strip()
    if not text:
        return True
    words = re.split(r"[^a-z']+", text.lower())
    return bool(_UNIT.fullmatch(text)) and not _NOT_UNITS.intersection(words)


def numeric(
    completions: list[str], answer: Sequence[object], messages: Sequence[object] = (), **columns: object
) -> list[Grade]:
    """1 where the final answer is the gold number, exactly, however it is written; else 0."""
    return _compared(completions, [str(gold) for gold in answer], messages, number)


def exact(
    completions: list[str], answer: Sequence[object], messages: Sequence[object] = (), **columns: object
) -> list[Grade]:
    """1 where the final answer is the gold text, outer spaces aside; else 0."""
    return _compared(completions, ["" if gold is None else str(gold) for gold in answer], messages, str.strip)


def gsm8k(
    completions: list[str], answer: Sequence[object], messages: Sequence[object] = (), **columns: object
) -> list[Grade]:
    """As `numeric`; the gold may be a worked solution that ends in `#### N`."""
    return _compared(completions, [str(gold).rpartition("####")[2] for gold in answer], messages, number)


def _compared(
    completions: list[str], golds: Sequence[str], messages: Sequence[object], read: Callable[[str], object]
) -> list[Grade]:
    texts = without_echoes(completions, messages)
    return [_compare(text, gold, read) for text, gold in zip(texts, golds, strict=True)]


def _compare(text: str, gold: str, read: Callable[[str], object]) -> Grade:
    want = _gold(gold, read)
    if want is None or want == "":
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
        return RIGHT
    return Grade(0.0, "wrong", reason=f"answered {found[-1][:40]!r}, not {gold.strip()[:40]!r}")


RIGHT = Grade(1.0, "right")


@lru_cache(maxsize=4096)
def _gold(gold: str, read: Callable[[str], object]) -> object:
    return read(gold) if len(gold.strip()) <= _LONGEST else None


def without_echoes(completions: list[str], messages: Sequence[object]) -> list[str]:
    """The texts with repetitions of their prompts taken out, where those hold the marks of an answer.

    A piece of the prompt that is repeated word for word is not the model's answer: the whole of a message, and each
    paragraph and line of it that is long enough not to be an answer by chance.
    """
    if not messages:
        return completions
    return [_without_echo(text, asked) for text, asked in zip(completions, messages, strict=True)]


def _without_echo(text: str, messages: object) -> str:
    shown = str(messages)
    if any(mark in shown for mark in _MARKS):
        for piece in _marked_pieces(messages):
            text = text.replace(piece, "\n")
    return text


def _marked_pieces(messages: object) -> list[str]:
    """Longest first."""
    if not isinstance(messages, (list, tuple)):
        return []
    said = [m["content"] for m in messages if isinstance(m, Mapping) and isinstance(m.get("content"), str)]
    said = [text for text in said if any(mark in text for mark in _MARKS)]
    pieces = {piece.strip() for text in said for piece in (text, *text.split("\n\n"), *text.split("\n"))}
    return sorted((p for p in pieces if len(p) >= 20 and any(mark in p for mark in _MARKS)), key=len, reverse=True)
