"""Where results may be written, said before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outdo.errors import RecipeError
from outdo.evals.loading import checkpoint_notes
from outdo.models.export import export_model
from outdo.models.load import load_policy, save_policy
from outdo.runs import checkpoint
from outdo.runs.outputs import refuse_file


def test_refuse_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    Path("folder").mkdir()
    for path, words in {
        ".": "--out .: is a folder",
        "..": "is a folder",
        "folder": "is a folder",
        "no/file": "there is no folder no",
        "there/file": "there is no folder there",
        "there": "already exists; .*--force",
    }.items():
        with pytest.raises(RecipeError, match=words):
            refuse_file(Path(path), over=False)
    for path in ("new", "folder/new", "/dev/null"):
        refuse_file(Path(path), over=False)
    refuse_file(Path("there"), over=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RecipeError, match="new: cannot be written"):
        refuse_file(Path("new"), over=True)
    assert sorted(os.listdir()) == ["folder", "there"]
    with pytest.raises(ValueError, match="choose a new folder"):
        export_model("tiny", Path("."))


def test_which_weights_are_measured(tmp_path: Path) -> None:
    run, policy = tmp_path / "run", load_policy("tiny", device="cpu")
    run.mkdir()
    (run / "run.json").write_text("{}")
    for step in (2, 4):
        checkpoint.save(run / "checkpoints", step, lambda folder: save_policy(policy, folder))
    assert checkpoint_notes(["tiny", str(run)]) == [
        f"{run} has no model yet: evaluating its newest valid checkpoint, step-000004"
    ]
    assert checkpoint_notes([str(run / "checkpoints" / "step-000002")]) == [], "it was named"
    save_policy(policy, run / "model")
    assert checkpoint_notes([str(run)]) == []
