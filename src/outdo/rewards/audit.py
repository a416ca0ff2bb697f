"""Audits rewards before training: are they fit to train on?

An answer that deserves full marks must get them; garbage, an echo of the prompt and exploits must get nothing; the same
answer must get the same verdict twice. Rewards that do not decide success only have to be deterministic and work.
"""

from __future__ import annotations

import random
import statistics
import string
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from outdo.errors import GraderError
from outdo.rewards.compose import Rewards, grade
from outdo.rewards.probes import tagged
from outdo.types import Grade, Group, Prompt, Trajectory

SLOW_SECONDS = 1.0  # a grader that takes longer for an answer holds up training

Outcome = Literal["passed", "failed", "unknown"]
RETRY_SECONDS = 1.0  # an answer that took longer to break is not graded again
GIVE_UP_ANSWERS, GIVE_UP_SECONDS = 60, 20.0  # of a reward that has judged none


@dataclass(frozen=True)
class Check:
    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Audit:
    checks: tuple[Check, ...]
    gradings: int
    p50: float  # seconds per answer
    p99: float

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def fit(self) -> bool:
        return not self.failures


class _Bench:
    """Grades one answer at a time, twice, and measures the time."""

    def __init__(self, rewards: Rewards, twice: bool) -> None:
        self.rewards, self.twice = rewards, twice
        self.seconds: list[float] = []
        self.num_answers = 0
        self.inconsistent: list[str] = []
        self.broken: list[str] = []

    def judge(self, prompt: Prompt, text: str) -> Grade:
        self.num_answers += 1
        first = self._timed(prompt, text)
        again = self.twice and (first.verdict != "broken" or self.seconds[-1] < RETRY_SECONDS)
        second = self._timed(prompt, text) if again else None
        if second and (first.reward, first.verdict, first.parts) != (second.reward, second.verdict, second.parts):
            self.inconsistent.append(f"{_shown(text)} got {first.reward} and then {second.reward}")
        if first.verdict == "broken":
            self.broken.append(f"{_shown(text)}: {first.reason}")
            if self.num_answers >= GIVE_UP_ANSWERS or sum(self.seconds) > GIVE_UP_SECONDS:
                self.raise_if_all_broken()
        return first

    def raise_if_all_broken(self) -> None:
        """Raises GraderError where no answer could be judged so far."""
        if self.num_answers and len(self.broken) == self.num_answers:
            raise GraderError(f"not one of {self.num_answers} answers could be judged; the first: {self.broken[0]}")

    def grade_pair(self, prompt: Prompt) -> None:
        """Two answers at once, as in training. Raises GraderError where neither can be judged."""
        both = grade(_group(prompt, "", tagged(prompt.answer)), self.rewards).grades
        if all(judged.verdict == "broken" for judged in both):
            raise GraderError(f"not one of 2 answers could be judged; the first: {both[0].reason}")

    def _timed(self, prompt: Prompt, text: str) -> Grade:
        start = time.perf_counter()
        (judged,) = grade(_group(prompt, text), self.rewards).grades
        self.seconds.append(time.perf_counter() - start)
        return judged


def _group(prompt: Prompt, *texts: str) -> Group:
    ids = [tuple(range(1, len(text.split()) + 2)) for text in texts]
    answers = [Trajectory.single(i, (0.0,) * len(i), text, "stop", 0) for i, text in zip(ids, texts, strict=True)]
    return Group(prompt, (0,), tuple(answers))


def audit(rewards: Rewards, prompts: Sequence[Prompt], short: bool = False) -> Audit:
    """Grades test answers; `short`: fewer, each once where judging costs money. Raises GraderError where all break."""
    costly = bool(getattr(rewards.part(rewards.truth).function, "costly", False))
    bench = _Bench(rewards, twice=not (short and costly))
    gold, attacks = list[str](), list[str]()  # what is wrong with the grade of each; empty: nothing
    if len(prompts) == 1 or short:
        bench.grade_pair(prompts[0])
    for prompt in prompts:
        best = _best_gold(bench, prompt)
        if best is not None:
            gold.append(_gold_problem(rewards, best[1], best[0]))
        texts = list(_attacks(rewards, prompt, best[0] if best else ""))
        for kind, text in texts[: 3 if short and costly else 8 if short else None]:
            attacks.append(_attack_problem(rewards, bench.judge(prompt, text), best and best[1], kind, text))
    bench.raise_if_all_broken()
    checks = (
        _gold_check(gold, unknown=len(prompts) - len(gold)),
        _attack_check("empty, garbage, echo and exploits get nothing", attacks, rewards),
        _none_of("the same answer gets the same verdict", bench.inconsistent, "failed"),
        _none_of("every answer can be judged", bench.broken, "unknown"),
        _speed(bench.seconds),
    )
    p99 = sorted(bench.seconds)[int(0.99 * (len(bench.seconds) - 1))]
    return Audit(checks, len(bench.seconds), statistics.median(bench.seconds), p99)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}")


def _columns(prompt: Prompt) -> dict[str, Any]:
    return {**prompt.meta, "answer": prompt.answer, "prompt": prompt.text}


