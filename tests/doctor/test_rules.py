"""Single rules, and their order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from outdo.doctor.causes import EFFECTS
from outdo.doctor.coverage import NEEDS
from outdo.doctor.finding import Evidence
from outdo.doctor.history import Held, History, from_rows
from outdo.doctor.playbook import PLAYBOOK
from outdo.doctor.rules import NOTES, RULES, diagnose
from outdo.doctor.show import lines
from outdo.doctor.signals import departure, noise, onset, shift, slope
from outdo.recipe.load import load_recipe
from outdo.rewards.choose import rewards_of
from outdo.tasks.task import find_task
from support import curves, mechanism


def flat(n: int = 60, **columns: float) -> History:
    """A run on which nothing happens, but for these."""
    rng = np.random.default_rng(0)
    levels = {"reward_mean": 0.4, "success_rate": 0.4, "entropy_mean": 0.5, "kl_mean": 0.02, "len_mean": 100.0}
    every = levels | {"informative": 0.6, "reward_std": 0.5} | columns
    return History(tuple(range(n)), {k: v * (1 + rng.normal(0, 0.01, n)) for k, v in every.items()})


def with_(history: History, **curves_: np.ndarray) -> History:
    return replace(history, columns={**history.columns, **curves_})


def codes(history: History) -> list[str]:
    return [finding.code for finding in diagnose(history)]


@pytest.mark.parametrize(
    ("recipe", "key", "new"),
    [
        ({"sampler": "fp8", "dtype": "bfloat16"}, "sampler", "local"),
        ({"sampler": "hf", "dtype": "float32"}, "sampler", "local"),
        ({"sampler": "local", "dtype": "float32"}, "sampler", "hf"),
        ({"sampler": "local", "dtype": "bfloat16"}, "dtype", "float32"),
    ],
)
def test_sampler_mismatch_change(recipe: dict[str, str], key: str, new: str) -> None:
    (found,) = (one for one in diagnose(replace(flat(mismatch_kl=0.03), recipe=recipe)) if "mismatch" in one.code)
    assert found.change and (found.change.key, found.change.new) == (key, new)


def test_slope_noise_onset() -> None:
    rng = np.random.default_rng(1)
    n = 400
    line = 0.002 * np.arange(n) + rng.normal(0, 0.05, n)
    assert slope(line) == pytest.approx(0.002, rel=0.1)
    assert noise(line) == pytest.approx(0.05, rel=0.15)
    stair = np.where(np.arange(n) < 150, 0.0, 1.0) + rng.normal(0, 0.05, n)
    assert abs(departure(stair) - 150) <= 12 and abs(onset(stair, 0.5) - 150) <= 12
    assert shift(stair).gain == pytest.approx(1.0, abs=0.05) and shift(stair).z > 20
    holes = stair.copy()
    holes[::3] = np.nan
    assert shift(holes).gain == pytest.approx(1.0, abs=0.05) and abs(onset(holes, 0.5) - 150) <= 15


@pytest.mark.parametrize("code", [code for code in RULES if code in {*curves.FAILURES, *mechanism.CLASSES}])
def test_finding_is_complete(code: str) -> None:
    history = curves.history(code, 0) if code in curves.FAILURES else mechanism.history(code, 1, 200)
    finding = diagnose(replace(history, recipe=load_recipe().model_dump(mode="json")))[0]
    assert finding.code == code and finding.change and finding.expect and finding.evidence
    assert "=" in finding.change.pair() and finding.page.endswith(f"#{code}")
    kept = {"code", "severity", "step", "evidence", "change", "expect", "page", "also", "unrecoverable", "unjudged"}
    assert set(finding.row()) == kept
    other = diagnose(history)[0].change  # of another trainer: no value is made up
    assert other and (other.new is None) == (not other.is_known) and "None" not in other.describe()


def test_playbook_is_complete() -> None:
    assert {*RULES, *NOTES, "healthy", "too_early", "too_little_data"} == set(PLAYBOOK)
    assert {*RULES} >= {*NEEDS} | {*EFFECTS}


def test_change_uses_recipe() -> None:
    ill = with_(flat(), kl_mean=np.linspace(0, 0.8, 60))
    finding = diagnose(replace(ill, recipe={"learning_rate": 4e-5, "beta": 0.01}))[0]
    assert (finding.change.key, finding.change.old, finding.change.new) == ("learning_rate", 4e-5, 1e-5)  # type: ignore[union-attr]
    late = with_(flat(400), kl_mean=np.r_[np.full(300, 0.02), np.linspace(0.02, 0.25, 100)])
    finding = diagnose(replace(late, recipe={"learning_rate": 4e-5, "beta": 0.01}))[0]
    assert finding.change.pair() == "beta=0.04" and 300 < finding.step < 380  # type: ignore[union-attr]


def test_cause_hides_effects() -> None:
    both = with_(flat(), kl_mean=np.linspace(0, 0.8, 60), entropy_mean=np.linspace(0.5, 0.01, 60))
    assert codes(both) == ["kl_blowup"]
    assert codes(with_(flat(), entropy_mean=np.r_[np.linspace(0.5, 0.01, 40), np.full(20, 0.01)])) == [
        "entropy_collapse"
    ]
    length = np.linspace(100, 300, 60)
    assert codes(with_(flat(), len_mean=length, reward_mean=np.linspace(0.4, 1.0, 60))) == ["thinking_tax"]
    assert codes(with_(flat(), reward_mean=np.linspace(0.4, 1.0, 60))) == ["reward_hacking"]


def test_solved_is_no_collapse() -> None:
    learnt = 0.3 + 0.65 * (1 - np.exp(-np.arange(60) / 10))
    sure = with_(
        flat(),
        success_rate=learnt,
        reward_mean=learnt,
        entropy_mean=0.5 * np.exp(-np.arange(60) / 8) + 0.01,
        group_diversity=0.9 - 0.7 * learnt,
    )
    assert codes(sure) == ["healthy"]


def test_audit_reward_overrides_success() -> None:
    up = np.linspace(0.3, 0.9, 60)
    assert codes(with_(flat(), reward_mean=up, success_rate=up)) == ["healthy"]
    assert codes(with_(flat(audit_reward_mean=0.3), reward_mean=up, success_rate=up)) == ["reward_hacking"]


AVOIDED = -0.35 + 0.35 * np.minimum(1, np.arange(60) / 30)  # a penalty that shrinks to nothing


def paid(success: float | np.ndarray, weights: list[float] | None = None, **parts: np.ndarray) -> History:
    """A run that is paid for `numeric` and these parts."""
    true = success * np.ones(60) + np.random.default_rng(0).normal(0, 0.02, 60)
    each = dict(zip(parts, weights or [1.0] * len(parts), strict=True))
    reward = true + sum(each[name] * curve for name, curve in parts.items())
    columns = {f"reward/{name}": curve for name, curve in parts.items()} | {"reward/numeric": true}
    recipe = {"reward_funcs": [*parts, "numeric"], "reward_weights": [*each.values(), 1.0] if weights else []}
    return replace(with_(flat(), success_rate=true, reward_mean=reward, **columns), recipe=recipe)


def test_avoided_penalty() -> None:
    assert codes(paid(0.5, overlong=AVOIDED)) == ["healthy"]
    assert codes(paid(0.5, [0.5], overlong=AVOIDED)) == ["healthy"]
    assert codes(paid(0.5, [-1.0], words=-AVOIDED)) == ["healthy"]  # its weight makes it one
    other = replace(paid(0.5, overlong=AVOIDED), recipe={})
    assert codes(other) == ["healthy"]  # of another trainer


def test_hacking_beside_penalty() -> None:
    up = np.linspace(0.2, 0.7, 60)
    for weights in (None, [0.1, 1.0]):
        (finding,) = diagnose(paid(0.5, weights, overlong=AVOIDED, format=up))
        assert finding.code == "reward_hacking"
        assert finding.change and finding.change.pair() == "reward_gate=numeric"  # nothing is right by a penalty
        shown = [sign.signal for sign in finding.evidence]
        assert "reward/format" in shown and "reward/overlong" not in shown
    large = np.linspace(-0.7, 0.0, 60)  # and weighs little: all of it taken out of the reward would hide what rises
    assert codes(paid(0.5, [0.1, 1.0], overlong=large, format=up)) == ["reward_hacking"]


def test_success_lost_for_penalty() -> None:
    assert codes(paid(np.linspace(0.6, 0.45, 60), overlong=AVOIDED)) == ["reward_hacking"]


def test_overfit_beyond_error() -> None:
    up = np.linspace(0.3, 0.55, 60)
    run = with_(flat(), reward_mean=up, success_rate=up)
    small, large = ((Held(0, 0.3, n), Held(30, 0.45, n), Held(59, 0.33, n)) for n in (20, 400))
    assert codes(replace(run, held=small)) == ["healthy"]
    assert codes(replace(run, held=large)) == ["overfit"]


def test_solved_is_not_dead() -> None:
    learnt = 1 - 0.6 * np.exp(-np.arange(100) / 10)
    done = with_(flat(100), success_rate=learnt, reward_mean=learnt, all_right=learnt**8, informative=1 - learnt**8)
    assert codes(done) == ["healthy"]
    assert codes(flat(100, success_rate=1.0, reward_mean=1.0, all_right=1.0, informative=0.0)) == ["dead_all_right"]


def test_flat_full_reward() -> None:
    shares = {"all_right": 0.02, "all_wrong": 0.3, "informative": 0.06, "success_rate": 0.3, "reward/numeric": 0.3}
    (finding,) = diagnose(flat(60, reward_mean=0.98, **{"reward/format": 0.98}, **shares))
    assert finding.code == "dead_all_right" and finding.change and finding.change.pair() == "reward_gate=numeric"
    assert [sign.signal for sign in finding.evidence] == ["informative", "reward_mean", "success_rate"]
    assert codes(flat(60, reward_mean=0.98, **(shares | {"informative": 0.4}))) == ["healthy"]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 10, 19])
def test_too_early(n: int) -> None:
    assert codes(flat(n)) == ["too_early"]


def test_obvious_failures_early() -> None:
    assert codes(flat(10, success_rate=0.0, reward_mean=0.0, all_wrong=1.0, informative=0.0)) == ["dead_all_wrong"]
    assert codes(flat(10, grader_broken=0.5)) == ["broken_grader"]


def test_missing_signals() -> None:
    for code in curves.FAILURES:
        history = curves.history(code, 1)
        for name in history.columns:
            RULES[code](replace(history, columns={name: history[name]}))
        assert RULES[code](replace(history, columns={}, held=())) is None
    assert codes(from_rows([{"step": i, "loss": 0.1} for i in range(50)])) == ["too_little_data"]
    empty = from_rows([{"step": i, "reward_mean": None, "kl_mean": float("nan")} for i in range(50)])
    assert codes(empty) == ["too_early"]  # no step has a value


def test_gaps_in_curves() -> None:
    """A part of a run without a value must not be taken for one that moved, and what is said is a number."""
    rng = np.random.default_rng(3)
    names = [*flat().columns, "truncated", "all_wrong", "group_diversity", "clipfrac", "audit_reward_mean"]
    for seed in range(150):
        n = int(rng.integers(20, 90))
        columns = {name: rng.normal(0.4, 0.05, n) for name in names if rng.random() < 0.7}
        for curve in columns.values():
            at = int(rng.integers(n))
            curve[slice(at, None) if rng.random() < 0.5 else slice(at)] = np.nan
        for finding in diagnose(History(tuple(range(n)), columns)):
            assert "NaN" not in json.dumps(finding.row()), seed
            assert finding.code != "reward_hacking", seed
    up = np.r_[np.linspace(0.3, 0.9, 30), np.full(40, np.nan)]
    stopped = with_(flat(70), reward_mean=up, success_rate=np.r_[up[:30], np.full(40, 0.9)])
    assert "reward_hacking" not in codes(stopped)


def test_success_logged_early_only() -> None:
    early = np.r_[np.full(23, 0.4), np.full(47, np.nan)]
    run = with_(flat(70), success_rate=early, len_mean=np.linspace(100, 300, 70))
    assert codes(replace(run, columns={k: v for k, v in run.columns.items() if k != "reward_mean"}))


def test_eval_before_first_row() -> None:
    """Where only every tenth step is logged, the first evaluation is before the first of them."""
    up = np.linspace(0.3, 0.9, 40)
    held = (Held(0, 0.4, 400), Held(400, 0.38, 400))
    run = History(tuple(range(10, 410, 10)), {"reward_mean": up}, held)
    (finding,) = diagnose(run)
    assert finding.code == "reward_hacking" and finding.expect and finding.expect.signal == "eval_success_rate"


def test_change_is_valid() -> None:
    up = np.linspace(0.3, 0.9, 60)
    hacked = with_(flat(audit_reward_mean=0.3), reward_mean=up, success_rate=up)
    recipe = {"reward_funcs": ["format", "tag_count"], "reward_weights": [1.0, 0.5], "audit_reward": "numeric"}
    (finding,) = diagnose(replace(hacked, recipe=recipe))
    assert finding.change and finding.change.pair() == "reward_gate=numeric"  # the audited one may not be trained on
    assert rewards_of(load_recipe(None, {**recipe, "reward_gate": "numeric"}), find_task("arithmetic"), {})
    wrong = flat(30, success_rate=0.03, reward_mean=0.03, all_wrong=0.95, informative=0.05)
    (finding,) = diagnose(replace(wrong, recipe={"num_generations": 8, "per_device_train_batch_size": 48}))
    assert finding.change and finding.change.pair() == "num_generations=16"
    (finding,) = diagnose(replace(wrong, recipe={"num_generations": 8, "per_device_train_batch_size": 40}))
    assert finding.change and finding.change.key == "sft_steps"  # 40 answers are no groups of 16
    sure = with_(flat(), entropy_mean=np.r_[np.linspace(0.5, 0.01, 40), np.full(20, 0.01)])
    (finding,) = diagnose(replace(sure, recipe={"entropy_coef": 0.02}))
    assert finding.change and finding.change.pair() == "entropy_coef=0.08"


def test_too_little_data() -> None:
    (finding,) = diagnose(from_rows([{"step": i, "entropy_mean": 0.5} for i in range(50)]))
    assert finding.code == "too_little_data" and finding.severity == "info"
    assert {"kl_blowup (kl_mean)", "overfit (reward_mean, held-out success)"} <= {*finding.unjudged}
    assert not any(text.startswith("entropy_collapse") for text in finding.unjudged)
    assert codes(from_rows([{"step": i, "reward_mean": 0.3 + 0.01 * i} for i in range(50)])) == ["too_little_data"]
    (finding,) = diagnose(flat())
    assert finding.code == "healthy" and "truncation (truncated)" in finding.unjudged


def test_no_control_characters() -> None:
    finding = replace(
        diagnose(with_(flat(), kl_mean=np.linspace(0, 1, 60)))[0], evidence=(Evidence("a\x1b[2J", 0.1, 0.2),)
    )
    shown = "".join(lines(finding, 80))
    assert "\x1b" not in shown and "0.1 → 0.2" in shown
