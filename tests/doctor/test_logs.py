"""Logs as other trainers leave them. Those in data/ are TRL 1.16.0's own (`bench/peers/trl_log.py` made them)."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outdo.doctor.history import from_rows
from outdo.doctor.read import read_history
from outdo.doctor.rules import diagnose
from outdo.errors import RecipeError

DATA = Path(__file__).parent / "data"
SAID = {"sane": "healthy", "hasty": "kl_blowup", "wordy": "thinking_tax"}


def logged(name: str) -> list[dict[str, Any]]:
    return list(json.loads((DATA / f"trl-{name}.json").read_text())["log_history"])


def as_csv(rows: list[dict[str, Any]], between: str = ",") -> str:
    """With an empty cell where a row has no such number, as pandas writes it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    return "".join(between.join(line) + "\n" for line in lines)


def as_printed(rows: list[dict[str, Any]]) -> str:
    """As transformers prints them: without a step, among progress bars."""
    told = [{key: f"{value:.4g}" for key, value in row.items() if key != "step"} for row in rows]
    return "".join(f"\r  4%|▍     | 1/24 [00:01<00:36]   {row}\n" for row in told)


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("form", ["trainer_state.json", "log.jsonl", "log.csv", "train.log"])
def test_trl_logs(tmp_path: Path, name: str, form: str) -> None:
    path, rows = tmp_path / form, logged(name)
    if form == "trainer_state.json":
        shutil.copy(DATA / f"trl-{name}.json", path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text({"log.jsonl": lines, "log.csv": as_csv(rows)}.get(form) or as_printed(rows))
    history = read_history(path)
    (finding,) = diagnose(history)
    assert finding.code == SAID[name] and len(history) == 24  # its two evaluations are no steps
    assert [one.success for one in history.held] == pytest.approx(
        [row["eval_rewards/accuracy_reward/mean"] for row in rows if "eval_loss" in row], rel=1e-3
    )
    if name == "hasty":
        assert finding.severity == "critical" and finding.change and finding.change.pair() == "learning_rate=0.002"


def test_trl_folder(tmp_path: Path) -> None:
    for step, name in ((8, "sane"), (24, "hasty")):
        (tmp_path / f"checkpoint-{step}").mkdir()
        shutil.copy(DATA / f"trl-{name}.json", tmp_path / f"checkpoint-{step}" / "trainer_state.json")
    assert diagnose(read_history(tmp_path))[0].code == "kl_blowup"
    assert diagnose(read_history(tmp_path / "checkpoint-8"))[0].code == "healthy"


def test_verl_output(tmp_path: Path) -> None:
    path = tmp_path / "verl.log"
    lines = ["(TaskRunner pid=7) step:0 - val-core/gsm8k/reward/mean@1:-0.2 - val-core/gsm8k/acc/mean@1:0.4"]
    for i in range(1, 41):
        kl = f"np.float64({0.02 * i:.4f})"
        lines.append(f"(TaskRunner pid=7) step:{i} - actor/kl_loss:{kl} - actor/kl_coef:0.001 - actor/lr:1e-06 - ")
        lines[-1] += "critic/score/mean:0.5 - critic/rewards/mean:0.4 - response_length/clip_ratio:0.0"
    path.write_text("WARNING: something, else\n" + "\n".join(lines))
    history = read_history(path)
    (finding,) = diagnose(history)
    assert finding.code == "kl_blowup" and history.held[0].success == 0.4  # the accuracy, not the score
    assert history["reward_mean"][0] == 0.5 and history["kl_mean"][-1] == pytest.approx(0.8)
    assert history.recipe == {"learning_rate": 1e-6, "beta": 0.001}


def test_wandb_names() -> None:
    rows = [{"_step": 2 * i, "train/global_step": i, "train/reward": 0.3, "train/rewards/x": 0.1} for i in range(5)]
    history = from_rows([*rows, {"train/global_step": 5, "eval/rewards/accuracy_reward/mean": 0.25}])
    assert history.steps == (0, 1, 2, 3, 4) and history.held[0].step == 5 and history.held[0].success == 0.25
    assert list(history["reward_mean"]) == [0.3] * 5 and list(history["reward/x"]) == [0.1] * 5


def kl_rows() -> list[dict[str, Any]]:
    return [{"step": i, "reward": 0.4 + 0.01 * (i % 3), "kl": 0.02 * i, "entropy": 0.5} for i in range(40)]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + as_csv(kl_rows()),
        as_csv(kl_rows()).replace("\n", "\r\n"),
        as_csv(kl_rows(), "\t"),
        as_csv(kl_rows(), ";").replace(".", ","),
        as_csv(kl_rows(), '","').replace("\n", '"\n"').join('""')[:-2],
        as_csv(kl_rows()[::-1]),
        as_csv([{**row, "step": f"{row['step']}.0"} for row in kl_rows()]),
        as_csv([{**row, "step": row["step"] / 40} for row in kl_rows()]),
        as_csv([{**row, "step": 1.7e18 + 1e10 * row["step"]} for row in kl_rows()]),
        as_csv(kl_rows()[:25]) + as_csv(kl_rows()[20:]),
        "\n\n" + as_csv(kl_rows()),
    ],
    ids=[
        "BOM",
        "CRLF",
        "tabs",
        "decimal commas",
        "quoted",
        "newest first",
        "floats",
        "epochs",
        "times",
        "appended",
        "blank",
    ],
)
def test_unusual_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    history = read_history(tmp_path / "log.csv")
    assert history.steps in (tuple(range(40)), tuple(range(1, 41))) and diagnose(history)[0].code == "kl_blowup"
    assert list(history["kl_mean"]) == pytest.approx([0.02 * i for i in range(40)])


