"""Rules about the conditions of a run: its memory, and a grader that does not stay the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from outdo.doctor.changes import set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding
from outdo.doctor.history import History
from outdo.doctor.reward import PART
from outdo.doctor.signals import finite
from outdo.metrics import limits as at

IN_UPDATE, IN_SAMPLING, ONE_ANSWER = "in the update", "while sampling", "with one answer"
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|MemoryError|\bOOM\b", re.IGNORECASE)
_SIZE = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMG]iB)", re.IGNORECASE)
ROWS = 512  # answers decoded at once on a CPU, where the recipe does not say


def describe_out_of_memory(where: str, done: int, recipe: Mapping[str, Any], tokens: int, error: str) -> str:
    """Why a run ended, and the change that helps. The doctor's rule reads these words."""
    detail = error.partition("\n")[0][:100] or "MemoryError"
    if size := _SIZE.search(error):
        amount = f"{int(size[1]) / 2**20:,.0f} MiB" if size[2] == "bytes" else f"{size[1]} {size[2]}"
        detail = f"{amount} more could not be allocated"
    change = _smaller(recipe, where, tokens)
    forced = "--force " if change and change.key == "max_completion_length" else ""
    advice = f"resume with {forced}{change.pair()}" if change else "use a smaller model"
    return f"out of memory {where} after step {done} ({detail}): {advice}. The checkpoints are kept"


def out_of_memory(history: History) -> Finding | None:
    """The run ended because an allocation failed."""
    if not _NO_MEMORY.search(history.ended):
        return None
    where = next((each for each in (ONE_ANSWER, IN_SAMPLING) if each in history.ended), IN_UPDATE)
    tokens = int(np.max(finite(history["tokens"])[-5:])) if history.has("tokens", least=1) else 0
    evidence = [Evidence("the run ended:", note=history.ended[:200])]
    if history.has("memory", least=1):
        memory = finite(history["memory"])
        evidence.append(Evidence("memory", float(memory[0]) / 2**30, float(memory[-1]) / 2**30, note="GiB at the peak"))
    change, expect = _smaller(history.recipe, where, tokens), Expect("memory", "down", 10)
    return Finding("out_of_memory", "critical", history.step_at(len(history)), tuple(evidence), change, expect)


def _smaller(recipe: Mapping[str, Any], where: str, tokens: int) -> Change | None:
    """What takes less memory at once and changes no gradient, or shorter answers where nothing else remains."""
    length = int(recipe.get("max_completion_length") or 256)
    answers = _answers(recipe)
    if recipe.get("backend", "outdo") != "outdo":  # which samples and learns in batches of its own
        if not recipe.get("gradient_checkpointing"):
            return set_key(recipe, "gradient_checkpointing", True)
        return set_key(recipe, "max_completion_length", max(1, length // 2)) if length > 1 else None
    if where == IN_SAMPLING:
        rows = min(int(recipe.get("rollout_rows") or ROWS), answers)
        return set_key(recipe, "rollout_rows", max(1, rows // 4))
    now = min(int(recipe.get("tokens_per_micro_batch") or 1 << 30), tokens or answers * length)
    smaller = 1 << max(0, (now // 4).bit_length() - 1)  # a power of two
    if where != ONE_ANSWER and smaller >= length:
        return set_key(recipe, "tokens_per_micro_batch", smaller)
    if not recipe.get("gradient_checkpointing"):
        return set_key(recipe, "gradient_checkpointing", True)
    return set_key(recipe, "max_completion_length", max(1, length // 2)) if length > 1 else None


def _answers(recipe: Mapping[str, Any]) -> int:
    rows = int(recipe.get("per_device_train_batch_size") or 8)
    multiple = recipe.get("steps_per_generation") or recipe.get("gradient_accumulation_steps") or 1
    return int(recipe.get("generation_batch_size") or rows * int(multiple))


def grader_drift(history: History) -> Finding | None:
    """The grader no longer gives early answers the grades that it gave them then."""
    if not history.has("grader_drift", least=1):
        return None
    shares = history["grader_drift"]
    if finite(shares)[-1] <= at.DRIFT:
        return None
    measured = np.flatnonzero(np.isfinite(shares))
    changed = measured[shares[measured] > at.DRIFT]
    steady = measured[(measured < changed[0]) & (shares[measured] <= at.DRIFT)]
    index = int(steady[-1]) if len(steady) else 0  # it changed after the last measurement that found nothing
    before = float(shares[index]) if len(steady) else None
    note = "early answers that get another grade now"
    evidence = (Evidence("grader_drift", before, float(finite(shares)[-1]), None, note),)
    change, expect = _steady_reward(history), Expect("eval_success_rate", "up", 40)
    return Finding("grader_drift", "critical", history.step_at(index), evidence, change, expect)


def _steady_reward(history: History) -> Change | None:
    """The task's own verifier instead of the grader that changed, where the run has one that it does not train on."""
    funcs = list(history.recipe.get("reward_funcs") or [])
    paid = {re.split("[:/]", name)[-1].removesuffix(".json") for name in funcs}
    others = [name.removeprefix(PART) for name in history.columns if name.startswith(PART)]
    steady = [name for name in others if name not in paid and name != history.recipe.get("audit_reward")]
    return Change("reward_funcs", funcs, steady[:1]) if steady and not history.recipe.get("reward_weights") else None
