"""Extracts the final answer of a text and compares it with the gold.

A final answer stands in `<answer>` tags, after GSM8K's `####`, or in a `\\boxed{}`. Text in the thinking part, in an
echo of the prompt, or in a Markdown heading beside an answer does not count. Two different final answers are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from outdo.types import Grade

Column = Sequence[object]  # one value for each completion

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(r"(\*{2,3})?####([^\n]*)")
_EMPHASIS = re.compile(r"(\*{1,3}|`)([^*`]+)\1(\.?)")
_BRACES = re.compile(r"\\boxed\s*\{|\\[\\{}]|[{}]")
_MARKS = ("####", "<answer>", "\\boxed", "</think>")

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?"
_PLAIN_NUMBER = re.compile(rf"[+-]?{_DIGITS}")
_NUMBER_WITH_UNIT = re.compile(rf"([+-]?)\s*(?:\\?\$|[€£¥₹]|USD|EUR|GBP)?\s*([+-]?)({_DIGITS})(?=[^0-9,]|$)")
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?:\\?%|\\?\$|[€£¥₹°]|\^?\\circ|\^\{\\circ\}|[A-Za-zµ°][A-Za-zµ°'’/. -]{0,39}[²³]?)")
MODIFIERS = {  # words after a number that change its value
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
_NUMBERED_HEADING = re.compile(  # `Step 1`, `Part 2: the rest of the 40`, `3. The total`; not `Step 1: 40`
    r"(?:(?:step|part|case|stage|phase|section|example|question|problem|method|approach|task)s?\W*"
    r"(?:[0-9]{1,2}|one|two|three)\b|[0-9]{1,2}[.)](?=\s))(?:\W*|\W+[^\W\d_]{2}.*)",
    re.IGNORECASE,
)
_NAMED_HEADING = re.compile(
    r"(?:the\W+)?(?:final\W+|step.by.step\W+)?(?:answer|solution|calculation|computation|explanation|reasoning|"
    r"conclusion|verification|check|summary|analysis|result|approach|method|step|given)s?\W*",
    re.IGNORECASE,
)
_TITLE = re.compile(r"[^\W\d_][^\W\d_]{2}(?:[^\W\d_]|[ '’,:;&()?!/-])*")
_ANSWER_WORDS = {  # a line with one of these is an answer, not a title
    *("no", "not", "none", "nothing", "yes", "true", "false", "or"),
    *("pi", "infinity", "infinite", "undefined", "unsure"),
    *NUMBER_WORDS,
}
_NOT_UNITS = MODIFIERS | {"or", "and", "to", "e", "x"}  # the latter join two numbers
_DIGIT_RUN = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+")
_MORE_DIGITS = re.compile(r"[.,][0-9]")  # after a number: it is not one
_MAX_ANSWER_CHARS = 200
_MAX_DIGITS = 4000  # of a number, once zeros at its ends are removed: Python refuses to parse more than 4300
RIGHT = Grade(1.0, "right")


def after_thinking(text: str) -> str | None:
    """The text after the thinking part; all of it where there is none, None where it is not closed."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    return None if "<think>" in text else text  # an open thinking part at the end


def final_answers(text: str) -> list[str]:
    """Every final answer in the text, outside its thinking part."""
    rest = after_thinking(text)
    if rest is None:
        return []
    closed, end, rest = rest.rpartition("</answer>")
    if not end:
        return _without_headings(_marked(rest))
    blocks = _TAGGED.findall(closed + end)  # only up to the last closing tag, which keeps the scan linear
    answers = [answer for block in blocks for answer in (_marked(block) or [(block.strip(), "<answer>")])]
    return _without_headings(answers + _marked(_TAGGED.sub("", closed + end) + rest))


def _marked(text: str) -> list[tuple[str, str]]:
    """Each answer after a mark, with the mark."""
    lines = _MARKED.findall(text) if "####" in text else []
    answers = [line.strip().removesuffix(bold).strip() for bold, line in lines]
    if "\\boxed" not in text:
        return [(answer, "####") for answer in answers]
    hashed = [(answer, "####") for answer in answers if "\\boxed" not in answer]
    return hashed + [(answer.strip(), "\\boxed") for answer in boxed(text)]


def _without_headings(marked: list[tuple[str, str]]) -> list[str]:
    """The answers without Markdown headings, which start with `####` too.

    The choice does not depend on the gold: writing an answer as a heading gains nothing. A lone heading is an answer. A
    title in free words is a heading only beside an answer with a digit: beside `Paris`, `Rome` is another answer.
    """
    lines = {answer for answer, mark in marked if mark == "####"} if len(marked) > 1 else set()
    headings, titles = set(filter(_is_heading, lines)), set(filter(_is_title, lines))
    answers = [answer for answer, mark in marked if mark != "####" or answer not in headings | titles]
    if not answers:
        return [answer for answer, _ in marked]
    if any(c.isdigit() for answer in answers for c in answer):
        headings |= titles
    return [answer for answer, mark in marked if mark != "####" or answer not in headings]


def _is_heading(line: str) -> bool:
    line = line[: _MAX_ANSWER_CHARS + 1].strip("#* `")
    return len(line) < _MAX_ANSWER_CHARS and bool(_NUMBERED_HEADING.fullmatch(line) or _NAMED_HEADING.fullmatch(line))


def _is_title(line: str) -> bool:
    line = line[: _MAX_ANSWER_CHARS + 1].strip("#* `")
    words = re.split(r"[^a-z]+", line.lower())
    return bool(_TITLE.fullmatch(line)) and line[0] == line[0].upper() and not _ANSWER_WORDS.intersection(words)


