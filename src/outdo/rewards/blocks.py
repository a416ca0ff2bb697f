"""The code blocks of an answer, as text. Which of them is run, and how, is decided in the sandbox."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outdo.rewards.answer import after_thinking

_FENCE = re.compile(r"^([ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}|~{3,})[ \t]*([^\n]*)$", re.MULTILINE)
_PYTHON = re.compile(r"\W*(?:i?py(?:thon)?[\d.]*|code|script)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Fenced:
    """A fenced block: its first word after the fence, and its lines without the indentation of the fence."""

    language: str
    text: str

    @property
    def is_python(self) -> bool:
        return not self.language or bool(re.fullmatch(_PYTHON.pattern, self.language, re.IGNORECASE))


def fenced_blocks(text: str) -> tuple[list[Fenced], str]:
    """The fenced blocks of a text, in order, and the text outside. One without an end reaches to the end.

    A fence ends at one of the same sign that is at least as long, not indented deeper, and without words after it, as
    in CommonMark. A block that holds fences itself counts as those.
    """
    fences = list(_FENCE.finditer(text))
    blocks, outside, is_closed = _paired(text, fences, depth=4)
    return (blocks, outside) if is_closed else _paired(text, fences, depth=len(text))[:2]


def _paired(text: str, fences: list[re.Match[str]], depth: int) -> tuple[list[Fenced], str, bool]:
    """Blocks, text outside, and whether the last block has an end. Fences indented `depth` deeper are content."""
    blocks: list[Fenced] = []
    outside: list[str] = []
    opening: re.Match[str] | None = None
    at = 0
    for fence in fences:
        prefix, marks, words = fence.groups()
        if opening is None:
            if "`" not in words:  # else code within a line
                outside.append(text[at : fence.start()])
                opening, at = fence, fence.end() + 1
        elif len(prefix.expandtabs(4)) < len(opening[1].expandtabs(4)) + depth:
            if marks.startswith(opening[2]) and not words.strip():
                blocks += _block(opening, text[at : fence.start()])
                opening, at = None, fence.end() + 1
            elif words.strip() and marks == opening[2] and not prefix.strip():  # the block before was never closed
                blocks += _block(opening, text[at : fence.start()])
                opening, at = fence, fence.end() + 1
    if opening is None:
        return blocks, "\n".join([*outside, text[at:]]), True
    rest = text[at:].rstrip().removesuffix(opening[2])  # the end may stand behind the last line
    return blocks + _block(opening, rest if rest != text[at:].rstrip() else text[at:]), "\n".join(outside), False


def _block(opening: re.Match[str], text: str) -> list[Fenced]:
    prefix = opening[1]
    if len(opening[2]) > 3 and len(_FENCE.findall(text)) > 1:
        return fenced_blocks(text)[0]
    quoted = prefix.count(">")
    lines = text.split("\n")
    if quoted:
        lines = [re.sub(rf"^(?:[ \t]*>){{1,{quoted}}} ?", "", line) for line in lines]
    width = 0 if quoted else len(prefix.expandtabs(4))
    lines = [_without_indentation(line, width) for line in lines]
    return [Fenced("".join(opening[3].split()[:1]), "\n".join(lines))]


def _without_indentation(line: str, width: int) -> str:
    return line[min(width, len(line) - len(line.lstrip(" "))) :] if line[:1] != "\t" else line[bool(width) :]


def code_blocks(text: str) -> list[str]:
    """What may be the code of an answer, the likeliest last: fenced blocks, else its answer tags, else all of it.

    Blocks in another language count only where there is no other, text outside of blocks only where no block fits.
    """
    text = (after_thinking(text) or "").replace("\r\n", "\n").lstrip("\ufeff")
    blocks, outside = fenced_blocks(text)
    if blocks:
        python = [block.text for block in blocks if block.is_python] or [block.text for block in blocks]
        return [*([outside] if "def " in outside or "print" in outside else []), *python]
    _, opened, rest = text.partition("<answer>")
    content, closed, _ = rest.rpartition("</answer>")
    return [content if opened and closed else text]


def source_of(text: str) -> str:
    """The likeliest code of a text: its last block."""
    return code_blocks(text)[-1]
