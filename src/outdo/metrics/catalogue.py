"""Every metric of a run: what it means, what good looks like, what to do when it is bad.

The charts of the dashboard and of the report and the table in docs/runs.md are generated from it. Bands use the
doctor's thresholds (limits.py); a signal without an absolute threshold has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outdo.metrics import limits as at

Section = Literal["reward", "policy", "groups", "length", "turns", "machine", "optimizer"]
Band = tuple[float | None, float | None]  # None: unbounded on that side


@dataclass(frozen=True)
class Signal:
    """One chart. A name that ends in /* stands for every signal with that prefix."""

    name: str
    title: str
    what: str  # its meaning, in one line
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
        "mean and spread of the raw reward over a step's answers; and the mean of the untrained `audit_reward`",
        "rises, then flat; the audit reward follows",
        "rises while held-out success or the audit reward does not: reward hacking, tighten the grader",
        "reward",
        also=("reward_std", "audit_reward_mean"),
    ),
    Signal(
        "success_rate",
        "Success",
        "share of answers that are right by the verifier",
        "follows the reward",
        "reward up, success flat: reward hacking; change the reward, not the learning rate",
        "reward",
    ),
    Signal(
        "reward/*",
        "Reward by part",
        "mean of each reward function, before its weight",
        "the part that counts rises",
        "only an easy part rises: gate it (`reward_gate`), or remove it",
        "reward",
    ),
    Signal(
        "grader_broken",
        "Broken grades",
        "share of answers that could not be graded",
        "0",
        "read `reason` in `groups/`; give slow graders more time (`reward_timeout`), fix the others",
        "reward",
        bad_band=(at.BROKEN, None),
    ),
    Signal(
        "grader_disagreement",
        "Grader disagreement",
        "of the answers that a group has more than once, the share with different verdicts; null if there are none",
        "0",
        "fix the grader",
        "reward",
        bad_band=(at.DISAGREEMENT, None),
    ),
    Signal(
        "grader_drift",
        "Grader drift",
        "of some early answers, the share that your own rewards grade differently now; every `regrade_steps` steps",
        "0",
        "the grader changed its standard: pin its version, resume from before",
        "reward",
        bad_band=(at.DRIFT, None),
    ),
    Signal(
        "kl_mean",
        "KL to the start",
        "KL to the starting model, per token; null where it is not measured (`kl_steps`)",
        "small, grows slowly, under 0.05",
        f"past {at.KL_LIMIT}: raise `beta`, lower `learning_rate`, fewer `num_iterations`",
        "policy",
        unit="nats per token",
        good_band=(0.0, at.KL_LIMIT / 2),
        bad_band=(at.KL_LIMIT, None),
    ),
    Signal(
        "entropy_mean",
        "Entropy",
        "mean −log p of the sampled tokens",
        "moderate",
        "falls to 0: raise `temperature` or `entropy_coef`, lower `learning_rate`",
        "policy",
        unit="nats per token",
        bad_band=(None, at.ENTROPY_ZERO),
    ),
    Signal(
        "clipfrac",
        "Clipped tokens",
        "share of tokens whose ratio was clipped, so that they have no gradient",
        "low",
        "near 1: updates too large. 0 is normal with one update per step",
        "policy",
        good_band=(0.0, at.CLIP_HIGH / 2),
        bad_band=(at.CLIP_HIGH, None),
    ),
    Signal(
        "ratio_mean",
        "Importance ratio",
        "mean ratio of the tokens' probabilities, new policy to old",
        "near 1",
        "far from 1: lower `learning_rate`, fewer `num_iterations`",
        "policy",
        good_band=(1 - at.RATIO_OFF / 2, 1 + at.RATIO_OFF / 2),
        bad_band=(1 + at.RATIO_OFF, None),
    ),
    Signal(
        "step_kl",
        "KL of a step",
        "KL (k3) between the policy that sampled and the one of later updates of the same step; null with one update",
        f"under {at.STEP_KL_HIGH / 2:g}",
        f"past {at.STEP_KL_HIGH:g}: lower `learning_rate` or `epsilon`, fewer `num_iterations`",
        "policy",
        unit="nats per token",
        good_band=(0.0, at.STEP_KL_HIGH / 2),
        bad_band=(at.STEP_KL_HIGH, None),
    ),
    Signal(
        "mismatch_kl",
        "Sampler mismatch",
        "KL (k3) between sampler and learner before the first update",
        "under 1e-3",
        "the sampler has other weights or numerics: use one model and one precision (`dtype`, `sampler`)",
        "policy",
        good_band=(0.0, 1e-3),
        bad_band=(at.MISMATCH_KL, None),
        log=True,
    ),
    Signal(
        "mismatch_ratio_std",
        "Sampler mismatch by token",
        "root mean square distance from 1 of the probability ratio, learner to sampler",
        "under 0.1",
        "the same; `importance_sampling` corrects the remaining difference",
        "policy",
        good_band=(0.0, at.MISMATCH_RATIO / 2),
        bad_band=(at.MISMATCH_RATIO, None),
        log=True,
    ),
    Signal(
        "informative",
        "Informative groups",
        "share of groups with spread; of those without: all right, all wrong",
        "well above 0",
        "falls to 0: use harder or easier prompts, larger `num_generations`, a longer SFT warm-up",
        "groups",
        also=("all_right", "all_wrong"),
        good_band=(0.3, 1.0),
        bad_band=(None, 1 - at.NO_SPREAD),
    ),
    Signal(
        "group_diversity",
        "Distinct answers",
        "distinct answers / group size",
        "steady, or falls as success rises",
        "falls while success does not rise: raise `temperature`",
        "groups",
    ),
    Signal(
        "adv_std",
        "Advantages",
        "spread and mean of the advantages",
        "mean 0, spread steady",
        f"spread falls to 0: flat rewards, raise `num_generations`; past {at.ADV_STD_HIGH:g}: more answers per step",
        "groups",
        also=("adv_mean",),
        bad_band=(at.ADV_STD_HIGH, None),
    ),
    Signal(
        "len_mean",
        "Length",
        "tokens per answer, and of its reasoning",
        "steady, or grows with success",
        "longer for the same reward: penalise length (`overlong`), gate on correctness",
        "length",
        also=("reasoning_tokens_mean",),
        unit="tokens",
    ),
    Signal(
        "truncated",
        "Truncated answers",
        "share of answers truncated at the length limit",
        "near 0",
        f"past {at.TRUNCATED}: raise `max_completion_length`",
        "length",
        good_band=(0.0, at.TRUNCATED / 5),
        bad_band=(at.TRUNCATED, None),
    ),
    Signal(
        "grad_norm",
        "Gradient norm",
        "norm of the gradient before clipping",
        "steady",
        f"grows {at.GRAD_GROWN:g} times: lower `learning_rate`",
        "optimizer",
        log=True,
    ),
    Signal(
        "loss",
        "Loss",
        "the objective; near 0 by construction, so it does not measure progress",
        "finite",
        "look at the reward instead",
        "optimizer",
    ),
    Signal(
        "lr",
        "Learning rate",
        "learning rate of the step",
        "as in the recipe",
        "halved by the KL guard: KL exceeded `kl_limit`",
        "optimizer",
    ),
    Signal(
        "beta",
        "KL coefficient",
        "coefficient of the KL term",
        "as in the recipe",
        "doubled by the KL guard, or adaptive: KL exceeds its target",
        "optimizer",
    ),
    Signal(
        "skipped_updates",
        "Skipped updates",
        "updates skipped because their gradient was NaN or infinite",
        "0",
        "three in a row halt the run: lower `learning_rate`, check `dtype`",
        "optimizer",
        bad_band=(1.0, None),
    ),
    Signal(
        "turns_mean",
        "Turns",
        "of answers of several turns: turns of the model, and calls of tools, for each answer",
        "as many as the problem needs",
        "calls fall to 0: the tool does not help, or calls fail",
        "turns",
        also=("tool_calls_mean",),
    ),
    Signal(
        "tool_users",
        "Tool use",
        "of answers that are shown tools, the share that calls one",
        "rises with success",
        "never called: show calls in demonstrations (`sft_steps`)",
        "turns",
    ),
    Signal(
        "tool_calls_failed",
        "Failed calls",
        "share of calls that were answered with an error message; null for an agent, which runs its tools itself",
        "falls to 0",
        f"past {at.CALLS_FAILED}: see which kind; demonstrations (`sft_steps`) show how to call",
        "turns",
        bad_band=(at.CALLS_FAILED, None),
    ),
    Signal(
        "tool_calls_failed/*",
        "Failed calls by kind",
        "`malformed`: cannot be parsed; `unknown`: no such tool; `arguments` do not fit; `raised` by the tool; "
        "`timeout`; `too_many` in one turn",
        "fall to 0",
        "look at the calls in groups/; `timeout`: raise `tool_timeout`; `raised`: fix the tool, or what it is told",
        "turns",
    ),
    Signal(
        "tool_advantage",
        "Gain of tool use",
        "how much more answers with calls are paid than those of the same group without; null where no group has both",
        "above 0",
        "below 0: calls fail, or their results are not used; the policy will give the tools up",
        "turns",
    ),
    Signal(
        "out_of_turns",
        "Out of turns",
        "share of answers ended by `max_turns` or `max_tool_calling_iterations`; of those that did the same again and "
        "again until they were cut off; and of calls, or turns without one, that repeat an earlier one and its reply",
        "near 0",
        f"past {at.OUT_OF_TURNS}: raise `max_turns`; looping: see the turns in groups/",
        "turns",
        also=("looping", "repeats"),
        bad_band=(at.OUT_OF_TURNS, None),
    ),
    Signal(
        "copied",
        "Copied answers",
        "of answers with calls, the share whose text is mostly a tool's result; and of right answers, that in which a "
        "tool returned the gold to a call that says nothing of the problem",
        "the first may be high, as with a calculator; the second near 0",
        f"given_away past {at.GIVEN_AWAY}: the tool gives the answer away",
        "turns",
        also=("given_away",),
    ),
    Signal(
        "env_broken",
        "Broken environments",
        "share of answers whose environment, or agent, raised an exception or took too long",
        "0",
        "read `reason` in `groups/`, and fix the environment",
        "turns",
        bad_band=(at.BROKEN, None),
    ),
    Signal(
        "env_tokens_mean",
        "Environment tokens",
        "tokens that tools and environments add to an answer: context, without a gradient",
        "steady",
        "grows: results are long; shorten them, or `max_completion_length` leaves no room for the model",
        "turns",
        unit="tokens",
    ),
    Signal(
        "env_wait_mean",
        "Environment wait",
        "seconds that an answer waits for its tools and its environment",
        "any, while `time/wait` is small: waits of many answers overlap",
        "grows: a tool is slow, or its server is; see `tool_timeout`",
        "turns",
        unit="s",
    ),
    Signal(
        "tokens_per_s",
        "Speed",
        "sampled tokens per second, over the whole step",
        "steady",
        "falls: answers grow longer, or another process uses the machine",
        "machine",
        unit="tokens/s",
    ),
    Signal(
        "tokens",
        "Tokens",
        "sampled tokens of the step; and tokens that updates were computed from, counted once per pass",
        "steady, or grows with success",
        "grows: see length",
        "machine",
        also=("trained_tokens",),
        unit="tokens",
    ),
    Signal(
        "memory",
        "Memory",
        "peak memory so far: of tensors on a GPU, else of the process",
        "steady",
        "near the limit: use smaller `tokens_per_micro_batch`, `gradient_checkpointing`, `use_peft`",
        "machine",
        unit="bytes",
    ),
    Signal(
        "time/*",
        "Time per step",
        "seconds by phase (`time/rollout` includes `time/grade`, and `time/wait`, in which every answer waited for its "
        "environment; `time/save` is the checkpoint before the step)",
        "steady",
        "slow grading: use a faster reward; slow rollout: shorter answers (`max_completion_length`), larger batches",
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
