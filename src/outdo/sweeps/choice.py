"""Which setting to take: by held-out success, among those whose signals are sane, and never by luck.

Where the best is not told apart from others, it is no reason to take it: the default is kept if it is among them, else
the one that took the least time is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outdo.evals.estimate import Difference
from outdo.evals.report import format_difference
from outdo.sweeps.analysis import Setting, difference


@dataclass(frozen=True)
class Choice:
    """`name` is empty where there is nothing to choose. `tied` are those that are not told apart from the best."""

    name: str
    best: str
    tied: tuple[str, ...]
    is_noise: bool
    why: str

    def row(self) -> dict[str, Any]:
        return {"setting": self.name or None, "best": self.best or None, "tied": list(self.tied)} | {
            "noise": self.is_noise,
            "why": self.why,
        }


def choose(settings: Sequence[Setting], default: str = "") -> Choice:
    """The setting to take, with the reason in a sentence."""
    evaluated = [s for s in settings if s.success is not None]
    sane = [s for s in settings if s.is_sane]
    if not evaluated:
        return Choice("", "", (), False, "No cell has a held-out evaluation after training: there is nothing to go by.")
    if not sane:
        broken = "; ".join(f"{s.name}: {', '.join(s.troubles)}" for s in evaluated)
        return Choice("", "", (), False, f"No setting is fit to be taken: {broken}.")
    ranked = sorted(sane, key=lambda s: -_success(s))
    best = ranked[0]
    gaps = {s.name: difference(best, s) for s in ranked[1:]}
    tied = [s for s in ranked if s is best or gaps[s.name].is_noise]
    taken, reason = _among(tied, default)
    why = [f"{taken.name}: {_shown(taken)} of held-out problems{_seeds(taken)}, with sane signals"]
    why += [_against(best, ranked, gaps, tied, taken, reason)] if len(ranked) > 1 else []
    passed = [s for s in evaluated if not s.is_sane and _success(s) > _success(taken)]
    why += [f"{s.name} has {_success(s):.3f} and is passed over: {', '.join(s.troubles)}" for s in passed]
    return Choice(taken.name, best.name, tuple(s.name for s in tied), len(tied) > 1, "; ".join(filter(None, why)) + ".")


def _among(tied: Sequence[Setting], default: str) -> tuple[Setting, str]:
    kept = next((s for s in tied if s.name == default), None)
    if kept:
        return kept, "the default is kept"
    cheapest = min(tied, key=lambda s: (s.mean("seconds") or float("inf"), -_success(s)))
    return cheapest, "the quickest is taken"


def _against(
    best: Setting,
    ranked: Sequence[Setting],
    gaps: dict[str, Difference],
    tied: Sequence[Setting],
    taken: Setting,
    reason: str,
) -> str:
    """How the best stands to the others."""
    if len(tied) == 1:
        following = ranked[1]
        return f"the next, {following.name}, has less by {_positive(gaps[following.name])}"
    rival = taken if taken is not best else tied[1]
    others = f" and that to {len(tied) - 2} more" if len(tied) > 2 else ""
    gap = format_difference(gaps[rival.name])
    return f"the difference between {best.name} and {rival.name} ({gap}){others} is noise, so {reason}"


def _positive(gap: Difference) -> str:
    return f"{gap.value:.3f} [{gap.low:.3f}, {gap.high:.3f}], more than noise"


def _success(setting: Setting) -> float:
    assert setting.success is not None
    return setting.success


def _shown(s: Setting) -> str:
    assert s.low is not None and s.high is not None
    return f"{_success(s):.3f} [{s.low:.3f}, {s.high:.3f}]"


def _seeds(s: Setting) -> str:
    count = len(s.evaluated)
    return f" over {count} seeds" if count > 1 else ""
