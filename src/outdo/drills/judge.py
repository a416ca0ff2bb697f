"""Whether a drill has shown what it is for: pure, over histories and findings."""

from __future__ import annotations

from collections.abc import Sequence

from outdo.doctor.finding import Finding
from outdo.doctor.history import History
from outdo.drills.drill import Check, Signal
from outdo.training.treating import answer


def named(findings: Sequence[Finding], code: str) -> Check:
    """The doctor said this, and nothing beside it."""
    said = [finding.code for finding in findings]
    if said == [code]:
        finding = findings[0]
        return Check(f"the doctor names {code}, since step {finding.step}: {finding.evidence[0].describe()}", True)
    return Check(f"the doctor should name {code} and nothing else, and says {', '.join(said)}", False)


def no_longer(findings: Sequence[Finding], code: str) -> Check:
    said = [finding.code for finding in findings]
    return Check(f"of the cured run the doctor says {', '.join(said)}", code not in said)


def turned(ill: History, cured: History, signal: Signal) -> Check:
    """The signal is better at the end of the cured run than at the end of the ill one, beyond noise."""
    move, answered = answer(ill, cured, signal.name, signal.way)
    far = abs(move.gain) >= signal.least
    goes = "higher" if signal.way == "up" else "lower"
    words = f"{signal.name} {move.before:.3g} ill → {move.after:.3g} cured"
    if answered and far:
        return Check(words, True)
    least = f" by {signal.least:g}" if signal.least else ""
    return Check(f"{words}; it should be {goes}{least}, beyond its noise of {move.error:.2g}", False)
