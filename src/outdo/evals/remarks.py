"""What a reader of an evaluation should know: too few problems for a narrow interval, full marks below success."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from outdo.evals.held_out import Evaluation
from outdo.metrics.estimate import share_interval
from outdo.rewards.compose import Rewards, grade
from outdo.rewards.probes import tagged
from outdo.tasks.data import demonstration
from outdo.types import Group, Prompt, Trajectory

FEW_PROBLEMS = 50
MAX_GOLD = 8  # prompts whose gold answer is graded
TOLERANCE = 1e-9


def few_problems(evaluations: Sequence[Evaluation]) -> str:
    """A warning about the splits whose interval is wide whatever the model does; empty where there are none."""
    sizes = {one.split: one.n for one in evaluations if 0 < one.n < FEW_PROBLEMS}
    if not sizes:
        return ""
    fewest = min(sizes.values())
    low, high = share_interval(0.5, fewest)
    listed = " and ".join(f"{n} in {split}" for split, n in sizes.items())
    return (
        f"warning: few held-out problems ({listed}): the 95% interval of a success of 0.5 is [{low:.2f}, {high:.2f}]. "
        "Hold out more (eval_size, or eval_fraction of your own data)"
    )


def unreachable_success(evaluation: Evaluation, rewards: Rewards, prompts: Iterable[Prompt]) -> str:
    """A warning where rewards are paid, but the highest lies below what counts as success; else empty.

    The gold answers of some `prompts` are graded too, where the data has them: if one succeeds there is no warning.
    """
    highest, bar = evaluation.max_reward, evaluation.threshold
    if highest is None or highest >= bar - TOLERANCE or not evaluation.has_partial_credit:
        return ""
    gold = _highest_gold(rewards, prompts)
    if gold is not None and gold >= bar - TOLERANCE:
        return ""
    name, full = evaluation.judge.rpartition(":")[2] or "the reward", max(highest, gold or highest)
    choices = f"set pass_threshold={full:g}, or rank by the mean reward (eval_metric=reward)"
    if gold is None:
        return (
            f"warning: no answer gets more than {highest:g} from {name}, and {bar:g} counts as success. If {highest:g} "
            f"is full marks, success stays 0: {choices}"
        )
    return f"warning: full marks of {name} are {full:g}, and {bar:g} counts as success, which stays 0: {choices}"


def _highest_gold(rewards: Rewards, prompts: Iterable[Prompt]) -> float | None:
    """The highest reward of the gold answers; None where none is known, or grading costs money."""
    scores: list[float] = []
    for prompt in islice(prompts, MAX_GOLD):
        own = rewards.of(prompt)
        texts = list(dict.fromkeys(_gold_texts(own, prompt)))
        if not texts or own.needs_play or getattr(own.part(own.truth).function, "costly", False):
            continue
        trajectories = tuple(Trajectory.single((), (), text, "stop", 0) for text in texts)
        grades = grade(Group(prompt, (), trajectories), rewards).grades
        scores += [score for each in grades if (score := each.parts.get(own.truth)) is not None]
    return max(scores, default=None)


def _gold_texts(rewards: Rewards, prompt: Prompt) -> Iterator[str]:
    row = {**prompt.meta, "answer": prompt.answer, "prompt": prompt.text}
    known = (row.get("gold"), rewards.judge.gold(row) if rewards.judge else None, demonstration(prompt))
    yield from (str(text) for text in known if text is not None)
    if prompt.answer is not None and not rewards.judge:
        answer = str(prompt.answer)
        yield from (tagged(answer), f"#### {answer}", f"Thus \\boxed{{{answer}}}.", answer)
