"""The playbook: for each code, when it is said, why it happens, what to do. The page in docs/ is written from this."""

from __future__ import annotations

from dataclasses import dataclass

from outdo.doctor import limits as at


@dataclass(frozen=True)
class Entry:
    """One rule in words. `when` follows "If", `do` follows "then"."""

    what: str  # a sentence for the one who reads it for the first time
    when: str
    why: str
    do: str
    keys: str  # of the recipe
    answers: str  # the signal that should answer


PLAYBOOK: dict[str, Entry] = {
    "reward_hacking": Entry(
        "The reward rises and the truth does not: the model has found what pays instead of what is right.",
        f"`reward_mean` rises by more than {at.REWARD_UP} and the truth (`audit_reward_mean`, else `success_rate`, "
        f"else held-out success) gains less than {at.FOLLOWS:.0%} of that, over the run or its later half; penalties "
        f"that came to be avoided are no gain, unless the truth falls by {at.FELL} or more meanwhile",
        "A reward that can be had without the work is cheaper than the work, and GRPO finds the cheapest.",
        "change the reward, not the learning rate: pay the other parts only where the answer is right "
        "(`reward_gate`), or train on the strict reward; read the answers that gained most",
        "`reward_gate`, `reward_funcs`",
        "the truth rises",
    ),
    "kl_blowup": Entry(
        "The policy runs away from where it started.",
        f"`kl_mean` is past {at.KL_LIMIT} in most of the last {at.KL_STEPS} steps or twentieth of the run",
        "The rate is too high, or nothing holds the policy back. Far from its start it forgets what it could do.",
        f"lower `learning_rate` to a quarter or a tenth where it took fewer than {at.KL_FAST} steps, else raise `beta`",
        "`learning_rate`, `beta`",
        "`kl_mean` falls",
    ),
    "not_finite": Entry(
        "Numbers of the training are none any more: NaN or infinite.",
        f"`loss`, `grad_norm`, `kl_mean`, `entropy_mean` or `reward_mean` is not a finite number in the last step, or "
        f"in more than {at.LOST:.0%} of the steps",
        "Weights that are not finite stay so: every step after that is lost, however healthy its reward looks.",
        "go on from a checkpoint of before, with `learning_rate` at a quarter and a bound on the gradient "
        "(`max_grad_norm`); in float16 take bfloat16. Where it is the reward alone, mend the grader",
        "`learning_rate`, `max_grad_norm`, `dtype`",
        "the signal is a number again",
    ),
    "entropy_collapse": Entry(
        "The model is sure of every token before it is right.",
        f"`entropy_mean` is under {at.ENTROPY_LEFT:.0%} of its start, success is under {at.SOLVED} and no longer rises",
        "Without other tries there is nothing to compare, so nothing more is learnt.",
        "raise `temperature`, or keep it up (`temperature_end`), or pay for entropy (`entropy_coef`); go on from "
        "before it began",
        "`temperature`, `temperature_end`, `entropy_coef`",
        "`entropy_mean` rises",
    ),
    "mode_collapse": Entry(
        "The answers of a group are copies of each other, and not because they are right.",
        f"`group_diversity` is under {at.DIVERSITY_LOW} and under {at.DIVERSITY_LEFT:.0%} of its start, success is "
        f"under {at.SOLVED}, no longer rises, and has gained less than `group_diversity` has lost",
        "Siblings that are alike get the same reward, and their advantages are 0.",
        "raise `temperature`, or keep it up (`temperature_end`); a larger `num_generations` helps little, because "
        "copies stay copies",
        "`temperature`, `temperature_end`",
        "`group_diversity` rises",
    ),
    "thinking_tax": Entry(
        "Answers get longer and not better.",
        f"`len_mean` grows {at.LONGER} times or more while success gains less than {at.EARNED}",
        "Length is paid, or costs nothing: each answer takes longer to sample, for the same result.",
        "penalise length, and pay what rises with it only where the answer is right",
        "`reward_gate`, `reward_funcs`",
        "`len_mean` falls",
    ),
    "overfit": Entry(
        "The training prompts are learnt by heart.",
        f"training success gains {at.GAP} more than held-out success, or held-out success falls {at.FELL} below its "
        "best, beyond its error, while training success does not fall; not asked while a curriculum is at its easier "
        "task",
        "There are too few prompts for so many steps: the answers are remembered, not found.",
        "train on more prompts, hold the policy closer to its start (`beta`), or stop where held-out success was best",
        "`task_args`, `beta`, `max_steps`",
        "held-out success rises",
    ),
    "dead_all_wrong": Entry(
        "Every group is all wrong, so nothing tells one answer from another.",
        f"`all_wrong` is {at.DEAD} or more",
        "The task is out of reach of the model as it is: advantages are 0, and so is the gradient.",
        "give it a foothold: a warm-up (`sft_steps`), an easier start (`curriculum_args`), a reward that pays for part "
        "of the way; where it is right now and then, a larger `num_generations`",
        "`sft_steps`, `num_generations`, `curriculum_args`",
        "`informative` rises",
    ),
    "dead_all_right": Entry(
        "Every group is all right, or all paid alike, from the start: there is nothing to learn here.",
        f"`all_right` is {at.DEAD} or more, or `informative` {1 - at.DEAD:.1f} or less and `reward_mean` {at.FULL} or "
        f"more; and {at.DEAD_FROM_START:.0%} of the groups were so in the first steps",
        "The prompts are too easy, or the reward pays what is not right as well. A run that learnt its way there is "
        "done, and is not called ill.",
        "take harder prompts, or replace groups without spread (`dynamic_sampling`); where success is low, take a "
        "reward that tells right from wrong (`reward_gate`)",
        "`task_args`, `dynamic_sampling`, `reward_gate`",
        "`informative` rises",
    ),
    "noisy_advantage": Entry(
        "The reward of a step is mostly chance, and so is what is learnt from it.",
        f"nothing is gained over {at.LONG} steps or more, and a step's mean reward jumps by more than {at.NOISY} of "
        f"the spread of single rewards, or `adv_std` is past {at.ADV_HUGE}",
        "With few answers a step, an answer's advantage depends on its siblings' luck.",
        "raise `num_generations`, or take more prompts a step (`per_device_train_batch_size`)",
        "`num_generations`, `per_device_train_batch_size`",
        "`reward_mean` rises",
    ),
    "inconsistent_grader": Entry(
        "The same answer to the same prompt is called right and wrong.",
        f"more than {at.DISAGREE:.0%} of the answers that were given more than once were judged both ways: right and "
        "wrong, or within one group paid differently",
        "A verdict that depends on luck teaches luck.",
        "fix the grader (`outdo audit` shows it); until then a larger `num_generations` averages it out",
        "`num_generations`, `reward_funcs`",
        "`reward_mean` rises",
    ),
    "broken_grader": Entry(
        "Answers cannot be judged.",
        f"`grader_broken` is past {at.BROKEN}",
        "A grader that fails or takes too long gives no reward; what it leaves out is not a random part.",
        "read `reason` in groups/; give slow graders more time (`reward_timeout`), mend the others",
        "`reward_timeout`, `reward_funcs`",
        "`grader_broken` falls",
    ),
    "steps_too_small": Entry(
        "The policy does not move.",
        f"after {at.LONG} steps or more nothing is gained, entropy and length are within {at.STILL:.0%} of their "
        f"start, and `kl_mean` is under {at.KL_STILL:g}",
        "The groups have spread, so there is something to learn: the rate is too low to learn it.",
        "raise `learning_rate` ten times",
        "`learning_rate`",
        "`kl_mean` and `reward_mean` rise",
    ),
    "steps_too_big": Entry(
        "Single updates go too far.",
        f"`clipfrac` is past {at.CLIP_BIG}, or `step_kl` past {at.STEP_KL_BIG}, or `ratio_mean` further than "
        f"{at.RATIO_BIG} from 1, or updates are skipped, or success falls to less than {at.COLLAPSED:.0%} of its best",
        "Far from the policy that sampled the answers, their advantages say nothing.",
        "clip again (`epsilon` 0.2), lower `learning_rate` to a fifth, or take fewer `num_iterations`",
        "`epsilon`, `learning_rate`, `num_iterations`",
        "`step_kl`, `clipfrac` or `ratio_mean` falls; success rises",
    ),
    "truncation": Entry(
        "Answers are cut off before they end.",
        f"`truncated` is past {at.TRUNCATED}",
        "An answer that is cut off is wrong whatever it would have said, and the model learns to be brief, not right.",
        "raise `max_completion_length`, or leave cut answers out (`mask_truncated_completions`)",
        "`max_completion_length`",
        "`truncated` falls",
    ),
    "sampler_mismatch": Entry(
        "The sampler and the learner disagree on how likely the answers were.",
        f"`mismatch_kl` is past {at.MISMATCH_KL:g}, or `mismatch_ratio_std` past {at.MISMATCH_RATIO}",
        "The sampler has other weights or other numerics: the ratio is wrong before the first update.",
        "let both share one model and one precision; `importance_sampling` weighs what is left",
        "`dtype`, `sampler`",
        "`mismatch_kl` falls",
    ),
    "healthy": Entry(
        "Nothing is wrong that the curves would show.",
        "none of the above is so",
        "Curves cannot show everything: look at answers too.",
        "go on",
        "",
        "",
    ),
    "too_early": Entry(
        "There is too little to say anything.",
        f"there are fewer than {at.ENOUGH} steps and nothing is plainly wrong",
        "A trend that is guessed from a few noisy steps is wrong as often as right.",
        "ask again later",
        "",
        "",
    ),
}

HEAD = """# The playbook

If this, then that: the rules of `outdo doctor`, written from the rules themselves (`make docs`). How to ask it is in
[doctor.md](doctor.md).
"""


def page() -> str:
    """docs/playbook.md."""
    lines = [HEAD]
    for code, entry in PLAYBOOK.items():
        lines += [f"## {code}", "", entry.what, "", f"**If** {entry.when}, **then** {entry.do}.", "", entry.why, ""]
        if entry.keys:
            lines += [f"Keys: {entry.keys}. Expect: {entry.answers}.", ""]
    return "\n".join(lines).rstrip() + "\n"
