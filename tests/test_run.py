"""The run folder's lock: one process writes, any may ask."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from outdo.errors import RunError
from outdo.run import Run, is_locked


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


def test_asking_whether_a_run_is_written_writes_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    before = state(run.folder)
    assert is_locked(run.folder) and state(run.folder) == before
    run.close()
    assert not is_locked(run.folder) and state(run.folder) == before
    (run.folder / ".lock").write_text("process 1 on another machine")
    os.chmod(run.folder / ".lock", 0o400)
    assert not is_locked(run.folder)
    assert (run.folder / ".lock").read_text() == "process 1 on another machine"
    (run.folder / ".lock").unlink()
    assert not is_locked(run.folder) and not (run.folder / ".lock").exists()
    assert not is_locked(tmp_path / "none")


def test_a_run_that_is_written_is_not_opened_twice_and_names_its_writer(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(RunError, match=f"is being written by process {os.getpid()} on "):
            Run.reopen(run.folder)
        assert is_locked(run.folder)
    run.close()
    Run.reopen(run.folder).close()


def test_a_pipe_for_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert not is_locked(tmp_path)


def test_a_look_at_the_lock_keeps_no_run_from_starting(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    run.close()
    with (run.folder / ".lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        gone = threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        gone.start()
        Run.reopen(run.folder).close()
        gone.join()
