"""The lock, the manifest and the rows of a run folder."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from outdo.errors import PlaceError, RunError
from outdo.runs.files import disk_errors, is_locked
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import describe_skipped, read_rows
from outdo.runs.writer import RunWriter


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


def test_is_locked_writes_nothing(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", {}, {})
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


def test_locked_run_names_its_writer(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", {}, {})
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(PlaceError, match=f"is being written by process {os.getpid()} on "):
            RunWriter.reopen(run.folder)
        assert is_locked(run.folder)
    run.close()
    RunWriter.reopen(run.folder).close()


def test_lock_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert not is_locked(tmp_path)


def test_lock_check_does_not_block_a_run(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", {}, {})
    run.close()
    with (run.folder / ".lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        gone = threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        gone.start()
        RunWriter.reopen(run.folder).close()
        gone.join()


def test_no_run_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("empty", "broken", "pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    os.mkfifo(tmp_path / "pipe" / "run.json")
    why = {"nothere": "there is no such folder", "file": "it is a file", "empty": "it has no run.json"}
    why |= {"broken": "cannot be read", "pipe": "its run.json is no file"}
    for name, words in why.items():
        with pytest.raises(PlaceError, match=f"{name} holds no run.*{words}") as found:
            read_manifest(tmp_path / name)
        assert found.value.exit_status == 2


def test_broken_pipe_is_recorded(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", {}, {})
    with pytest.raises(SystemExit), run.until_done():
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except BrokenPipeError:
            sys.exit(1)  # as rich does
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.why) == ("failed", "BrokenPipeError: [Errno 32] Broken pipe")


def test_invalid_line_by_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 0}\ngarbage{\n[1]\n{"step": 1}\n{"half')
    with pytest.raises(RunError, match="line 2 is not a JSON row: 'garbage"):
        list(read_rows(path))
    passed: list[str] = []
    assert list(read_rows(path, passed)) == [{"step": 0}, {"step": 1}]
    assert describe_skipped(passed) == f"skipped 2 lines that are not JSON rows: {path}: line 2, {path}: line 3"


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.ENOSPC, 1, "No space left on device; free some space or choose another"),
        (errno.EROFS, 1, "Read-only file system; choose another"),
        (errno.ENOTDIR, 2, "Not a directory; choose another"),
    ],
)
def test_disk_error_advice(tmp_path: Path, number: int, status: int, words: str) -> None:
    with pytest.raises(RunError) as found, disk_errors(tmp_path, "choose another"):
        raise OSError(number, os.strerror(number))
    assert str(found.value) == f"cannot write {tmp_path}: {words}" and found.value.exit_status == status
    with pytest.raises(RunError) as found, disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "choose" not in str(found.value) and "output_dir" not in str(found.value)
