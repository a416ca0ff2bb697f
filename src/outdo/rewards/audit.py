"""Audits rewards before training: are they fit to train on?

An answer that deserves full marks must be paid; garbage, an echo of the prompt, exploits and the answers of other rows
must not; the same answer must get the same grade, whenever and wherever in its group it is graded; and nearly every
answer must be judged. A reward is fit only where an answer that deserves full marks is known and was paid. Rewards that
score form only have to be consistent and work. What an environment pays is audited by play (`envs/audit.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from outdo.errors import GraderError
from outdo.rewards.attacks import (
    Attack,
    basic_attacks,
    columns_of,
    differs,
    final_text,
    form_of,
    gold_attacks,
    gold_guesses,
)
from outdo.rewards.bench import Bench, shown
from outdo.rewards.compose import Rewards
from outdo.rewards.probes import tagged
from outdo.rewards.registry import Grader
from outdo.types import Grade, Prompt

SLOW_SECONDS = 1.0  # a grader that takes longer for an answer holds up training
MAX_SECONDS = 90.0  # of grading, after which no further prompt is tested
BROKEN_SHARE, SHORT_BROKEN_SHARE = 0.05, 0.2  # of the test answers: more of them broken fail the audit
OTHERS_SHARE = 0.2  # of the rows: paid answers of other rows fail the audit; below it they may be equivalent
NUM_REORDERED = 3  # prompts whose group is graded in two orders
MAX_FINAL_CHARS = 80  # of a gold; a longer one is free text, of which a part may be right
MARGIN = 1e-9
_CLOSED_FORM = ("gsm8k", "numeric", "exact", "math", "countdown", "label")  # two answers are wrong

GOLD = "an answer that deserves full marks gets them"
ATTACKS = "empty, garbage, echo and exploits get nothing"
BY_PLAY = "what an environment pays is judged by play, not by the text of an answer"

Outcome = Literal["passed", "failed", "unknown"]


@dataclass(frozen=True)
class Check:
    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Audit:
    checks: tuple[Check, ...]  # the first: whether gold answers were paid
    gradings: int
    p50: float  # seconds per answer
    p99: float
    num_prompts: int = 0  # fewer than given where the reward is slow
    form_only: bool = False  # the reward does not decide success: no gold is needed

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def fit(self) -> bool:
        """Nothing failed, and an answer that deserves full marks was paid."""
        return not self.failures and (self.form_only or self.checks[0].outcome == "passed")


@dataclass
class _Record:
    """What is wrong with the grade of each test answer; an empty text: nothing."""

    gold: list[str] = field(default_factory=list)
    unpaid: list[str] = field(default_factory=list)  # guesses at a gold
    attacks: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def audit(rewards: Rewards, prompts: Sequence[Prompt], short: bool = False) -> Audit:
    """Grades test answers; `short`: fewer. Where judging costs money, fewer, and each once. Raises GraderError where
    all break."""
    if rewards.judge and rewards.judge.plays:
        return Audit((Check(GOLD, "unknown", BY_PLAY),), 0, 0.0, 0.0)
    rewards = _without_play(rewards)
    costly = is_costly(rewards)
    bench, record = Bench(rewards, twice=not costly), _Record()
    judge = _grader(rewards)
    form_only = judge is not None and not judge.judges
    if len(prompts) == 1 or short:
        bench.grade_pair(prompts[0])
    tested = 0
    for place, prompt in enumerate(prompts):
        if sum(bench.seconds) > MAX_SECONDS and tested:
            break
        others = [other.answer for other in (*prompts[place + 1 :], *prompts[:place])]
        gold = _test_prompt(bench, record, prompt, others, short)
        tested += 1
        if not (short and costly) and tested <= NUM_REORDERED:
            bench.reorder(prompt, gold or tagged(prompt.answer), "", "I do not know.")
    bench.recheck()
    bench.raise_if_all_broken()
    limit = SHORT_BROKEN_SHARE if short else BROKEN_SHARE
    attacks = [
        attack_check(ATTACKS, record.attacks, 0.0),
        attack_check("answers of other rows get nothing", record.others, OTHERS_SHARE),
    ]
    form = [Check(check.name, "unknown", "this reward scores form only") for check in attacks[:1]]
    checks = (
        _gold_check(record, form_only),
        *(form if form_only else attacks),
        same_check("the same answer gets the same grade", bench.inconsistent),
        judged_check(bench.broken, bench.num_answers, limit),
        speed_check(bench.seconds),
    )
    return timed(checks, bench.seconds, tested, form_only)


def timed(checks: Sequence[Check], seconds: Sequence[float], num_prompts: int, form_only: bool = False) -> Audit:
    p99 = sorted(seconds)[int(0.99 * (len(seconds) - 1))]
    return Audit(tuple(checks), len(seconds), statistics.median(seconds), p99, num_prompts, form_only)


def is_costly(rewards: Rewards) -> bool:
    """Whether grading calls a model that costs money."""
    return any(getattr(part.function, "costly", False) for part in rewards.parts)


def _without_play(rewards: Rewards) -> Rewards:
    """Without what an environment pays beside the reward that decides success: a text alone was not played. Where
    nothing else is paid, that reward is."""
    parts = tuple(part for part in rewards.parts if not (part.grader and part.grader.plays))
    if len(parts) == len(rewards.parts):
        return rewards
    if not any(part.weight for part in parts):
        parts = tuple(replace(part, weight=float(part.name == rewards.truth)) for part in parts)
    gate = rewards.gate if rewards.gate in {part.name for part in parts} else ""
    return replace(rewards, parts=parts, gate=gate)


def _grader(rewards: Rewards) -> Grader | None:
    """The built-in grader that decides success, unless it is a model: that one is tested like a user's function."""
    return None if getattr(rewards.part(rewards.truth).function, "costly", False) else rewards.judge


