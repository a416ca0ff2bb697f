"""Runs of other trainers for tests: a real one of TRL, event files and logs of W&B as their own packages write them,
and lines as verl and prime-rl write them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outdo.runs.find import find_viewable
from outdo.runs.foreign.translate import renew

DATA = Path(__file__).parents[1] / "runs" / "data" / "trl"
STEPS = 8  # of the run of TRL
Values = Mapping[str, float]


def trl_run(folder: Path) -> Path:
    """An output folder of TRL 1.16.0, which bench/peers/trl_folder.py made."""
    shutil.copytree(DATA, folder)
    return folder


def view(path: Path) -> Path:
    """The translated folder."""
    return find_viewable(path)


def again(folder: Path) -> None:
    """Renews a translated folder at once."""
    from outdo.runs.foreign.translate import TRANSLATIONS

    translation = TRANSLATIONS.at(folder)
    assert translation is not None
    translation._next = translation.answers._next = 0.0
    renew(folder, with_answers=True)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def groups(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((folder / "groups").glob("*.jsonl")) for row in rows(path.parent, path.name)]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def events(folder: Path, steps: Iterable[tuple[int, Values]], texts: Mapping[str, str] | None = None) -> Path:
    """An event file of torch's SummaryWriter. Returns its path."""
    from torch.utils.tensorboard import SummaryWriter

    before = set(folder.glob("*")) if folder.exists() else set()
    writer = SummaryWriter(str(folder))
    for name, text in (texts or {}).items():
        writer.add_text(name, text)
    for step, values in steps:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    writer.close()
    (path,) = set(folder.glob("*")) - before
    return path


WANDB = """
import json, sys, wandb
given = json.load(sys.stdin)
run = wandb.init(project="p", name="named", dir=given["folder"], config=given["config"])
for row in given["rows"]:
    run.log(row)
run.finish(exit_code=given["exit_code"])
"""


def wandb_run(folder: Path, logged: list[dict[str, Any]], config: Mapping[str, Any], exit_code: int = 0) -> Path:
    """An offline run of W&B. Returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"folder": str(folder), "rows": logged, "config": dict(config), "exit_code": exit_code}
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    subprocess.run([sys.executable, "-c", WANDB], input=json.dumps(given), env=env, text=True, check=True, timeout=120)
    return next((folder / "wandb").glob("offline-run-*"))


def verl_row(step: int, **more: float) -> dict[str, Any]:
    """A line of verl's file logger."""
    data = {
        "actor/entropy": 0.5,
        "actor/kl_loss": 0.01 * step,
        "actor/pg_loss": -0.02,
        "actor/pg_clipfrac": 0.125,
        "actor/ppo_kl": 0.001,
        "actor/grad_norm": 0.3,
        "actor/lr": 1e-6,
        "critic/score/mean": 0.25 + 0.0625 * step,
        "critic/score/max": 1.0,
        "critic/advantages/mean": 0.0,
        "response_length/mean": 128.0,
        "response_length/clip_ratio": 0.0625,
        "perf/max_memory_allocated_gb": 2.0,
        "timing_s/step": 4.0,
        "timing_s/gen": 2.0,
        "timing_s/reward": 0.5,
        "timing_s/update_actor": 1.0,
        "training/global_step": step,
        **more,
    }
    return {"step": step, "data": data}


def prime_row(step: int) -> dict[str, Any]:
    """A line of prime-rl's file monitor."""
    return {
        "step": step,
        "time": 1.8e9 + step,
        "reward/all/mean": 0.1 * step,
        "reward/all/max": 1.0,
        "solve_none/all": 0.5,
        "solve_all/all": 0.125,
        "effective_batch_size/all": 0.375,
        "decode_len/all/mean": 64.0,
        "is_truncated/all/mean": 0.25,
        "progress/decode_tokens": 4096,
        "time/step": 3.0,
    }


def write_lines(path: Path, written: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return path
