"""Grades labels: a class of a text, or the letter of a multiple-choice option."""

from __future__ import annotations

import re
from functools import lru_cache

from outdo.rewards.answer import RIGHT, Column, after_thinking, final_answers, question_of
from outdo.types import Grade

_MAX_LABEL_CHARS = 200
_MAX_OPTION_CHARS = 2000
_WRAPS = [  # around a label, each at most once inside another
    *(('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("`", "`")),
    *(("***", "***"), ("**", "**"), ("*", "*"), ("__", "__"), ("(", ")")),
    *(("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}")),
    *((f"\\{command}{{", "}") for command in ("text", "textbf", "textrm", "textit", "mathrm", "mathbf", "boxed")),
]
_LEAD = re.compile(
    r"(?:the )?(?:final |correct )?(?:answer|option|choice)(?: is|:| is:)? *(?:the )?(?:option|choice)? *(?=[^\s:])",
    re.IGNORECASE,
)
_LETTER = r"[A-Za-z]|[0-9]{1,2}"
_MARKED_LETTER = re.compile(rf"\(?({_LETTER})[).:]\)?")  # `A)`, `A.` or `(A).`
_OPTION = re.compile(rf"\(?({_LETTER})(?:\)?[.:]|\)| ?[-–—])(?:\s|\\[ ,;]|~)+(\S.*)", re.DOTALL)  # `A. Paris`
_OPTION_MARK = re.compile(rf"(?<![^\s,;(*])\(?\**({_LETTER})(?:\)\.?|\.|:)\**(?=\s)")
_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf))\s*\{([^{}]*)\}")


def label(
    completions: list[str], answer: Column, labels: Column | None = None, messages: Column = (), **columns: object
) -> list[Grade]:
    """1 where the final answer is the gold label and nothing else; else 0.

    The final answer is in `<answer>` tags, after `####` or in `\\boxed{}`, or else it is the full text. Case, brackets,
    quotes and emphasis around the label, one final full stop and `Option` or `The answer is` before it are ignored;
    look-alike letters of other alphabets are not. After a letter, as in `A. Paris`, only the text of that option in the
    question may stand. `labels` lists the labels that a row allows: a gold that is not among them, or two that are
    equal, is broken.
    """
    allowed = labels if labels is not None else [None] * len(completions)
    prompts = messages or [()] * len(completions)
    return [_grade(*row) for row in zip(completions, answer, allowed, prompts, strict=True)]


def _grade(text: str, gold: object, allowed: object, messages: object) -> Grade:
    expected = _normal(gold)
    if expected is None:
        return Grade(None, "broken", reason=f"invalid gold label {str(gold)[:40]!r}")
    known = None
    if allowed is not None:
        if not isinstance(allowed, (list, tuple)):
            return Grade(None, "broken", reason=f"labels must be a list, not a {type(allowed).__name__}")
        known = {_normal(one) for one in allowed}
        if expected not in known or None in known or len(known) < len({str(one) for one in allowed}):
            return Grade(None, "broken", reason="labels lacks the gold label, or has two equal labels")
    visible = after_thinking(text)
    if visible is None:
        return Grade(0.0, "wrong", reason="no answer: the thinking part is not closed")
    answers = final_answers(text) or [visible]
    answered = {_answered(one, messages) for one in set(answers)}
    if answered == {expected}:
        return RIGHT
    if len(answered) > 1:
        return Grade(0.0, "wrong", reason=f"{len(answers)} final answers that disagree")
    reason = "not one of the labels" if known is not None and not answered <= known else f"not {gold!r}"
    return Grade(0.0, "wrong", reason=f"answered {answers[-1][:40]!r}, {reason}")


Label = tuple[bool, str]


def _answered(text: str, messages: object) -> Label | None:
    """The label that an answer gives: alone, or before the text of its option in the question."""
    text = text.strip()
    if not messages or text.isalnum():
        return _normal(text)
    if len(text) > _MAX_OPTION_CHARS:
        return None
    bare = _bare(text)
    option = _OPTION.fullmatch(_COMMAND.sub(r"\1", bare).replace("**", ""))
    if option:
        options = _options(question_of(messages)).get(option[1].casefold(), [])
        if options and _text(option[2]) in options:
            return _normal(option[1])
    return _normal(text)


def _options(question: str) -> dict[str, list[str]]:
    """The texts of each option in a question, by its letter: `A. Paris`, `(B) Rome`, `C: Oslo`."""
    options: dict[str, list[str]] = {}
    for line in question.splitlines():
        marks = [*_OPTION_MARK.finditer(line)]
        ends = [*(mark.start() for mark in marks[1:]), len(line)]
        for mark, end in zip(marks, ends, strict=False):  # no mark: one end
            options.setdefault(mark[1].casefold(), []).append(_text(line[mark.end() : end]))
    return {letter: list(filter(None, texts)) for letter, texts in options.items()}


def _text(text: str) -> str:
    return " ".join(_COMMAND.sub(r"\1", text).casefold().split()).strip("*`.,; ")


def _normal(value: object) -> Label | None:
    """A label without case and what is around it, and whether it was ASCII: casefold maps some look-alikes to ASCII."""
    text = "" if value is None else str(value).strip()
    return _normal_text(text) if len(text) <= _MAX_LABEL_CHARS else None


@lru_cache(maxsize=4096)
def _normal_text(text: str) -> Label | None:
    text = _bare(text)
    if lead := _LEAD.match(text):
        text = _bare(text[lead.end() :]) or text
    if letter := _MARKED_LETTER.fullmatch(text):
        text = letter[1]
    return (text.isascii(), text.casefold()) if text else None


def _bare(text: str) -> str:
    """The text without what is around all of it: a full stop, brackets, quotes, emphasis, LaTeX commands."""
    text, removed = text.strip(), set[str]()
    while True:
        if text.endswith(".") and not text.endswith("..") and "." not in removed:
            text = text[:-1].rstrip()
            removed.add(".")
        for opening, closing in _WRAPS:
            inner = text[len(opening) : -len(closing)]
            fits = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            if fits and opening not in removed and not set(opening[-1] + closing[0]) & set(inner.replace("\\", "")):
                removed.add(opening)
                text = inner.strip()
                break
        else:
            return text
