"""Recipe keys beside options: which words are keys, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.cli.keys import split_models
from outdo.errors import RecipeError
from outdo.models.load import load_policy, save_policy

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]


def test_split_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beta=0.1").mkdir()
    (tmp_path / "cell=3").mkdir()
    words = [
        "m1",
        "temperature=0.5",
        "runs/lr=3",
        "cell=3",
        "task_args.digits=2",
        "nonsense=1",
        "beta=0.1",
        "./beta=0.1",
    ]
    models = ["m1", "runs/lr=3", "cell=3", "./beta=0.1"]
    assert split_models(words) == (models, ["temperature=0.5", "task_args.digits=2", "nonsense=1", "beta=0.1"])
    with pytest.raises(RecipeError, match="name a model"):
        split_models(["temperature=1"])
    with pytest.raises(RecipeError, match=r"one model.*m1, m2"):
        split_models(["m1", "m2"], most=1)


def test_chat_keys(outdo: Outdo, tmp_path: Path) -> None:
    save_policy(load_policy("tiny", device="cpu", seed=1), tmp_path / "m")
    by_option = outdo("chat", "m", "-p", "12+30", "--temperature", "0", "--max-completion-length", "5")
    by_key = outdo("chat", "temperature=0", "m", "-p", "12+30", "max_new_tokens=5", "dtype=float32")
    assert by_key.returncode == 0 and by_key.stdout == by_option.stdout
    stopped = outdo("chat", "m", "-p", "12+30", "temperature=0", "max_new_tokens=5", f"stop={by_key.stdout[0]}")
    assert stopped.stdout == by_key.stdout[0] + "\n"
    for word, part in (("system_prompt=x", "--system and system_prompt="), ("eval_size=3", "eval_size= has no effect")):
        done = outdo("chat", "m", "-p", "x", "--system", "y", word)
        assert done.returncode == 2 and part in done.stderr


def test_harvest_keys(outdo: Outdo, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}", "answer": "1", "split": "train"} for i in range(4)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.py").write_text("def always(completions, **columns):\n    return [1.0 for _ in completions]\n")
    keys = ("dataset_name=p.jsonl", "reward_funcs=r.py:always", "max_completion_length=4", "device=cpu", "top_k=9")
    done = outdo("harvest", "tiny", *keys, "samples=3", "size=2", "--teacher")
    assert done.returncode == 2 and "harvest_teacher" in done.stderr
    outdo("harvest", "tiny", *keys, "samples=3", "size=2")
    first, *prompts = [
        json.loads(line) for line in (tmp_path / "demonstrations.prompts.jsonl").read_text().splitlines()
    ]
    settings = first["settings"]
    assert (settings["top_k"], settings["samples"], settings["harvest_size"]) == (9, 3, 2)
    assert [row["sampled"] for row in prompts] == [3, 3]
    done = outdo("harvest", "tiny", "samples=3", "--samples", "3")
    assert done.returncode == 2 and "--samples and harvest_samples=" in done.stderr
    done = outdo("harvest", "tiny", "learning_rate=1")
    assert done.returncode == 2 and "learning_rate= has no effect" in done.stderr
