"""Whether rewards are fit to train on, tried before they are trusted.

An answer that deserves full marks must get them; an empty one, garbage, an echo of the prompt and the known exploits
must get nothing; the same answer twice must get the same verdict. What is tried is the reward that decides success; the
others only have to be of one mind and to work.
"""

from __future__ import annotations

import random
import statistics
import string
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from outdo.errors import GraderError
from outdo.rewards.compose import Rewards, grade
from outdo.rewards.probes import tagged
from outdo.types import Grade, Group, Prompt, Trajectory

SLOWEST = 1.0  # seconds: a grader that takes longer for an answer holds up training

Outcome = Literal["passed", "failed", "unknown"]
WAITED = 1.0  # seconds: an answer that broke after more is not asked about again
HOPELESS, HOPELESS_SECONDS = 60, 20.0  # answers and seconds after which a reward that has judged none is given up


@dataclass(frozen=True)
class Check:
    name: str
    outcome: Outcome
    words: str = ""


@dataclass(frozen=True)
class Audit:
    checks: tuple[Check, ...]
    answers: int
    p50: float  # seconds an answer
    p99: float

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def fit(self) -> bool:
        return not self.failures


@dataclass
class _Tally:
    """What one kind of answer got, over all prompts."""

    tried: int = 0
    bad: list[str] = field(default_factory=list)

    def note(self, words: str) -> None:
        self.tried += 1
        if words:
            self.bad.append(words)


class _Bench:
    """Grades one answer at a time, twice, and keeps the time."""

    def __init__(self, rewards: Rewards, twice: bool) -> None:
        self.rewards, self.twice = rewards, twice
        self.seconds: list[float] = []
        self.asked = 0
        self.changed: list[str] = []
        self.broken: list[str] = []

    def ask(self, prompt: Prompt, text: str) -> Grade:
        self.asked += 1
        first = self._grade(prompt, text)
        again = self.twice and (first.verdict != "broken" or self.seconds[-1] < WAITED)
        second = self._grade(prompt, text) if again else None
        if second and (first.reward, first.verdict, first.parts) != (second.reward, second.verdict, second.parts):
            self.changed.append(f"{shown(text)} got {first.reward} and then {second.reward}")
        if first.verdict == "broken":
            self.broken.append(f"{shown(text)}: {first.reason}")
            if self.asked >= HOPELESS or sum(self.seconds) > HOPELESS_SECONDS:
                self.give_up()
        return first

    def give_up(self) -> None:
        """Raises GraderError where nothing has been judged so far."""
        if self.asked and len(self.broken) == self.asked:
            raise GraderError(f"not one of {self.asked} answers could be judged; the first: {self.broken[0]}")

    def together(self, prompt: Prompt) -> None:
        """Two answers at once, as training asks. Raises GraderError where neither can be judged."""
        both = grade(_made_up(prompt, "", tagged(prompt.answer)), self.rewards).grades
        if all(judged.verdict == "broken" for judged in both):
            raise GraderError(f"not one of 2 answers could be judged; the first: {both[0].reason}")

    def _grade(self, prompt: Prompt, text: str) -> Grade:
        start = time.perf_counter()
        (judged,) = grade(_made_up(prompt, text), self.rewards).grades
        self.seconds.append(time.perf_counter() - start)
        return judged


def _made_up(prompt: Prompt, *texts: str) -> Group:
    ids = [tuple(range(1, len(text.split()) + 2)) for text in texts]
    answers = [Trajectory.single(i, (0.0,) * len(i), text, "stop", 0) for i, text in zip(ids, texts, strict=True)]
    return Group(prompt, (0,), tuple(answers))


def audit(rewards: Rewards, prompts: Sequence[Prompt], short: bool = False) -> Audit:
    """Tries rewards on made-up answers to these prompts. Short: fewer kinds, each once where judging costs money.

    Raises GraderError where not one answer could be judged.
    """
    costly = bool(getattr(rewards.part(rewards.truth).function, "costly", False))
    bench = _Bench(rewards, twice=not (short and costly))
    gold, paid = _Tally(), _Tally()
    unknown = 0
    if len(prompts) == 1 or short:
        bench.together(prompts[0])
    for prompt in prompts:
        best = _best_gold(bench, prompt)
        unknown += best is None
        if best is not None:
            gold.note(_gold_trouble(rewards, best[1], best[0]))
        attacks = list(_attacks(rewards, prompt, best[0] if best else ""))
        for kind, text in attacks[: 3 if short and costly else 8 if short else None]:
            paid.note(_attack_trouble(rewards, bench.ask(prompt, text), best and best[1], kind, text))
    bench.give_up()
    return Audit(
        (
            _gold_check(gold, unknown),
            _check("empty, garbage, echo and exploits get nothing", paid, judges=_judges(rewards)),
            _listed("the same answer gets the same verdict", bench.changed, "failed"),
            _listed("every answer can be judged", bench.broken, "unknown"),
            _speed(bench.seconds),
        ),
        len(bench.seconds),
        statistics.median(bench.seconds),
        sorted(bench.seconds)[int(0.99 * (len(bench.seconds) - 1))],
    )


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}")


