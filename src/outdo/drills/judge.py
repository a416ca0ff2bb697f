"""Judges a drill: pure, over histories and findings. The rule is the same for every drill that fixes a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outdo.doctor.causes import EFFECTS
from outdo.doctor.finding import Finding
from outdo.doctor.history import Held, History
from outdo.doctor.signals import Shift
from outdo.drills.drill import Check, Signal
from outdo.training.treat import answer

TEST = "test"  # the held-out split of the distribution that is trained on
Points = Mapping[str, Sequence[Held]]  # the evaluations of each split
MIN_GAIN = 0.1  # of held-out success, over the failing run and over the start
MIN_ERRORS = 3.0  # standard errors that it must exceed too


def named(findings: Sequence[Finding], code: str) -> Check:
    """The doctor's first finding is this code, and the others are its effects. Notes are no findings."""
    codes = [finding.code for finding in findings[:1]]
    codes += [finding.code for finding in findings[1:] if finding.severity != "info"]
    others = [other for other in codes[1:] if other not in EFFECTS.get(code, ())]
    if codes[0] == code and not others:
        finding, effects = findings[0], ", ".join((*findings[0].also, *codes[1:]))
        effects = f" (and its effects: {effects})" if effects else ""
        evidence = finding.evidence[0].describe()
        return Check(f"the doctor names {code}, since step {finding.step}: {evidence}{effects}", True)
    expected = f"{code} first, and nothing but its effects beside it"
    return Check(f"the doctor should name {expected}; it names {', '.join(codes)}", False)


def cured(failing: Points, fixed: Points, lost: str = TEST) -> list[Check]:
    """Held-out success at the end of the fixed run is above that of the failing run, on the split that was lost, and
    above that of the model that both start from."""
    if not all(points.get(split) for points in (failing, fixed) for split in (TEST, lost)) or not fixed[lost][-1].step:
        return [Check("held-out success is missing: the fixed run needs an evaluation after training", False)]
    return [
        _rose(failing[lost][-1], fixed[lost][-1], "failing", lost),
        _rose(failing[TEST][0], fixed[TEST][-1], "before training", TEST),
    ]


def _rose(low: Held, high: Held, origin: str, split: str) -> Check:
    move = held_out_shift(low, high)
    text = f"held-out success on {split} {move.before:.3f} {origin} → {move.after:.3f} fixed"
    least = max(MIN_GAIN, MIN_ERRORS * move.error)
    if move.gain >= least:
        return Check(text, True)
    return Check(f"{text}; it should rise by {least:.2f}, which is beyond noise", False)


def held_out_shift(first: Held, last: Held) -> Shift:
    """With the error of a difference of two shares, which is not 0 where a share is 0 or 1."""
    shares = [((point.success * point.size + 1) / (point.size + 2), point.size) for point in (first, last)]
    error = math.sqrt(sum(share * (1 - share) / n for share, n in shares))
    return Shift(first.success, last.success, error)


def no_longer(findings: Sequence[Finding], code: str) -> Check:
    """The fixed run has no critical finding, and not the one that was fixed."""
    bad = [finding.code for finding in findings if finding.severity == "critical" or finding.code == code]
    text = f"of the fixed run the doctor says {', '.join(finding.code for finding in findings)}"
    return Check(f"{text}; {', '.join(bad)} should be gone" if bad else text, not bad)


def improved(failing: History, fixed: History, signal: Signal) -> Check:
    """The signal is better at the end of the fixed run than at the end of the failing one, beyond noise."""
    move, responded = answer(failing, fixed, signal.name, signal.way)
    direction = "higher" if signal.way == "up" else "lower"
    text = f"{signal.name} {move.before:.3g} failing → {move.after:.3g} fixed"
    if responded and abs(move.gain) >= signal.least:
        return Check(text, True)
    least = f" by {signal.least:g}" if signal.least else ""
    return Check(f"{text}; it should be {direction}{least}, beyond its noise of {move.error:.2g}", False)
