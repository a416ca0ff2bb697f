"""The run folder: the contract between training and everything that looks at it. Append-only, written as it happens.

    run.json        the recipe as resolved, versions, device, status and why
    metrics.jsonl   a row a step
    evals.jsonl     a row an evaluation
    groups/         the answers themselves, a file for each hundred steps
    model/          the result, a Hugging Face folder

Readers tolerate a run that is still being written.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from outdo.errors import RecipeError, RunError
from outdo.types import Group

Status = Literal["running", "done", "stopped", "failed"]
BLOCK = 100  # steps in one file of groups


class Run:
    """Writes one run's folder. Every row is flushed, so that a reader sees it and a crash keeps it."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest

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
            "versions": _versions(),
            "git": _git_state(),
            **facts,
        }
        run = cls(folder, manifest)
        with _writing(folder):
            (folder / "groups").mkdir(parents=True, exist_ok=True)
        run._write_manifest()
        return run

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def record(self, step: int, row: Mapping[str, Any], groups: Sequence[Group]) -> None:
        """One step: its numbers, and the answers behind them."""
        block = self.folder / "groups" / f"steps-{step // BLOCK * BLOCK:06d}.jsonl"
        self._append(block, [_group_row(step, group) for group in groups])
        self._append(self.folder / "metrics.jsonl", [{"step": step, **{k: _short(v) for k, v in row.items()}}])

    def record_eval(self, row: Mapping[str, Any]) -> None:
        self._append(self.folder / "evals.jsonl", [row])

    def note(self, **facts: Any) -> None:
        """Adds to the manifest."""
        self.manifest |= facts
        self._write_manifest()

    def finish(self, status: Status, why: str = "") -> None:
        self.note(status=status, why=why, ended=_now())

    def _append(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        with _writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def _write_manifest(self) -> None:
        """Whole or not at all: written beside, then renamed."""
        path = self.folder / "run.json"
        aside = path.with_suffix(".tmp")
        with _writing(path):
            aside.write_text(json.dumps(self.manifest, indent=2, default=str) + "\n", encoding="utf-8")
            os.replace(aside, path)


def read_run(folder: Path) -> dict[str, Any]:
    """A run's manifest. Raises RunError where the folder holds none."""
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} holds no run (its run.json cannot be read: {error})") from None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file that may still be growing: a last line without its end is left for next time."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class _writing:
    """Turns a full or read-only disk into an error that names the path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, RunError):
            reason = error.strerror or error
            raise RunError(
                f"cannot write {self.path}: {reason}; free some space or set output_dir elsewhere"
            ) from error


def default_folder(task: str) -> Path:
    """runs/TASK-DATE-TIME, numbered on where that is taken."""
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(task.rpartition(":")[2]).stem) or "run"
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = Path("runs") / (stem + suffix)
        if not folder.exists():
            return folder
    raise RunError(f"runs/{stem} and a thousand like it exist: set output_dir")


def _group_row(step: int, group: Group) -> dict[str, Any]:
    answers = [
        {
            "text": completion.text,
            "num_tokens": len(completion.token_ids),
            "finish": completion.finish,
            "reward": grade.reward,
            "verdict": grade.verdict,
            "parts": dict(grade.parts),
            "reason": grade.reason,
            "advantage": _short(advantage),
        }
        for completion, grade, advantage in zip(group.completions, group.grades, group.advantages, strict=True)
    ]
    messages = [dict(message) for message in group.prompt.messages]
    return {
        "step": step,
        "prompt_id": group.prompt.id,
        "messages": messages,
        "answer": group.prompt.answer,
        "version": group.completions[0].version,
        "completions": answers,
    }


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _versions() -> dict[str, str]:
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
