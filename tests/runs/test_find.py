"""Runs by folder, by a folder inside, by name and by the start of a name; and a run's folder as a model's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outdo.cli.keys import split_models
from outdo.errors import PlaceError
from outdo.models.load import Policy, save_policy
from outdo.models.sources import find_source
from outdo.runs.find import find_run, try_find_run
from outdo.runs.writer import default_folder
from support.folders import make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("sums-1", "sums-2", "words-1"):
        make_run(Path("runs", name), steps=0)
    Path("runs/words-1/model").mkdir()
    Path("runs/words-1/checkpoints/step-000004").mkdir(parents=True)
    Path("words").mkdir()  # no run: a folder of that name does not hide one
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("runs/sums-1", "runs/sums-1"),
        ("sums-1", "runs/sums-1"),
        ("words-1", "runs/words-1"),
        ("words-", "runs/words-1"),
        ("w", "runs/words-1"),
        ("runs/wor", "runs/words-1"),
        ("runs/words-1/model", "runs/words-1"),
        ("runs/words-1/checkpoints/step-000004", "runs/words-1"),
    ],
)
def test_find_run(runs: Path, name: str, found: str) -> None:
    assert find_run(name) == Path(found)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("sums", "2 runs in runs/ begin with it, sums-1, sums-2"), ("wrods-1", "words-1"), ("words", "run.json")],
)
def test_no_such_run(runs: Path, name: str, reason: str) -> None:
    with pytest.raises(PlaceError) as caught:
        find_run(name)
    assert reason in str(caught.value)
    assert try_find_run("nothing") is None


def test_models_by_run(runs: Path) -> None:
    """A run by its full name; names of the hub and of built-in models stay as they are."""
    models, pairs = split_models(["words-1", "sums-2", "owner/w", "tiny", "gpt2", "seed=1"])
    assert models == ["runs/words-1", "runs/sums-2", "owner/w", "tiny", "gpt2"] and pairs == ["seed=1"]


def test_run_name(runs: Path) -> None:
    assert default_folder("sums", "my run/1") == Path("runs/my-run-1")
    assert default_folder("sums", "sums-1") == Path("runs/sums-1-2")
    assert default_folder("sums", "..").name.startswith("sums-2")


def test_run_folder_is_a_model_folder(tmp_path: Path, policy: Policy) -> None:
    run = make_run(tmp_path / "run", steps=1, ended=None)
    save_policy(policy, run.model_folder)
    (run.model_folder / "metrics.jsonl").write_text("{}")  # a name that the run has itself stays the run's
    run.link_model()
    (run.model_folder / "old.json").write_text("{}")
    run.link_model()
    (run.model_folder / "old.json").unlink()
    run.link_model()
    run.finish("done")
    assert not (tmp_path / "run" / "old.json").is_symlink()
    assert not (tmp_path / "run" / "metrics.jsonl").is_symlink()
    moved = shutil.move(tmp_path / "run", tmp_path / "moved")
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(moved), AutoTokenizer.from_pretrained(moved)
    for name, value in policy.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert tokenizer("1+1")["input_ids"] == policy.renderer.tokenizer("1+1")["input_ids"]
    assert os.lstat(Path(moved, "model.safetensors")).st_size < 100  # a link, not a copy
    assert find_source(str(moved)).path == Path(moved, "model").resolve()
