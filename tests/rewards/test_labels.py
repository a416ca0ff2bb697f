"""Letters of multiple-choice questions: the label alone, decorated, or before its own option's text."""

from __future__ import annotations

import time

import pytest

from outdo.rewards.labels import label


def listed(text):
    return [item for line in text.splitlines() for item in line.split(" | ")]


LINES = "What is the capital of France?\nA. Paris\nB. Rome, Italy\nC. Not A or B\nD. 5.5 million"
INLINE = "What is the capital of France? (A) Paris (B) Rome, Italy (C) Not A or B (D) 5.5 million"
COLONS = (
    "What is the capital of France?\n\nA: Paris\nB: Rome, Italy\nC: Not A or B\nD: 5.5 million\n\nAnswer with a letter."
)
BOLD = "Which?\n**A)** Paris\n**B)** Rome, Italy\n**C)** Not A or B\n**D)** 5.5 million"
QUESTIONS = (LINES, INLINE, COLONS, BOLD)
ALONE = listed(r"""A | a | A. | (A) | (A). | A) | A: | **A** | *A* | ***A*** | `A` | **(A)** | (**A**) | **A.**
**A**. | "A" | 'A' | Option A | option (A) | Choice A | Answer: A | The answer is A | The answer is (A).
Final answer: **A** | The correct answer is A | The correct option is A. | The answer is option A | $A$ | \(A\)
\text{A} | \textbf{A} | \textbf{(A)} | (\text{A}) | \mathrm{A} | \text{(A)} | $\text{A}$ | \boxed{A} | **Option A**
**Answer: A** | Answer: **A**""")
WITH_TEXT = listed(r"""A. Paris | A) Paris | (A) Paris | A: Paris | A - Paris | **A. Paris** | **A) Paris.**
**A.** Paris | (A). Paris | \textbf{(A)}\ Paris | \textbf{(A) Paris} | \text{A. Paris} | A. paris | a) Paris
A.  **Paris**""")
WRONG = listed(r"""B | (B) | **B** | Option B | A or B | A, not B | not A | Not A | A. wrong; B | A/B | A and B
A B | AB | A, B | (A) or (B) | (A)(B) | (A) (B) | A? | A! | A.. | Either A or B | It is A | I think A
Option A or B | Option A and Option B | Options A, B | Answer: A or B | The answer is not A
The answer is A, not B | The answer is B, not A | Answer A is wrong | No: A | B. Paris | A. Rome, Italy | A. Rome
A. Not A or B | A. Paris or Rome | A. Paris; B. Rome, Italy | A. Paris B. Rome, Italy | A. B | A) B | A. Paris?
A. not Paris | A. Paris is wrong | A Paris | Paris | A. Par | A. Pariss | **A** **B** | **A** B | \text{A} \text{B}
\text{A or B} | \text{not A} | \boxed{B} | А | Α | Ａ | 𝐀 | Ⓐ | A\u0301 | neither | all | none of A | [A, B]
{A, B} | A|B | ["A"] | C. Not A or B | D | E | 1 | A1 | A2 | An apple | a) Rome | (A | A)B | A: B | A - B | -A | ~A
!A | ¬A | A' | A^c""")


def verdict(text, gold="A", question=LINES, labels=("A", "B", "C", "D")):
    messages = [[{"role": "user", "content": question}]] if question else ()
    (grade,) = label([text], [gold], labels=labels and [labels], messages=messages)
    return grade.verdict


@pytest.mark.parametrize("question", [*QUESTIONS, ""])
@pytest.mark.parametrize("form", ["{}", "<think>B?</think>{}", "<answer>{}</answer>", "#### {}", "<answer>{}"])
def test_letters(question, form):
    for text in ALONE:
        assert verdict(form.replace("{}", text), "A", question) == "right", text
        assert verdict(form.replace("{}", text), "B", question) == "wrong", text
    for text in WRONG:
        assert verdict(form.replace("{}", text), "A", question) == "wrong", text
        assert verdict(form.replace("{}", text), "A", question, None) == "wrong", text


@pytest.mark.parametrize("question", QUESTIONS)
def test_text_of_an_option(question):
    for text in WITH_TEXT:
        assert verdict(f"<answer>{text}</answer>", "A", question) == "right", text
        assert verdict(text, "B", question) == "wrong", text
        assert verdict(text, "A", "") == "wrong", text
    assert verdict("C. Not A or B", "C", question) == "right"
    assert verdict("B) Rome, Italy.", "B", question) == "right"
    assert verdict("D. 5.5 million", "D", question) == "right"


def test_boxes_and_words():
    assert verdict("So \\boxed{\\textbf{(A)}}.") == "right"
    assert verdict("So \\boxed{A} or \\boxed{B}") == "wrong"
    for text in ("**yes**", "(Yes)", "The answer is yes.", "\\text{yes}", "Answer: Yes"):
        assert verdict(text, "yes", "Is it?", ("yes", "no")) == "right"
        assert verdict(text, "no", "Is it?", ("yes", "no")) == "wrong"
    for text in ("yes and no", "not yes", "yes, no", "yes. no", "Answer: yes or no", "yes no", "yes: no", "no yes"):
        assert verdict(text, "yes", "Is it?", ("yes", "no")) == "wrong"


def test_linear_time():
    start = time.perf_counter()
    for piece in ("(", "**", "A. ", "Option ", "\\text{", "A) Paris ", "The answer is ", "$"):
        assert verdict(piece * (100_000 // len(piece)), "A", piece * 20_000) == "wrong"
        assert verdict(piece * 20 + "A", "B", LINES) == "wrong"
    assert time.perf_counter() - start < 5