def _test_prompt(bench: Bench, record: _Record, prompt: Prompt, others: Sequence[object], short: bool) -> str | None:
    """Grades the test answers of one prompt. Returns its gold, where one was paid."""
    rewards, costly = bench.rewards, is_costly(bench.rewards)
    basic = list(basic_attacks(prompt))[: 3 if costly else 7 if short else None]
    graded = [(attack, bench.judge(prompt, attack[1])) for attack in basic]
    floor = max(
        (bench.truth(grade) for (kind, _), grade in graded if kind in ("an empty answer", "garbage")), default=0
    )
    gold, grade = _gold(bench, record, prompt, floor)
    exploits = list(_exploits(rewards, prompt, gold, others))[: 2 if costly else 3 if short else None]
    graded += [(attack, bench.judge(prompt, attack[1])) for attack in exploits]
    for (kind, text), judged in graded:
        record.attacks.append(_attack_problem(bench, judged, grade, kind, text))
    if gold and not short and (other := _other_answer(rewards, prompt, gold, others)):
        judged = bench.judge(prompt, other)
        record.others.append(_attack_problem(bench, judged, grade, "the answer of another row", other))
    return gold


def _gold(bench: Bench, record: _Record, prompt: Prompt, floor: float) -> tuple[str | None, Grade | None]:
    """An answer that deserves full marks and its grade, where one was paid; for a user's own reward without a column
    `gold`, the best of a few guesses. Paid is what gets more than an empty answer and garbage (`floor`)."""
    judge, row = _grader(bench.rewards), columns_of(prompt)
    known = row.get("gold") or (judge.gold(row) if judge else None)
    if known is None and (judge or prompt.answer is None):
        record.unpaid.append("no such answer is known")
        return None, None
    costly = is_costly(bench.rewards)
    guesses = [str(known)] if known is not None else gold_guesses(prompt)[: 2 if costly else None]
    graded = [(text, bench.judge(prompt, text)) for text in guesses]
    text, grade = max(graded, key=lambda pair: bench.truth(pair[1]))
    bench.remember(prompt, text, grade)
    right = grade.verdict == "right" or bench.truth(grade) >= 1  # another reward may be broken
    paid = right if judge else grade.verdict != "broken" and bench.truth(grade) > floor + MARGIN
    problem = "" if paid else f"{shown(text)} gets {_pay(bench.truth(grade))}{_because(grade)}"
    if known is not None or paid:
        record.gold.append(problem)
    else:
        record.unpaid.append(f"the best of {len(guesses)} guesses, {problem}")
    return (text, grade) if paid else (None, None)


