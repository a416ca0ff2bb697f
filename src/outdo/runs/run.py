"""The run folder: the contract between training and everything that looks at it. Append-only, written as it happens.

    run.json        the recipe as resolved, versions, device, status and why
    metrics.jsonl   a row a step
    evals.jsonl     a row an evaluation
    sft.jsonl       a row an update of the supervised part
    findings.jsonl  what the doctor said, and when
    groups/         the answers themselves, a file for each hundred steps
    checkpoints/    what the run goes on from, each complete or not there (`checkpoint.py`)
    before-N/       rows and checkpoints of before the run was begun again
    reference/      the weights that KL is measured from
    model/          the result, a Hugging Face folder; with use_peft also adapter/, in PEFT's format

One process writes; readers tolerate a run that is still being written.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, Literal, get_args

from outdo.errors import Halted, OutdoError, PlaceError, RecipeError, RunError
from outdo.types import Group

Status = Literal["running", "done", "stopped", "failed"]
Tokens = Sequence[Sequence[Sequence[Any]]]  # of a group's answers: each token's text, log-probability and ratio
BLOCK = 100  # steps in one file of groups
NO_PLACE = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
GLANCE = 0.4  # seconds that a lock may be held by those who only look


class Run:
    """Writes one run's folder. Every row is flushed, so that a reader sees it and a crash keeps it."""

    def __init__(self, folder: Path, manifest: dict[str, Any], lock: IO[str]) -> None:
        self.folder, self.manifest, self._lock = folder, manifest, lock

    @classmethod
    def create(cls, folder: Path, recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> Run:
        """A new folder. One that already holds a run is never written over."""
        if (folder / "run.json").exists():
            raise RecipeError(f"output_dir={folder} already holds a run: choose another folder, or move that one away")
        manifest = {
            "status": "running",
            "why": "",
            "started": _now(),
            "recipe": dict(recipe),
            "versions": versions(),
            "git": _git_state(),
            **facts,
        }
        with writing(folder, "set output_dir elsewhere"):
            (folder / "groups").mkdir(parents=True, exist_ok=True)
        run = cls(folder, manifest, _locked(folder))
        run._write_manifest()
        return run

    @classmethod
    def reopen(cls, folder: Path, kind: str = "grpo") -> Run:
        """A folder that holds a run of that kind, to write on in it. Raises RecipeError where it is another kind's, and
        PlaceError where there is none or another process writes there."""
        manifest = read_run(folder)
        had = manifest.get("kind", "grpo")
        if had != kind:
            how = "with the recipe that it is a stage of" if had == "harvest" else f"with outdo train --resume {folder}"
            raise RecipeError(f"{folder} is a run of the kind {had}, not {kind}: it goes on {how}")
        return cls(folder, manifest, _locked(folder))

    @contextmanager
    def until_done(self) -> Iterator[None]:
        """What goes on in here is the run: how it ends is written down, and the folder let go of."""
        try:
            yield
            self.finish("done")
        except BaseException as error:
            stopped = isinstance(error, (KeyboardInterrupt, Halted))
            cause = (isinstance(error, SystemExit) and error.__context__) or error  # an exit where a pipe broke
            why = str(error) if stopped or isinstance(error, OutdoError) else f"{type(cause).__name__}: {cause}"
            with suppress(RunError):  # a disk that failed the run fails its last line too
                self.finish("stopped" if stopped else "failed", why)
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Lets another process write here."""
        self._lock.close()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def record(self, step: int, row: Mapping[str, Any], groups: Sequence[Group], tokens: Sequence[Tokens] = ()) -> None:
        """One step: its numbers, and the answers behind them; the first groups with the tokens of their answers."""
        block = self.folder / "groups" / f"steps-{step // BLOCK * BLOCK:06d}.jsonl"
        self._append(block, [_group_row(step, *one) for one in itertools.zip_longest(groups, tokens)])
        self._append(self.folder / "metrics.jsonl", [{"step": step, **{k: _short(v) for k, v in row.items()}}])

    def record_eval(self, row: Mapping[str, Any]) -> None:
        self._append(self.folder / "evals.jsonl", [row])

    def record_sft(self, row: Mapping[str, Any]) -> None:
        self._append(self.folder / "sft.jsonl", [{k: _short(v) for k, v in row.items()}])

    def record_finding(self, step: int, row: Mapping[str, Any]) -> None:
        """What the doctor said after that step."""
        self._append(self.folder / "findings.jsonl", [{"seen": step, **row}])

    def keep_groups(self, name: str, step: int, groups: Sequence[Group]) -> Path:
        """Answers that a person should look at, in a file of their own."""
        path = self.folder / name
        self._append(path, [_group_row(step, group) for group in groups])
        return path

    def offsets(self) -> dict[str, int]:
        """How long each file of rows is, once it is on the disk itself."""
        found = {}
        for path in self._row_files():
            with writing(path), path.open("rb") as file:
                _flush(file.fileno())
                found[str(path.relative_to(self.folder))] = path.stat().st_size
        return found

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Takes back the rows that were written since."""
        for path in self._row_files():
            with writing(path):
                os.truncate(path, offsets.get(str(path.relative_to(self.folder)), 0))

    def set_aside(self) -> Path:
        """Moves the rows and checkpoints into a folder of their own, before the run begins again."""
        numbered = (self.folder / f"before-{number}" for number in itertools.count(1))
        place = next(folder for folder in numbered if not folder.exists())
        with writing(place):
            for path in [*self._row_files(), *self.folder.glob(self.checkpoints.name)]:
                moved = place / path.relative_to(self.folder)
                moved.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, moved)
        return place

    def lacks(self, offsets: Mapping[str, int]) -> str:
        """The first file that is shorter than it was, so that its rows cannot be gone on with; or nothing."""
        sizes = {str(path.relative_to(self.folder)): path.stat().st_size for path in self._row_files()}
        return next((name for name, size in offsets.items() if sizes.get(name, 0) < size), "")

    def _row_files(self) -> list[Path]:
        names = ("metrics.jsonl", "evals.jsonl", "sft.jsonl", "findings.jsonl")
        rows = [self.folder / name for name in names if (self.folder / name).exists()]
        return [*rows, *sorted((self.folder / "groups").glob("*.jsonl"))]

    def note(self, **facts: Any) -> None:
        """Adds to the manifest."""
        self.manifest |= facts
        self._write_manifest()

    def finish(self, status: Status, why: str = "") -> None:
        self.note(status=status, why=why, ended=_now())

    def _append(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, allow_nan=False, default=str) + "\n" for row in rows))

    def _write_manifest(self) -> None:
        """Whole or not at all: written beside, then renamed."""
        path = self.folder / "run.json"
        aside = path.with_suffix(".tmp")
        with writing(path):
            with aside.open("w", encoding="utf-8") as file:
                file.write(json.dumps(self.manifest, indent=2, default=str) + "\n")
                file.flush()
                _flush(file.fileno())
            os.replace(aside, path)


