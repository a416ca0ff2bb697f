"""Other trainers' names of outdo's signals: exact names first, then names without case, separators and prefixes.

The one table of names, for the doctor and for runs of other trainers in every viewer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

HELD_OUT = "eval_success_rate"  # in any log; of one of several held-out sets eval_success_rate/NAME

# outdo's name -> TRL's names, then verl's, then prime-rl's. Earlier ones win where a row has several.
NAMES: dict[str, tuple[str, ...]] = {
    "reward_mean": (
        *("reward", "critic/score/mean", "critic/rewards/mean"),  # the last minus KL, where that is paid
        *("reward/all/mean", "agg/all/reward/mean"),
    ),
    "kl_mean": ("kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy_mean": ("entropy", "actor/entropy", "actor/entropy_loss", "entropy/all/mean"),
    "len_mean": (
        *("completions/mean_length", "completion_length", "response_length/mean"),
        *("decode_len/all/mean", "completion_len/mean"),
    ),
    "truncated": (
        *("completions/clipped_ratio", "response_length/clip_ratio"),
        *("is_truncated/all/mean", "agg/all/is_truncated/mean", "is_truncated/mean"),
    ),
    "clipfrac": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac"),
    "informative": ("frac_reward_zero_std", "effective_batch_size/all", "batch/effective_batch_size"),
    "all_right": ("solve_all/all", "batch/solve_all"),
    "all_wrong": ("solve_none/all", "batch/solve_none"),
    "lr": ("learning_rate", "actor/lr", "optim/lr"),
    "step_kl": ("actor/ppo_kl",),
    "grad_norm": ("actor/grad_norm", "optim/grad_norm"),
    "beta": ("actor/kl_coef",),
    "loss": ("actor/pg_loss", "loss/mean"),
    "adv_mean": ("critic/advantages/mean",),
    "turns_mean": ("num_turns/mean", "num_turns/all/mean", "agg/all/num_turns/mean"),
    "tool_calls_mean": ("tools/call_frequency", "tool_call_counts/mean"),
    "tool_calls_failed": ("tools/failure_frequency",),
    "tokens": ("progress/decode_tokens",),
    "memory": ("perf/max_memory_allocated_gb", "perf/peak_memory"),
    "time/step": ("step_time", "timing_s/step", "perf/time_per_step"),
    "time/rollout": ("timing_s/gen", "time/generate_completions"),
    "time/grade": ("timing_s/reward",),
    "time/update": ("timing_s/update_actor", "time/forward_backward"),
    "time/save": ("timing_s/save_checkpoint", "time/save_ckpt"),
    "mismatch_kl": (
        *("rollout_corr/k3_kl", "rollout_corr/kl", "mismatch/mismatch_k3_kl"),
        *("mismatch_kl/all/mean", "mismatch_kl/mean"),
    ),
    "mismatch_logp": ("sampling/sampling_logp_difference/mean", "training/rollout_probs_diff_mean"),
    "step": ("global_step", "training/global_step", "_step", "Step"),  # in any log
}
# The same as words in lower case, without the words of LOOSE: `policy/kl_divergence`, `Mean KL` and `klDivergence` are
# "kl divergence" or "kl". KL of a whole answer (objective/kl) is not KL per token, and has no entry.
WORDS: dict[str, tuple[str, ...]] = {
    "reward_mean": ("reward", "rewards", "score", "scores", "reward total", "total reward", "raw reward", "return"),
    "reward_std": ("reward std", "rewards std", "std reward", "score std"),
    "success_rate": (
        *("success rate", "success", "accuracy", "acc", "correct", "correctness", "solve rate", "pass rate", "pass 1"),
        *("exact match", "correct rate", "verifiable correct rate", "successes", "solved", "frac correct"),
        "objective verifiable correct rate",
    ),
    "kl_mean": (
        *("kl", "kl div", "kl divergence", "kl loss", "kl ref", "ref kl", "kl to ref", "kl penalty", "reference kl"),
        *("kl from ref", "kl token", "per token kl"),
    ),
    "step_kl": ("approx kl", "approxkl", "ppo kl", "old kl", "kl old", "step kl"),
    "entropy_mean": ("entropy", "token entropy", "entropy loss", "per token entropy"),
    "len_mean": (
        *("length", "len", "completion length", "completion len", "completions length", "response length"),
        *("response len", "response lengths", "seq len", "sequence length", "output length", "gen length"),
        *("generation length", "answer length", "gen tokens per sample", "sequence lengths"),
    ),
    "truncated": (
        *("truncated", "is truncated", "truncated ratio", "truncation ratio", "truncation rate", "truncation"),
        *("response length clip ratio", "length clip ratio", "clipped ratio", "frac truncated", "truncated frac"),
        *("overlong ratio", "completions clipped ratio", "truncation fraction"),
    ),
    "clipfrac": ("clipfrac", "clip frac", "clip fraction", "clip ratio", "pg clipfrac", "ppo clip ratio"),
    "informative": ("informative", "frac mixed", "pct mixed", "informative groups", "effective groups"),
    "not informative": ("frac reward zero std", "zero std frac", "zero std ratio", "zero variance frac"),
    "all_right": ("all right", "solve all", "frac all good", "all correct"),
    "all_wrong": ("all wrong", "solve none", "frac all bad", "all incorrect"),
    "grad_norm": ("grad norm", "gradient norm", "gradnorm", "global grad norm"),
    "loss": ("loss", "policy loss", "pg loss", "actor loss", "grpo loss"),
    "lr": ("lr", "learning rate", "actor lr"),
    "adv_mean": ("advantage", "advantages", "adv"),
    "adv_std": ("advantage std", "advantages std", "adv std", "std advantage"),
    "ratio_mean": ("ratio", "ratios", "importance ratio", "prob ratio"),
    "mismatch_kl": ("mismatch kl", "rollout kl", "vllm kl", "gen kl error", "sampler kl"),
    "group_diversity": ("group diversity", "diversity", "unique ratio", "distinct ratio"),
    "audit_reward_mean": ("audit reward",),
    "step": ("step", "global step", "iteration", "iter", "training step", "train step", "step number"),
}
LOOSE = {
    *("train", "training", "mean", "avg", "average", "actor", "policy", "critic", "rollout", "rollouts", "metrics"),
    *("grpo", "ppo", "rl", "optim", "env", "all", "by", "group", "batch", "stats", "log", "completions"),
}
BY_WORDS = {words: (ours, rank) for ours, names in WORDS.items() for rank, words in enumerate(names, 500)}
EVALUATED = {"eval", "evals", "evaluation", "val", "valid", "validation", "held", "out", "heldout"}
SPLITS = {"test", "ood", "dev", "id"}  # of held-out sets that a name may start with, without a word of EVALUATED
SUCCESS_WORDS = {*WORDS["success_rate"], "mean accuracy", "acc mean", "reward", "score", "rewards"}

THEIR_NAMES = {theirs: (ours, rank) for ours, names in NAMES.items() for rank, theirs in enumerate(names, 1)}
COMPLEMENTS = {"frac_reward_zero_std"}  # 1 minus outdo's value
SCALES = {"perf/max_memory_allocated_gb": 2.0**30, "perf/peak_memory": 2.0**30}  # units of outdo's in one of theirs
STATISTICS = re.compile(r"reward/.+/(?:min|max|std)")  # of a part: no part itself
SUCCESS = r"[^/]*(?:accuracy|correct|exact_match)[^/]*"  # names of reward parts that measure success
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"eval_rewards/{SUCCESS}(?:/mean)?", re.IGNORECASE), HELD_OUT),  # TRL's held-out
    (re.compile(rf"eval_(\w+)_rewards/{SUCCESS}(?:/mean)?", re.IGNORECASE), rf"{HELD_OUT}/\1"),  # … of several sets
    (re.compile(r"rewards/(?!mean$|std$|total$)([^/]+)(?:/mean)?"), r"reward/\1"),  # TRL's parts
    (re.compile(r"val-core/(.+)/acc/mean@\d+"), rf"{HELD_OUT}/\1"),  # verl's held-out
    (re.compile(r"val-core/(.+)/reward/mean@\d+"), rf"{HELD_OUT}/\1"),
    (re.compile(r"val/test_score/(.+)"), rf"{HELD_OUT}/\1"),
)
SUCCESS_PART = re.compile(f"reward/{SUCCESS}", re.IGNORECASE)  # a part of the reward that measures success
# The reward, where no other column is.
TOTALS = ("reward/total", "reward/mean", "reward/all", "reward/all/mean", "reward/sum", "reward/overall")
NON_FINITE = "not_finite/"  # prefix of a signal: 1 where its value was NaN or infinite
OWN = ("reward/", "time/", "tool_calls_failed/")  # prefixes of outdo's names
ALWAYS_FINITE = {"loss", "grad_norm", "kl_mean", "entropy_mean"}  # at every step of a healthy run
CORE_SIGNALS = {  # a file with any of these can be diagnosed
    *("reward_mean", "success_rate", "entropy_mean", "kl_mean", "len_mean", "informative", "grad_norm", "truncated"),
    *("adv_std", "clipfrac", "step_kl", "all_right", "all_wrong", "group_diversity"),
}
SIGNALS = {  # that rules read
    *CORE_SIGNALS,
    *ALWAYS_FINITE,
    *("reward_std", "ratio_mean", "mismatch_kl", "mismatch_ratio_std", "mismatch_logp", "skipped_updates"),
    *(
        "grader_broken",
        "grader_disagreement",
        "grader_drift",
        *("turns_mean", "tool_calls_mean", "tool_users", "tool_advantage", "tool_calls_failed", "out_of_turns"),
        *("looping", "repeats", "copied", "given_away", "env_broken", "env_tokens_mean", "env_wait_mean"),
        "audit_reward_mean",
        "reasoning_tokens_mean",
        "lr",
        "beta",
        "step",
    ),
}


def as_table() -> str:
    """For docs/foreign.md."""
    lines = ["| outdo | other trainers |", "| --- | --- |"]
    for ours, theirs in NAMES.items():
        shown = [f"1 − `{name}`" if name in COMPLEMENTS else f"`{name}`{_scale(name)}" for name in theirs]
        lines.append(f"| `{ours}` | {', '.join(shown)} |")
    lines.append("| `reward/NAME` | `rewards/NAME/mean`, `rewards/NAME` |")
    return "\n".join(lines) + "\n"


def _scale(name: str) -> str:
    return " × 2^30" if name in SCALES else ""


@lru_cache(maxsize=20_000)
def canonical_name(name: str) -> tuple[str, bool, int]:
    """outdo's name, whether the value is its complement, and the rank: the lowest wins where names mean the same."""
    name = name.strip().removeprefix("train/")  # transformers' names for W&B and TensorBoard
    name = f"eval_{name[5:]}" if name.startswith("eval/") else name
    if name in THEIR_NAMES:
        ours, rank = THEIR_NAMES[name]
        return ours, name in COMPLEMENTS, rank
    if STATISTICS.fullmatch(name):
        return f"stats/{name}", False, 0
    if name in SIGNALS or name.startswith((HELD_OUT, *OWN, "eval_n")):
        return name, False, 0
    for rank, (pattern, replacement) in enumerate(PATTERNS, 1000):
        if match := pattern.fullmatch(name):
            return match.expand(replacement), False, rank
    return _by_words(name)


