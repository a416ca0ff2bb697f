"""Links, hard links and pipes in a run's folder: nothing that they lead to is written, emptied, locked or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.errors import PlaceError, RunError
from outdo.report.plot import plot_runs
from outdo.report.write import write_report
from outdo.runs import checkpoint
from outdo.runs.files import acquire_lock, restore_replaced, write_atomic, write_folder
from outdo.runs.no_links import open_no_links, refuse_links
from outdo.runs.writer import RunWriter
from support.folders import make_run

Place = Callable[[Path, Path], None]  # something at a path that leads to another


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def relative(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def chain(path: Path, target: Path) -> None:
    path.with_name("between").symlink_to(target)
    path.symlink_to("between")


def hard(path: Path, target: Path) -> None:
    os.link(target, path)


FILES = (
    *("metrics.jsonl", "evals.jsonl", "findings.jsonl", "sft.jsonl", ".lock", ".writing-run.json", "curves.png"),
    *("report.html", "report.png", ".writing-report.html", ".writing-curves.png", "demonstrations.jsonl"),
    *("groups/steps-000000.jsonl", "held_out/problems.jsonl", "held_out/step-000030.jsonl", "judge/scores.sqlite"),
    *("checkpoints/.writing-step-000001", "halted-step-000003.jsonl", "trackers/wandb.json", "run.json"),
)
FOLDERS = ("groups", "held_out", "checkpoints", "reference", "judge", "trackers", "adapter", "before-1", "start")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious\n" * 100)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    return tmp_path / "run"


def work(folder: Path) -> None:
    """Everything that writes into a run's folder."""
    run = RunWriter.reopen(folder)
    run.update_manifest(status="running")
    run.record_step(31, {"reward_mean": 1.0}, [])
    run.record_eval({"step": 31})
    run.rewind({})
    run.archive()
    write_folder(run.model_folder, lambda into: (into / "config.json").write_text("{}") and None)
    run.close()


@pytest.mark.parametrize("how", [link, relative, chain, hard], ids=lambda how: how.__name__)
def test_resuming_refuses_what_leads_elsewhere(run: Path, victim: Path, how: Place) -> None:
    for name in FILES:
        path, kept = run / name, None
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            kept = path.read_bytes()
            path.unlink()
        manifest = victim
        if name == "run.json":  # a manifest that can be read
            manifest = victim.with_name("manifest")
            manifest.write_bytes(kept or b"")
        how(path, manifest)
        before = manifest.read_bytes(), victim.read_bytes()
        with pytest.raises(PlaceError, match=Path(name).name.replace(".", r"\.")):
            work(run)
        assert (manifest.read_bytes(), victim.read_bytes()) == before, name
        path.unlink()
        path.with_name("between").unlink(missing_ok=True)
        manifest.unlink() if manifest != victim else None
        if kept is not None:
            path.write_bytes(kept)
    work(run)


def test_resuming_refuses_folders_that_are_links(run: Path, tmp_path: Path) -> None:
    for name in FOLDERS:
        target = tmp_path / "theirs"
        shutil.copytree(run / name, target) if (run / name).exists() else target.mkdir()
        (target / "step-000001").mkdir()
        (target / "precious").write_text("x")
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).symlink_to(target)
        before = sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*"))
        with pytest.raises(PlaceError, match=name):
            work(run)
        assert before == sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*"))
        (run / name).unlink()
        shutil.rmtree(target)


def test_pipes_do_not_block(run: Path) -> None:
    for name in (".lock", "metrics.jsonl", "groups/steps-000000.jsonl", ".writing-run.json", "curves.png"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        with pytest.raises(PlaceError, match="pipe"):
            work(run)
        (run / name).unlink()


def test_a_run_in_a_linked_folder(run: Path, tmp_path: Path) -> None:
    """The folder itself may be a link, and so may outdo's own: those to the model's files, and a stage's model."""
    (tmp_path / "disk").mkdir()
    run.rename(tmp_path / "disk" / "run")
    run.symlink_to(tmp_path / "disk" / "run")
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    (run / "config.json").symlink_to("model/config.json")
    work(run)
    shutil.rmtree(run / "model")
    (run / "model").symlink_to(tmp_path / "disk")
    work(run)
    assert (tmp_path / "disk").is_dir() and not (run / "model").is_symlink()


@pytest.mark.parametrize("how", [link, relative, chain, hard], ids=lambda how: how.__name__)
def test_pictures_and_reports_replace_links(run: Path, victim: Path, how: Place) -> None:
    pytest.importorskip("matplotlib")
    before = victim.read_bytes()
    for name in ("curves.png", ".writing-curves.png", "report.html", ".writing-report.html", "curves.svg"):
        (run / name).unlink(missing_ok=True)
        how(run / name, victim)
        plot_runs([run], run / f"curves{'.svg' if name.endswith('svg') else '.png'}")
        write_report(run)
        assert victim.read_bytes() == before, name
        (run / "between").unlink(missing_ok=True)
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG") and not (run / "curves.png").is_symlink()


def test_each_writer_alone(run: Path, victim: Path, tmp_path: Path) -> None:
    """Without the check of the whole folder, too: someone may put a link there later."""
    before = victim.read_bytes()
    for how in (link, hard):
        for name in (".lock", "metrics.jsonl", "groups/steps-000000.jsonl"):
            (run / name).unlink(missing_ok=True)
            how(run / name, victim)
            for mode in ("a", "a+", "r+b"):
                with pytest.raises(PlaceError):
                    open_no_links(run, run / name, mode)
        with pytest.raises(PlaceError):
            acquire_lock(run)
        (run / "file").unlink(missing_ok=True)
        (run / ".writing-file").unlink(missing_ok=True)
        how(run / "file", victim)
        how(run / ".writing-file", victim)
        write_atomic(run / "file", "new")
        assert (run / "file").read_text() == "new" and not (run / "file").is_symlink()
    (run / "sub").symlink_to(tmp_path)
    with pytest.raises(PlaceError):
        open_no_links(run, run / "sub" / "victim")
    assert victim.read_bytes() == before


def test_folders_are_replaced_not_followed(tmp_path: Path) -> None:
    theirs, parent = tmp_path / "theirs", tmp_path / "parent"
    theirs.mkdir()
    parent.mkdir()
    (theirs / "precious").write_text("x")
    for name in (".writing-step-000001", ".old-step-000001", "step-000001", "unusable-step-000001"):
        (parent / name).symlink_to(theirs)
    restore_replaced(parent)
    checkpoint.save(parent, 1, lambda folder: (folder / "a").write_text("b") and None)
    (parent / "unusable-step-000001").unlink()
    (parent / "unusable-step-000001").symlink_to(theirs)
    checkpoint.set_unusable(parent / "step-000001")
    (parent / "step-000002").symlink_to(theirs)
    checkpoint.prune(parent, 1)
    assert [path.name for path in theirs.iterdir()] == ["precious"]


def test_new_run_in_a_folder_with_links(tmp_path: Path, victim: Path) -> None:
    for name in ("groups", "metrics.jsonl", ".lock"):
        folder = tmp_path / f"new-{name}"
        folder.mkdir()
        (folder / name).symlink_to(victim)
        with pytest.raises(RunError, match="not written to"):
            RunWriter.create(folder, {}, {})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "my-link").symlink_to(victim)
    RunWriter.create(tmp_path / "home", {}, {}).close()  # another's link, where no run writes
    with pytest.raises(PlaceError):
        refuse_links(tmp_path / "home")
