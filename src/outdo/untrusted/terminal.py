"""What reaches a terminal. Control characters are made visible in one place, where text is written, whoever wrote it: a
run's name, a recipe's value, an answer, a grader's error. Rich's own codes pass, since its consoles come from here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

BIDI_MARKS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)  # they reorder displayed text
LINE_ENDS = (0x2028, 0x2029)  # beside \n, that a terminal may break a line at
TAGS = (*range(0xE0000, 0xE0080), 0xFEFF)  # are not displayed at all
VISIBLE = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}  # such as ␛ for escape
VISIBLE |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), *BIDI_MARKS, *LINE_ENDS, *TAGS)}
VISIBLE |= {code: f"<U+{code:04X}>" for code in range(0xD800, 0xE000)}
VISIBLE[0x7F] = "␡"


def printable(text: str) -> str:
    """The text with control characters, escapes and marks that reorder text made visible and harmless."""
    return text if text.isascii() and text.isprintable() else text.translate(VISIBLE)


class PrintableStream:
    """A text stream whose writes are `printable`; all else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def make_output_printable() -> None:
    """From here on, standard output and error are printable, for `print`, warnings and libraries' logs too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintableStream):  # None: closed at the start
            setattr(sys, name, PrintableStream(stream))


class PrintableConsole(Console):
    """Its styles and cursor movements are its own; text is printable. Text has no markup unless `print` is told so:
    brackets in it are brackets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    @property
    def file(self) -> IO[str]:
        """The stream itself: this console's own codes must reach it."""
        file = super().file
        return file.stream if isinstance(file, PrintableStream) else file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file