def _by_words(name: str) -> tuple[str, bool, int]:
    """A name by its words; the name itself where none is known."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
    if words and (words[0] in EVALUATED | SPLITS):
        rest = [word for word in words if word not in EVALUATED and word not in LOOSE]
        for size in (3, 2, 1):
            if " ".join(rest[-size:]) in SUCCESS_WORDS and len(rest) >= size:
                split = "_".join(rest[:-size])
                return (f"{HELD_OUT}/{split}" if split else HELD_OUT), False, 2000 + (rest[-1] in ("reward", "score"))
        return name, False, 0
    for kept in (words, [word for word in words if word not in LOOSE]):
        if match := BY_WORDS.get(" ".join(kept)):
            ours, rank = match
            return ours.removeprefix("not "), ours.startswith("not "), rank
    return name, False, 0


def canonical_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row under outdo's names, and flags for core signals that are NaN or infinite."""
    out, non_finite = named_values(row)
    # Tables have NaN where nothing was logged. Only a row that has other core signals is a step.
    is_step = out.keys() & {*ALWAYS_FINITE, *CORE_SIGNALS}
    flagged = {*ALWAYS_FINITE, "reward_mean"} - out.keys() if is_step else set()
    return out | {NON_FINITE + name: 1.0 for name in non_finite if name in flagged}


def named_values(row: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """The finite numbers of a row under outdo's names, and the names of those that are NaN or infinite."""
    out: dict[str, float] = {}
    ranks: dict[str, int] = {}
    non_finite: list[str] = []
    for theirs, text in row.items():
        value = parsed_number(text)
        if not theirs or value is None:
            continue
        name, is_complement, rank = canonical_name(theirs)
        if not math.isfinite(value):
            non_finite.append(name)
        elif name not in out or rank < ranks[name]:
            value *= SCALES.get(theirs.strip(), 1.0)
            out[name], ranks[name] = 1.0 - value if is_complement else value, rank
    if "reward_mean" not in out and (total := next((name for name in TOTALS if name in out), None)):
        out["reward_mean"] = out.pop(total)
    return out, non_finite


def is_read(name: str) -> bool:
    """Whether any rule reads a column, by outdo's name of it."""
    return name in SIGNALS or name.startswith((*OWN, "eval_", NON_FINITE))


def parsed_number(value: Any) -> float | None:
    """A number, also one as text, NaN or infinite; None where it is something else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    number = parsed_number(value)
    return number if number is not None and math.isfinite(number) else None
