"""docs/engines.md: the names in its tables exist, and its defaults are the ones that hold."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from bridges.verl_keys import KEYS
from outdo.bridges.convert.data import data_of
from outdo.bridges.convert.plan import make_plan
from outdo.bridges.convert.rft import _job
from outdo.metrics.catalogue import CATALOGUE
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from support.basics import ROOT

PAGE = (ROOT / "docs" / "engines.md").read_text()
NAME = re.compile(r"`([^`]+)`")
SIGNALS = {name for signal in CATALOGUE for name in signal.names}
OUTSIDE = {"Prompt", "answer", "outdo eval"}  # of outdo, and neither a key nor a signal
TRAINER = {
    "prompt",
    "train_dataset",
    "eval_dataset",
    "reward_funcs",
    "peft_config",
}  # arguments of GRPOTrainer, a column
VERL_ROW = {"prompt", "reward_model", "extra_info"}


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(heading: str, column: int) -> list[str]:
    return [name for row in table(heading) for name in NAME.findall(row[column])]


KEY_TABLES = ("What is sampled and graded", "What is optimized")


@pytest.mark.parametrize("heading", KEY_TABLES)
def test_our_keys(heading: str) -> None:
    found = names(heading, 1)
    assert len(found) > 8 and set(found) <= set(Recipe.model_fields) | OUTSIDE


def test_our_signals() -> None:
    assert set(names("What you see", 1)) <= SIGNALS | OUTSIDE


@pytest.mark.parametrize("heading", KEY_TABLES)
def test_verls_keys(heading: str) -> None:
    found = names(heading, 3)
    assert len(found) > 7 and set(found) <= KEYS | VERL_ROW


def test_the_jobs_hyperparameters() -> None:
    plan = make_plan(load_recipe(None, ["max_steps=1", "eval_size=1"]), "x")
    job: Any = _job(plan, data_of(plan.recipe, plan.task))
    for name in job["method"]["reinforcement"]["hyperparameters"]:
        assert f"`{name}`" in PAGE
    assert {"training_file", "validation_file"} <= set(job)


@pytest.fixture(scope="module")
def trl() -> Any:
    pytest.importorskip("trl.trainer")
    return importlib.import_module("trl")


@pytest.mark.parametrize("heading", KEY_TABLES)
def test_trls_keys(heading: str, trl: Any) -> None:
    fields = set(trl.GRPOConfig.__dataclass_fields__)
    assert set(names(heading, 2)) <= fields | TRAINER


def test_trls_signals(trl: Any) -> None:
    """They are logged by the trainer, by transformers (grad_norm), or made by it (eval_)."""
    source = Path(importlib.import_module("trl.trainer.grpo_trainer").__file__ or "").read_text()
    for name in names("What you see", 2):
        logged = name.removeprefix("eval_").replace("NAME", "{reward_func_name}")
        assert f'"{logged}"' in source or logged in ("beta", "grad_norm", "step_time"), name


def test_defaults(trl: Any) -> None:
    """Of each key in the table, ours and TRL's."""
    args = trl.GRPOConfig.__dataclass_fields__
    theirs: dict[str, Any] = {key: args[key].default for key in args}
    theirs |= {"adv_std": "sample", "dtype": "bf16", "lora_target_modules": "PEFT's choice for the model"}
    theirs["lr_scheduler_type"] = getattr(theirs["lr_scheduler_type"], "value", theirs["lr_scheduler_type"])
    rows = {NAME.findall(row[0])[0]: row for row in table("Defaults that differ") if "," not in row[0]}
    assert len(rows) > 6
    for key, row in rows.items():
        ours = Recipe.model_fields[key].get_default()
        ours = ours[0] if isinstance(ours, list) else ours
        shown = [str(value).lower() if isinstance(value, bool) else value for value in (ours, theirs[key])]
        assert [as_number(row[1]), as_number(row[2])] == shown, key
    assert args["bf16"].default is None and trl.GRPOConfig(output_dir="x", use_cpu=True, bf16=False).bf16 is False
    assert theirs["use_bias_correction_kl"] is True and theirs["epsilon_high"] is None and theirs["delta"] is None


def as_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("size", "factor"), [(8, 0.935), (2, 0.707)])
def test_the_factor_of_the_sample_deviation(size: int, factor: float) -> None:
    assert ((size - 1) / size) ** 0.5 == pytest.approx(factor, abs=5e-4)
    assert f"{factor}" in PAGE