def read_run(folder: Path) -> dict[str, Any]:
    """A run's manifest. Raises PlaceError where the folder holds none."""
    path = folder / "run.json"
    if not path.is_file():  # a pipe might never end
        there = "its run.json is no file" if path.exists() else "it has no run.json"
        why = there if folder.is_dir() else "it is a file" if folder.exists() else "there is no such folder"
        raise PlaceError(f"{folder} holds no run: {why}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PlaceError(f"{folder} holds no run (its run.json cannot be read: {error})") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("recipe"), dict):
        raise PlaceError(f"{folder} holds no run: its run.json has no recipe")
    if manifest.get("status") not in get_args(Status):
        raise PlaceError(f"{folder}: run.json says status {manifest.get('status')!r:.40}, which no run has")
    return manifest


def read_rows(path: Path, passed: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file that may still be growing: a last line without its end is left for next time.

    A line that is no row raises RunError; where there is a list for it, it is passed over and told there.
    """
    if not path.is_file():  # a pipe or a device might never end
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row
            elif passed is None:
                raise RunError(f"{path}: line {number} is no JSON row: {line[:60]!r}; remove it")
            else:
                passed.append(f"{path}: line {number}")


def in_words(passed: Sequence[str]) -> str:
    """The note on lines that were passed over."""
    more = f" and {len(passed) - 3} more" if len(passed) > 3 else ""
    lines = "1 line that is no JSON row" if len(passed) == 1 else f"{len(passed)} lines that are no JSON rows"
    return f"passed over {lines}: {', '.join(passed[:3])}{more}"


class writing:
    """Turns a disk that fails into an error that names the path, and says what to do: `elsewhere` is how another
    place is named, where one can be."""

    def __init__(self, path: Path, elsewhere: str = "") -> None:
        self.path, self.elsewhere = path, elsewhere

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, RunError):
            full = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            do = " or ".join(filter(None, [full, self.elsewhere]))
            words = f"cannot write {self.path}: {error.strerror or error}" + (f"; {do}" if do else "")
            raise (PlaceError if error.errno in NO_PLACE else RunError)(words) from error


def default_folder(task: str) -> Path:
    """runs/TASK-DATE-TIME, numbered on where that is taken."""
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(task.rpartition(":")[2]).stem) or "run"
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = Path("runs") / (stem + suffix)
        if not folder.exists():
            return folder
    raise RunError(f"runs/{stem} and a thousand like it exist: set output_dir")


def _group_row(step: int, group: Group, tokens: Tokens | None = None) -> dict[str, Any]:
    answers = [
        {
            "text": completion.text,
            "num_tokens": completion.num_tokens,
            "finish": completion.finish,
            "reward": grade.reward,
            "verdict": grade.verdict,
            "parts": dict(grade.parts),
            "reason": grade.reason,
            "advantage": _short(advantage),
        }
        for completion, grade, advantage in zip(group.trajectories, group.grades, group.advantages, strict=True)
    ]
    for answer, its_tokens in zip(answers, tokens or (), strict=bool(tokens)):
        answer["tokens"] = [[_short(value) for value in token] for token in its_tokens]
    messages = [dict(message) for message in group.prompt.messages]
    return {
        "step": step,
        "prompt_id": group.prompt.id,
        "messages": messages,
        "answer": group.prompt.answer,
        "version": group.trajectories[0].version,
        "completions": answers,
    }


def _flush(descriptor: int) -> None:
    """To the disk itself, where the file is on one."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _short(value: Any) -> Any:
    """Six digits; null where it is no number: JSON has no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def is_locked(folder: Path) -> bool:
    """Whether a process writes there now. Asking writes nothing, and lets others ask; a disk without locks says no."""
    try:
        file = os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place might wait for ever
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(file)
    return False


def _locked(folder: Path) -> IO[str]:
    """Holds the folder for this process until the file is closed or the process ends, by whatever."""
    path = folder / ".lock"
    with writing(path):
        file = path.open("a+", encoding="utf-8")
    try:
        taken = _take(file)
    except OSError:  # a disk without locks
        return file
    if not taken:
        file.seek(0)
        who = file.read().strip() or "another process"
        file.close()
        raise PlaceError(f"{folder} is being written by {who}: wait for it, or stop it first")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def _take(file: IO[str]) -> bool:
    """Whether the lock is ours now. Who asks if a run is being written holds it for a moment: that is waited for."""
    until = time.monotonic() + GLANCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(GLANCE / 20)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("outdo", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _git_state() -> dict[str, Any] | None:
    """The commit that the working folder is at, and whether it was changed since; None outside a repository."""
    try:
        say = [
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": say[0], "changed": bool(say[1])}