def without_emphasis(text: str) -> str:
    """The 5 of Markdown's `**5**`, `*5*` and `` `5` ``."""
    emphasised = _EMPHASIS.fullmatch(text)
    return emphasised[2].strip() + emphasised[3] if emphasised else text


def boxed(text: str) -> list[str]:
    """The contents of the outermost `\\boxed{}`, with matched braces."""
    contents, opened, outer = [], list[int](), -1  # opened: where the content of each open brace starts
    for token in _BRACES.finditer(text):
        if token[0] == "}":
            if opened and opened.pop() == outer:
                contents.append(text[outer : token.start()])
                outer = -1
        elif token[0][-1] == "{" and token[0] != "\\{":
            opened.append(token.end())
            if len(token[0]) > 1 and outer < 0:
                outer = token.end()
    return contents


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, else None; `1,234.50`, `$5`, `+7`, `12.` and `5 km` are."""
    text = text.strip()
    if len(text) <= _MAX_ANSWER_CHARS:
        return _number(text)
    text = without_zeros(text)
    return _number.__wrapped__(text) if len(text) <= _MAX_DIGITS else None  # too long to be cached


def without_zeros(text: str) -> str:
    """The text without zeros that do not change its number: those before it, and those that end its decimals."""
    match = _DIGIT_RUN.search(text)
    if not match or _MORE_DIGITS.match(text, match.end()):
        return text
    whole, point, decimals = match[0].partition(".")
    decimals = decimals.rstrip("0")
    whole = whole if "," in whole else whole.lstrip("0") or "0"
    return text[: match.start()] + whole + (point + decimals if decimals else "") + text[match.end() :]


@lru_cache(maxsize=2**16)
def _number(text: str) -> Fraction | None:
    text = without_emphasis(text).replace("\u2212", "-")
    bare = text.removesuffix(".")
    if _PLAIN_NUMBER.fullmatch(bare) and bare[-1:].isdigit():
        return Fraction(bare.replace(",", ""))
    match = _NUMBER_WITH_UNIT.match(text)
    if not match or not match[3] or (match[1] and match[2]) or not _is_unit(text[match.end() :]):
        return None
    return Fraction(match[1] + match[2] + match[3].replace(",", ""))


def _is_unit(text: str) -> bool:
    """Whether the text after a number keeps its value: nothing, a currency, a percent sign, a unit in words."""
    text = _TEXT_COMMAND.sub(r" \1", text.replace("\\,", " ").replace("\\ ", " ")).strip().removesuffix(".").strip()
    if not text:
        return True
    words = re.split(r"[^a-z']+", text.lower())
    return bool(_UNIT.fullmatch(text)) and not _NOT_UNITS.intersection(words)


def numeric(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """1 where the final answer is exactly the gold number, however formatted; else 0."""
    return _compared(completions, [str(gold) for gold in answer], messages, number)


def exact(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """1 where the final answer is the gold text, ignoring outer spaces; else 0."""
    return _compared(completions, ["" if gold is None else str(gold) for gold in answer], messages, str.strip)


def gsm8k(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """Like `numeric`; the gold may be a worked solution that ends in `#### N`."""
    return _compared(completions, [str(gold).rpartition("####")[2] for gold in answer], messages, number)


def _compared(completions: list[str], golds: list[str], messages: Column, read: Callable[[str], object]) -> list[Grade]:
    texts = without_echoes(completions, messages)
    return [_compare(text, gold, read) for text, gold in zip(texts, golds, strict=True)]


def _compare(text: str, gold: str, read: Callable[[str], object]) -> Grade:
    expected = _gold(gold, read)
    if expected is None or expected == "":
        return Grade(None, "broken", reason=f"invalid gold answer {gold[:40]!r}")
    answers = final_answers(text)
    if not answers:
        return Grade(0.0, "wrong", reason="no final answer")
    values: set[object] = set()
    for answer in set(answers):  # bounded: stops at the second different value
        values.add(read(answer))
        if len(values) > 1:
            return Grade(0.0, "wrong", reason=f"{len(answers)} final answers that disagree")
    if values == {expected}:
        return RIGHT
    return Grade(0.0, "wrong", reason=f"answered {answers[-1][:40]!r}, not {gold.strip()[:40]!r}")


@lru_cache(maxsize=4096)
def _gold(gold: str, read: Callable[[str], object]) -> object:
    return read(gold) if read is number or len(gold.strip()) <= _MAX_ANSWER_CHARS else None


def without_echoes(completions: list[str], messages: Column) -> list[str]:
    """The texts without verbatim echoes of their prompts that hold the marks of an answer.

    An echoed piece of the prompt is not the model's answer: a full message, or any of its paragraphs and lines that are
    too long to be an answer by chance.
    """
    if not messages:
        return completions
    return [_without_echo(text, prompt) for text, prompt in zip(completions, messages, strict=True)]


def _without_echo(text: str, messages: object) -> str:
    if not isinstance(messages, (list, tuple)):
        return text
    contents = [m["content"] for m in messages if isinstance(m, Mapping) and isinstance(m.get("content"), str)]
    contents = [text for text in contents if any(mark in text for mark in _MARKS)]
    pieces = {piece.strip() for text in contents for piece in (text, *text.split("\n\n"), *text.split("\n"))}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= 20 and any(mark in piece for mark in _MARKS):
            text = text.replace(piece, "\n")
    return text
