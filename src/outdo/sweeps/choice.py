"""Which setting to pick: by held-out success, among those whose signals are sane, beyond noise.

Of those that do not differ significantly from the best, the default is picked, else the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outdo.evals.report import format_difference
from outdo.metrics.estimate import Difference
from outdo.sweeps.analysis import Setting, difference


@dataclass(frozen=True)
class Choice:
    """`name` is empty where there is nothing to pick. `tied` do not differ from the best beyond noise."""

    name: str
    best: str
    tied: tuple[str, ...]
    is_noise: bool
    why: str

    def row(self) -> dict[str, Any]:
        names = {"setting": self.name or None, "best": self.best or None, "tied": list(self.tied)}
        return {**names, "noise": self.is_noise, "why": self.why}


def choose(settings: Sequence[Setting], default: str = "") -> Choice:
    """The setting to pick, with the reason in a sentence."""
    evaluated = [s for s in settings if s.success is not None]
    sane = [s for s in settings if s.is_sane]
    if not evaluated:
        return Choice("", "", (), False, "No cell has a held-out evaluation after training, so none can be picked.")
    if not sane:
        broken = "; ".join(f"{s.name}: {', '.join(s.troubles)}" for s in evaluated)
        return Choice("", "", (), False, f"No setting has sane signals: {broken}.")
    ranked = sorted(sane, key=lambda s: -_success(s))
    best = ranked[0]
    gaps = {s.name: difference(best, s) for s in ranked[1:]}
    tied = [s for s in ranked if s is best or gaps[s.name].is_noise]
    picked, reason = _pick(tied, default)
    seeds = f" over {len(picked.evaluated)} seeds" if len(picked.evaluated) > 1 else ""
    interval = f"{picked.success:.3f} [{picked.low:.3f}, {picked.high:.3f}]"
    why = [f"{picked.name}: {interval} of held-out problems{seeds}, with sane signals"]
    why += [_against(ranked, gaps, tied, picked, reason)] if len(ranked) > 1 else []
    rejected = [s for s in evaluated if not s.is_sane and _success(s) > _success(picked)]
    why += [f"{s.name} has {_success(s):.3f} and is rejected: {', '.join(s.troubles)}" for s in rejected]
    return Choice(picked.name, best.name, tuple(s.name for s in tied), len(tied) > 1, "; ".join(why) + ".")


def _pick(tied: Sequence[Setting], default: str) -> tuple[Setting, str]:
    for setting in tied:
        if setting.name == default:
            return setting, "the default is kept"
    fastest = min(tied, key=lambda s: (s.mean("seconds") or float("inf"), -_success(s)))
    return fastest, "the fastest is picked"


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


def _success(setting: Setting) -> float:
    assert setting.success is not None
    return setting.success
