"""Notices a grader that changes its standard: early answers are graded again as the run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outdo.errors import OutdoError
from outdo.metrics.measure import Metrics
from outdo.rewards.compose import Rewards, grade
from outdo.training.callbacks import Callback
from outdo.types import Grade, Group, Prompt, Trajectory

if TYPE_CHECKING:
    from outdo.training.run import TrainingRun

MAX_ANSWERS = 16  # of whole groups, because rewards see a group at a time
MAX_SECONDS = 2.0  # to grade them; a slower grader is not called again
MAX_STATE = 200_000  # characters of them in a checkpoint
TOLERANCE = 1e-6  # of a reward


class GraderDrift(Callback):
    """Keeps a few answers of the first step with their grades, grades them again every `regrade_steps` steps, and logs
    the share whose grade is another one: `grader_drift`.

    Only a user's functions are called again: built-in graders cannot change, and JSON graders may ask a model, which
    costs money. A grader that is slow, or that gives two grades for one answer at the same time, is not tested.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []  # with their grades of then
        self.step = 0  # whose answers they are, as rewards count it
        self.graded_by = ""  # the rewards of then: a recipe may change them when a run is resumed
        self.is_off = False

    def state(self) -> dict[str, Any]:
        try:
            text = json.dumps([_row(group) for group in self.groups])
        except (TypeError, ValueError):  # a column of the prompt is no JSON: new answers are kept after a resume
            return {}
        kept = {"groups": json.loads(text), "graded_by": self.graded_by, "step": self.step}
        return kept if self.groups and len(text) <= MAX_STATE else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.groups = [_group(row) for row in state.get("groups", ())]
        self.graded_by, self.step = str(state.get("graded_by", "")), int(state.get("step", 0))

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        rewards, every = run.context.rewards, run.recipe.regrade_steps
        if self.is_off or not every or rewards is None:
            return
        if not self.groups or self.graded_by != _describe(rewards):
            self.graded_by, self.step = _describe(rewards), step - 1
            self.groups = list(_first([group for group in groups if may_change(rewards.of(group.prompt))]))
            self.is_off = bool(groups) and not self.groups
        elif step % every == 0:
            then = replace(rewards, step=self.step, num_steps=run.recipe.max_steps)
            metrics["grader_drift"] = self._measure(then, run)

    def _measure(self, rewards: Rewards, run: TrainingRun[Any]) -> float | None:
        """The share of the kept answers with another grade; None where that cannot be known."""
        start = time.perf_counter()
        before = [grade for group in self.groups for grade in group.grades]
        now = self._graded(rewards)
        self.is_off = time.perf_counter() - start > MAX_SECONDS
        if self.is_off:
            run.reporter.note("  the rewards are slow: early answers are not graded again (regrade_steps)")
        changed = [not _same(a, b) for a, b in zip(before, now, strict=False)]
        if not any(changed) or self.is_off:
            return sum(changed) / len(changed) if changed else None
        inconsistent = [not _same(a, b) for a, b in zip(now, self._graded(rewards), strict=False)]
        return None if any(inconsistent) else sum(changed) / len(changed)

    def _graded(self, rewards: Rewards) -> list[Grade]:
        try:
            return [one for group in self.groups for one in grade(group, rewards).grades]
        except OutdoError:  # the step's own grading will report it
            return []


def may_change(rewards: Rewards) -> bool:
    """Whether a user's function pays or decides, and none asks a model, an environment or needs all of a step."""
    if rewards.batch == "step" or rewards.needs_play:
        return False
    used = [part for part in rewards.parts if part.weight or part.name == rewards.truth]
    return any(part.where != "here" for part in used) and not any(
        part.source.endswith(".json") for part in rewards.parts
    )


def _describe(rewards: Rewards) -> str:
    """What the grades of a recipe depend on, apart from what its functions do."""
    parts = [(part.name, part.source, part.weight, dict(part.args)) for part in rewards.parts]
    inner = [(name, _describe(one)) for name, one in rewards.by_part.items()]
    return repr((parts, rewards.truth, rewards.gate, rewards.pass_threshold, rewards.input, inner))


def _first(groups: Sequence[Group]) -> Iterator[Group]:
    """Whole groups of at most MAX_ANSWERS answers together, and at least one."""
    count = 0
    for group in groups:
        count += len(group.trajectories)
        if count > MAX_ANSWERS and count > len(group.trajectories):
            return
        yield group


def _same(a: Grade, b: Grade) -> bool:
    """Whether two grades of one answer agree; one that could not be graded says nothing."""
    if a.reward is None or b.reward is None:
        return True
    return a.verdict == b.verdict and abs(a.reward - b.reward) <= TOLERANCE


def _row(group: Group) -> dict[str, Any]:
    prompt = group.prompt
    answers = [
        [list(one.token_ids), one.text, one.finish, each.reward, each.verdict]
        for one, each in zip(group.trajectories, group.grades, strict=True)
    ]
    kept = {"id": prompt.id, "messages": [dict(one) for one in prompt.messages], "answer": prompt.answer}
    more = {"meta": dict(prompt.meta), "conversational": prompt.conversational}
    return {**kept, **more, "answers": answers}


def _group(row: Mapping[str, Any]) -> Group:
    """A group to grade again: log-probabilities, which no reward sees, are placeholders."""
    messages = tuple(row["messages"])
    prompt = Prompt(row["id"], messages, row["answer"], row["meta"], bool(row.get("conversational")))
    trajectories = tuple(
        Trajectory.single(tuple(ids), (0.0,) * len(ids), text, finish, 0) for ids, text, finish, *_ in row["answers"]
    )
    grades = tuple(Grade(reward, verdict) for *_, reward, verdict in row["answers"])
    return Group(prompt, (), trajectories, grades)
