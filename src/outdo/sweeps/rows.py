"""A run folder as one row of numbers: what it learnt, how its signals ended, and what it cost."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.errors import RunError
from outdo.evals.estimate import wilson
from outdo.runs.files import is_locked
from outdo.runs.manifest import Manifest, read_manifest
from outdo.runs.reader import read_rows

Outcome = Literal["waiting", "running", "done", "halted", "failed", "stopped"]
Row = dict[str, Any]

NOTHING = ("healthy", "too_early")  # codes of the doctor that name no failure
TAIL = 5  # steps at either end of a run that a signal is the mean of
SIGNALS = (
    *("reward_mean", "kl_mean", "entropy_mean", "group_diversity", "informative", "all_wrong", "len_mean"),
    *("truncated", "adv_std", "grad_norm", "clipfrac"),
)
LOOKED_AT = 4000  # groups, for the noise of advantages
KL_LIMIT = 0.1  # where the recipe sets none
CUT = 0.2  # share of answers cut at the limit
COLLAPSED = 0.1  # of the entropy that it began with
ALONE = 1.1  # different answers in a group: all are the same one
MASTERED = 0.9  # success at sampling from which on one answer only is no illness
_TOLD_TO_STOP = re.compile(r"(SIG\w+|interrupted) after step")


def row_of(folder: Path, passed: list[str]) -> Row:
    """One run's row. Raises RunError where the folder holds none. What a run has not got is None.

    Lines of its files that are no rows are passed over and told in `passed`.
    """
    manifest = read_manifest(folder)
    try:
        return _row(folder, manifest, passed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder}: its rows are not as a run writes them ({error!r:.80})") from None


def _row(folder: Path, manifest: Manifest, passed: list[str]) -> Row:
    wrong: list[str] = []
    steps = list(read_rows(path := folder / "metrics.jsonl", wrong))
    if wrong and not steps:
        raise RunError(f"{path}: not one of its lines is a JSON row; put a sound copy in its place, or remove it")
    evals = list(read_rows(folder / "evals.jsonl", wrong))
    row: Row = {
        **outcome(folder, manifest.status, manifest.why),
        "steps": len(steps),
        **held_out(evals),
        **{name: mean_of(steps[-TAIL:], name) for name in SIGNALS},
        "tokens_per_s": _rate(steps),
        "seconds": _total(steps, "time/step"),
        "adv_noise": advantage_noise(folder, wrong),
    }
    history = run_history(folder) if steps and manifest.kind == "grpo" else None
    found = diagnose(history) if history else []
    row["findings"] = [finding.code for finding in found if finding.code not in NOTHING]
    grave = [f"the doctor says {finding.code}" for finding in found if finding.severity == "critical"]
    row["troubles"] = [*troubles(row, steps, manifest.recipe), *grave]
    passed += dict.fromkeys([*wrong, *(history.skipped if history else ())])
    return row


def outcome(folder: Path, status: str, why: str) -> Row:
    """How it ended. One that was told to stop can go on; one that a guard halted has shown what it shows."""
    if status == "stopped" and not _TOLD_TO_STOP.match(why):
        status = "halted"
    if status == "running" and not is_locked(folder):
        status, why = "stopped", "its process ended without a word"
    return {"status": status, "why": why}


def held_out(evals: Sequence[Mapping[str, Any]]) -> Row:
    """The last evaluation after training began, of the split looked at first; of a mixture, its tasks pooled."""
    row: Row = dict.fromkeys(("split", "n", "success_rate", "low", "high", "before", "problems", "verdicts"))
    if not evals:
        return row | {"passes": {}}
    kind = str(evals[0]["split"]).partition("/")[0]
    ours = [e for e in evals if str(e["split"]).partition("/")[0] == kind]
    first = [e for e in ours if e["step"] == 0]
    last_step = max(e["step"] for e in ours)
    last = [e for e in ours if e["step"] == last_step] if last_step > 0 else []
    row |= {"split": kind, "before": _pooled(first), "passes": _passes(first, last)}
    n = sum(e["n"] for e in last)
    if n:
        right = round(sum(e["success_rate"] * e["n"] for e in last))
        row |= {"n": n, "success_rate": right / n, "evaluated_at": last_step}
        row["low"], row["high"] = wilson(right, n)
        row["problems"] = " ".join(str(e.get("problems") or "") for e in last).strip() or None
        row["verdicts"] = "".join(str(e.get("verdicts") or "") for e in last) or None
    return row


def _pooled(evals: Sequence[Mapping[str, Any]]) -> float | None:
    n = sum(e["n"] for e in evals)
    return sum(e["success_rate"] * e["n"] for e in evals) / n if n else None


def _passes(first: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]]) -> Row:
    """pass@k after and before; of a mixture, of its first task."""
    if not last:
        return {}
    names = [key for key in last[0] if re.fullmatch(r"pass@\d+", key)]
    ends = {k: {"low": last[0].get(f"{k}_low"), "high": last[0].get(f"{k}_high")} for k in names}
    began = {k: {"before": first[0].get(k), "before_low": first[0].get(f"{k}_low")} if first else {} for k in names}
    return {k: {"value": last[0][k], **ends[k], **began[k]} for k in names}


def troubles(row: Row, steps: Sequence[Mapping[str, Any]], recipe: Mapping[str, Any]) -> list[str]:
    """Why a run is not to be chosen however high its success: short words, none where its signals are sane."""
    found = []
    if row["status"] != "done":
        found.append(row["status"])
    limit = recipe.get("kl_limit") or KL_LIMIT
    if (kl := row["kl_mean"]) is not None and kl > limit:
        found.append(f"KL {kl:.2g} past {limit:g}")
    mastered = (mean_of(steps[-TAIL:], "success_rate") or 0.0) >= MASTERED
    began, ended = mean_of(steps[:TAIL], "entropy_mean"), row["entropy_mean"]
    if began and ended is not None and ended < COLLAPSED * began and not mastered:
        found.append(f"entropy fell from {began:.2g} to {ended:.2g}")
    diversity = row["group_diversity"]
    if diversity is not None and diversity * int(recipe.get("num_generations") or 8) < ALONE and not mastered:
        found.append("all answers of a group are the same")
    if (cut := row["truncated"]) is not None and cut > CUT:
        found.append(f"{cut:.0%} of answers cut at the limit")
    for name, ends in row["passes"].items():
        high, before_low = ends.get("high"), ends.get("before_low")
        if name != "pass@1" and high is not None and before_low is not None and high < before_low:
            found.append(f"{name} fell from {ends['before']:.2f} to {ends['value']:.2f}")
    return found


def advantage_noise(folder: Path, passed: list[str]) -> float | None:
    """How far off by chance the mean is that answers are measured against: its standard error, averaged over groups.

    In units of reward, of the first groups of the run. A larger group has less of it.
    """
    paths = sorted((folder / "groups").glob("*.jsonl"))
    groups = itertools.islice((row for path in paths for row in read_rows(path, passed)), LOOKED_AT)
    answers = [[a["reward"] for a in group["completions"] if a["reward"] is not None] for group in groups]
    errors = [statistics.variance(rewards) / len(rewards) for rewards in answers if len(rewards) > 1]
    return statistics.fmean(errors) ** 0.5 if errors else None


def mean_of(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step.get(name) is not None]
    return statistics.fmean(values) if values else None


def _total(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step.get(name) is not None]
    return sum(values) if values else None


def _rate(steps: Sequence[Mapping[str, Any]]) -> float | None:
    tokens, seconds = _total(steps, "tokens"), _total(steps, "time/step")
    return tokens / seconds if tokens and seconds else None
