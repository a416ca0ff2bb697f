"""Mathematical equivalence: `\\frac{1}{2}`, `0.5` and `\\dfrac12` are one answer.

Answers are read as trees. Simple cases are decided here, exactly. The rest goes to sympy, in processes that can be
killed: some answers make it run forever. An answer that times out is wrong; a gold answer that is incomplete is broken.

An answer must be worked out like the gold: `17 \\cdot 23` is wrong for 391, and a formula of the question is wrong
where the gold is another form of it. `numeric` requires the digits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from outdo.errors import GraderError
from outdo.rewards.answer import RIGHT, Column, boxed, final_answers, without_echoes
from outdo.rewards.maths.compare import UndecidedError
from outdo.rewards.maths.judge import judge, read, without_algebra
from outdo.rewards.maths.notation import MAX_CHARS, NotMathsError, normalized, tokens
from outdo.rewards.maths.question import MAX_CHARS as MAX_QUESTION
from outdo.rewards.maths.question import question, text_of
from outdo.rewards.maths.solutions import solutions
from outdo.sandbox.pool import Pool, Reply
from outdo.types import Grade

TIMEOUT = 5.0  # seconds for one answer
MEMORY_MB = 128
_MAX_SPELLINGS = 3  # of one answer
_Case = tuple[str, str, str]  # the gold, an answer, and the text of the question


def math(
    completions: list[str], answer: Column, messages: Column = (), reward_timeout: float = TIMEOUT, **columns: object
) -> list[Grade]:
    """1 where the final answer is mathematically equal to the gold; else 0."""
    golds = [_gold(gold) for gold in answer]
    texts = without_echoes(completions, messages)
    finals = [list(dict.fromkeys(map(normalized, final_answers(text)))) for text in texts]  # each distinct one once
    asked = [text_of(prompt)[:MAX_QUESTION] for prompt in messages] or [""] * len(texts)
    cases = [
        [(gold, final, prompt) for final in _as_list(gold, answers)]
        for gold, answers, prompt in zip(golds, finals, asked, strict=True)
    ]
    needed = {case for row in cases if len(row) <= _MAX_SPELLINGS for case in row if case[0]}
    verdicts = {case: _simple_verdict(*case) for case in needed}
    undecided = sorted(case for case, verdict in verdicts.items() if verdict is None)
    replies = _run(undecided, min(reward_timeout, TIMEOUT))
    decided = {case: Reply("value", verdict) for case, verdict in verdicts.items() if verdict is not None}
    return [_verdict(gold, row, decided | replies) for gold, row in zip(golds, cases, strict=True)]


def _as_list(gold: str, finals: list[str]) -> list[str]:
    """Several boxes as one list, where each has one value and the gold is a list of as many."""
    if len(finals) < 2 or not gold:
        return finals
    try:
        several, values = solutions(read(gold)), [read(final) for final in finals]
    except (NotMathsError, RecursionError):
        return finals
    if several is None or len(several.values) != len(finals) or any(map(solutions, values)):
        return finals
    return [", ".join(finals)]


def _run(cases: Sequence[_Case], seconds: float) -> dict[_Case, Reply]:
    jobs = [("outdo.rewards.maths.equivalence:equal", case) for case in cases]
    return dict(zip(cases, _pool().run(jobs, seconds) if jobs else [], strict=True))


@cache
def _pool() -> Pool:
    try:
        import sympy  # noqa: F401
    except ImportError:
        raise GraderError("the reward math needs sympy: pip install sympy") from None
    return Pool(["outdo.rewards.maths.equivalence"], MEMORY_MB)


def _verdict(gold: str, row: list[_Case], replies: dict[_Case, Reply]) -> Grade:
    if not gold:
        return Grade(None, "broken", reason="cannot parse the gold answer as mathematics")
    if not row:
        return Grade(0.0, "wrong", reason="no final answer")
    if len(row) > _MAX_SPELLINGS:
        return Grade(0.0, "wrong", reason=f"{len(row)} final answers")
    for case in row:
        reply = replies[case]
        if reply.kind == "died":
            return Grade(None, "broken", reason=reply.message)
        if reply.value != "":
            several = f"{len(row)} final answers that disagree, or " if len(row) > 1 else ""
            why = reply.message or f"answered {case[1][:40]!r}, not {gold[:40]!r}: {reply.value}"
            return Grade(0.0, "wrong", reason=several + why)
    return RIGHT


def _gold(answer: object) -> str:
    """The gold in one notation; of a worked solution its last box, or the text after its `####`. Empty where it is
    incomplete."""
    text = "" if answer is None else str(answer)
    text = (boxed(text) or [text])[-1] if "\\boxed" in text else text.rpartition("####")[2]
    latex = normalized(text)
    return latex if len(latex) <= MAX_CHARS and _is_complete(latex) else ""


@lru_cache(maxsize=4096)
def _is_complete(latex: str) -> bool:
    """Whether every brace and environment is closed."""
    try:
        found = tokens(latex)
    except NotMathsError:
        return False
    opened = 0
    for token in found:
        opened += (token == "{" or token.startswith("\\begin{")) - (token == "}" or token.startswith("\\end{"))
        if opened < 0:
            return False
    return opened == 0


@lru_cache(maxsize=2**14)
def _simple_verdict(gold: str, latex: str, asked: str) -> str | None:
    """Why the answer is wrong, empty where it is right; None where that needs algebra."""
    try:
        return judge(gold, latex, without_algebra(question(asked)))
    except UndecidedError:
        return None
