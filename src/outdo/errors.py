"""One tree of errors. Each says what, where and what to do; the command line prints it and exits with its status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

LONGEST = 50  # letters of a name that is worth a guess
MOST_FILES = 10_000  # of a folder that are looked through for one


class OutdoError(Exception):
    """Something the user should read. Never shown with a traceback."""

    exit_status = 1


class InputError(OutdoError, ValueError):
    """Something that was given cannot be used."""

    exit_status = 2


class RecipeError(InputError):
    """The recipe asks for something that cannot be."""


class TaskError(InputError):
    """The prompts cannot be had, or are not what a task must give."""


class GraderError(InputError):
    """A reward function cannot be found or does not keep its contract."""


class SandboxError(InputError):
    """Code or workers cannot be isolated on this machine."""


class ModelError(InputError):
    """The model or its tokenizer cannot be loaded or used."""


class EngineError(OutdoError, RuntimeError):
    """Sampling or training failed."""


class Halted(OutdoError):
    """Training was halted by a guard."""

    exit_status = 3


class NumericsError(Halted, ArithmeticError):
    """The numbers went where no learning happens."""


class BrokenGraders(Halted, RuntimeError):
    """Too many answers could not be judged."""


class OutOfMemory(Halted, MemoryError):
    """An allocation failed."""


class RunError(OutdoError, OSError):
    """The run folder cannot be written or read."""


class PlaceError(RunError):
    """The place that was named is none to read from or write to: no run, a file for a folder, another's run."""

    exit_status = 2


def did_you_mean(word: object, known: Iterable[str], form: str = ": did you mean {!r}?") -> str:
    """The known name that was probably meant, in that form; nothing where none is near. Nearest is one that begins
    with the word, then one that has it for a part, one that is spelled alike, and one that the word begins with."""
    text, names = str(word), sorted(known, key=len)
    if len(text) > LONGEST:
        return ""
    longer = len(text) > 2
    begun = [name for name in names if longer and name.startswith(text)]
    parts = [name for name in names if longer and f"_{text}" in name]
    alike = difflib.get_close_matches(text, names, n=1)
    near = begun or parts or alike or [name for name in reversed(names) if len(name) > 1 and text.startswith(name)]
    return form.format(near[0]) if near else ""


def no_such_file(path: Path) -> str:
    """Why it was not found: its folder is not there, or the folder has another name that is near."""
    folder = path.expanduser().parent
    if not folder.is_dir():
        return f"there is no such file, and no folder {folder}"
    names: list[str] = []
    with suppress(OSError):
        names = [entry.name for entry in islice(folder.iterdir(), MOST_FILES) if entry.suffix == path.suffix]
    return f"there is no such file in {folder.resolve()}{did_you_mean(path.name, names, '; did you mean {}?')}"
