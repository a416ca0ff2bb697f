"""Rows of a run's evaluations, by split: before training and at the end. The tasks of a mixture are pooled."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.metrics.estimate import reward_interval, wilson
from outdo.metrics.headline import Metric
from outdo.runs.reader import JsonRow
from outdo.runs.values import as_float, as_int

BROKEN = "-"


@dataclass(frozen=True)
class Held:
    """A split at one step. What was not measured is None."""

    split: str
    step: int
    n: int | None
    success: float
    low: float | None
    high: float | None
    passes: Mapping[
        str, Mapping[str, float | None]
    ]  # pass@k: value, low, high; of a mixture, pooled without an interval
    reward: float | None = None
    reward_low: float | None = None
    reward_high: float | None = None
    sampled_reward: float | None = None
    entropy: float | None = None
    problems: str | None = None  # hashes of the problems
    verdicts: str | None = None
    rewards: tuple[float | None, ...] | None = None  # by problem, as verdicts
    judge: str | None = None
    pass_threshold: float | None = None

    @property
    def sampled(self) -> float | None:
        """Success of sampled answers, pass@1."""
        return self.passes.get("pass@1", {}).get("value")

    @property
    def has_partial_credit(self) -> bool:
        pairs = (self.reward, self.success), (self.sampled_reward, self.sampled)
        return any(a is not None and b is not None and abs(a - b) > 1e-5 for a, b in pairs)


def splits_of(evals: Iterable[JsonRow]) -> dict[str, tuple[Held | None, Held | None]]:
    """Each split at step 0 and at its last step after it, in the order of the rows. Rows that no evaluation writes are
    skipped."""
    rows = [row for row in evals if is_valid(row)]
    found = {}
    for split in dict.fromkeys(_kind(row) for row in rows):
        own = [row for row in rows if _kind(row) == split]
        last_step = max(row["step"] for row in own)
        first, last = ([row for row in own if row["step"] == step] for step in (0, last_step))
        found[split] = pool(split, first), pool(split, last) if last_step > 0 else None
    return found


def is_valid(row: JsonRow) -> bool:
    success, n, step = as_float(row.get("success_rate")), as_int(row.get("n")), as_int(row.get("step"))
    is_share = success is not None and 0 <= success <= 1
    is_counted = "n" not in row or (n is not None and n > 0)  # logs of other trainers do not have it
    return is_share and is_counted and step is not None and isinstance(row.get("split"), str)


def _kind(row: JsonRow) -> str:
    """`test` of a mixture's `test/NAME`."""
    return str(row["split"]).partition("/")[0]


def pool(split: str, rows: Sequence[JsonRow]) -> Held | None:
    """One split of one step; None without rows."""
    if not rows:
        return None
    n = sum(row["n"] for row in rows) if all("n" in row for row in rows) else None
    success = math.fsum(row["success_rate"] * row.get("n", 1) for row in rows) / sum(row.get("n", 1) for row in rows)
    low, high = (as_float(rows[0].get(end)) for end in ("low", "high"))
    if len(rows) > 1 and n is None:
        low, high = None, None
    elif len(rows) > 1 and n is not None:
        success = round(success * n) / n
        low, high = wilson(round(success * n), n)
    verdicts = "".join(str(row.get("verdicts") or "") for row in rows)
    rewards = tuple(value for row in rows for value in _rewards(row))
    reward, reward_low, reward_high = _mean_reward(rows, rewards)
    return Held(
        split,
        rows[0]["step"],
        n,
        success,
        low,
        high,
        dict(_passes(rows)),
        reward,
        reward_low,
        reward_high,
        sampled_reward=_pooled(rows, "sampled_reward_mean"),
        entropy=_pooled(rows, "entropy_mean"),
        problems=" ".join(str(row.get("problems") or "") for row in rows).strip() or None,
        verdicts=verdicts or None,
        rewards=rewards if rewards and len(rewards) == len(verdicts) else None,
        judge=" ".join(dict.fromkeys(str(row["judge"]) for row in rows if row.get("judge"))) or None,
        pass_threshold=as_float(rows[0].get("pass_threshold")),
    )


def _rewards(row: JsonRow) -> list[float | None]:
    """The rewards of a row by problem; where it has none they are its verdicts."""
    given, verdicts = row.get("rewards"), str(row.get("verdicts") or "")
    if isinstance(given, list) and len(given) == len(verdicts):
        return [as_float(value) for value in given]
    return [None if letter == BROKEN else float(letter == "1") for letter in verdicts] if "reward_mean" in row else []


def _mean_reward(rows: Sequence[JsonRow], rewards: Sequence[float | None]) -> Iterator[float | None]:
    if len(rows) == 1:
        yield from (as_float(rows[0].get(f"reward_{end}")) for end in ("mean", "low", "high"))
        return
    known = [value for value in rewards if value is not None]
    yield _pooled(rows, "reward_mean")
    yield from reward_interval(known) if known else (None, None)


def _pooled(rows: Sequence[JsonRow], name: str) -> float | None:
    values = [(as_float(row.get(name)), row.get("n", 1)) for row in rows]
    if any(value is None for value, _ in values):
        return None
    return math.fsum(value * n for value, n in values if value is not None) / sum(n for _, n in values)


def _passes(rows: Sequence[JsonRow]) -> Iterator[tuple[str, dict[str, float | None]]]:
    for name in (key for key in rows[0] if re.fullmatch(r"pass@\d{1,6}", key)):
        if (value := _pooled(rows, name)) is not None:
            ends = {end: as_float(rows[0].get(f"{name}_{end}")) if len(rows) == 1 else None for end in ("low", "high")}
            yield name, {"value": value, **ends}


def problem_values(row: Mapping[str, Any], metric: Metric) -> list[float] | None:
    """A number for each problem of a split's row: 1 or 0, or its reward. None where one is unknown."""
    verdicts = str(row.get("verdicts") or "")
    if metric == "success":
        return [float(letter) for letter in verdicts] if verdicts and set(verdicts) <= set("01") else None
    rewards = row.get("rewards")
    if rewards is None or any(value is None for value in rewards):
        return None
    return [float(value) for value in rewards]