def _judges(rewards: Rewards) -> bool:
    return rewards.judge is None or rewards.judge.judges


def _columns(prompt: Prompt) -> dict[str, Any]:
    return {**prompt.meta, "answer": prompt.answer, "prompt": prompt.text}


def _best_gold(bench: _Bench, prompt: Prompt) -> tuple[str, Grade] | None:
    """The answer that should get full marks and what it got; of a user's own reward, the best paid of a few guesses."""
    judge, row = bench.rewards.judge, _columns(prompt)
    made = row.get("gold") or (judge.gold(row) if judge else None)
    if made is not None:
        return str(made), bench.ask(prompt, str(made))
    if judge or prompt.answer is None:
        return None
    answer = str(prompt.answer)
    guesses = [tagged(answer), f"#### {answer}", f"Thus \\boxed{{{answer}}}.", answer]
    graded = [(text, bench.ask(prompt, text)) for text in guesses]
    best = max(graded, key=lambda pair: _truth(bench.rewards, pair[1]))
    return best if _truth(bench.rewards, best[1]) > 0 else None


def _truth(rewards: Rewards, grade: Grade) -> float:
    value = grade.parts.get(rewards.truth)
    return float("-inf") if value is None else value


def _gold_trouble(rewards: Rewards, grade: Grade, text: str) -> str:
    right = grade.verdict == "right" or _truth(rewards, grade) >= 1  # another reward may have left it broken
    if right or (rewards.judge is None and grade.verdict != "broken"):
        return ""  # what full marks are, only a built-in grader's author has said
    return f"{shown(text)} is {grade.verdict}: {grade.reason}"


def _attack_trouble(rewards: Rewards, grade: Grade, gold: Grade | None, kind: str, text: str) -> str:
    """Paid: called right, or given as much as the answer that deserves it; of a built-in grader, given anything."""
    got = _truth(rewards, grade)
    most = 0.0 if rewards.judge or gold is None else max(0.0, _truth(rewards, gold) - 1e-9)
    if grade.verdict == "right" or got > most:
        return f"{kind} {shown(text)} gets {got:g}"
    return ""


def _attacks(rewards: Rewards, prompt: Prompt, gold: str) -> Iterator[tuple[str, str]]:
    """Answers that deserve nothing, by kind; the commonest first."""
    rng = random.Random(0)
    echoes = str(prompt.answer).strip() != prompt.text.strip()  # else it is the answer
    yield "an empty answer", ""
    if echoes:
        yield "an echo of the prompt", prompt.text
    yield "garbage", "".join(rng.choices(string.printable, k=200))
    if rewards.judge:
        for text in rewards.judge.exploits(_columns(prompt)):
            yield "the exploit", text
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


def _gold_check(gold: _Tally, unknown: int) -> Check:
    name = "an answer that deserves full marks gets them"
    if gold.bad:
        return Check(name, "failed", f"{len(gold.bad)} of {gold.tried} do not: {gold.bad[0]}")
    if not gold.tried:
        words = "no such answer could be made from the columns: give the rows a `gold`, an answer that deserves them"
        return Check(name, "unknown", words)
    return Check(name, "passed", f"{gold.tried} tried" + (f", {unknown} unknown" if unknown else ""))


def _check(name: str, tally: _Tally, judges: bool) -> Check:
    if not judges:
        return Check(name, "unknown", "this reward pays for form; it cannot tell what is right")
    if tally.bad:
        return Check(name, "failed", f"{len(tally.bad)} of {tally.tried} are paid: {tally.bad[0]}")
    return Check(name, "passed", f"{tally.tried} tried")


def _listed(name: str, bad: Sequence[str], otherwise: Outcome) -> Check:
    return Check(name, otherwise, f"{len(bad)} times not: {bad[0]}") if bad else Check(name, "passed")


def _speed(seconds: Sequence[float]) -> Check:
    slow = statistics.median(seconds)
    words = f"the median answer takes {slow:.2f} s: training would wait" if slow > SLOWEST else ""
    return Check("an answer takes under a second", "unknown" if words else "passed", words)


def refuse_unfit(rewards: Rewards, prompts: Callable[[], Iterator[Prompt]], count: int = 2) -> None:
    """The short audit before training. Raises GraderError, with what to do."""
    source = prompts()
    found = audit(rewards, [prompt for _, prompt in zip(range(count), source, strict=False)], short=True)
    if not found.fit:
        failure = found.failures[0]
        raise GraderError(
            f"{rewards.truth} is not fit to train on. It should hold that {failure.name}; {failure.words}. "
            "`outdo audit` shows all of it; reward_audit=false trains all the same"
        )
