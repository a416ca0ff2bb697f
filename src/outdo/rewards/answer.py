"""Extracts the final answer of a text and compares it with the gold.

A final answer stands in `<answer>` tags, after GSM8K's `####`, or in a `\\boxed{}`. Text in the thinking part, in an
echo of the prompt, or in a Markdown heading beside an answer does not count. Two different final answers are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from outdo.rewards.quantity import MAX_ANSWER_CHARS, asked_for, justified, read, same_kind
from outdo.rewards.quantity import number as number
from outdo.rewards.quantity import without_emphasis as without_emphasis
from outdo.rewards.quantity import without_zeros as without_zeros
from outdo.rewards.vocabulary import MODIFIERS as MODIFIERS
from outdo.rewards.vocabulary import NUMBER_WORDS as NUMBER_WORDS
from outdo.types import Grade

Column = Sequence[object]  # one value for each completion

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_CUT_TAG = re.compile(r"</(?:a(?:n(?:s(?:w(?:er?)?)?)?)?)?$")
_MARKED = re.compile(r"(\*{2,3})?####([^\n]*)")
_BRACES = re.compile(r"\\boxed\s*\{|\\[\\{}]|[{}]")
_MARKS = ("####", "<answer>", "\\boxed", "</think>")

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
_NOTHING = " \t\n.…_"  # `\\boxed{}` and `\\boxed{...}` mention the form, and answer nothing
_ANSWER_WORDS = {  # a line with one of these is an answer, not a title
    *("no", "not", "none", "nothing", "yes", "true", "false", "or"),
    *("pi", "infinity", "infinite", "undefined", "unsure"),
    *NUMBER_WORDS,
}
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
    answers = []
    if end:
        blocks = _TAGGED.findall(closed + end)  # only up to the last closing tag, which keeps the scan linear
        answers = [answer for block in blocks for answer in _of_block(block)]
        closed = _TAGGED.sub("", closed + end)
    rest, *unclosed = _CUT_TAG.sub("", rest).split("<answer>") if "<answer>" in rest else [rest]
    answers += _marked(closed + rest)
    return _without_headings(answers + [one for block in unclosed if block.strip() for one in _of_block(block)])


def _of_block(block: str) -> list[tuple[str, str]]:
    return _marked(block) or [(block.strip(), "<answer>")]


def _marked(text: str) -> list[tuple[str, str]]:
    """Each answer after a mark, with the mark."""
    lines = _MARKED.findall(text) if "####" in text else []
    answers = [line.strip().removesuffix(bold).strip() for bold, line in lines]
    if "\\boxed" not in text:
        return [(answer, "####") for answer in answers]
    hashed = [(answer, "####") for answer in answers if "\\boxed" not in answer]
    return hashed + [(answer.strip(), "\\boxed") for answer in boxed(text)]


def _without_headings(marked: list[tuple[str, str]]) -> list[str]:
    """The answers without Markdown headings, which start with `####` too, and without empty boxes.

    The choice does not depend on the gold: writing an answer as a heading gains nothing. A lone heading is an answer. A
    title in free words is a heading only beside an answer with a digit: beside `Paris`, `Rome` is another answer.
    """
    marked = [(answer, mark) for answer, mark in marked if mark != "\\boxed" or answer.strip(_NOTHING)] or marked
    lines = {answer for answer, mark in marked if mark == "####"} if len(marked) > 1 else set()
    headings, titles = set(filter(_is_heading, lines)), set(filter(_is_title, lines))
    answers = [answer for answer, mark in marked if mark != "####" or answer not in headings | titles]
    if not answers:
        return [answer for answer, _ in marked]
    if any(c.isdigit() for answer in answers for c in answer):
        headings |= titles
    return [answer for answer, mark in marked if mark != "####" or answer not in headings]


def _is_heading(line: str) -> bool:
    line = line[: MAX_ANSWER_CHARS + 1].strip("#* `")
    return len(line) < MAX_ANSWER_CHARS and bool(_NUMBERED_HEADING.fullmatch(line) or _NAMED_HEADING.fullmatch(line))


def _is_title(line: str) -> bool:
    line = line[: MAX_ANSWER_CHARS + 1].strip("#* `")
    words = re.split(r"[^a-z]+", line.lower())
    return bool(_TITLE.fullmatch(line)) and line[0] == line[0].upper() and not _ANSWER_WORDS.intersection(words)


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


def numeric(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """1 where the final answer is exactly the gold number, however formatted; else 0.

    A unit, a currency, a counted noun or a lead-in such as `The answer is` may stand beside the number where it is in
    the lists of `outdo.rewards.units` and `outdo.rewards.quantity`, and a noun where the question has it. Any other
    text beside it, another unit than the gold's, or a percent sign that the question does not mention is wrong.
    """
    return _numbers(completions, [str(gold) for gold in answer], messages)


def gsm8k(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """Like `numeric`; the gold may be a worked solution that ends in `#### N`."""
    return _numbers(completions, [str(gold).rpartition("####")[2] for gold in answer], messages)


def exact(completions: list[str], answer: Column, messages: Column = (), **columns: object) -> list[Grade]:
    """1 where the final answer is the gold text, ignoring outer spaces; else 0."""
    golds = ["" if gold is None else str(gold).strip() for gold in answer]
    rows = zip(without_echoes(completions, messages), golds, strict=True)
    return [_compare(text, gold, gold if len(gold) <= MAX_ANSWER_CHARS else "", str.strip) for text, gold in rows]


def _numbers(completions: list[str], golds: list[str], messages: Column) -> list[Grade]:
    texts = without_echoes(completions, messages)
    prompts = messages or [()] * len(texts)
    return [_grade_number(*row) for row in zip(texts, golds, prompts, strict=True)]


def _grade_number(text: str, gold: str, messages: object) -> Grade:
    expected = read(gold)

    def value(answer: str) -> Fraction | None:
        reading = read(answer)
        if reading is None or expected is None or not (reading.unit or reading.nouns):
            return reading and reading.value
        if not same_kind(reading.unit, expected.unit):
            return None
        question = question_of(messages)
        fits = (reading.unit == expected.unit or asked_for(reading, question)) and justified(
            reading, expected, question
        )
        return reading.value if fits else None

    return _compare(text, gold, expected and expected.value, value)


def question_of(messages: object) -> str:
    """What the user asked, in all turns."""
    return "\n".join(message["content"] for message in _with_text(messages) if message.get("role", "user") == "user")


def _with_text(messages: object) -> list[Mapping[str, str]]:
    held = messages if isinstance(messages, (list, tuple)) else ()
    return [message for message in held if isinstance(message, Mapping) and isinstance(message.get("content"), str)]


def _compare(text: str, gold: str, expected: object, read: Callable[[str], object]) -> Grade:
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


def without_echoes(completions: list[str], messages: Column) -> list[str]:
    """The texts without verbatim echoes of their prompts that hold the marks of an answer.

    An echoed piece of the prompt is not the model's answer: a full message, or any of its paragraphs and lines that are
    too long to be an answer by chance.
    """
    if not messages:
        return completions
    return [_without_echo(text, prompt) for text, prompt in zip(completions, messages, strict=True)]


def _without_echo(text: str, messages: object) -> str:
    contents = [message["content"] for message in _with_text(messages)]
    contents = [text for text in contents if any(mark in text for mark in _MARKS)]
    pieces = {piece.strip() for text in contents for piece in (text, *text.split("\n\n"), *text.split("\n"))}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= 20 and any(mark in piece for mark in _MARKS):
            text = text.replace(piece, "\n")
    return text