def _best_gold(bench: _Bench, prompt: Prompt) -> tuple[str, Grade] | None:
    """The answer that should get full marks, and its grade; for a user's own reward, the best of a few guesses."""
    judge, row = bench.rewards.judge, _columns(prompt)
    gold = row.get("gold") or (judge.gold(row) if judge else None)
    if gold is not None:
        return str(gold), bench.judge(prompt, str(gold))
    if judge or prompt.answer is None:
        return None
    answer = str(prompt.answer)
    guesses = [tagged(answer), f"#### {answer}", f"Thus \\boxed{{{answer}}}.", answer]
    graded = [(text, bench.judge(prompt, text)) for text in guesses]
    best = max(graded, key=lambda pair: _truth(bench.rewards, pair[1]))
    return best if _truth(bench.rewards, best[1]) > 0 else None


def _truth(rewards: Rewards, grade: Grade) -> float:
    value = grade.parts.get(rewards.truth)
    return float("-inf") if value is None else value


def _gold_problem(rewards: Rewards, grade: Grade, text: str) -> str:
    right = grade.verdict == "right" or _truth(rewards, grade) >= 1  # another reward may be broken
    if right or (rewards.judge is None and grade.verdict != "broken"):
        return ""  # full marks are defined for built-in graders only
    return f"{_shown(text)} is {grade.verdict}: {grade.reason}"


def _attack_problem(rewards: Rewards, grade: Grade, gold: Grade | None, kind: str, text: str) -> str:
    """An attack pays where it is right or scores as much as the gold answer; for a built-in grader, above 0."""
    score = _truth(rewards, grade)
    limit = 0.0 if rewards.judge or gold is None else max(0.0, _truth(rewards, gold) - 1e-9)
    if grade.verdict == "right" or score > limit:
        return f"{kind} {_shown(text)} gets {score:g}"
    return ""


def _attacks(rewards: Rewards, prompt: Prompt, gold: str) -> Iterator[tuple[str, str]]:
    """Answers that deserve nothing, by kind; the most common first."""
    rng = random.Random(0)
    echoes = str(prompt.answer).strip() != prompt.text.strip()  # else the echo is the answer
    yield "an empty answer", ""
    if echoes:
        yield "an echo of the prompt", prompt.text
    yield "garbage", "".join(rng.choices(string.printable, k=200))
    if rewards.judge:
        for text in rewards.judge.exploits(_columns(prompt)):
            yield "an exploit", text
    yield "empty tags", "<think></think><answer></answer>"
    yield "an empty marker", "#### "
    yield "a shrug", "I do not know."
    yield "a list", tagged(" ".join(map(str, range(100))))
    if echoes:
        yield "an echo in tags", tagged(prompt.text)
    yield "a flood of tags", "<answer>" * 200
    yield "control characters", "\x00\ud800\u202e"
    if gold and rewards.judge:
        yield "an answer that is only thought", f"<think>{gold.rpartition('</think>')[2]}"
        if rewards.truth in ("gsm8k", "numeric", "exact", "math", "countdown", "label"):
            yield "two answers", f"{gold}\n<answer>something else</answer>"


def _gold_check(gold: Sequence[str], unknown: int) -> Check:
    name = "an answer that deserves full marks gets them"
    if problems := list(filter(None, gold)):
        return Check(name, "failed", f"{len(problems)} of {len(gold)} do not: {problems[0]}")
    if not gold:
        detail = "no such answer is known: give the rows a column `gold`, an answer that deserves full marks"
        return Check(name, "unknown", detail)
    return Check(name, "passed", f"{len(gold)} tested" + (f", {unknown} unknown" if unknown else ""))


def _attack_check(name: str, attacks: Sequence[str], rewards: Rewards) -> Check:
    if rewards.judge and not rewards.judge.judges:
        return Check(name, "unknown", "this reward scores form only")
    if problems := list(filter(None, attacks)):
        return Check(name, "failed", f"{len(problems)} of {len(attacks)} are rewarded: {problems[0]}")
    return Check(name, "passed", f"{len(attacks)} tested")


def _none_of(name: str, problems: Sequence[str], otherwise: Outcome) -> Check:
    return Check(name, otherwise, f"{len(problems)} do not: {problems[0]}") if problems else Check(name, "passed")


def _speed(seconds: Sequence[float]) -> Check:
    median = statistics.median(seconds)
    detail = f"the median answer takes {median:.2f} s: training would wait" if median > SLOW_SECONDS else ""
    return Check("an answer takes under a second", "unknown" if detail else "passed", detail)


def refuse_unfit(rewards: Rewards, prompts: Callable[[], Iterator[Prompt]], count: int = 2) -> None:
    """The short audit before training. Raises GraderError, with what to do."""
    result = audit(rewards, list(islice(prompts(), count)), short=True)
    if not result.fit:
        failure = result.failures[0]
        raise GraderError(
            f"{rewards.truth} is not fit to train on. Failed check: {failure.name}; {failure.detail}. "
            "`outdo audit` shows every check; reward_audit=false trains anyway"
        )
