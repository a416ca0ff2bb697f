"""Grades the test answers of an audit, and records what breaks, differs or takes long."""

from __future__ import annotations

import time

from outdo.errors import GraderError
from outdo.rewards.blame import is_failure
from outdo.rewards.compose import Rewards, grade
from outdo.rewards.probes import tagged
from outdo.types import Grade, Group, Prompt, Trajectory

RETRY_SECONDS = 1.0  # an answer that took longer to break is not graded again
GIVE_UP_ANSWERS, GIVE_UP_SECONDS = 60, 20.0  # of a reward that has judged none
NUM_RECHECKED = 4  # answers graded once more at the end


class Bench:
    """Grades one answer at a time, twice if it costs nothing, and measures the time."""

    def __init__(self, rewards: Rewards, twice: bool) -> None:
        self.rewards, self.twice = rewards, twice
        self.seconds: list[float] = []
        self.num_answers = 0
        self.inconsistent: list[str] = []
        self.broken: list[str] = []
        self._first: list[tuple[Prompt, str, Grade]] = []  # graded once more at the end

    def judge(self, prompt: Prompt, text: str) -> Grade:
        self.num_answers += 1
        first = self._timed(prompt, text)
        if self.twice and (not is_failure(first) or self.seconds[-1] < RETRY_SECONDS):
            self._compare(text, first, self._timed(prompt, text), "and then")
        if is_failure(first):
            self.broken.append(f"{shown(text)}: {first.reason}")
            if self.num_answers >= GIVE_UP_ANSWERS or sum(self.seconds) > GIVE_UP_SECONDS:
                self.raise_if_all_broken()
        return first

    def remember(self, prompt: Prompt, text: str, grade: Grade) -> None:
        """For the recheck, at the end."""
        if len(self._first) < NUM_RECHECKED:
            self._first.append((prompt, text, grade))

    def truth(self, grade: Grade) -> float:
        """What the reward that decides success paid."""
        value = grade.parts.get(self.rewards.truth)
        return float("-inf") if value is None else value

    def raise_if_all_broken(self) -> None:
        """Raises GraderError where no answer could be judged so far."""
        if self.num_answers and len(self.broken) == self.num_answers:
            raise GraderError(f"not one of {self.num_answers} answers could be judged; the first: {self.broken[0]}")

    def grade_pair(self, prompt: Prompt) -> None:
        """Two answers at once, as in training. Raises GraderError where neither can be judged."""
        both = grade(_group(prompt, "", tagged(prompt.answer)), self.rewards).grades
        if all(judged.verdict == "broken" for judged in both):
            raise GraderError(f"not one of 2 answers could be judged; the first: {both[0].reason}")

    def reorder(self, prompt: Prompt, *texts: str) -> None:
        """A group as in training, in two orders and with a copy: a grade must not depend on the answer's place."""
        texts = (*texts, texts[0])
        forward = grade(_group(prompt, *texts), self.rewards).grades
        self.num_answers += len(texts)
        self.broken += [f"in a group: {one.reason}" for one in forward if is_failure(one)]
        backward = grade(_group(prompt, *reversed(texts)), self.rewards).grades[::-1]
        self._compare(texts[0], forward[0], forward[-1], "in one place of a group, and in another")
        for text, one, other in zip(texts, forward, backward, strict=True):
            self._compare(text, one, other, "in one order of a group, and in another")

    def recheck(self) -> None:
        """The first answers once more, after all others: a reward must not remember."""
        for prompt, text, first in self._first if self.twice else ():
            if not is_failure(first):
                self._compare(text, first, self._timed(prompt, text), "at first, and later")

    def _compare(self, text: str, one: Grade, other: Grade, when: str) -> None:
        if one.verdict != other.verdict and "broken" in (one.verdict, other.verdict):
            self.broken.append(f"{shown(text)}: {one.reason or other.reason}")
        elif (one.reward, one.verdict, one.parts) != (other.reward, other.verdict, other.parts):
            self.inconsistent.append(f"{shown(text)} got {one.reward} {when} {other.reward}")

    def _timed(self, prompt: Prompt, text: str) -> Grade:
        start = time.perf_counter()
        (judged,) = grade(_group(prompt, text), self.rewards).grades
        self.seconds.append(time.perf_counter() - start)
        return judged


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}")


def _group(prompt: Prompt, *texts: str) -> Group:
    ids = [tuple(range(1, len(text.split()) + 2)) for text in texts]
    answers = [Trajectory.single(i, (0.0,) * len(i), text, "stop", 0) for i, text in zip(ids, texts, strict=True)]
    return Group(prompt, (0,), tuple(answers))
