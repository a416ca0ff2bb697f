"""Which folder or file is a run of another trainer, and which files it consists of. Only names are looked at, and the
first line of JSON Lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from outdo.runs.foreign.logs import numbers_in
from outdo.runs.foreign.names import CORE_SIGNALS, canonical_values
from outdo.runs.layout import MANIFEST
from outdo.runs.safe_open import Stamp, file_stamp, open_regular
from outdo.runs.values import as_dict, as_int, parse_object

Kind = Literal["state", "events", "wandb", "lines"]
STATE, COMPLETIONS, CONFIG = "trainer_state.json", "completions", "config.json"
EVENTS = "events.out.tfevents."
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
DUMP = re.compile(r"(?:step_)?(\d{1,12})(?:\.jsonl)?")
PARQUET = re.compile(r"completions_(\d{1,12})\.parquet")
ROLLOUTS = "train_rollouts.jsonl"  # of prime-rl, in a folder for each step
HELD_OUT = ("val", "eval", "test")  # starts of names of folders whose answers are not of training
DUMPED = {"output", "completion"}  # keys of a line that is an answer
MAX_ENTRIES = 20_000  # of a folder
MAX_LOGS = 200  # of a run
MAX_SNIFFED = 100  # JSON Lines of a folder
FIRST_BYTES, CHUNK_BYTES = 2 << 20, 64 << 10  # of a file, to recognise it; read at a time
MAX_DEPTH, MAX_FOLDERS = 4, 4000  # of a search for event files, or for runs


@dataclass(frozen=True)
class Source:
    """A run of another trainer: its logs, and the files of its answers with their steps."""

    root: Path  # no file outside is read
    path: Path  # its folder or its file
    logs: tuple[tuple[Kind, Path], ...]
    answers: tuple[tuple[int, Path], ...] = ()
    config: Path | None = None  # of the model

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".jsonl") if self.is_log_file else self.path.name

    @property
    def is_log_file(self) -> bool:
        return self.path.suffix == ".jsonl"


def recognise(root: Path, path: Path) -> Source | None:
    """The run in a folder or a file; None where there is none of another trainer."""
    try:
        if path.is_file():
            return _from_file(root, path)
        names = _names(path)
    except OSError:
        return None
    if MANIFEST in names:
        return None
    for reader in (_transformers, _logged):
        if (source := reader(root, path, names)) is not None:
            return source
    return None


def _from_file(root: Path, path: Path) -> Source | None:
    if path.name.endswith(".jsonl"):
        return Source(root, path, (("lines", path),), _dumps_beside(root, path)) if _is_log(root, path) else None
    kind = _kind(path.name)
    return Source(root, path, ((kind, path),)) if kind else None


def _kind(name: str) -> Kind | None:
    if name == STATE:
        return "state"
    if name.startswith(EVENTS):
        return "events"
    return "wandb" if name.endswith(".wandb") else None


def _transformers(root: Path, folder: Path, names: Sequence[str]) -> Source | None:
    """An output folder of TRL: its state and that of the newest checkpoint, the completions, event files below."""
    steps = sorted(((int(m[1]), name) for name in names if (m := CHECKPOINT.fullmatch(name))), reverse=True)
    newest = next((path for _, name in steps if (path := folder / name / STATE).is_file()), None)
    states = [path for path in (folder / STATE, newest) if path is not None and path.is_file()]
    answers = tuple(sorted(_numbered(folder / COMPLETIONS, PARQUET))) if COMPLETIONS in names else ()
    if not states and not answers:
        return None
    events = [path for path in _below(folder) if path.name.startswith(EVENTS)]
    logs: list[tuple[Kind, Path]] = [("events", path) for path in events[:MAX_LOGS]]
    logs += [("state", path) for path in states]
    places = (folder, *(path.parent for path in states))
    config = next((path for place in places if (path := place / CONFIG).is_file()), None)
    return Source(root, folder, tuple(logs), answers, config)


def _logged(root: Path, folder: Path, names: Sequence[str]) -> Source | None:
    """A folder of event files, of a log of W&B, of one log of lines, or of dumped answers alone."""
    kinds = [(kind, folder / name) for name in sorted(names) if (kind := _kind(name)) in ("events", "wandb")]
    if kinds:
        first = kinds[0][0]
        return Source(root, folder, tuple((kind, path) for kind, path in kinds if kind == first)[:MAX_LOGS])
    logs = [path for path in _lines(folder, names) if _is_log(root, path)]
    if len(logs) == 1:
        return Source(root, folder, (("lines", logs[0]),), _dumps_beside(root, logs[0]))
    dumps = () if logs else _dumps(root, folder, names)
    return Source(root, folder, (), dumps) if dumps else None


def _lines(folder: Path, names: Sequence[str]) -> list[Path]:
    chosen = [name for name in sorted(names) if name.endswith(".jsonl") and not DUMP.fullmatch(name)]
    return [folder / name for name in chosen[:MAX_SNIFFED]]


def _dumps_beside(root: Path, log: Path) -> tuple[tuple[int, Path], ...]:
    """The answers in a folder beside a log, where the log is the only one there."""
    names = _names(log.parent)
    if [path for path in _lines(log.parent, names) if path != log and _is_log(root, path)]:
        return ()
    for name in sorted(names):
        folder = log.parent / name
        if not name.startswith((*HELD_OUT, ".")) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):
                if dumps := _dumps(root, folder, _names(folder)):
                    return dumps
    return ()


def _dumps(root: Path, folder: Path, names: Sequence[str]) -> tuple[tuple[int, Path], ...]:
    """Files of answers: verl's N.jsonl, prime-rl's step_N/train_rollouts.jsonl."""
    found = []
    for name in names:
        if match := DUMP.fullmatch(name):
            path = folder / name if name.endswith(".jsonl") else folder / name / ROLLOUTS
            found += [(int(match[1]), path)] if path.is_file() else []
    found.sort()
    return tuple(found) if found and DUMPED & _first_row(root, found[0][1]).keys() else ()


def _numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    with suppress(OSError):
        yield from ((int(m[1]), folder / name) for name in _names(folder) if (m := pattern.fullmatch(name)))


def _is_log(root: Path, path: Path) -> bool:
    """Whether its first line is a step's row: verl's {"step": …, "data": …}, or a step with a signal that is known."""
    row = _first_row(root, path)
    data = as_dict(row.get("data")) or row
    return as_int(row.get("step")) is not None and bool(CORE_SIGNALS & canonical_values(numbers_in(data)).keys())


def _first_row(root: Path, path: Path) -> dict[str, object]:
    return _parsed(root, path, file_stamp(path))


@lru_cache(maxsize=4096)
def _parsed(root: Path, path: Path, stamp: Stamp | None) -> dict[str, object]:
    """Of a file with that stamp. A growing log keeps its first line, so it is read again for nothing: it is short."""
    data = b""
    try:
        with open_regular(root, path) as file:
            while b"\n" not in data and len(data) < FIRST_BYTES and (more := file.read(CHUNK_BYTES)):
                data += more
    except OSError:
        return {}
    head, end, _ = data.partition(b"\n")
    return (parse_object(head) or {}) if end else {}


def _names(folder: Path) -> list[str]:
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) >= MAX_ENTRIES:
                break
    return names


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder, by path, without checkpoints and answers. Links are not followed."""
    found = []
    for count, (place, folders, files) in enumerate(os.walk(folder)):
        depth = len(Path(place).relative_to(folder).parts)
        kept = [name for name in folders if not CHECKPOINT.fullmatch(name) and name not in (COMPLETIONS, "wandb")]
        folders[:] = sorted(kept) if depth < MAX_DEPTH and count < MAX_FOLDERS else []
        if MANIFEST in files:
            folders[:] = []
            continue
        found += [Path(place, name) for name in sorted(files)]
    return iter(found)


