"""One tree of errors. Each says what, where and what to do; the command line prints it and exits with its status."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

ALIKE, NEARLY_EQUAL = 0.6, 0.9  # difflib's ratio of two names, or parts of names, that are spelled alike
_PARTS = re.compile(r"[^A-Za-z0-9]+")
LONGEST = 50  # letters of a name that is worth a guess
MOST_FILES = 10_000  # of a folder that are looked through for one


class OutdoError(Exception):
    """Something the user should read. Never shown with a traceback."""

    exit_status = 1


class OutdoWarning(UserWarning):
    """Something that the user should know of. A command prints it as one line."""


class InputError(OutdoError, ValueError):
    """Something that was given cannot be used."""

    exit_status = 2


class RecipeError(InputError):
    """The recipe asks for something that cannot be."""


class TaskError(InputError):
    """The prompts cannot be had, or are not what a task must give."""


class GraderError(InputError):
    """A reward function cannot be found or does not keep its contract."""


class ToolError(InputError):
    """A tool or an environment cannot be found or does not keep its contract."""


class SandboxError(InputError):
    """Code or workers cannot be isolated on this machine."""


class ModelError(InputError):
    """The model or its tokenizer cannot be loaded or used."""


class EngineError(OutdoError, RuntimeError):
    """Sampling or training failed."""


class Halted(OutdoError):
    """Training was halted by a guard. `keys` are those of the recipe that decide whether it halts again, `remedy` the
    words after `--resume` that change one of them, and `onset` the step from which on it went wrong."""

    exit_status = 3

    def __init__(self, message: str, *, keys: tuple[str, ...] = (), remedy: str = "", onset: int | None = None) -> None:
        super().__init__(message)
        self.keys, self.remedy, self.onset = keys, remedy, onset


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


def describe(error: BaseException, limit: int = 300) -> str:
    """The error as a traceback ends with it. Never raises: a class of the user's own may fail to
    give its message."""
    try:
        message = str(error)[:limit]
    except Exception:
        message = "an error without a message"
    return f"{type(error).__name__}: {message}"


def did_you_mean(word: object, known: Iterable[str], form: str = ": did you mean {!r}?") -> str:
    """The known name that was probably meant, in that form; nothing where none is near. Nearest is one that begins
    with the word, then one that has it for a part, one that is spelled alike, and one that the word begins with.
    A name that shares only a common part with it (`world_size`, `eval_size`) is not near."""
    text, names = str(word), sorted(known, key=len)
    if len(text) > LONGEST:
        return ""
    longer = len(text) > 2
    begun = [name for name in names if longer and name.startswith(text)]
    parts = [name for name in names if longer and f"_{text}" in name]
    alike = [name for name in difflib.get_close_matches(text, names, n=3, cutoff=ALIKE) if _is_near(text, name)]
    extended = [name for name in reversed(names) if _extends(text, name)]
    near = begun or parts or alike or extended
    return form.format(near[0]) if near else ""


def _is_near(text: str, name: str) -> bool:
    """Whether each part of a name is spelled like one of the other's: a typo changes letters, not words."""
    if difflib.SequenceMatcher(None, text, name).ratio() >= NEARLY_EQUAL:
        return True
    parts = [part for part in _PARTS.split(name) if part]
    return all(
        difflib.get_close_matches(part, parts, n=1, cutoff=ALIKE) or any(map(part.startswith, parts))
        for part in _PARTS.split(text)
        if part
    )


def _extends(text: str, name: str) -> bool:
    """Whether the text is the name with something after it: a number, a plural, another part; or its word in full
    (`equals` for `eq`)."""
    if len(name) < 2 or text == name or not text.startswith(name):
        return False
    return text[len(name)] in "s_-./ " or text[len(name)].isdigit() or (len(name) <= 3 and text.isalpha())


def no_such_file(path: Path) -> str:
    """Why it was not found: its folder is not there, or the folder has another name that is near."""
    folder = path.expanduser().parent
    if not folder.is_dir():
        return f"there is no such file, and no folder {folder}"
    names: list[str] = []
    with suppress(OSError):
        names = [entry.name for entry in islice(folder.iterdir(), MOST_FILES) if entry.suffix == path.suffix]
    return f"there is no such file in {folder.resolve()}{did_you_mean(path.name, names, '; did you mean {}?')}"
