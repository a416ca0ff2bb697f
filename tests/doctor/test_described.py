"""Curves written down from descriptions of runs, each with what the doctor must say first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outdo.doctor.history import Held, History, from_rows
from outdo.doctor.read import read_history
from outdo.doctor.rules import diagnose
from outdo.doctor.watch import Watch
from outdo.runs.writer import RunWriter

Curves = dict[str, Any]


def run(n: int, noise: float = 0.03, held: Any = None, size: int = 200, every: int = 1, **curves: Any) -> History:
    """n steps of these curves, each times its own noise; held-out success as a curve, every few steps."""
    rng = np.random.default_rng(n)
    grown = {name: curve * np.ones(n) * (1 + noise * rng.normal(size=n)) for name, curve in curves.items()}
    points = ()
    if held is not None:
        seen = np.clip(held * np.ones(n) * (1 + noise * rng.normal(size=n)), 0, 1)
        points = tuple(Held(step, float(seen[step]), size) for step in range(0, n, every))
    splits = {"test": points} if points else {}
    return History(tuple(range(1, n + 1)), grown, points, splits=splits)


def up(n: int, low: float, high: float, rate: float = 4.0) -> Any:
    return low + (high - low) * (1 - np.exp(-rate * np.arange(n) / n))


def line(n: int, *levels: float) -> Any:
    return np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(levels)), levels)


def moving(n: int, goal: Any, **others: Any) -> Curves:
    """Curves of a policy that moves as it should, with success `goal`."""
    usual = {"kl_mean": line(n, 0.001, 0.03), "entropy_mean": line(n, 0.6, 0.45), "len_mean": 120.0, "informative": 0.6}
    return {"success_rate": goal, "reward_mean": goal, **usual, **others}


def waves(n: int, period: float, size: float = 0.2, level: float = 0.5) -> Any:
    return level + size * np.sin(2 * np.pi * np.arange(n) / period)


WRECKED = np.r_[0.48, np.zeros(191)]
DEAD = {"informative": np.r_[0.6, np.zeros(191)], "grad_norm": np.r_[0.5, np.zeros(191)]}
GONE = {**DEAD, "all_wrong": np.r_[0.2, np.ones(191)], "kl_mean": np.r_[0.0, np.full(191, 3.0)]}

CASES: dict[str, tuple[str, Callable[[], History]]] = {
    "noisy evals": ("healthy", lambda: run(100, 0.1, up(100, 0.3, 0.7), **moving(100, up(100, 0.3, 0.7)))),
    "few problems": ("healthy", lambda: run(300, 0.07, up(300, 0.3, 0.6), 30, **moving(300, up(300, 0.3, 0.6)))),
    "plateau": ("healthy", lambda: run(120, 0.1, up(120, 0.3, 0.6, 30), **moving(120, up(120, 0.3, 0.6, 30)))),
    "five evals": ("healthy", lambda: run(100, 0.1, up(100, 0.3, 0.7), every=20, **moving(100, up(100, 0.3, 0.7)))),
    "learned fast": ("healthy", lambda: run(200, 0.05, up(200, 0.3, 0.9, 60), **moving(200, up(200, 0.3, 0.9, 60)))),
    "solved": (
        "healthy",
        lambda: run(150, 0.02, **moving(150, up(150, 0.4, 0.99, 8), informative=line(150, 0.6, 0.05, 0.01))),
    ),
    "slow": ("healthy", lambda: run(400, 0.15, **moving(400, line(400, 0.3, 0.42)))),
    "falls after best": (
        "overfit",
        lambda: run(200, 0.08, line(200, 0.3, 0.6, 0.35), **moving(200, line(200, 0.3, 0.7, 0.75))),
    ),
    "gap": ("overfit", lambda: run(200, 0.08, 0.3, **moving(200, up(200, 0.3, 0.95)))),
    "gap, two evals": ("overfit", lambda: run(200, 0.03, 0.3, every=199, **moving(200, up(200, 0.3, 0.95)))),
    "cut off more and more": (
        "truncation",
        lambda: run(
            120,
            **moving(120, line(120, 0.5, 0.1), truncated=line(120, 0.2, 0.9), len_mean=line(120, 300, 500)),
            held=line(120, 0.5, 0.1),
        ),
    ),
    "cut off from the start": ("truncation", lambda: run(80, **moving(80, 0.35, truncated=0.55))),
    "all right": (
        "dead_all_right",
        lambda: run(100, 0.004, line(100, 0.98, 0.9), **moving(100, 0.995, informative=0.01)),
    ),
    "cold": ("no_signal", lambda: run(70, 0.01, **moving(70, 0.375, informative=0.004, adv_std=0.01))),
    "advantages vanish": ("no_signal", lambda: run(80, reward_mean=0.4, adv_std=line(80, 1.0, 0.02, 0.01))),
    "advantages alone": ("no_signal", lambda: run(80, adv_std=line(80, 0.9, 0.1, 0.01))),
    "cold, and it drifts": (
        "no_signal",
        lambda: run(70, 0.01, **moving(70, 0.375, informative=0.004, kl_mean=line(70, 0.0, 0.2))),
    ),
    "rewards become the same": (
        "no_signal",
        lambda: run(80, reward_mean=0.4, kl_mean=0.01, reward_std=line(80, 0.4, 0.01, 0.001)),
    ),
    "reward swings, success does not": (
        "unstable",
        lambda: run(120, 0.03, **{**moving(120, 0.5), "reward_mean": waves(120, 24, 0.3)}),
    ),
    "slow swings": ("unstable", lambda: run(200, 0.05, **moving(200, waves(200, 40)))),
    "fast swings": ("unstable", lambda: run(120, 0.05, **moving(120, waves(120, 6)))),
    "every other step": ("unstable", lambda: run(60, 0.05, **moving(60, 0.4 + 0.2 * (np.arange(60) % 2)))),
    "reward swings": ("unstable", lambda: run(300, 0.05, kl_mean=0.02, reward_mean=waves(300, 50, 3.0, 5.0))),
    "swings to a low end": ("unstable", lambda: run(230, 0.05, **moving(230, waves(230, 40, 0.35)))),
    "first update": ("steps_too_big", lambda: run(192, 0.0, **{**moving(192, WRECKED), **GONE})),
    "first update, no KL": ("steps_too_big", lambda: run(192, 0.0, **{**moving(192, WRECKED), **DEAD})),
    "first update, reward": ("steps_too_big", lambda: run(192, 0.0, reward_mean=WRECKED, **DEAD)),
    "third update": (
        "steps_too_big",
        lambda: run(
            60, 0.0, **moving(60, np.r_[0.5, 0.45, 0.48, np.zeros(57)], informative=np.r_[[0.6] * 3, [0] * 57])
        ),
    ),
    "lost before the first row": (
        "steps_too_big",
        lambda: replace(
            run(50, 0.0, **moving(50, 0.0, informative=0.0, kl_mean=2.0)), held=(Held(0, 0.48, 200), Held(50, 0.0, 200))
        ),
    ),
    "first update, halted by the KL guard": (
        "steps_too_big",
        lambda: replace(
            run(4, 0.0, **moving(4, np.r_[0.5, 0, 0, 0], informative=np.r_[0.9, 0, 0, 0], kl_mean=np.r_[0, 5, 6, 6])),
            held=(Held(0, 0.42, 200), Held(4, 0.0, 200)),
            ended="halted at step 4: KL to the starting model is 6.0, past kl_limit=2.0 for 3 steps",
        ),
    ),
    "halted by the KL guard, success holds": (
        "kl_blowup",
        lambda: replace(
            run(4, 0.0, **moving(4, np.r_[0.5, 0.4, 0.4, 0.3], kl_mean=np.r_[0, 3, 3, 3])),
            ended="halted at step 4: KL to the starting model is 3.0, past kl_limit=2.0 for 3 steps",
        ),
    ),
    "weights become NaN": (
        "not_finite",
        lambda: run(
            100,
            **moving(100, np.r_[up(60, 0.3, 0.6), np.zeros(40)], informative=np.r_[np.full(60, 0.6), np.zeros(40)]),
            **{"not_finite/loss": np.r_[np.full(60, np.nan), np.ones(40)]},
        ),
    ),
    "success goes, then NaN": (
        "steps_too_big",
        lambda: run(
            100,
            **moving(100, np.r_[up(60, 0.3, 0.6), np.zeros(40)], informative=np.r_[np.full(60, 0.6), np.zeros(40)]),
            **{"not_finite/loss": np.r_[np.full(80, np.nan), np.ones(20)]},
        ),
    ),
    "out of reach": (
        "dead_all_wrong",
        lambda: replace(run(60, 0.0, **moving(60, 0.0, informative=0.0, kl_mean=0.0)), held=(Held(0, 0.0, 200),)),
    ),
    "one lucky step": (
        "dead_all_wrong",
        lambda: run(60, 0.0, **moving(60, np.r_[0.06, np.zeros(59)], informative=0.01, kl_mean=1e-4)),
    ),
    "diverges": ("kl_blowup", lambda: run(60, **moving(60, 0.4, kl_mean=line(60, 0, 0.8)))),
    "entropy goes, nothing gained": (
        "entropy_collapse",
        lambda: run(
            80, **moving(80, 0.4, entropy_mean=0.6 * np.exp(-np.arange(80) / 12), informative=line(80, 0.6, 0.02))
        ),
    ),
}


@pytest.mark.parametrize(
    ("goal", "limit", "severity"),
    [((0.3, 0.9), None, "info"), ((0.3, 0.9), 1.0, "critical"), ((0.6, 0.3), None, "critical")],
)
def test_kl_that_the_recipe_allows(goal: tuple[float, float], limit: float | None, severity: str) -> None:
    """Far from its start is where a policy was to go, if it is better there."""
    history = run(60, **moving(60, line(60, *goal), kl_mean=line(60, 0, 0.6, 0.6)))
    (finding,) = [f for f in diagnose(replace(history, recipe={"kl_limit": limit})) if f.code == "kl_blowup"]
    assert finding.severity == severity


@pytest.mark.parametrize("name", CASES)
def test_described(name: str) -> None:
    code, history = CASES[name][0], CASES[name][1]()
    findings = diagnose(history)
    assert findings[0].code == code, findings
    assert code == "healthy" or findings[0].severity != "info"


def test_unmoved_in_noise() -> None:
    """KL shows that the policy did not move, so entropy that only scatters has not moved either."""
    still = {"entropy_mean": 0.6, "len_mean": 120.0, "kl_mean": 1e-5}
    codes = [diagnose(run(n, 0.12, **moving(n, 0.4, **still)))[0].code for n in range(70, 100)]
    assert codes.count("steps_too_small") >= 28, codes


def test_effects_are_listed() -> None:
    cut, wrecked = (diagnose(CASES[name][1]())[0] for name in ("cut off more and more", "first update"))
    assert {"steps_too_big", "thinking_tax"} <= {*cut.also}
    assert {"dead_all_wrong", "kl_blowup", "no_signal"} <= {*wrecked.also} and "also" in wrecked.row()


def test_unrecoverable() -> None:
    is_final = {name: diagnose(CASES[name][1]())[0].unrecoverable for name in CASES}
    assert {name for name in is_final if is_final[name]} == {
        "first update",
        "first update, no KL",
        "first update, reward",
        "weights become NaN",
        "success goes, then NaN",
    }
    lost = run(30, **moving(30, 0.4), **{"not_finite/loss": np.r_[np.full(20, np.nan), np.ones(10)]})
    assert (diagnose(lost)[0].code, diagnose(lost)[0].unrecoverable) == ("not_finite", True)


def test_watch_sees_wreck_early(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {}, {})
    watch = Watch(tmp_path / "run", {"learning_rate": 1e-2})
    history = CASES["first update"][1]()
    for index, step in enumerate(history.steps):
        if new := watch.step({"step": step, **{name: float(curve[index]) for name, curve in history.columns.items()}}):
            break
    writer.close()
    assert index < 10 and [finding.code for finding in new] == ["steps_too_big"] and new[0].unrecoverable
    assert new[0].change and new[0].change.new == pytest.approx(3.33e-4)


def test_advice_fits() -> None:
    late = replace(CASES["falls after best"][1](), recipe={"max_steps": 200, "beta": 0.0})
    change = diagnose(late)[0].change
    assert change and change.key == "max_steps" and 60 <= change.new <= 130 and change.new % 10 == 0
    early = run(200, 0.08, line(200, 0.6, 0.4, 0.35), **moving(200, line(200, 0.6, 0.7, 0.75)))
    for recipe in ({"max_steps": 200, "beta": 0.0}, {}):
        finding = diagnose(replace(early, recipe=recipe))[0]
        assert finding.code == "overfit" and finding.change and finding.change.key == "beta"
    cold = diagnose(replace(CASES["cold"][1](), recipe={"temperature": 0.03}))[0].change
    assert cold and cold.pair() == "temperature=1"


@pytest.mark.parametrize(
    ("test", "ood", "code"),
    [
        ((0.4, 0.6), (0.5, 0.3), "ood_loss"),
        ((0.4, 0.4), (0.5, 0.3), "ood_loss"),
        ((0.4, 0.6), (0.5, 0.47), "healthy"),
        ((0.4, 0.6), (0.0, 0.0), "healthy"),
        ((0.4, 0.6, 0.3), (0.5, 0.3), "overfit"),
    ],
)
@pytest.mark.parametrize("every", [1, 99])
def test_other_distribution(test: tuple[float, ...], ood: tuple[float, ...], code: str, every: int) -> None:
    if len(test) > 2 and every > 1:
        every = 33
    rows = [{"step": i, **{k: float(v[i]) for k, v in run(100, **moving(100, line(100, 0.4, 0.7))).columns.items()}}
            for i in range(100)]  # fmt: skip
    rng = np.random.default_rng(1)
    evals = [
        {"step": step, "split": split, "n": 200, "success_rate": rng.binomial(200, float(curve[step])) / 200}
        for step in range(0, 100, every)
        for split, curve in (("test", line(100, *test)), ("ood", line(100, *ood)))
    ]
    assert diagnose(from_rows(rows, evals))[0].code == code


def test_entropy_note() -> None:
    falls = run(100, **moving(100, line(100, 0.2, 0.7), entropy_mean=0.6 * np.exp(-np.arange(100) / 15)))
    verdict, note = diagnose(falls)
    assert verdict.code == "healthy" and (note.code, note.severity, note.change) == ("entropy_falling", "info", None)


def printed(form: str) -> str:
    values = [(step, 0.3 + 0.001 * step, 0.01 * step, 1 - 0.004 * step) for step in range(1, 60)]
    return "".join(form.format(*numbers) for numbers in values)


@pytest.mark.parametrize(
    "text",
    [
        printed("Step {0}: reward={1:.3f}, kl={2:.3f}, advantage/std={3:.2f}\n"),
        printed("Step {0}:\n  mean_reward: {1:.3f}\n  policy/kl_divergence: {2:.3f}\n  advantage/std: {3:.2f}\n"),
        printed("step {0} | reward {1:.3f} | kl {2:.3f} | adv std {3:.2f}\n"),
        printed("[Step {0}/60] Reward: {1:.3f} KL: {2:.3f} Adv Std: {3:.2f}\nsome prose, without numbers\n"),
        printed("--- Iteration {0} ---\n- rewards/mean = {1:.3f}\n- Mean KL = {2:.3f}\n- advantages_std = {3:.2f}\n"),
        "step,reward/total,actor/kl_divergence,advantageStd\n" + printed("{0},{1:.3f},{2:.3f},{3:.2f}\n"),
    ],
    ids=["line", "block", "bars", "brackets", "bullets", "csv"],
)
def test_other_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text)
    history = read_history(tmp_path / "log.txt")
    assert history.steps == tuple(range(1, 60)) and history["adv_std"][0] == pytest.approx(1.0, abs=0.01)
    assert history["reward_mean"][-1] == pytest.approx(0.359) and history["kl_mean"][-1] == pytest.approx(0.59)
    finding = diagnose(history)[0]
    assert finding.code == "kl_blowup" and finding.change and finding.change.new is None
    assert "learning_rate" in finding.change.describe() and "None" not in finding.change.describe()


def test_percent(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(printed("Step {0}: accuracy: {0}.5, kl: 0.01, entropy: 0.4\n"))
    assert read_history(tmp_path / "log.txt")["success_rate"][-1] == pytest.approx(0.595)
    (tmp_path / "log.txt").write_text(printed("Step {0}: acc: 20%, kl: 0.01, eval accuracy: 30%\n"))
    history = read_history(tmp_path / "log.txt")
    assert history["success_rate"][0] == 0.2 and history.held[0].success == 0.3


def test_unknown_columns(tmp_path: Path) -> None:
    rows = "".join(f"{i},0.3,0.05,7\n" for i in range(50))
    (tmp_path / "log.csv").write_text("step,policy/kl_divergence,advantage/std,my_own\n" + rows)
    history = read_history(tmp_path / "log.csv")
    assert history.ignored == ("my_own",)
    (finding,) = diagnose(history)
    assert finding.code == "kl_blowup" and finding.also == ("no_signal",)
    (tmp_path / "log.csv").write_text(
        "step,policy/kl_divergence,my_own\n" + "".join(f"{i},0.01,7\n" for i in range(50))
    )
    (finding,) = diagnose(read_history(tmp_path / "log.csv"))
    assert finding.code == "too_little_data" and finding.unjudged