def sources_in(root: Path, folder: Path, names: Sequence[str], claimed: set[Path]) -> list[Path]:
    """What a folder of a listing holds: itself, or log files of which each is a run. `claimed` are files of runs that
    lie further up, and gets those of the ones found."""
    found = []
    source = recognise(root, folder)
    if source is None:
        logs = [path for path in _lines(folder, names) if _is_log(root, path)]
        found = [each for path in logs if (each := recognise(root, path))]
    elif {path for _, path in (*source.logs, *source.answers)} <= claimed:
        return []
    else:
        found = [source]
    for each in found:
        claimed.update(path for _, path in (*each.logs, *each.answers))
    return [each.path for each in found]


def search(folder: Path) -> list[Path]:
    """The runs of other trainers in a folder and below it."""
    found, claimed = list[Path](), set[Path]()
    for count, (place, folders, files) in enumerate(os.walk(folder)):
        depth = len(Path(place).relative_to(folder).parts)
        if MANIFEST in files or count >= MAX_FOLDERS:
            folders[:] = []
            continue
        found += sources_in(folder, Path(place), [*folders, *files], claimed)
        kept = [name for name in folders if not name.startswith(".") and not CHECKPOINT.fullmatch(name)]
        folders[:] = sorted(kept) if depth < MAX_DEPTH else []
    return found
