"""The checks of a drill: pure, over histories and findings."""

from __future__ import annotations

from collections.abc import Sequence

from outdo.doctor.finding import Finding
from outdo.doctor.history import History
from outdo.drills.drill import Check, Signal
from outdo.training.treat import answer


def named(findings: Sequence[Finding], code: str) -> Check:
    """The doctor's only finding is this code."""
    codes = [finding.code for finding in findings]
    if codes == [code]:
        finding = findings[0]
        return Check(f"the doctor names {code}, since step {finding.step}: {finding.evidence[0].describe()}", True)
    return Check(f"the doctor should name only {code}, and names {', '.join(codes)}", False)


def no_longer(findings: Sequence[Finding], code: str) -> Check:
    codes = [finding.code for finding in findings]
    return Check(f"of the fixed run the doctor says {', '.join(codes)}", code not in codes)


def improved(failing: History, fixed: History, signal: Signal) -> Check:
    """The signal is better at the end of the fixed run than at the end of the failing one, beyond noise."""
    move, responded = answer(failing, fixed, signal.name, signal.way)
    direction = "higher" if signal.way == "up" else "lower"
    text = f"{signal.name} {move.before:.3g} failing → {move.after:.3g} fixed"
    if responded and abs(move.gain) >= signal.least:
        return Check(text, True)
    least = f" by {signal.least:g}" if signal.least else ""
    return Check(f"{text}; it should be {direction}{least}, beyond its noise of {move.error:.2g}", False)
