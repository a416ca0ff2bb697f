"""`outdo convert`: words, exit statuses, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from support.basics import ROOT

Outdo = Callable[..., "CompletedProcess[str]"]
RECIPE = str(ROOT / "recipes" / "arithmetic.yaml")
SMALL = ("sft_steps=0", "max_steps=1", "eval_size=2")


def test_a_recipe_with_keys_and_options(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("convert", RECIPE, *SMALL, "--learning_rate", "0.5", "--to", "trl", "--out", "out")
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "out/train.py" and all((tmp_path / line).exists() for line in printed)
    text = (tmp_path / "out" / "train.py").read_text()
    assert "learning_rate=0.5," in text and "arithmetic.yaml" in text.splitlines()[0]
    assert "differs: " in done.stderr and "differs" not in done.stdout


def test_the_default_place(outdo: Outdo, tmp_path: Path) -> None:
    assert outdo("convert", *SMALL, "--to", "rft").returncode == 0
    grader = json.loads((tmp_path / "arithmetic-rft" / "grader.json").read_text())
    assert grader["type"] == "python"
    again = outdo("convert", *SMALL, "--to", "rft")
    assert again.returncode == 2 and "--force" in again.stderr
    assert outdo("convert", *SMALL, "--to", "rft", "--force").returncode == 0


def test_misuse(outdo: Outdo, tmp_path: Path) -> None:
    for words, said in (
        (("--to", "tlr"), "'trl'"),
        (("--to", ""), "trl, unsloth"),
        (("missing.yaml",), "missing.yaml"),
        (("learning_rat=1",), "learning_rate"),
        (("reward_funcs=math", "sft_steps=0"), "--allow-missing"),
        (("--to", "rft"), "sft_steps=0"),
        (("model_name_or_path=m", "dataset_name=nowhere.jsonl", "reward_funcs=exact"), "nowhere.jsonl"),
    ):
        done = outdo("convert", *words, "--out", "out")
        assert (done.returncode, said in done.stderr) == (2, True), (words, done.stderr)
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = outdo("convert", *SMALL, "--out", "file/out")
    assert done.returncode == 2 and "file/out" in done.stderr
    assert outdo("convert", *SMALL, "--out", "file").returncode == 2 and (tmp_path / "file").read_text() == "mine"