def _exploits(rewards: Rewards, prompt: Prompt, gold: str | None, others: Sequence[object]) -> Iterator[Attack]:
    judge = _grader(rewards)
    if judge:
        for text in judge.exploits(columns_of(prompt)):
            yield "an exploit", text
    if gold and judge:
        yield "an answer that is only thought", f"<think>{gold.rpartition('</think>')[2]}"
        if rewards.truth in _CLOSED_FORM:
            yield "two answers", f"{gold}\n<answer>something else</answer>"
    if gold and not judge and prompt.answer is not None and len(final_text(prompt.answer)) <= MAX_FINAL_CHARS:
        yield from gold_attacks(prompt, form_of(gold, prompt.answer), others)


def _other_answer(rewards: Rewards, prompt: Prompt, gold: str, others: Sequence[object]) -> str | None:
    """The answer of another row, in the form of this one's gold."""
    judge = _grader(rewards)
    if judge and rewards.truth not in ("gsm8k", "numeric", "exact", "label"):
        return None  # two that differ as texts may be equal
    form = tagged if judge else form_of(gold, prompt.answer)
    return next((form(final_text(other)) for other in others if differs(prompt.answer, other)), None)


def _attack_problem(bench: Bench, grade: Grade, gold: Grade | None, kind: str, text: str) -> str:
    """An attack pays where it is right or scores as much as the gold answer; for a built-in grader, above 0."""
    score = bench.truth(grade)
    builtin = _grader(bench.rewards) is not None
    too_much = score > 0 if builtin or gold is None else score >= bench.truth(gold) - MARGIN
    return f"{kind} {shown(text)} gets {score:g}" if grade.verdict == "right" or too_much else ""


def _pay(score: float) -> str:
    return "no grade" if score == float("-inf") else f"{score:g}"


def _because(grade: Grade) -> str:
    return f" ({grade.reason})" if grade.reason else ""


def _gold_check(record: _Record, form_only: bool) -> Check:
    name, gold, unpaid = GOLD, record.gold, record.unpaid
    if form_only:
        return Check(name, "unknown", "this reward scores form only")
    if problems := list(filter(None, gold)):
        return Check(name, "failed", f"{len(problems)} of {len(gold)} do not: {problems[0]}")
    if len(unpaid) > len(gold):
        what = "no answer was paid" if not gold else f"of {len(unpaid)} of {len(gold) + len(unpaid)} rows none was paid"
        detail = f"{what}: {unpaid[0]}. Give the rows a column `gold`, an answer that deserves full marks"
        return Check(name, "unknown", detail)
    return Check(name, "passed", f"{len(gold)} tested" + (f", {len(unpaid)} unknown" if unpaid else ""))


def attack_check(name: str, attacks: Sequence[str], share: float) -> Check:
    problems = list(filter(None, attacks))
    if problems and len(problems) > share * len(attacks):
        return Check(name, "failed", f"{len(problems)} of {len(attacks)} are rewarded: {problems[0]}")
    return Check(name, "passed" if attacks else "unknown", f"{len(attacks)} tested")


def same_check(name: str, problems: Sequence[str]) -> Check:
    return Check(name, "failed", f"{len(problems)} do not: {problems[0]}") if problems else Check(name, "passed")


def judged_check(broken: Sequence[str], num_answers: int, limit: float) -> Check:
    name = "every answer can be judged"
    if not broken:
        return Check(name, "passed")
    detail = f"{len(broken)} of {num_answers} cannot: {broken[0]}"
    return Check(name, "failed" if len(broken) > limit * num_answers else "unknown", detail)


def speed_check(seconds: Sequence[float]) -> Check:
    median = statistics.median(seconds)
    detail = f"the median answer takes {median:.2f} s: training would wait" if median > SLOW_SECONDS else ""
    return Check("an answer takes under a second", "unknown" if detail else "passed", detail)


def refuse_unfit(rewards: Rewards, prompts: Callable[[], Iterator[Prompt]], count: int = 2) -> str:
    """The short audit before training. Returns what it could not test of a user's reward, else nothing. Raises
    GraderError, with what to do."""
    result = audit(rewards, list(islice(prompts(), count)), short=True)
    if result.failures:
        failure = result.failures[0]
        raise GraderError(
            f"{rewards.truth} is not fit to train on. Failed check: {failure.name}; {failure.detail}. "
            "`outdo audit` shows every check; reward_audit=false trains anyway"
        )
    if result.fit or _grader(rewards):
        return ""
    return f"{rewards.truth} is not known to be fit to train on: {result.checks[0].detail}"
