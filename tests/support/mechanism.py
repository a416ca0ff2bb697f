"""Simulated runs by their mechanism, for the doctor: a policy with a skill meets prompts of different difficulty.

Each step draws P prompts from a pool of M, G answers each, and everything that is logged is computed from those
answers: success, rewards, advantages, shares of groups, truncation. The update moves the skill by the advantages. So
the signals of a run agree with each other. A failure is a wrong setting of the mechanism. Shares no code with
curves.py, and knows no threshold.

    python tests/support/mechanism.py 0 300      # the share named rightly and the false alarms, on 300 runs from seed 0
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outdo.doctor.history import History, from_rows
from outdo.doctor.rules import diagnose

Row = dict[str, Any]
SHARES = {"success_rate", "informative", "all_right", "all_wrong", "truncated", "group_diversity", "clipfrac"}


@dataclass(frozen=True)
class World:
    """The settings of one run. Skill, difficulty and memory are logits; lengths are tokens."""

    steps: int = 200
    pool: int = 1500
    prompts: int = 24
    answers: int = 8
    skill: float = -0.3
    ceiling: float = 2.0  # skill that can be reached
    rate: float = 0.25
    wide: float = 1.3  # spread of difficulty
    explore: float = 1.0  # the chance that the answers of a group are drawn independently
    explore_decay: float = 0.0  # per step
    entropy: float = 0.6
    entropy_decay: float = 0.0
    entropy_grow: float = 0.0
    kl_rate: float = 0.01  # KL for each unit of skill that is gained
    kl_drift: float = 0.0  # per step
    length: float = 120.0
    length_grow: float = 0.0  # per step, as a share
    limit: float = 400.0
    memory: float = 0.0  # logits that a prompt gains each time it is trained on
    forget: float = 0.0  # skill lost per step
    forget_other: float = 0.0  # on the other distribution
    exploit: float = 0.0  # reward per step that has nothing to do with success
    wreck: int = 0  # the step whose update destroys the policy
    blow: int = 0  # the step from which updates are too large
    swing: float = 0.0  # amplitude in logits
    period: float = 20.0
    mismatch: float = 3e-4
    broken: float = 0.0
    fickle: float = 0.0  # the share of repeated answers that are graded in two ways
    nan_from: int = 0
    noise: float = 0.05
    eval_every: int = 0
    eval_size: int = 200


def simulate(world: World, rng: np.random.Generator) -> tuple[list[Row], list[Row]]:
    """The rows of metrics and of evaluations."""
    w, rows, evals = world, [], []
    hard_M = rng.normal(0, w.wide, w.pool)
    known_M = np.zeros(w.pool)
    skill, other, kl, gone = w.skill, w.skill - 1.0, 1e-6, False
    for step in range(w.steps):
        if w.eval_every and step % w.eval_every == 0:
            evals += _evaluations(w, rng, step, skill + _sway(w, step), other)
        explore = max(w.explore * np.exp(-w.explore_decay * step), 0.0)
        length = w.length * (1 + w.length_grow * step)
        at_P = rng.integers(0, w.pool, w.prompts)
        chance_P = _sigmoid(skill + _sway(w, step) - hard_M[at_P] + known_M[at_P])
        cut_PG = rng.lognormal(np.log(length) - 0.08, 0.4, (w.prompts, w.answers)) > w.limit
        alike_P = rng.random(w.prompts) >= explore
        draw_PG = rng.random((w.prompts, w.answers))
        draw_PG[alike_P] = draw_PG[alike_P, :1]
        cut_PG[alike_P] = cut_PG[alike_P, :1]
        right_PG = (draw_PG < chance_P[:, None]) & ~cut_PG
        row, signal = _measured(w, rng, step, right_PG, alike_P, float(cut_PG.mean()))
        size = w.limit * cut_PG.mean() + length * (1 - cut_PG.mean())
        entropy = max(w.entropy * np.exp(-w.entropy_decay * step) * (1 + w.entropy_grow * step), 1e-5)
        is_big = bool(w.blow) and step >= w.blow
        row |= {"kl_mean": kl, "entropy_mean": entropy * (4.0 if gone else 1.0), "len_mean": float(size)}
        row |= {"clipfrac": 0.5 if is_big else 0.004, "mismatch_kl": w.mismatch}
        rows.append(_logged(w, rng, step, row))
        moved = w.rate * signal * max(w.ceiling - skill, 0.0)
        skill += moved - w.forget + (rng.normal(0, 0.6) - 0.05 if is_big else 0.0)
        other += 0.5 * moved - w.forget_other
        known_M[at_P] += w.memory * (row["informative"] > 0)
        kl += w.kl_rate * abs(moved) + w.kl_drift
        if w.wreck and step + 1 == w.wreck:
            skill, other, kl, gone = -14.0, -14.0, rng.uniform(0.8, 6.0), True
            known_M[:] = 0.0
    if w.eval_every:
        evals += _evaluations(w, rng, w.steps, skill + _sway(w, w.steps), other)
    return rows, evals


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _sway(w: World, step: int) -> float:
    return w.swing * float(np.sin(2 * np.pi * step / w.period))


def _evaluations(w: World, rng: np.random.Generator, step: int, skill: float, other: float) -> list[Row]:
    """On new prompts of the same distribution, and of another that is harder."""
    rows = []
    for split, level in (("test", skill), ("ood", other)):
        hits = rng.random(w.eval_size) < _sigmoid(level - rng.normal(0, w.wide, w.eval_size))
        share = float(np.clip(hits.mean() * (1 + rng.normal(0, w.noise)), 0, 1))
        rows.append({"step": step, "split": split, "n": w.eval_size, "success_rate": share})
    return rows


def _measured(
    w: World, rng: np.random.Generator, step: int, right_PG: Any, alike_P: Any, cut: float
) -> tuple[Row, float]:
    """What the answers of a step show, and how much signal their advantages carry."""
    extra_PG = np.minimum(w.exploit * step, 1.0) * rng.uniform(0.9, 1.1, right_PG.shape)
    lost_PG = rng.random(right_PG.shape) < w.broken
    reward_PG = np.where(lost_PG, 0.0, right_PG + extra_PG)
    spread_P = right_PG.std(axis=1)
    adv_PG = (reward_PG - reward_PG.mean(axis=1, keepdims=True)) / (spread_P[:, None] + 1e-4)
    adv_PG = np.where(spread_P[:, None] > 0, adv_PG, 0.0)
    row = {
        "reward_mean": float(reward_PG.mean()),
        "reward_std": float(reward_PG.std()),
        "success_rate": float(right_PG.mean()),
        "informative": float((spread_P > 0).mean()),
        "all_right": float(right_PG.all(axis=1).mean()),
        "all_wrong": float((~right_PG).all(axis=1).mean()),
        "adv_std": float(adv_PG.std()),
        "group_diversity": float(np.where(alike_P, 1 / w.answers, 0.95).mean()),
        "truncated": cut,
        "grader_broken": float(lost_PG.mean()),
        "grader_disagreement": float((rng.random(400) < w.fickle).mean()),
        "grad_norm": 0.3 * float(np.sqrt((spread_P**2).mean())),
    }
    return row, float((spread_P**2).mean())


def _logged(w: World, rng: np.random.Generator, step: int, row: Row) -> Row:
    """With the noise of measuring; shares stay shares, and what is 0 stays 0."""
    own = {"kl_mean", "entropy_mean", "len_mean", "grad_norm", "clipfrac", "mismatch_kl", "reward_mean"}
    noisy = {key: value * (1 + rng.normal(0, w.noise)) if key in own else value for key, value in row.items()}
    shares = {key: float(np.clip(noisy[key], 0, 1)) for key in SHARES}
    lost = {key: float("nan") for key in ("grad_norm", "kl_mean", "loss") if w.nan_from and step >= w.nan_from}
    return {"step": step, "loss": 0.01, **noisy, **shares, **lost}


# --- the settings of each failure, drawn from what was drawn for a healthy run


def _healthy(w: World, r: np.random.Generator) -> World:
    kind = r.integers(6)
    if kind == 0:  # slow
        return replace(w, rate=w.rate * 0.4)
    if kind == 1:  # soon at a plateau
        return replace(w, ceiling=w.skill + r.uniform(0.8, 1.4), rate=w.rate * 5)
    if kind == 2:  # solved
        return replace(w, ceiling=6.0, rate=w.rate * 4, wide=0.7)
    if kind == 3:  # longer answers, and better ones
        return replace(w, length_grow=r.uniform(0.3, 0.8) / w.steps, limit=8 * w.length, rate=w.rate * 0.5, ceiling=3.5)
    if kind == 4:  # entropy falls, to a level that is enough
        return replace(w, entropy_decay=r.uniform(0.3, 0.9) / w.steps)
    return w


def _unlearning(w: World, **keys: Any) -> World:
    """Nothing is gained, whatever the groups show."""
    return replace(w, rate=0.0, **keys)


CLASSES: dict[str, Callable[[World, np.random.Generator], World]] = {
    "healthy": _healthy,
    "truncation": lambda w, r: replace(
        w, limit=w.length * r.uniform(1.2, 1.5), length_grow=r.uniform(0.6, 1.5) / w.steps, skill=r.uniform(0, 0.8)
    ),
    "no_signal": lambda w, r: replace(w, explore=r.choice([0.004, 0.02, 0.04]), entropy=r.uniform(0.002, 0.02)),
    "dead_all_wrong": lambda w, r: replace(w, skill=r.uniform(-12, -9)),
    "dead_all_right": lambda w, r: replace(w, skill=r.uniform(7.5, 10), wide=0.8),
    "steps_too_big": lambda w, r: replace(
        w, **([{"wreck": int(r.integers(1, 4))}, {"blow": w.steps // int(r.integers(3, 8))}][r.integers(2)])
    ),
    "unstable": lambda w, r: _unlearning(
        w, swing=r.uniform(1.0, 2.0), period=r.uniform(4, max(6, w.steps / 5)), skill=r.uniform(-0.5, 0.8), prompts=48
    ),
    "kl_blowup": lambda w, r: replace(w, kl_drift=r.uniform(0.4, 3.0) / w.steps),
    "entropy_collapse": lambda w, r: _unlearning(
        w, entropy_decay=10 / w.steps, explore_decay=r.choice([0, 6]) / w.steps
    ),
    "mode_collapse": lambda w, r: _unlearning(w, explore_decay=r.uniform(1.6, 2.0) / w.steps, explore=0.95),
    "thinking_tax": lambda w, r: _unlearning(w, length_grow=r.uniform(0.8, 2) / w.steps, limit=12 * w.length),
    "reward_hacking": lambda w, r: _unlearning(
        w, exploit=r.uniform(0.3, 0.9) / w.steps, forget=r.choice([0.0, 0.8]) / w.steps
    ),
    "overfit": lambda w, r: _unlearning(
        w, pool=24, memory=60 / (w.steps * w.prompts / 24), forget=r.choice([0.0, 0.9]) / w.steps
    ),
    "ood_loss": lambda w, r: replace(w, forget_other=r.uniform(2.0, 3.0) / w.steps),
    "noisy_advantage": lambda w, r: _unlearning(w, prompts=int(r.integers(1, 4)), answers=2, wide=0.6, noise=0.03),
    "steps_too_small": lambda w, r: _unlearning(w, prompts=48, noise=min(w.noise, 0.06)),
    "sampler_mismatch": lambda w, r: replace(w, mismatch=10 ** r.uniform(-1.8, -0.3)),
    "broken_grader": lambda w, r: replace(w, broken=r.uniform(0.1, 0.5)),
    "inconsistent_grader": lambda w, r: replace(w, fickle=r.uniform(0.06, 0.3)),
    "not_finite": lambda w, r: replace(w, nan_from=int(w.steps * r.uniform(0.3, 0.9))),
}
LONG = {"unstable", "noisy_advantage", "steps_too_small", "mode_collapse", "entropy_collapse"}  # need 80 steps
EVALUATED = {"overfit", "ood_loss"}


def history(code: str, seed: int, most: int = 5000) -> History:
    """One run of a class, of 40 to `most` steps."""
    r = np.random.default_rng([seed, zlib.crc32(code.encode()), 77])
    low = 80 if code in LONG else 40
    steps = int(np.exp(r.uniform(np.log(low), np.log(most))))
    every = [0, 1, 50][r.integers(3)]
    if code in EVALUATED:
        every = 50 if every == 50 and steps >= 200 else 1
    base = World(
        steps=steps,
        prompts=int(r.choice([16, 24, 48])),
        answers=int(r.choice([6, 8, 16])),
        skill=r.uniform(-1.2, 0.3),
        ceiling=r.uniform(1.2, 3.0),
        rate=r.uniform(12, 40) / steps,
        wide=r.uniform(0.8, 1.8),
        entropy=r.uniform(0.2, 1.0),
        length=r.uniform(60, 600),
        noise=r.uniform(0.02, 0.15),
        eval_every=every,
        eval_size=int(r.choice([60, 100, 200, 400])),
    )
    world = replace(base, limit=6 * base.length)
    rows, evals = simulate(CLASSES[code](world, r), r)
    if r.integers(3) == 0:  # a poorer log
        gone = r.choice(["mismatch_kl", "group_diversity", "reward_std", "clipfrac", "grad_norm", "loss"], 2)
        keep = {"mode_collapse": "group_diversity", "sampler_mismatch": "mismatch_kl", "noisy_advantage": "reward_std"}
        keep |= {"steps_too_big": "clipfrac", "not_finite": "grad_norm"}
        rows = [{k: v for k, v in row.items() if k not in gone or k == keep.get(code)} for row in rows]
    return from_rows(rows, evals)


def judge(seeds: range, most: int = 5000) -> tuple[float, float, list[str]]:
    """The share of runs whose first finding is right, that of false alarms on healthy ones, and the mistakes.

    Half of the runs are healthy ones' and the failures' in turn, one class for each seed.
    """
    codes = [code for code in CLASSES if code != "healthy"]
    right, healthy, alarms, mistakes = 0, 0, 0, []
    for seed in seeds:
        code = "healthy" if seed % 3 == 0 else codes[(seed - seed // 3) % len(codes)]
        run = history(code, seed, most)
        named = diagnose(run)[0].code
        right += named == code
        healthy += code == "healthy"
        alarms += code == "healthy" and named not in ("healthy", "too_early", "too_little_data")
        if named != code:
            mistakes.append(f"{code} {seed} ({len(run)} steps, {len(run.held)} evaluations): {named}")
    return right / len(seeds), alarms / max(healthy, 1), mistakes


if __name__ == "__main__":
    first, count = (int(word) for word in (*sys.argv[1:3], *("0", "300")[len(sys.argv) - 1 :]))
    share, false_alarms, wrong = judge(range(first, first + count))
    print(f"{count} runs from seed {first}: {share:.1%} named rightly, {false_alarms:.1%} of the healthy ones alarmed")
    print(*wrong, Counter(line.split()[0] for line in wrong), sep="\n")
