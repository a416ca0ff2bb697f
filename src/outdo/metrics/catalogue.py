"""Every signal of metrics.jsonl in words: what it means, what good looks like, what to do when it is bad.

One catalogue for the dashboard's charts, the report's, and the table in docs/runs.md, which is written from it. Bands
are drawn where the doctor draws its lines (diagnose/limits.py); a signal without a level of its own has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outdo.doctor import limits as at

Section = Literal["reward", "policy", "groups", "length", "machine", "optimizer"]
Band = tuple[float | None, float | None]  # None: without end on that side


@dataclass(frozen=True)
class Signal:
    """One chart. A name that ends in /* stands for every signal that begins so."""

    name: str
    title: str
    what: str  # its meaning, in a line
    good: str
    bad: str  # and what to do
    section: Section
    also: tuple[str, ...] = ()  # drawn in the same chart
    unit: str = ""
    good_band: Band | None = None
    bad_band: Band | None = None
    log: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)


CATALOGUE: tuple[Signal, ...] = (
    Signal(
        "reward_mean",
        "Reward",
        "raw reward, its mean and spread over a step's answers; and that of the reward that `audit_reward` names, "
        "which is not trained on",
        "rises, then flat; the audited one follows",
        "rises while held-out success or the audited reward does not: it is gamed, tighten the grader",
        "reward",
        also=("reward_std", "audit_reward_mean"),
    ),
    Signal(
        "success_rate",
        "Success",
        "share of answers that the verifier calls right",
        "follows the reward",
        "reward up, success flat: the reward is gamed; change it, not the learning rate",
        "reward",
    ),
    Signal(
        "reward/*",
        "Reward by part",
        "the mean of each reward function, before its weight",
        "the part that counts rises",
        "a part that is easy to have rises alone: gate it (`reward_gate`), or leave it out",
        "reward",
    ),
    Signal(
        "grader_broken",
        "Answers without a verdict",
        "share of answers that no reward could judge",
        "0",
        "read `reason` in `groups/`; give slow graders more time (`reward_timeout`), mend the others",
        "reward",
        bad_band=(at.BROKEN, None),
    ),
    Signal(
        "grader_disagreement",
        "Judged both ways",
        "of the answers that a group has more than once, the share judged both ways; null without such",
        "0",
        "fix the grader",
        "reward",
        bad_band=(at.DISAGREE, None),
    ),
    Signal(
        "kl_mean",
        "KL to the start",
        "KL to the starting model, a token; null with `beta: 0`",
        "small, slow, under 0.05",
        f"past {at.KL_LIMIT}: raise `beta`, lower `learning_rate`, fewer `num_iterations`",
        "policy",
        unit="nats a token",
        good_band=(0.0, at.KL_LIMIT / 2),
        bad_band=(at.KL_LIMIT, None),
    ),
    Signal(
        "entropy_mean",
        "Entropy",
        "mean −log p of the sampled tokens",
        "moderate",
        "to 0: raise `temperature`, `entropy_coef`; ease off",
        "policy",
        unit="nats a token",
        bad_band=(None, at.ENTROPY_NONE),
    ),
    Signal(
        "clipfrac",
        "Clipped tokens",
        "share of tokens whose gradient the clip took",
        "low",
        "near 1: steps too big. 0 is normal with one update a step",
        "policy",
        good_band=(0.0, at.CLIP_BIG / 2),
        bad_band=(at.CLIP_BIG, None),
    ),
    Signal(
        "ratio_mean",
        "Ratio of new to old",
        "how many times likelier the updates made the tokens they learnt from, on the mean",
        "near 1",
        "far from 1: lower `learning_rate`, fewer `num_iterations`",
        "policy",
        good_band=(1 - at.RATIO_BIG / 2, 1 + at.RATIO_BIG / 2),
        bad_band=(1 + at.RATIO_BIG, None),
    ),
    Signal(
        "step_kl",
        "KL of a step",
        "k3 between the policy that sampled and the one of the later updates of the same step; null with one update",
        f"under {at.STEP_KL_BIG / 2:g}",
        f"past {at.STEP_KL_BIG:g}: lower `learning_rate` or `epsilon`, fewer `num_iterations`",
        "policy",
        unit="nats a token",
        good_band=(0.0, at.STEP_KL_BIG / 2),
        bad_band=(at.STEP_KL_BIG, None),
    ),
    Signal(
        "mismatch_kl",
        "Sampler against learner",
        "k3 between sampler and learner before the first update",
        "under 1e-3",
        "the sampler does not have the learner's weights or numerics: one model, one precision (`dtype`, `sampler`)",
        "policy",
        good_band=(0.0, 1e-3),
        bad_band=(at.MISMATCH_KL, None),
        log=True,
    ),
    Signal(
        "mismatch_ratio_std",
        "Sampler against learner, by token",
        "how far the ratio of the two strays from 1",
        "under 0.1",
        "the same; `importance_sampling` weighs what is left",
        "policy",
        good_band=(0.0, at.MISMATCH_RATIO / 2),
        bad_band=(at.MISMATCH_RATIO, None),
        log=True,
    ),
    Signal(
        "informative",
        "Groups that teach",
        "share of groups with any spread, and why the others have none: all right, all wrong",
        "well above 0",
        "to 0: harder or easier prompts, larger `num_generations`, longer warm-up",
        "groups",
        also=("all_right", "all_wrong"),
        good_band=(0.3, 1.0),
        bad_band=(None, 1 - at.DEAD),
    ),
    Signal(
        "group_diversity",
        "Distinct answers",
        "distinct answers / G",
        "holds, or falls as answers come to be right",
        "falls and success does not rise: raise `temperature`",
        "groups",
    ),
    Signal(
        "adv_std",
        "Advantages",
        "spread and mean of the advantages",
        "mean 0, spread steady",
        f"spread to 0: rewards too flat, raise `num_generations`; past {at.ADV_HUGE:g}: too noisy, more answers a step",
        "groups",
        also=("adv_mean",),
        bad_band=(at.ADV_HUGE, None),
    ),
    Signal(
        "len_mean",
        "Length",
        "tokens of an answer, and of its thinking part",
        "steady or earned",
        "longer for the same reward: penalise length (`overlong`), gate on correctness",
        "length",
        also=("reasoning_tokens_mean",),
        unit="tokens",
    ),
    Signal(
        "truncated",
        "Cut answers",
        "share of answers cut at the limit",
        "near 0",
        f"past {at.TRUNCATED}: raise `max_completion_length`",
        "length",
        good_band=(0.0, at.TRUNCATED / 5),
        bad_band=(at.TRUNCATED, None),
    ),
    Signal(
        "grad_norm",
        "Gradient norm",
        "length of the gradient before it is clipped",
        "steady",
        f"grows {at.GRAD_GROWN:g} times: lower `learning_rate`",
        "optimizer",
        log=True,
    ),
    Signal(
        "loss",
        "Loss",
        "what is minimised; it is near 0 by construction and does not measure learning",
        "finite",
        "look at the reward instead",
        "optimizer",
    ),
    Signal(
        "lr",
        "Learning rate",
        "the rate of the step",
        "as the recipe says",
        "halved by the guard: KL passed `kl_limit`",
        "optimizer",
    ),
    Signal(
        "beta",
        "Weight of KL",
        "the coefficient of the KL term",
        "as the recipe says",
        "doubled by the guard, or adaptive: KL is past its target",
        "optimizer",
    ),
    Signal(
        "skipped_updates",
        "Skipped updates",
        "updates skipped because their gradient was not finite",
        "0",
        "three in a row halt the run: lower `learning_rate`, check `dtype`",
        "optimizer",
        bad_band=(1.0, None),
    ),
    Signal(
        "tokens_per_s",
        "Speed",
        "sampled tokens a second of the whole step",
        "steady",
        "falls: answers grow longer, or something else takes the machine",
        "machine",
        unit="tokens/s",
    ),
    Signal(
        "tokens",
        "Tokens",
        "sampled tokens of the step",
        "steady or earned",
        "grows: see length",
        "machine",
        unit="tokens",
    ),
    Signal(
        "memory",
        "Memory",
        "bytes in use at most so far: by tensors on a GPU, else by the process",
        "steady",
        "near what there is: smaller `tokens_per_micro_batch`, `gradient_checkpointing`, `use_peft`",
        "machine",
        unit="bytes",
    ),
    Signal(
        "time/*",
        "Time of a step",
        "seconds by phase (`time/grade` is within `time/rollout`; `time/save` is the checkpoint before the step)",
        "steady",
        "grading takes long: a quicker reward; rollout: shorter answers (`max_completion_length`), more rows at once",
        "machine",
        unit="s",
    ),
)


def as_table() -> str:
    """For docs/runs.md."""
    lines = ["| signal | meaning | good | bad, and what to do |", "| --- | --- | --- | --- |"]
    for signal in CATALOGUE:
        names = ", ".join(f"`{name.replace('/*', '/NAME')}`" for name in signal.names)
        lines.append(f"| {names} | {signal.what} | {signal.good} | {signal.bad} |")
    return "\n".join(lines) + "\n"
