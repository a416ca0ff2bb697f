"""The playbook: for each code its rule, its cause and what to do. docs/playbook.md is generated from it."""

from __future__ import annotations

from dataclasses import dataclass

from outdo.metrics import limits as at


@dataclass(frozen=True)
class Entry:
    """One rule in words. `when` follows "If", `do` follows "then"."""

    what: str  # one sentence
    when: str
    why: str
    do: str
    keys: str = ""  # of the recipe
    answers: str = ""  # the signal that should respond


PLAYBOOK: dict[str, Entry] = {
    "reward_hacking": Entry(
        "The reward rises but the true signal does not: the model exploits the reward.",
        f"`reward_mean` rises by more than {at.REWARD_RISE} and the true signal (`audit_reward_mean`, else "
        f"`success_rate`, else held-out success) gains less than {at.TRUTH_FOLLOWS:.0%} of that, over the run or its "
        f"later half; penalties that the model learned to avoid do not count as a rise, unless the true signal falls "
        f"by {at.SUCCESS_DROP} or more meanwhile",
        "GRPO finds the cheapest way to the reward. Here that way does not solve the task.",
        "change the reward, not the learning rate: pay the other parts only where the answer is right "
        "(`reward_gate`), or train on the strict reward; read the answers that gained most",
        "`reward_gate`, `reward_funcs`",
        "the true signal rises",
    ),
    "kl_blowup": Entry(
        "The policy diverges from the model it started from.",
        f"`kl_mean` exceeds {at.KL_LIMIT} in most of the last {at.KL_STEPS} steps or the last twentieth of the run; "
        "a note where `kl_limit` is null and success rises",
        "The learning rate is too high, or the KL term too weak. Far from its start the policy loses what it could do.",
        f"lower `learning_rate` to a quarter or a tenth where it took fewer than {at.KL_FAST_STEPS} steps, else raise "
        "`beta`",
        "`learning_rate`, `beta`",
        "`kl_mean` falls",
    ),
    "not_finite": Entry(
        "Training metrics are NaN or infinite.",
        f"`loss`, `grad_norm`, `kl_mean`, `entropy_mean` or `reward_mean` is NaN or infinite in the last step, or in "
        f"more than {at.NON_FINITE:.0%} of the steps",
        "Weights that become NaN stay NaN: every later step is lost, even if its reward looks healthy.",
        "resume from an earlier checkpoint, with `learning_rate` at a quarter and gradient clipping "
        "(`max_grad_norm`); use bfloat16 instead of float16. Where only the reward is affected, fix the grader",
        "`learning_rate`, `max_grad_norm`, `dtype`",
        "the signal is finite again",
    ),
    "entropy_collapse": Entry(
        "Entropy is near zero before the task is solved.",
        f"`entropy_mean` is below {at.ENTROPY_FRACTION:.0%} of its start, success is below {at.SOLVED} and no longer "
        "rises",
        "Without exploration all answers of a group are the same, and nothing more is learned.",
        "raise `temperature`, do not let it decay (`temperature_end`), or add an entropy bonus (`entropy_coef`); "
        "resume from before the onset",
        "`temperature`, `temperature_end`, `entropy_coef`",
        "`entropy_mean` rises",
    ),
    "mode_collapse": Entry(
        "The answers of a group are copies of each other, and they are not right.",
        f"`group_diversity` is below {at.DIVERSITY_LOW} and below {at.DIVERSITY_FRACTION:.0%} of its start, success is "
        f"below {at.SOLVED}, no longer rises, and has gained less than `group_diversity` has lost",
        "Identical answers get the same reward, so their advantages are 0.",
        "raise `temperature`, or do not let it decay (`temperature_end`), or add the reward `duplicates`, a penalty "
        "for copies; a larger `num_generations` helps little, because copies stay copies",
        "`temperature`, `temperature_end`, `reward_funcs`",
        "`group_diversity` rises",
    ),
    "thinking_tax": Entry(
        "Answers get longer but not better.",
        f"`len_mean` grows {at.LENGTH_GROWN} times or more while success gains less than {at.SUCCESS_GAIN}",
        "The reward pays for length, or length costs nothing. Sampling takes longer for the same result.",
        "penalise length, and gate rewards that rise with length on correctness",
        "`reward_gate`, `reward_funcs`",
        "`len_mean` falls",
    ),
    "overfit": Entry(
        "The model memorizes the training prompts.",
        f"training success gains {at.OVERFIT_GAP} more than held-out success, or held-out success falls "
        f"{at.SUCCESS_DROP} below its best, while training success does not fall; both beyond the error, and where "
        "there are many evaluations by the means of several; not checked during the easier part of a curriculum",
        "There are too few prompts for so many steps.",
        "train on more prompts, raise `beta`, or stop where held-out success was best (not where that is the start)",
        "`task_args`, `beta`, `max_steps`",
        "held-out success rises",
    ),
    "dead_all_wrong": Entry(
        "All answers of every group are wrong, so there is no learning signal.",
        f"`all_wrong` is {at.NO_SPREAD} or more",
        "The task is too hard for the model: advantages are 0, and so is the gradient.",
        "use an SFT warm-up (`sft_steps`), an easier start (`curriculum_args`), or a reward for partial progress; "
        "where the model is sometimes right, a larger `num_generations`",
        "`sft_steps`, `num_generations`, `curriculum_args`",
        "`informative` rises",
    ),
    "dead_all_right": Entry(
        "From the start, all answers of every group are right or get the same reward: there is nothing to learn.",
        f"`all_right` is {at.NO_SPREAD} or more, or `informative` {1 - at.NO_SPREAD:.1f} or less and `reward_mean` "
        f"{at.FULL_REWARD} or more; and {at.NO_SPREAD_AT_START:.0%} of the groups were so in the first steps",
        "The prompts are too easy, or the reward also pays for wrong answers. A run that learned to get there is done, "
        "and is not reported.",
        "use harder prompts, or replace groups without spread (`dynamic_sampling`); where success is low, use a "
        "reward that tells right from wrong (`reward_gate`)",
        "`task_args`, `dynamic_sampling`, `reward_gate`",
        "`informative` rises",
    ),
    "noisy_advantage": Entry(
        "The mean reward of a step is mostly noise, and so is the gradient.",
        f"nothing is gained over {at.STALL_STEPS} steps or more, and the noise of a step's mean reward exceeds "
        f"{at.REWARD_NOISE} of the spread of single rewards, or `adv_std` exceeds {at.ADV_STD_HIGH}",
        "With few answers per step, the advantage of an answer depends on the luck of its siblings.",
        "raise `num_generations`, or use more prompts per step (`per_device_train_batch_size`)",
        "`num_generations`, `per_device_train_batch_size`",
        "`reward_mean` rises",
    ),
    "inconsistent_grader": Entry(
        "The same answer to the same prompt gets different verdicts.",
        f"more than {at.DISAGREEMENT:.0%} of the answers that were given more than once have different verdicts, or "
        "different rewards within one group",
        "A random verdict is noise in the reward, and the model learns noise.",
        "fix the grader (`outdo audit` shows it); until then a larger `num_generations` averages it out",
        "`num_generations`, `reward_funcs`",
        "`reward_mean` rises",
    ),
    "grader_drift": Entry(
        "The grader changed its standard while the run went on.",
        f"early answers are graded again every `regrade_steps` steps, and more than {at.DRIFT:.0%} of them get another "
        "grade than they got then (`grader_drift`)",
        "The policy follows whatever is paid now, so rewards before and after are not comparable.",
        "pin the grader (its version, its prompt, its model), and resume from before the onset; or train on the task's "
        "own verifier",
        "`reward_funcs`, `regrade_steps`",
        "held-out success rises",
    ),
    "out_of_memory": Entry(
        "The run ended because memory ran out.",
        "the run stopped or failed, and its reason is a failed allocation",
        "Activations grow with the tokens of one micro-batch, the cache with the answers that are decoded at once. On "
        "a GPU the learner first splits a micro-batch that does not fit, down to a single answer.",
        "use smaller micro-batches (`tokens_per_micro_batch`: the gradient stays the same), or recompute activations "
        "(`gradient_checkpointing`); while sampling, decode fewer answers at once (`rollout_rows`); else use shorter "
        "answers (`max_completion_length`) or an adapter (`use_peft`)",
        "`tokens_per_micro_batch`, `gradient_checkpointing`, `rollout_rows`, `max_completion_length`",
        "the run passes the step at which it ended, with less `memory`",
    ),
    "broken_grader": Entry(
        "Answers cannot be graded.",
        f"`grader_broken` exceeds {at.BROKEN}",
        "A grader that fails or times out gives no reward, and the answers it drops are not a random sample.",
        "read `reason` in groups/; give slow graders more time (`reward_timeout`), fix the others",
        "`reward_timeout`, `reward_funcs`",
        "`grader_broken` falls",
    ),
    "broken_environment": Entry(
        "Environments or agents fail, so that their answers cannot be judged.",
        f"`env_broken` exceeds {at.BROKEN}",
        "What raises an exception or takes longer than a minute gives no reward, and the answers that are lost are not "
        "a random sample.",
        "read `reason` in groups/, and fix the environment: what is the model's mistake is a message to the model, not "
        "an exception (a method that is a tool may raise one)",
        "`environment_factory`, `agent`",
        "`env_broken` falls",
    ),
    "failing_calls": Entry(
        "Most calls of tools are answered with an error message.",
        f"`tool_calls_failed` exceeds {at.CALLS_FAILED} and does not fall (in the first {at.TREND_STEPS} steps: "
        f"exceeds {at.CALLS_FAILED_CRITICAL}), and success is below {at.SOLVED}",
        "Where no answer of a group has a call that works, calls are learned to be left out, not to be made well. The "
        "kind says who is at fault: `malformed`, `unknown` and `arguments` are the model's, `raised` is the tool's or "
        "what it was asked, `timeout` the tool's.",
        "show calls in demonstrations (`sft_steps`); of calls that cannot be parsed leave `tool_format` on auto; of "
        "those that take too long raise `tool_timeout`; of a tool that raises, read the errors in groups/ and fix it, "
        "or say in its docstring what it takes",
        "`sft_steps`, `tool_format`, `tool_timeout`",
        "`tool_calls_failed` falls",
    ),
    "unused_tools": Entry(
        "No answer calls a tool.",
        f"in {at.TREND_STEPS} steps or more, at most {at.UNUSED:.1%} of the answers called one, success is below "
        f"{at.SOLVED} and has not risen",
        "GRPO strengthens what is sampled: what is never sampled stays so.",
        "show calls in demonstrations (`sft_steps`), say in the prompt when to call; look at groups/ for calls in "
        "another format (`tool_format`), and give answers room for them (`max_completion_length`)",
        "`sft_steps`, `tool_format`, `max_completion_length`",
        "`tool_users` rises",
    ),
    "abandoned_tools": Entry(
        "The policy no longer calls its tools, and success suffered.",
        f"the share of answers with calls (`tool_users`) falls from {at.IN_USE} or more to a fifth of that or less, "
        f"and success with it by {at.SUCCESS_DROP} or more; or most calls had failed, and success no longer rises; and "
        f"it is below {at.SOLVED}",
        "Calls cost tokens, and may fail. Where answers with calls were paid less than their siblings "
        "(`tool_advantage`), calls were unlearned.",
        "resume from before the onset with more room (`max_completion_length`) where answers were truncated, else with "
        "calls in demonstrations (`sft_steps`); do not pay for short answers before they are right (`reward_gate`)",
        "`sft_steps`, `max_completion_length`, `reward_gate`",
        "`tool_users` rises",
    ),
    "call_loops": Entry(
        "Answers do the same again and again until they are cut off.",
        f"in more than {at.LOOPING:.0%} of the answers (`looping`), not falling, a limit of turns or tokens is "
        "reached, and half of the calls or more, or of the turns without one, repeat an earlier one and its reply; "
        f"success is below {at.SOLVED}. An environment that answers every move alike looks the same",
        "A copy of a call is likely after the call, and more so after each copy.",
        "let loops count (`mask_truncated_completions: false`), sample at a higher `temperature`, show demonstrations "
        "that end (`sft_steps`); let the tool say that it was asked before",
        "`mask_truncated_completions`, `temperature`, `sft_steps`",
        "`looping` falls",
    ),
    "out_of_turns": Entry(
        "Answers are ended by the limit of turns.",
        f"`out_of_turns` exceeds {at.OUT_OF_TURNS}, does not fall, and success is below {at.SOLVED}",
        "An answer that is ended before its last turn is judged by what it has, which is often nothing.",
        "raise `max_turns` or `max_tool_calling_iterations`, whichever is reached first, and with it "
        "`max_completion_length`",
        "`max_turns`, `max_tool_calling_iterations`",
        "`out_of_turns` falls",
    ),
    "given_away": Entry(
        "A tool gives the answer away.",
        f"in more than {at.GIVEN_AWAY:.0%} of the right answers (`given_away`) a tool returned the gold, and nothing "
        "else, to a call that in answers to other prompts got their gold. A tool that knows nothing of the prompt "
        "cannot do that",
        "The model learns to ask for the answer. A last result that is copied is fine, as of a calculator: there the "
        "call holds the work.",
        "return what the answer is to be found from, not the answer; where the task is to look it up, ignore this. Not "
        "seen: an answer within a longer result, or one that is looked up by the problem's number",
        "`tools`, `environment_factory`",
        "`given_away` falls",
    ),
    "slow_environment": Entry(
        "For most of a step nothing is sampled, because every answer waits for its tools or its environment.",
        f"`time/wait` is more than {at.WAITED:.0%} of `time/step`, and {at.WAIT_SECONDS:g} s or more",
        "Waits of many answers overlap, but a step ends with its slowest answer.",
        "lower `tool_timeout` where few calls take much longer than most; else sample more answers per step "
        "(`per_device_train_batch_size`), or make the tool faster",
        "`tool_timeout`, `per_device_train_batch_size`",
        "`time/wait` falls",
    ),
    "steps_too_small": Entry(
        "The policy does not move.",
        f"after {at.STALL_STEPS} steps or more nothing is gained, entropy and length are within {at.UNMOVED:.0%} of "
        f"their start, and `kl_mean` is below {at.KL_UNMOVED:g}",
        "The groups have spread, so there is a learning signal: the learning rate is too low.",
        "raise `learning_rate` ten times",
        "`learning_rate`",
        "`kl_mean` and `reward_mean` rise",
    ),
    "steps_too_big": Entry(
        "Single updates are too large.",
        f"`clipfrac` exceeds {at.CLIP_HIGH}, or `step_kl` {at.STEP_KL_HIGH}, or `ratio_mean` differs from 1 by more "
        f"than {at.RATIO_OFF}, or updates are skipped, or success falls below {at.COLLAPSE:.0%} of its best, or the "
        f"first few updates take it below {at.LOST:.0%} of what it was before training, for good",
        "Advantages are only valid near the policy that sampled the answers.",
        "restore clipping (`epsilon` 0.2), lower `learning_rate` to a fifth (to a thirtieth where the first updates "
        "did it), or use fewer `num_iterations`",
        "`epsilon`, `learning_rate`, `num_iterations`",
        "`step_kl`, `clipfrac` or `ratio_mean` falls; success rises",
    ),
    "truncation": Entry(
        "Answers are truncated at the length limit.",
        f"`truncated` exceeds {at.TRUNCATED}",
        "A truncated answer is wrong whatever it was about to say, so the model learns to be brief, not right.",
        "raise `max_completion_length`, or mask truncated answers (`mask_truncated_completions`)",
        "`max_completion_length`",
        "`truncated` falls",
    ),
    "sampler_mismatch": Entry(
        "Sampler and learner disagree on the log-probabilities of the answers.",
        f"`mismatch_kl` exceeds {at.MISMATCH_KL:g}, or `mismatch_ratio_std` {at.MISMATCH_RATIO}",
        "The sampler has other weights or other numerics, so the ratio is wrong before the first update.",
        "use one model and one precision for both; `importance_sampling` corrects the remaining difference",
        "`dtype`, `sampler`",
        "`mismatch_kl` falls",
    ),
    "no_signal": Entry(
        "Hardly any group has spread, though the task is not solved: there is almost nothing to learn from.",
        f"`informative` is {1 - at.NO_SPREAD:.1f} or less, or `adv_std` {at.ADV_STD_LOW} or less or a tenth of its "
        f"start, and success is below {at.SOLVED}",
        "An answer is compared with the others of its group. Where all get the same reward, every advantage is 0.",
        "sample at a higher `temperature` (near 0 all answers are the same), use a larger `num_generations`, replace "
        "groups without spread (`dynamic_sampling`), mix harder or easier prompts, or use a reward with more levels",
        "`temperature`, `num_generations`, `dynamic_sampling`",
        "`informative` rises",
    ),
    "unstable": Entry(
        "Success or the reward swings up and down, far beyond the noise of a step.",
        f"it turns more than {at.SWINGS} times by {at.SWING} or more (a reward that is not from 0 to 1: by "
        f"{2 * at.SWING:.0%} of its level) and further than noise alone would, or it repeats itself every few "
        "steps, up to the end of the run",
        "Each update overshoots, and the next ones undo it: the learning rate is too high for the noise of a step.",
        "lower `learning_rate` to a third, or use more prompts per step (`per_device_train_batch_size`); a fixed order "
        "of prompts that repeats looks the same: shuffle them",
        "`learning_rate`, `per_device_train_batch_size`",
        "the swings get smaller",
    ),
    "ood_loss": Entry(
        "Held-out success holds or rises, but it falls on another distribution.",
        f"success on a second held-out set falls by {at.SUCCESS_DROP} or more, beyond its error, and on the first it "
        "does not; the means of several evaluations are compared where there are many",
        "The model unlearns what the training prompts do not need.",
        "raise `beta`, mix prompts of the other distribution into the training prompts (`dataset_mixture`), or stop "
        "earlier",
        "`beta`, `dataset_mixture`, `max_steps`",
        "success on the other set holds",
    ),
    "entropy_falling": Entry(
        "A note: entropy is nearly gone while success still rises.",
        f"`entropy_mean` is below {at.ENTROPY_FRACTION:.0%} of its start and success, below {at.SOLVED}, still rises",
        "Learning may stop soon, because answers become the same. It is no failure yet: the run counts as healthy.",
        "continue; if success stops to rise, raise `temperature` or add an entropy bonus (`entropy_coef`)",
    ),
    "unneeded_tools": Entry(
        "A note: no answer calls a tool, and success does not suffer.",
        f"no call was ever made, or calls fell from {at.IN_USE} or more of the answers to a fifth of that or less, and "
        "neither `unused_tools` nor `abandoned_tools` holds",
        "The policy does as well without, or the tool does not help. It is no failure: the run counts as healthy.",
        "train without the tool, or with prompts that need it",
    ),
    "too_little_data": Entry(
        "Too little was logged to judge the run.",
        "no rule finds a failure, and the reward or success was not logged, or no signal of the policy (KL, entropy, "
        "clipping, gradients, advantages)",
        "A failure that is not logged cannot be seen: that is no evidence of health.",
        "log the missing signals, or give the file that has them",
    ),
    "healthy": Entry(
        "The curves show no failure.",
        "none of the above holds; rules whose signals were not logged are listed as not judged",
        "Curves cannot show everything: read answers too.",
        "continue",
    ),
    "too_early": Entry(
        "There are too few steps for a diagnosis.",
        f"there are fewer than {at.TREND_STEPS} steps and no obvious failure",
        "A trend over a few noisy steps is mostly noise.",
        "run the doctor again later",
    ),
}

HEAD = """# The playbook

The rules of `outdo doctor`, generated from the code (`make docs`). How to run it is in [doctor.md](doctor.md).
"""


def page() -> str:
    """docs/playbook.md."""
    lines = [HEAD]
    for code, entry in PLAYBOOK.items():
        lines += [f"## {code}", "", entry.what, "", f"**If** {entry.when}, **then** {entry.do}.", "", entry.why, ""]
        if entry.keys:
            lines += [f"Keys: {entry.keys}. Expect: {entry.answers}.", ""]
    return "\n".join(lines).rstrip() + "\n"
