"""All drills. To add one, add its entry here, and a function for what is new."""

from __future__ import annotations

from outdo.drills.acts import change_standard, fail_and_fix, wrong_weights
from outdo.drills.drill import Drill, Signal
from outdo.drills.limited import run_out_of_memory
from outdo.drills.regrade import no_longer_paid
from outdo.drills.tasks import CARRIES
from outdo.errors import RecipeError, did_you_mean

_OWN = "outdo.drills.rewards:"
_CARRIES = {"task_args": {"ops": "+", "between": list(CARRIES)}}  # learned fast, because every sum needs a carry
_UNTRUE = {"reward_weights": [0.0, 1.0], "per_device_train_batch_size": 64, "beta": 0.0}
_AGREE = {**_UNTRUE, "reward_funcs": ["numeric", _OWN + "consensus"]}
_COPY = {**_UNTRUE, "reward_funcs": ["numeric", _OWN + "copies"]}

_ALL = (
    Drill(
        "reward-hack",
        "a grader with the wrong comparison is exploited; gated by the strict one, reward follows success",
        {
            "reward_funcs": [_OWN + "at_least"],
            "per_device_train_batch_size": 64,
            "learning_rate": 1.5e-4,
            "beta": 0.02,
            "max_steps": 28,
        },
        "reward_hacking",
        (Signal("success_rate", "up", 0.15), Signal("reward_mean", "down")),
        fail_and_fix,
        refused=_OWN + "at_least",
        extra_check=no_longer_paid,
    ),
    Drill(
        "sparse",
        "the model is never right, so nothing is learned; after a warm-up with demonstrations it is, and learns",
        {
            "task_args": {"ops": "+", "between": [1000, 1099]},
            "max_completion_length": 48,
            "sft_learning_rate": 1e-3,
            "sft_batch_size": 16,
            "learning_rate": 1e-4,
            "beta": 0.01,
            "max_steps": 20,
        },
        "dead_all_wrong",
        (Signal("informative", "up", 0.2), Signal("success_rate", "up", 0.1)),
        fail_and_fix,
        fix={"sft_steps": 200},
    ),
    Drill(
        "kl-blowup",
        "the learning rate is too high and the KL term too weak; lowered, KL stays small",
        {"learning_rate": 2e-3, "warmup_steps": 20, "beta": 1e-6, "max_steps": 26},
        "kl_blowup",
        (Signal("kl_mean", "down", 0.5),),
        fail_and_fix,
        fix={"learning_rate": 2e-4},
    ),
    Drill(
        "entropy-collapse",
        "copies are rewarded instead of truth, until nothing else is sampled; with the truth, success rises",
        {**_COPY, "temperature": 0.5, "learning_rate": 7e-5, "max_steps": 46},
        "entropy_collapse",
        (Signal("entropy_mean", "up"),),
        fail_and_fix,
        fix={"reward_weights": [1.0, 0.0]},
    ),
    Drill(
        "mode-collapse",
        "agreement is rewarded instead of truth, and answers become the same; with the truth, success rises",
        {**_AGREE, "num_generations": 16, "learning_rate": 1.5e-4, "beta": 0.05, "max_steps": 30},
        "mode_collapse",
        (),
        fail_and_fix,
        fix={"reward_weights": [1.0, 0.0]},
    ),
    Drill(
        "thinking-tax",
        "length is rewarded, so answers grow but do not improve; gated on correctness, they stay short",
        dict(reward_funcs=[_OWN + "wordy"], max_completion_length=64, learning_rate=2e-4, beta=0.0, max_steps=30),
        "thinking_tax",
        (Signal("len_mean", "down", 5.0), Signal("success_rate", "up", 0.15)),
        fail_and_fix,
        refused=_OWN + "wordy",
        extra_check=no_longer_paid,
        fix={"reward_gate": "numeric"},
    ),
    Drill(
        "overfit",
        "six prompts are memorized, and held-out success falls behind; with ten times as many it follows",
        {
            "dataset_name": "outdo.drills.tasks:few_sums",
            "task_args": {"size": 6},
            "learning_rate": 1.5e-4,
            "beta": 0.0,
            "max_steps": 30,
            "eval_steps": 10,
        },
        "overfit",
        (),
        fail_and_fix,
    ),
    Drill(
        "noisy-grader",
        "a grader flips half of its verdicts; fixed, the same answer has one verdict, and more is learned",
        {
            "reward_funcs": ["numeric", _OWN + "moody"],
            "reward_weights": [0.0, 1.0],
            "learning_rate": 1e-4,
            "beta": 0.05,
            "max_steps": 30,
            "per_device_train_batch_size": 96,
            "eval_size": 400,
        },
        "inconsistent_grader",
        (Signal("grader_disagreement", "down"), Signal("eval_success_rate", "up", 0.1)),
        fail_and_fix,
        fix={"reward_weights": [1.0, 0.0]},
        refused=_OWN + "moody",
    ),
    Drill(
        "no-clip",
        "the ratio is not clipped, so the updates of a step are too large; clipped, success rises",
        {
            "epsilon": 10.0,
            "num_iterations": 16,
            "learning_rate": 1.2e-4,
            "beta": 0.0,
            "max_steps": 20,
            "per_device_train_batch_size": 96,
        },
        "steps_too_big",
        (),
        fail_and_fix,
        fix={"epsilon": 0.2},
    ),
    Drill(
        "ood-loss",
        "only sums that are 100 are trained, and then every sum is said to be; with all sums, both are learned",
        {
            "dataset_name": "outdo.drills.tasks:narrow_sums",
            "task_args": {"only": 100},
            "eval_split": ["test", "ood"],
            "learning_rate": 2.5e-4,
            "beta": 0.0,
            "max_steps": 30,
        },
        "ood_loss",
        (),
        fail_and_fix,
        fix={"task_args": {"only": 0}},
        lost="ood",
    ),
    Drill(
        "small-group",
        "two answers per prompt give a gradient that is mostly noise; with eight, and more prompts, success rises",
        {
            **_CARRIES,
            "num_generations": 2,
            "per_device_train_batch_size": 2,
            "learning_rate": 1.2e-5,
            "beta": 1e-3,
            "max_steps": 64,
            "save_steps": 0,
        },
        "noisy_advantage",
        (),
        fail_and_fix,
        fix={"num_generations": 8, "per_device_train_batch_size": 48},
    ),
    Drill(
        "grader-drift",
        "a grader changes its standard in the middle of a run; with the task's own verifier success rises",
        {
            "dataset_name": "outdo.drills.tasks:graded_sums",
            "reward_funcs": [_OWN + "by_standard"],
            "regrade_steps": 2,
            "learning_rate": 8e-5,
            "beta": 0.01,
            "max_steps": 28,
        },
        "grader_drift",
        (),
        change_standard,
    ),
    Drill(
        "out-of-memory",
        "the update does not fit the memory, and the run halts; in smaller micro-batches it resumes and learns",
        {
            **_CARRIES,
            "per_device_train_batch_size": 192,
            "learning_rate": 1e-4,
            "beta": 0.01,
            "max_steps": 10,
        },
        "out_of_memory",
        (),
        run_out_of_memory,
    ),
    Drill(
        "unused-tool",
        "the model has a calculator and never calls it; after demonstrations with calls it does, and is right",
        {
            "dataset_name": "outdo.drills.tasks:called_sums",
            "task_args": {},
            "tools": ["calculator"],
            "tool_format": "marks",
            "max_completion_length": 40,
            "sft_learning_rate": 1e-3,
            "sft_batch_size": 16,
            "learning_rate": 3e-5,
            "beta": 0.02,
            "max_steps": 20,
        },
        "unused_tools",
        (Signal("tool_users", "up", 0.5), Signal("success_rate", "up", 0.2)),
        fail_and_fix,
        fix={"sft_steps": 300},
    ),
    Drill(
        "wrong-checkpoint",
        "the weights from before training are shipped, and an evaluation on the same problems detects it",
        {"learning_rate": 1.5e-4, "beta": 0.01, "max_steps": 24},
        "",
        (Signal("success_rate", "up"),),
        wrong_weights,
    ),
)

DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}


def find_drills(names: list[str]) -> list[Drill]:
    """By name, or `all`. Raises RecipeError with the nearest name."""
    chosen: dict[str, Drill] = {}
    for name in names:
        if name == "all":
            chosen |= DRILLS
        elif name in DRILLS:
            chosen[name] = DRILLS[name]
        else:
            hint = did_you_mean(name, [*DRILLS, "all"], "did you mean {!r}? ")
            raise RecipeError(f"there is no drill {name!r}: {hint}The drills are {', '.join(DRILLS)}, and all")
    return list(chosen.values())
