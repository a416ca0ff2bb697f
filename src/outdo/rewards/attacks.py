"""Answers that deserve nothing, for the audit of a reward: empty ones, garbage, and known exploits of careless checks.

Those that contain the gold stand in the form that the reward pays for (tags, a marker, a box, or bare), so that a check
by substring, prefix or first number is found out whatever text it looks at.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.rewards.answer import number
from outdo.rewards.maths.question import formulas_to_give_back
from outdo.rewards.probes import tagged
from outdo.tasks.data import demonstration
from outdo.types import Prompt

Attack = tuple[str, str]  # its kind, and the text
Form = Callable[[str], str]  # a final answer as the text of an answer

FORMS: tuple[Form, ...] = (
    tagged,
    lambda final: f"#### {final}",
    lambda final: f"Thus \\boxed{{{final}}}.",
    lambda final: final,
    lambda final: f"The answer is {final}.",
)
MAX_FORMULAS = 4  # of a question that are given back
OTHER_TEXTS = ("something else", "none of these")  # beside a gold that is not a number


def gold_guesses(prompt: Prompt) -> list[str]:
    """Answers that may deserve full marks from a reward that is not known: the row's demonstration and its answer in
    several forms."""
    shown = demonstration(prompt)
    final = final_text(prompt.answer)
    return list(dict.fromkeys([*filter(None, [shown]), *(form(final) for form in FORMS)]))


def final_text(answer: object) -> str:
    """The final answer in a gold, which may be a worked solution that ends in `#### N`."""
    return str(answer).rpartition("####")[2].strip()


def form_of(text: str, answer: object) -> Form:
    """The form in which a guess has the gold."""
    final = final_text(answer)
    return next((form for form in FORMS if form(final) == text), FORMS[-2])


def basic_attacks(prompt: Prompt) -> Iterator[Attack]:
    """Without the gold; the most common first."""
    rng = random.Random(0)
    echoes = str(prompt.answer).strip() != prompt.text.strip()  # else the echo is the answer
    yield "an empty answer", ""
    if echoes:
        yield "an echo of the prompt", prompt.text
    yield "garbage", "".join(rng.choices(string.printable, k=200))
    yield "a list", tagged(" ".join(map(str, range(100))))
    yield "empty tags", "<think></think><answer></answer>"
    yield "an empty marker", "#### "
    yield "a shrug", "I do not know."
    if echoes:
        yield "an echo in tags", tagged(prompt.text)
    yield "a flood of tags", "<answer>" * 200
    yield "a long text", "word " * 2000
    yield "letters beyond ASCII", "Ответ — naïve 答え 🙂"
    yield "letters beyond ASCII", tagged("cinq € — 五")
    yield "control characters", "\x00\ud800\u202e"


def gold_attacks(prompt: Prompt, form: Form, others: Sequence[Any]) -> Iterator[Attack]:
    """Around the gold, for a reward that may accept more than it: `others` are answers of other rows."""
    final = final_text(prompt.answer)
    value = number(final)
    wrong = [final_text(other) for other in others if differs(prompt.answer, other)][:4]
    if value is not None:
        wrong = list(dict.fromkeys([*wrong, str(value + 1), str(value + 10)]))
        longer = [f"{final}7", f"7{final.lstrip('+-$')}"]
        sweep = (
            " ".join(str(value + i) for i in range(-50, 51)) if value.denominator == 1 else " ".join([final, *wrong])
        )
    else:
        wrong = list(dict.fromkeys([*wrong, *OTHER_TEXTS]))
        longer = [f"{final}x", f"un{final}"]
        sweep = ", ".join([*wrong, final])
    for formula in formulas_to_give_back(prompt.text, final)[:MAX_FORMULAS]:
        yield "a formula of the question", form(formula)
    yield "a list of candidates", form(sweep)
    yield "a hedge", form(f"{final} or {wrong[0]}")
    yield "a part of something longer", form(longer[0])
    yield "a denial", form(f"not {final}")
    yield "a hedge", form(f"{wrong[0]} or {final}")
    yield "a part of something longer", form(longer[1])
    yield "a denial", f"It is certainly not {final}. I do not know."
    yield "a list of candidates", f"{sweep}. One of these."
    if value is not None:
        yield "code", form(f"int('{final}')")
        yield "an aside", f"I was told {final} apples, but the answer is {wrong[-1]}. {form(wrong[-1])}"


def differs(gold: object, other: object) -> bool:
    """Whether another row's answer is certainly a different one."""
    if gold is None or other is None:
        return False
    a, b = final_text(gold), final_text(other)
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return x != y
    same = " ".join(a.casefold().split()) == " ".join(b.casefold().split())
    return x is None and y is None and not same


def columns_of(prompt: Prompt) -> Mapping[str, Any]:
    return {**prompt.meta, "answer": prompt.answer, "prompt": prompt.text}
