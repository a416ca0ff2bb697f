"""What a treatment is judged by, on runs that were written down by hand; `test_command.py` treats a real one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from outdo.doctor.finding import Change, Expect, Finding
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.errors import OutdoError
from outdo.recipe.load import load_recipe
from outdo.runs import checkpoint
from outdo.runs.manifest import read_manifest
from outdo.runs.writer import RunWriter
from outdo.training import resume
from outdo.training.console import PlainLines
from outdo.training.treat import _copy_run, _judged, _keys, treat


def written(folder: Path, kl: np.ndarray, held: dict[int, float] | None = None, **keys: object) -> Path:
    recipe = load_recipe(None, {"max_steps": 60, **keys}).model_dump(mode="json")
    run = RunWriter.create(folder, recipe, {})
    for step, value in enumerate(kl):
        run.record_step(
            step, {"reward_mean": 0.4 + 0.01 * (step % 2), "success_rate": 0.4, "kl_mean": float(value)}, []
        )
    for step, success in (held or {}).items():
        run.record_eval({"step": step, "split": "test", "n": 400, "success_rate": success})
    run.finish("done")
    run.close()
    return folder


def test_shorter_run_is_no_fix(tmp_path: Path) -> None:
    grows = 0.01 * np.arange(60)
    ill = run_history(written(tmp_path / "ill", grows))
    (finding,) = diagnose(ill)
    assert finding.code == "kl_blowup" and finding.expect
    same, better = (written(tmp_path / name, kl) for name, kl in (("same", grows[:31]), ("cured", grows[:31] / 8)))
    untreated, treated = (_judged(ill, finding, finding.expect, folder, 0) for folder in (same, better))
    assert not untreated.answered and untreated.failing == pytest.approx(untreated.treated)
    assert treated.answered and treated.failing == pytest.approx(8 * treated.treated) and treated.now == "healthy"


def test_held_out_at_end(tmp_path: Path) -> None:
    flat = np.full(60, 0.01)
    folder = written(tmp_path / "ill", flat, {0: 0.6, 30: 0.7, 60: 0.4}, beta=0.02)
    change, expect = Change("beta", 0.02, 0.08), Expect("eval_success_rate", "up", 40)
    assert _keys(read_manifest(folder), change, expect, 45) == {"beta": 0.08, "eval_steps": 44}
    assert _keys(read_manifest(folder), change, expect, 70) == {"beta": 0.08, "eval_steps": 69, "max_steps": 70}
    finding = Finding("overfit", "warning", 30, (), change, expect)
    cured = written(tmp_path / "cured", flat[:46], {0: 0.6, 45: 0.65})
    done = _judged(run_history(folder), finding, expect, cured, 30)
    assert done.answered and (done.failing, done.treated) == (0.4, 0.65)
    never = _judged(run_history(folder), finding, expect, written(tmp_path / "never", flat[:46], {0: 0.6}), 30)
    assert not never.answered and never.row()["after"] is None and json.dumps(never.row(), allow_nan=False)


def test_copy_can_resume(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "ill", load_recipe().model_dump(mode="json"), {})
    run.record_step(0, {"reward_mean": 0.5}, [])
    run.record_finding(0, {"code": "truncation"})
    state = {"step": 1, "offsets": run.offsets()}
    saved = checkpoint.save(run.checkpoints, 1, lambda folder: (folder / "state.json").write_text(json.dumps(state)))
    run.close()
    _copy_run(run.folder, run.manifest, tmp_path / "copy", saved)
    copy = RunWriter.reopen(tmp_path / "copy")
    point, skipped = resume.newest_checkpoint(copy)
    copy.close()
    assert point and point.folder.name == saved.name and not skipped


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"reward_funcs": ["nothere.py:f"]}, "nothere.py"),
        ({}, "nothing to treat"),
    ],
)
def test_untreatable_leaves_nothing(tmp_path: Path, keys: dict[str, object], said: str) -> None:
    kl = 0.01 * np.arange(60) if keys else np.full(60, 0.01)
    folder = written(tmp_path / "ill", kl, **keys)
    with pytest.raises(OutdoError, match=said):
        treat(folder, PlainLines(Console(file=io.StringIO())))
    assert [path.name for path in tmp_path.iterdir()] == ["ill"]
