"""Writes one run's folder. Append-only: every row is on its way to the disk as it happens, and readers may follow."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from outdo.errors import Halted, OutdoError, RecipeError, RunError
from outdo.runs import layout, usage
from outdo.runs.files import acquire_lock, disk_errors, fsync
from outdo.runs.held_out import HeldOutAnswer
from outdo.runs.manifest import Manifest, Status, holds_run, new_manifest, read_manifest, timestamp, write_manifest
from outdo.runs.no_links import OURS, open_no_links, refuse_links
from outdo.runs.reader import read_rows
from outdo.runs.turns import turn_rows
from outdo.runs.values import as_int
from outdo.types import Group

Tokens = Sequence[Sequence[Sequence[Any]]]  # of a group's answers: each token's text, log-probability and ratio


class RunWriter:
    """The one writer of a folder, which it keeps locked until it is closed."""

    def __init__(self, folder: Path, manifest: Manifest, lock: IO[str] | None) -> None:
        self.folder, self.manifest, self._lock = folder, manifest, lock
        self.checkpoints, self.reference_folder = folder / layout.CHECKPOINTS, folder / layout.REFERENCE
        self.model_folder, self.adapter_folder = folder / layout.MODEL, folder / layout.ADAPTER
        self.demonstrations = folder / layout.DEMONSTRATIONS
        self._began: float | None = None  # when this process began to work on the run; None: it does not
        self._is_counting = False
        self._written = 0.0  # when it last wrote the manifest

    @classmethod
    def create(
        cls, folder: Path, recipe: Mapping[str, Any], facts: Mapping[str, Any], began: float | None = None
    ) -> RunWriter:
        """A new folder. One that already holds a run is never overwritten. `began` is when the work on it began, by
        `time.monotonic`, where that was earlier."""
        if holds_run(folder):
            raise RecipeError(f"output_dir={folder} already holds a run: choose another folder, or move that one away")
        refuse_links(folder, OURS)
        manifest = new_manifest(dict(recipe), dict(facts))
        with disk_errors(folder, "set output_dir elsewhere"):
            (folder / layout.GROUPS).mkdir(parents=True, exist_ok=True)
        run = cls(folder, manifest, acquire_lock(folder))
        run._began = began
        run.update_manifest(status="running")
        return run

    @classmethod
    def reopen(cls, folder: Path, kind: str = "grpo", manifest: Manifest | None = None) -> RunWriter:
        """A folder that holds a run of that kind, to continue it; `manifest` where it was read already. Raises
        RecipeError where it is of another kind, and PlaceError where there is none or another process writes there."""
        manifest = manifest or read_manifest(folder)
        if manifest.kind != kind:
            is_stage = manifest.kind == "harvest"
            how = "the recipe that it is a stage of" if is_stage else f"outdo train --resume {folder}"
            raise RecipeError(f"{folder} is a run of kind {manifest.kind}, not {kind}: resume it with {how}")
        refuse_links(folder)
        run = cls(folder, manifest, acquire_lock(folder))
        run._began = time.monotonic()  # it counts once the run is running again
        return run

    @contextmanager
    def until_done(self) -> Iterator[None]:
        """The body is the run: how it ends is recorded, and the folder is released."""
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
        if self._lock:
            self._lock.close()

    def record_step(
        self, step: int, row: Mapping[str, Any], groups: Sequence[Group], tokens: Sequence[Tokens] = ()
    ) -> None:
        """One step: its numbers, and the answers behind them; the first groups with the tokens of their answers."""
        pairs = itertools.zip_longest(groups, tokens)
        self._append(layout.group_file(self.folder, step), [_group_row(step, *pair) for pair in pairs])
        self._append(self.folder / layout.METRICS, [{"step": step, **_rounded(row)}])

    def record_answers(self, step: int, split: str, answers: Sequence[HeldOutAnswer]) -> None:
        """The answers of an evaluation. A problem is written once, with the first of its answers."""
        if not answers:
            return
        problems = self.folder / layout.HELD_OUT / layout.PROBLEMS
        with disk_errors(problems):
            problems.parent.mkdir(exist_ok=True)
        known = {(row.get("split"), row.get("key")) for row in read_rows(problems, [])}
        new = [one.problem_row(split) for one in answers if (split, one.key) not in known]
        if new:
            self._append(problems, new)
        self._append(layout.answer_file(self.folder, step), [one.row(step, split) for one in answers])

    def record_eval(self, row: Mapping[str, Any]) -> None:
        self._append(self.folder / layout.EVALS, [row])

    def record_sft(self, row: Mapping[str, Any]) -> None:
        self._append(self.folder / layout.SFT, [_rounded(row)])

    def record_finding(self, step: int, row: Mapping[str, Any]) -> None:
        """What the doctor reported after that step."""
        self._append(self.folder / layout.FINDINGS, [{"seen": step, **row}])

    def record_failed_step(self, step: int, groups: Sequence[Group]) -> Path:
        """The answers of a step whose update failed, in a file of their own."""
        path = self.folder / f"halted-step-{step:06d}.jsonl"
        self._append(path, [_group_row(step, group) for group in groups])
        return path

    def offsets(self) -> dict[str, int]:
        """The size of each file of rows, once it is on the disk itself."""
        sizes = {}
        for path in self._row_files():
            with disk_errors(path), path.open("rb") as file:
                fsync(file.fileno())
                sizes[str(path.relative_to(self.folder))] = path.stat().st_size
        return sizes

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Removes the rows that were written since."""
        for path in self._row_files():
            with disk_errors(path), open_no_links(self.folder, path, "r+b") as file:
                file.truncate(offsets.get(str(path.relative_to(self.folder)), 0))

    def truncated_file(self, offsets: Mapping[str, int]) -> str:
        """The first file that is shorter than it was, so that the run cannot resume there; or nothing."""
        sizes = {str(path.relative_to(self.folder)): path.stat().st_size for path in self._row_files()}
        return next((name for name, size in offsets.items() if sizes.get(name, 0) < size), "")

    def archive(self) -> Path:
        """Moves the rows and checkpoints into a folder `before-N`, before the run restarts."""
        numbered = (self.folder / f"before-{number}" for number in itertools.count(1))
        place = next(folder for folder in numbered if not folder.exists())
        with disk_errors(place):
            for path in [*self._row_files(), *self.folder.glob(layout.CHECKPOINTS)]:
                moved = place / path.relative_to(self.folder)
                moved.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, moved)
        return place

    def link_model(self) -> None:
        """Makes the run's folder itself one that transformers loads, by links to the files in model/. Links are
        relative, so that the folder can be moved; where the disk has none, the model is in model/ alone."""
        with suppress(OSError):
            for link in self.folder.iterdir():
                if link.is_symlink() and not link.exists() and os.readlink(link).startswith(f"{layout.MODEL}/"):
                    link.unlink()
            for file in self.model_folder.iterdir():
                link = self.folder / file.name
                if file.is_file() and not link.exists() and not link.is_symlink():
                    link.symlink_to(Path(layout.MODEL, file.name))

    def update_manifest(self, **facts: Any) -> None:
        """Also counts the time that this process has worked on the run, from the first status `running` on."""
        now, segments = time.monotonic(), self.manifest.segments
        devices = as_int(facts.get("world_size", self.manifest.world_size)) or 1
        if facts.get("status") == "running" and not self._is_counting:
            self._began = now if self._began is None else self._began
            segments, self._is_counting = usage.add_segment(segments, timestamp(now - self._began), devices), True
        if self._is_counting and self._began is not None:
            facts["segments"] = usage.with_seconds(segments, now - self._began)
        self.manifest, self._written = self.manifest.updated(**facts), now
        write_manifest(self.folder, self.manifest)

    def heartbeat(self) -> None:
        """Writes how long the run has worked, now and then: a process that is killed has no other chance. A disk that
        fails this fails the rows too, and is reported there."""
        if time.monotonic() - self._written > usage.HEARTBEAT:
            with suppress(RunError):
                self.update_manifest()

    def finish(self, status: Status, why: str = "") -> None:
        self.update_manifest(status=status, why=why, ended=timestamp())
        self._is_counting, self._began = False, None

    def _row_files(self) -> list[Path]:
        rows = [self.folder / name for name in layout.ROW_FILES if (self.folder / name).exists()]
        return [*rows, *layout.group_files(self.folder), *layout.held_out_files(self.folder)]

    def _append(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        with disk_errors(path), open_no_links(self.folder, path) as file:
            file.write("".join(json.dumps(row, allow_nan=False, default=str) + "\n" for row in rows))


def default_folder(task: str, run_name: str | None = None) -> Path:
    """runs/RUN_NAME, or runs/TASK-DATE-TIME; with a number where that exists."""
    if run_name and (name := _file_name(run_name, "-_.+=,").strip(".")):
        stem = name
    else:
        name = _file_name(Path(task.rpartition(":")[2]).stem, "-_") or "run"
        stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = Path("runs") / (stem + suffix)
        if not folder.exists():
            return folder
    raise RunError(f"runs/{stem} and a thousand like it exist: set output_dir")


def _file_name(text: str, allowed: str) -> str:
    return "".join(c if c.isalnum() or c in allowed else "-" for c in text)


def _group_row(step: int, group: Group, tokens: Tokens | None = None) -> dict[str, Any]:
    answers = [
        {
            "text": trajectory.text,
            "num_tokens": trajectory.num_tokens,
            "finish": trajectory.finish,
            "reward": grade.reward,
            "verdict": grade.verdict,
            "parts": dict(grade.parts),
            "reason": grade.reason,
            "advantage": _short(advantage),
            **turn_rows(trajectory),
        }
        for trajectory, grade, advantage in zip(group.trajectories, group.grades, group.advantages, strict=True)
    ]
    for answer, its_tokens in zip(answers, tokens or (), strict=bool(tokens)):
        answer["tokens"] = [[_short(value) for value in token] for token in its_tokens]
    return {
        "step": step,
        "prompt_id": group.prompt.id,
        "messages": [dict(message) for message in group.prompt.messages],
        "answer": group.prompt.answer,
        "version": group.trajectories[0].version,
        "completions": answers,
    }


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _short(value) for key, value in row.items()}


def _short(value: Any) -> Any:
    """Six digits; null where it is NaN or infinite, which JSON does not have."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
