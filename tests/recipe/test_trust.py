"""What a run's folder names is not run, unless the user names it, trusts it, or started that run here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import RecipeError
from outdo.recipe.trust import CodeRef, code_refs, is_known, refuse_untrusted, remember
from outdo.training.context import make_context

Outdo = Callable[..., subprocess.CompletedProcess[str]]
CODE = """
import pathlib
pathlib.Path('ran').touch()
from outdo import Callback, Prompt, task
def score(completions, **columns):
    return [0.0] * len(completions)
class watch(Callback):
    pass
@task(rewards=['numeric'])
def problems(split, seed):
    yield from (Prompt(f'{split} {i}', ({'role': 'user', 'content': f'{i}'},), str(i)) for i in range(50))
"""
SHORT = [
    *("sft_steps=1", "sft_batch_size=2", "max_steps=1", "num_generations=2", "per_device_train_batch_size=4"),
    *("max_completion_length=4", "eval_size=1", "eval_samples=1", "save_steps=1", "device=cpu", "reward_audit=false"),
    *("lr_scheduler_type=constant", "warmup_ratio=0"),
]
HOSTILE: dict[str, dict[str, Any]] = {
    "reward": {"reward_funcs": ["mine.py:score"]},
    "dotted": {"reward_funcs": ["mine.score"]},
    "among others": {"reward_funcs": ["numeric", "mine.py:score"]},
    "no such function": {"reward_funcs": ["mine.py:no such"]},
    "grader file": {"reward_funcs": ["grader.json"]},
    "gate": {"reward_funcs": ["numeric"], "reward_gate": "mine.py:score"},
    "audit": {"audit_reward": "mine.py:score"},
    "callback": {"callbacks": ["mine.py:watch"]},
    "task": {"dataset_name": "mine.py:problems"},
    "task of SFT": {"sft_dataset_name": "mine.py:problems"},
    "easier task": {"curriculum_dataset_name": "mine.py:problems", "curriculum_steps": 2},
    "mixture": {"dataset_mixture": [{"dataset_name": "arithmetic"}, {"dataset_name": "mine.py:problems"}]},
    "mixture's reward": {"dataset_mixture": [{"dataset_name": "arithmetic", "reward_funcs": ["mine.py:score"]}]},
    "stage": {"stages": [{"stage": "grpo", "reward_funcs": ["mine.py:score"]}]},
    "stage, by another name": {"stages": [{"stage": "sft", "sft": {"dataset_name": "mine.py:problems"}}]},
    "synonym": {"task": "mine.py:problems"},
    "installed": {"reward_funcs": ["os:system"]},
    "judge": {"reward_funcs": ["llm_judge"], "reward_args": {"llm_judge": {"model": "m"}}},
    "address": {"reward_args": {"llm_judge": {"base_url": "http://e.vil/v1"}}},
    "upload": {"push_to_hub": True},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_key_that_names_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refused before anything is imported, in Python too; accepted, as a whole, with `trust`."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"status": "stopped", "kind": "grpo", "recipe": HOSTILE[name]}))
    with pytest.raises(RecipeError, match="trust"):
        make_context(resume=folder)
    with pytest.raises(RecipeError, match="trust"):
        make_context(resume=folder, max_steps=3, force=True)
    assert not Path("ran").exists()
    refuse_untrusted(folder, HOSTILE[name], {}, "outdo", trust=True)
    refuse_untrusted(folder, HOSTILE[name], HOSTILE[name], "outdo", trust=False)  # named again


def test_refs_of_ordinary_recipes() -> None:
    plain = {"dataset_name": "gsm8k", "reward_funcs": ["numeric", "accuracy_reward"], "callbacks": ["early_stopping"]}
    assert not code_refs(plain) and not code_refs({"dataset_name": "data/a.jsonl", "system_prompt": "Say: yes"})
    text = {"reward_funcs": "numeric, a.py:f", "dataset_name": "b.py:g"}
    assert code_refs(text) == (CodeRef("dataset_name", "b.py:g"), CodeRef("reward_funcs", "a.py:f"))


def test_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folder, the names and the files' contents; nobody else may have written it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("mine.py").write_text(CODE)
    recipe, run = {"reward_funcs": ["mine.py:score"]}, tmp_path / "run"
    run.mkdir()
    refs = code_refs(recipe)
    assert not is_known(run, refs) and remember(run, recipe) == "" and is_known(run, refs)
    (record,) = (tmp_path / "state" / "outdo" / "trusted").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600 and record.parent.stat().st_mode & 0o777 == 0o700
    assert not is_known(run, code_refs({"reward_funcs": ["mine.py:score"], "callbacks": ["mine.py:watch"]}))
    shutil.copytree(run, tmp_path / "copy")
    assert not is_known(tmp_path / "copy", refs)
    (tmp_path / "link").symlink_to(run)
    assert is_known(tmp_path / "link", refs)
    Path("mine.py").write_text(CODE + "\n")
    assert not is_known(run, refs)
    with pytest.raises(RecipeError, match="has changed"):
        refuse_untrusted(run, recipe, {}, "outdo", trust=False)
    refuse_untrusted(run, recipe, {}, "outdo", trust=False, force=True)
    Path("mine.py").write_text(CODE)
    for damage in (lambda: record.chmod(0o666), lambda: record.write_text("[" * 9999), lambda: record.write_text("{}")):
        remember(run, recipe)
        assert is_known(run, refs)
        damage()
        assert not is_known(run, refs)
        record.unlink()
    if os.geteuid() != 0:
        (tmp_path / "state").chmod(0o500)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert "cannot be remembered" in remember(run, recipe)


def test_own_run_and_a_strangers(outdo: Outdo, tmp_path: Path) -> None:
    """A run that was started here resumes with no flag. Its copy is a stranger's, until it is named or trusted."""
    (tmp_path / "mine.py").write_text(CODE)
    ran, own = tmp_path / "ran", ["dataset_name=mine.py:problems", "callbacks=mine.py:watch", "sft_steps=0"]
    assert outdo("train", *SHORT, *own, "output_dir=own").returncode == 0
    done = outdo("train", "--resume", "own", "max_steps=2")
    assert done.returncode == 0 and "resumed after step 1" in done.stdout, done.stderr
    assert outdo("eval", "own", "-n", "1", "--samples", "0").returncode == 0
    shutil.move(tmp_path / "own", tmp_path / "theirs")
    ran.unlink()
    longer = ("--resume", "theirs", "max_steps=3")
    for words in (
        ("train", *longer),
        ("train", *longer, "--dry-run"),
        ("train", *longer, "--force"),
        (
            "train",
            *longer,
            "callbacks=mine.py:watch",
            "dataset_name=arithmetic",
            "callbacks=[]",
            "audit_reward=numeric",
        ),
        ("eval", "theirs"),
        ("doctor", "theirs"),
        ("compare", "theirs", "theirs"),
        ("report", "theirs"),
        ("chat", "theirs", "-p", "1", "--max-completion-length", "1"),
        ("export", "theirs", "--out", "model"),
    ):
        done = outdo(*words)
        assert not ran.exists() and "Traceback" not in done.stderr, words
        if words[-1] in ("max_steps=3", "--dry-run", "--force"):
            assert done.returncode == 2 and "outdo train --resume theirs --trust" in done.stderr, done.stderr
            assert "mine.py:problems" in done.stderr and "mine.py:watch" in done.stderr
    assert outdo("train", *longer, "--dry-run", "dataset_name=mine.py:problems").returncode == 0  # its file is named
    assert ran.exists()
    shutil.move(tmp_path / "theirs", tmp_path / "other")
    done = outdo("train", "--resume", "other", "max_steps=3", "--trust")
    assert done.returncode == 0, done.stderr
    assert outdo("train", "--resume", "other", "max_steps=4").returncode == 0  # remembered
    assert outdo("train", "--trust").returncode == 2


def test_a_stage_with_other_code(outdo: Outdo, tmp_path: Path) -> None:
    """The folder of a stage has a recipe of its own, which may name what the whole run does not."""
    (tmp_path / "mine.py").write_text(CODE)
    stages = "stages=[{stage: sft, sft_steps: 1}, {stage: grpo, max_steps: 1}]"
    assert outdo("train", *SHORT[2:], stages, "output_dir=own").returncode == 0
    for name in ("own", "own/02-grpo"):
        path = tmp_path / name / "run.json"
        manifest = json.loads(path.read_text()) | {"status": "stopped"}
        if name != "own":
            manifest["recipe"]["callbacks"] = ["mine.py:watch"]
        path.write_text(json.dumps(manifest))
    done = outdo("train", "--resume", "own")
    assert done.returncode == 2 and "mine.py:watch" in done.stderr and not (tmp_path / "ran").exists(), done.stderr
