"""A run as one row of numbers: what it learnt, how its signals ended, what it cost, and what speaks against it."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outdo.doctor.finding import Finding
from outdo.doctor.read import run_history
from outdo.doctor.report import FindingRecord, findings_of
from outdo.doctor.rules import diagnose
from outdo.doctor.split_results import Held, problem_values, splits_of
from outdo.doctor.summary import RunSummary
from outdo.errors import RunError
from outdo.metrics.estimate import paired_difference
from outdo.metrics.limits import KL_CRITICAL
from outdo.runs import usage
from outdo.runs.files import is_locked
from outdo.runs.foreign.translate import source_of
from outdo.runs.groups import rewards_of
from outdo.runs.index import read_locations
from outdo.runs.manifest import Manifest, read_manifest
from outdo.runs.reader import JsonRow, read_evals, read_groups, read_metrics
from outdo.runs.run_reader import RunReader
from outdo.runs.table import column_sum

Outcome = Literal["waiting", "running", "done", "halted", "failed", "stopped"]
RunRow = dict[str, Any]

HARMLESS = ("healthy", "too_early")  # codes of the doctor that name no failure
TAIL = 5  # steps at either end of a run that a signal is the mean of
SIGNALS = (
    *("reward_mean", "kl_mean", "entropy_mean", "group_diversity", "informative", "all_wrong", "len_mean"),
    *("truncated", "adv_std", "grad_norm", "clipfrac"),
)
SPLIT_FIELDS = (  # of a split, and of the first split in a run's row
    *("split", "n", "success_rate", "low", "high", "before", "problems", "verdicts", "reward", "reward_low"),
    *("reward_high", "reward_before", "sampled_reward", "rewards", "partial", "eval_entropy", "judge"),
    *("pass_threshold", "fell", "evaluated_at"),
)
MAX_GROUPS = 4000  # read for the noise of advantages
MAX_GROUP_BYTES = 48 << 20  # of these, in a viewer
KL_LIMIT = 0.1  # where the recipe sets none
TRUNCATED_LIMIT = 0.2  # share of answers cut at the length limit
COLLAPSED = 0.1  # of the entropy at the start
ONE_ANSWER = 1.1  # different answers in a group: all are the same
MASTERED = 0.9  # success at sampling; above it, a single answer is no failure
_INTERRUPTED = re.compile(r"(SIG\w+|interrupted) after step")


def read_run_row(folder: Path, skipped: list[str]) -> RunRow:
    """The row of a run's folder; what a run does not have is None. Adds lines that are not JSON rows to `skipped`.

    Raises RunError where the folder holds no run, or rows that no run writes.
    """
    manifest = read_manifest(folder)
    try:
        return _read(folder, manifest, skipped)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder}: its rows are malformed ({error!r:.80})") from None


def _read(folder: Path, manifest: Manifest, skipped: list[str]) -> RunRow:
    invalid: list[str] = []
    steps = list(read_metrics(folder, invalid))
    if invalid and not steps:
        raise RunError(f"{invalid[0]}: no line of this file is a JSON row; restore a valid copy, or remove it")
    evals = list(read_evals(folder, invalid))
    groups = itertools.islice(read_groups(folder, invalid), MAX_GROUPS)
    noise = advantage_noise([a["reward"] for a in g["completions"] if a["reward"] is not None] for g in groups)
    history = run_history(folder) if steps and manifest.kind == "grpo" else None
    skipped += dict.fromkeys([*invalid, *(history.skipped if history else ())])
    return _run_row(
        outcome(folder, manifest.status, manifest.why),
        num_steps=len(steps),
        ends=steps if len(steps) <= 2 * TAIL else [*steps[:TAIL], *steps[-TAIL:]],
        evals=evals,
        seconds=_total(steps, "time/step"),
        used=usage.device_seconds(manifest.model_dump(), _total(steps, "time/step") or 0.0),
        tokens=_total(steps, "tokens"),
        noise=noise,
        findings=diagnose(history) if history else [],
        recipe=manifest.recipe,
    )


def view_run_row(reader: RunReader, summary: RunSummary) -> tuple[RunRow, list[str]]:
    """The same row for a viewer, from what it has read of the run, and what could not be read for it."""
    frame = reader.metrics.frame()
    ends = sorted({*range(min(TAIL, len(frame))), *range(max(0, len(frame) - TAIL), len(frame))})
    files = (reader.groups.file(first, path) for first, path in reader.groups.paths().items())
    locations = itertools.islice((location for file in files for location in file.locations()), MAX_GROUPS)
    groups = read_locations(reader.root, locations, MAX_GROUP_BYTES)
    facts: dict[str, Any] = {
        "num_steps": len(frame),
        "ends": frame.rows(ends),
        "seconds": column_sum(frame, "time/step") or None,
        "used": usage.device_seconds(reader.manifest()[0], column_sum(frame, "time/step")),
        "tokens": column_sum(frame, "tokens"),
        "noise": advantage_noise(map(rewards_of, groups)),
        "findings": [finding for finding in findings_of(reader).findings if not finding.past],
    }
    ended = _viewed_outcome(reader, summary)
    try:
        return _run_row(ended, **facts, evals=reader.evals.all(), recipe=reader.recipe), summary.trouble
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        problem = f"its evaluations or its recipe are malformed ({error!r:.80}), and are ignored"
        return _run_row(ended, **facts, evals=[], recipe={}), [*summary.trouble, problem]


def _run_row(
    ended: RunRow,
    *,
    num_steps: int,
    ends: Sequence[JsonRow],  # the first and the last steps
    evals: Sequence[JsonRow],
    seconds: float | None,
    used: float,  # device-seconds
    tokens: float | None,
    noise: float | None,
    findings: Sequence[Finding | FindingRecord],
    recipe: Mapping[str, Any],
) -> RunRow:
    row: RunRow = {
        **ended,
        "steps": num_steps,
        **held_out(evals),
        **{name: mean_of(ends[-TAIL:], name) for name in SIGNALS},
        "tokens_per_s": tokens / seconds if tokens and seconds else None,
        "seconds": seconds,
        "device_seconds": used or None,
        "price": usage.price_of(recipe, used),
        "adv_noise": noise,
        "findings": [finding.code for finding in findings if finding.code not in HARMLESS],
    }
    critical = [f"the doctor says {finding.code}" for finding in findings if finding.severity == "critical"]
    return row | {"troubles": [*troubles(row, ends, recipe), *critical]}


def outcome(folder: Path, status: str, why: str) -> RunRow:
    """How it ended. An interrupted run can resume; one that a guard halted is a result."""
    if source_of(folder) is not None:  # of another trainer: it has no lock, and no guard of ours
        return {"status": status, "why": why}
    if status == "stopped" and not _INTERRUPTED.match(why):
        status = "halted"
    if status == "running" and not is_locked(folder):
        status, why = "stopped", "its process ended without recording why"
    return {"status": status, "why": why}


def _viewed_outcome(reader: RunReader, summary: RunSummary) -> RunRow:
    """Without checking the lock again: the summary knows whether a process writes there."""
    if summary.status in ("running", "lost", "unreadable"):
        status = {"running": "running", "lost": "stopped", "unreadable": "failed"}[summary.status]
        return {"status": status, "why": summary.why}
    return outcome(reader.folder, summary.status, str(reader.manifest()[0].get("why") or ""))


def held_out(evals: Sequence[JsonRow]) -> RunRow:
    """The last evaluation after training started: of the first split, and of each under `splits`."""
    splits = {split: _split_row(*ends) for split, ends in splits_of(evals).items()}
    first = next(iter(splits.values()), dict.fromkeys(SPLIT_FIELDS) | {"passes": {}})
    return {**first, "splits": splits}


def _split_row(before: Held | None, after: Held | None) -> RunRow:
    """A split after training and before it. What was not measured is None."""
    row: RunRow = dict.fromkeys(SPLIT_FIELDS) | {"passes": {}}
    if before:
        row |= {"split": before.split, "before": before.success, "reward_before": before.reward}
    if after is None:
        return row
    old = before.passes if before else {}
    for name, ends in after.passes.items():
        earlier = {"before": old[name]["value"], "before_low": old[name]["low"]} if name in old else {}
        row["passes"][name] = {**ends, **earlier}
    row |= {"split": after.split, "n": after.n, "success_rate": after.success, "low": after.low, "high": after.high}
    row |= {"problems": after.problems, "verdicts": after.verdicts, "evaluated_at": after.step}
    row |= {"reward": after.reward, "reward_low": after.reward_low, "reward_high": after.reward_high}
    row |= {"sampled_reward": after.sampled_reward, "eval_entropy": after.entropy, "partial": after.has_partial_credit}
    row |= {"judge": after.judge, "pass_threshold": after.pass_threshold}
    row["rewards"] = list(after.rewards) if after.rewards and after.has_partial_credit else None
    return row | {"fell": _fall(before, after)}


def _fall(before: Held | None, after: Held) -> str | None:
    """Says that success is lower than before training, by more than noise, on the same problems."""
    if before is None or before.problems != after.problems:
        return None
    old, new = (problem_values({"verdicts": held.verdicts}, "success") for held in (before, after))
    if old is None or new is None or len(old) != len(new) or paired_difference(new, old).high >= 0:
        return None
    return f"{after.split} fell from {before.success:.2f} to {after.success:.2f}"


def troubles(row: RunRow, steps: Sequence[Mapping[str, Any]], recipe: Mapping[str, Any]) -> list[str]:
    """Why a run must not be chosen however high its success; empty where its signals are sane."""
    reasons = [] if row["status"] == "done" else [row["status"]]
    limit = min(recipe.get("kl_limit") or KL_LIMIT, KL_CRITICAL)
    if (kl := row["kl_mean"]) is not None and kl > limit:
        reasons.append(f"KL {kl:.2g} above {limit:g}")
    is_mastered = (mean_of(steps[-TAIL:], "success_rate") or 0.0) >= MASTERED
    start, end = mean_of(steps[:TAIL], "entropy_mean"), row["entropy_mean"]
    if start and end is not None and end < COLLAPSED * start and not is_mastered:
        reasons.append(f"entropy fell from {start:.2g} to {end:.2g}")
    diversity = row["group_diversity"]
    if diversity is not None and diversity * int(recipe.get("num_generations") or 8) < ONE_ANSWER and not is_mastered:
        reasons.append("all answers of a group are the same")
    if (truncated := row["truncated"]) is not None and truncated > TRUNCATED_LIMIT:
        reasons.append(f"{truncated:.0%} of answers cut at the limit")
    for name, bounds in row["passes"].items():
        high, before_low = bounds.get("high"), bounds.get("before_low")
        if name != "pass@1" and high is not None and before_low is not None and high < before_low:
            reasons.append(f"{name} fell from {bounds['before']:.2f} to {bounds['value']:.2f}")
    return reasons


def advantage_noise(rewards: Iterable[Sequence[float]]) -> float | None:
    """The standard error of the mean that answers are compared with, averaged over groups, in units of reward.

    A larger group has less of it.
    """
    with np.errstate(all="ignore"):
        errors = [np.var(group, ddof=1) / len(group) for group in rewards if len(group) > 1]
    finite = [float(error) for error in errors if np.isfinite(error)]
    return statistics.fmean(finite) ** 0.5 if finite else None


def mean_of(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step.get(name) is not None]
    return statistics.fmean(values) if values else None


def _total(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step.get(name) is not None]
    return sum(values) if values else None