def test_steps_logged_twice() -> None:
    first, second = ([{"step": i, "reward": level} for i in range(n)] for level, n in ((0.2, 40), (0.7, 10)))
    history = from_rows([*first, *second])
    assert len(history) == 10 and set(history["reward_mean"]) == {0.7}
    resumed = from_rows([*first, *({"step": i, "reward": 0.9} for i in range(30, 35))])
    assert resumed.steps == tuple(range(35)) and list(resumed["reward_mean"]) == [0.2] * 30 + [0.9] * 5
    apart = from_rows([*first, *({"step": i, "kl": 0.01} for i in range(0, 40, 2))])  # the columns one by one
    assert len(apart) == 40 and np.isfinite(apart["kl_mean"]).sum() == 20


def test_non_finite_metrics(tmp_path: Path) -> None:
    """From JSON, CSV and what TRL prints: the reward goes on as if nothing were wrong."""
    rows = [{"reward": 0.5 + 0.001 * i, "kl": 0.01, "loss": 0.1, "entropy": 0.5} for i in range(100)]
    for row in rows[60:]:
        row |= {"kl": math.nan, "loss": math.inf}
    texts = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "a.csv": "reward,kl,loss,entropy\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows),
        "a.log": "".join(f"{row}\n" for row in rows),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (finding,) = diagnose(read_history(tmp_path / name))
        assert (finding.code, finding.severity, finding.step) == ("not_finite", "critical", 61), name
        assert {sign.describe() for sign in finding.evidence} == {
            "kl_mean is NaN or infinite in 40 of 100 steps", "loss is NaN or infinite in 40 of 100 steps"
        }  # fmt: skip
    once = [{**row, "loss": math.nan if i == 30 else 0.1, "kl": 0.01} for i, row in enumerate(rows)]
    assert [f.code for f in diagnose(from_rows(once))] == ["healthy"]  # a step that was skipped
    padded = [row for i in range(60) for row in ({**rows[i], "step": i}, {"step": i, "loss": math.nan, "eval_n": 5})]
    assert [f.code for f in diagnose(from_rows(padded))] == ["healthy"]  # a table filled up with NaN
    again = [{**row, "step": i} for i, row in enumerate(rows[:62])] + [{**rows[0], "step": i} for i in range(60, 100)]
    assert [f.code for f in diagnose(from_rows(again))] == ["healthy"]  # resumed from before it


def test_non_finite_reward() -> None:
    rows = [{"reward": 0.5 if i < 40 else math.nan, "kl": 0.01, "loss": 0.1, "entropy": 0.5} for i in range(60)]
    (finding,) = diagnose(from_rows(rows))
    assert (finding.code, finding.step, finding.change) == ("not_finite", 41, None)
    assert [sign.describe() for sign in finding.evidence] == ["reward_mean is NaN or infinite in 20 of 60 steps"]
    rows = [{**row, "loss": math.nan} for row in rows]
    (finding,) = diagnose(from_rows(rows))
    assert finding.change and {item.signal for item in finding.evidence} == {"loss", "reward_mean"}


def test_collapse_of_negative_reward() -> None:
    """As DAPO's, from -1 to 1; one without a floor; and one that rises, which is well."""
    rng = np.random.default_rng(0)
    curves = {"steps": np.where(np.arange(100) < 49, 0.5, -0.95), "falls": np.linspace(-5, -17, 100)}
    for curve in (*curves.values(), np.linspace(-5, -1, 100)):
        rows = [{"reward": value, "kl": 0.01, "entropy": 0.5} for value in curve + rng.normal(0, 0.05, 100)]
        (finding,) = diagnose(from_rows(rows))
        assert (finding.code == "steps_too_big") == (curve[-1] < curve[0]), finding


def test_success_outside_0_to_1() -> None:
    rows = [{"step": i, "reward": 0.1 * i, "rewards/correctness_reward/mean": 0.1 * i} for i in range(20)]
    assert "success_rate" not in from_rows(rows).columns  # some of it is under 1
    assert "success_rate" in from_rows(rows[:10]).columns
    scores = [{"step": i, "reward": 0.5, "val-core/x/reward/mean@1": score} for i, score in enumerate((-0.5, 0.5))]
    assert from_rows(scores).held == ()
    assert diagnose(from_rows([*scores, *({"step": i, "reward": 0.5} for i in range(2, 30))]))
    assert from_rows([{"step": 0, "eval_success_rate": 0.5, "eval_n": 0}]).held[0].n == 1


@pytest.mark.parametrize("text", ['{"step": 1, "reward": 1e999}', '{"step": 1, "reward": NaN}', "a;b\n1;2\n"])
def test_no_known_signal(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(RecipeError, match="no known signal"):
        read_history(tmp_path / "log.jsonl")


def test_quoted_csv(tmp_path: Path) -> None:
    rows = [{"step": i, "note": "a\nb,c", "reward": 0.1} for i in range(3)]
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert len(read_history(tmp_path / "log.csv")) == 3


def test_slope_is_per_step() -> None:
    each, tenth = (from_rows([{"step": i, "reward": 0.5, "kl": 0.001 * i} for i in range(0, 400, n)]) for n in (1, 10))
    slopes = [diagnose(history)[0].evidence[0].slope for history in (each, tenth)]
    assert slopes == pytest.approx([0.001, 0.001])


def test_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps(row) + "\n" for row in logged("hasty")[:24]).encode()
    assert len(text) < 60_000  # fits the pipe's buffer
    for by_name in (True, False):
        source, sink = os.pipe()
        pipe = Path(f"/dev/fd/{source}")
        monkeypatch.setattr("outdo.doctor.read.STANDARD_INPUT", pipe)
        os.write(sink, text)
        os.close(sink)
        assert diagnose(read_history(pipe if by_name else Path("-")))[0].code == "kl_blowup"
        os.close(source)
