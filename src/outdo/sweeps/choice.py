"""Which setting to pick: by held-out success or mean reward, among those whose signals are sane, beyond noise.

Of those that do not differ significantly from the best, those with measured KL come first; of these the default is
picked, else the fastest. Where KL was not measured a setting is not known to be sane: it takes the place of none that
was rejected for its KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outdo.doctor.compare import NO_KL, judged_apart
from outdo.evals.report import format_difference
from outdo.metrics.estimate import Difference
from outdo.sweeps.analysis import Setting, difference, other_splits


@dataclass(frozen=True)
class Choice:
    """`name` is empty where there is nothing to pick. `tied` do not differ from the best beyond noise."""

    name: str
    best: str
    tied: tuple[str, ...]
    is_noise: bool
    why: str
    metric: str = "success"

    def row(self) -> dict[str, Any]:
        names = {"setting": self.name or None, "best": self.best or None, "tied": list(self.tied)}
        return {**names, "noise": self.is_noise, "metric": self.metric, "why": self.why}


def choose(settings: Sequence[Setting], default: str = "") -> Choice:
    """The setting to pick, with the reason in a sentence."""
    evaluated = [s for s in settings if s.value is not None]
    if not evaluated:
        return _none("No cell has a held-out evaluation after training, so none can be picked.")
    metric = evaluated[0].metric
    if apart := judged_apart([row for s in evaluated for row in s.evaluated], metric):
        return _none(f"The settings are judged by {apart}: they are not comparable, and none is picked.", metric)
    sane = [s for s in settings if s.is_sane]
    if not sane:
        broken = "; ".join(f"{s.name}: {', '.join(s.troubles)}" for s in evaluated)
        return _none(f"No setting has sane signals: {broken}.", metric)
    past_kl = [s for s in evaluated if s.is_only_past_kl]
    known = [s for s in sane if s.has_kl] if past_kl else sane
    if not known:
        listed = ", ".join(s.name for s in sane)
        rejected = "; ".join(f"{s.name}: {', '.join(s.troubles)}" for s in past_kl)
        why = f"{NO_KL} in {listed}, so they may be no saner than what is rejected for it ({rejected}): measure it."
        return _none(why, metric)
    return _ranked(sorted(known, key=lambda s: -_value(s)), evaluated, default)


def _ranked(ranked: Sequence[Setting], evaluated: Sequence[Setting], default: str) -> Choice:
    best = ranked[0]
    gaps = {s.name: difference(best, s) for s in ranked[1:]}
    tied = [s for s in ranked if s is best or gaps[s.name].is_noise]
    picked, reason = _pick(tied, default)
    why = [_describe(picked)]
    why += [_against(ranked, gaps, tied, picked, reason)] if len(ranked) > 1 else []
    higher = [s for s in evaluated if s not in ranked and _value(s) > _value(picked)]
    why += [f"{s.name} has {_value(s):.3f} and is rejected: {', '.join(s.troubles) or NO_KL}" for s in higher]
    names = tuple(s.name for s in tied)
    return Choice(picked.name, best.name, names, len(tied) > 1, "; ".join(why) + ".", best.metric)


def _none(why: str, metric: str = "success") -> Choice:
    return Choice("", "", (), False, why, metric)


def _describe(picked: Setting) -> str:
    """The number that decides, sampled success, the other splits, and what is known of its signals."""
    seeds = f" over {len(picked.evaluated)} seeds" if len(picked.evaluated) > 1 else ""
    what = "of held-out problems" if picked.metric == "success" else "mean reward on held-out problems"
    sampled = picked.mean("pass@1") if picked.metric == "success" else None
    parts = [f"{picked.name}: {picked.value:.3f} [{picked.low:.3f}, {picked.high:.3f}] {what}{seeds}"]
    parts += [f"{sampled:.3f} sampled"] if sampled is not None else []
    for split in other_splits([picked]):
        if ends := picked.interval(picked.metric, split):
            parts.append("{} {:.3f} [{:.3f}, {:.3f}]".format(split, *ends))
    parts += [f"but {fall}" for fall in picked.falls]
    return ", ".join([*parts, "with sane signals" if picked.has_kl else f"with sane signals but {NO_KL}"])


def _pick(tied: Sequence[Setting], default: str) -> tuple[Setting, str]:
    any_kl = any(setting.has_kl for setting in tied)
    for setting in tied:
        if setting.name == default and (setting.has_kl or not any_kl):
            return setting, "the default is kept"
    order = {s.name: (not s.has_kl, s.mean("seconds") or float("inf"), -_value(s)) for s in tied}
    fastest = min(tied, key=lambda s: order[s.name])
    is_fastest = all(order[s.name][1:] >= order[fastest.name][1:] for s in tied)
    return fastest, "the fastest is picked" if is_fastest else "the fastest with measured KL is picked"


def _against(
    ranked: Sequence[Setting], gaps: dict[str, Difference], tied: Sequence[Setting], picked: Setting, reason: str
) -> str:
    """How the best, the first of `ranked`, compares with the others."""
    best, second, *_ = ranked
    if len(tied) == 1:
        gap = gaps[second.name]
        return f"the next, {second.name}, is lower by {gap.value:.3f} [{gap.low:.3f}, {gap.high:.3f}], more than noise"
    rival = picked if picked is not best else tied[1]
    others = f" and that to {len(tied) - 2} more" if len(tied) > 2 else ""
    values = format_difference(gaps[rival.name])
    return f"the difference between {best.name} and {rival.name} ({values}){others} is noise, so {reason}"


def _value(setting: Setting) -> float:
    assert setting.value is not None
    return setting.value
