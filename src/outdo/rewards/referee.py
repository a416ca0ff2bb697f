"""Scores one answer by reasoning-gym's own scorer, with checks before and after it. Runs inside the sandbox only.

The library's scorers are lenient: some evaluate the answer as Python or hand it to sympy, which does; some give full
marks to any text that holds the right number somewhere, to four other numbers that make 24, or to any answer at all. So
each has a rule here: the form that an answer must have before the scorer sees it, which leaves no way to write code,
and a check of what the scorer calls right. Answers to a generator without a rule are compared with the gold only.

Self-contained: the source of this file is sent into the sandbox, where the rest of the package is missing.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

Entry = dict[str, Any]

_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = rf"[-+]?{_DECIMAL}(?:[eE][-+]?[0-9]+)?"
_SUM = r"(?!.*(?:\*\s*\*|/\s*/))[-+*/() 0-9]+"  # no powers, no integer divisions
_LIST = r"[\[\]0-9,\s-]*"
_TIME = r"[0-9]+:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_FUNCTIONS = {
    *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("exp", "log", "ln", "sqrt", "Abs", "pi", "E", "C"),
}
_BOX_MOVE = r"move\(box_\w+, (?:square\[[0-9.]+, [0-9.]+\]|target_\w+)\)"
_JUG_MOVE = r"(?:fill|empty) [A-Z]|pour [A-Z]->[A-Z]"

# Generators whose scorers handle any text safely: no form is required.
ANY_TEXT = {
    *("ab", "arc_agi", "bitwise_arithmetic", "boxnet", "calendar_arithmetic", "chain_sum", "circuit_logic", "codeio"),
    *("coin_flip", "color_cube_rotation", "cryptarithm", "decimal_arithmetic", "dice", "decimal_chain_sum"),
    *("emoji_mystery", "family_relationships", "figlet_font", "futoshiki", "game_of_life_halting", "graph_color"),
    *("group_anagrams", "jugs", "knight_swap", "knights_knaves", "letter_jumble", "manipulate_matrix", "mini_sudoku"),
    *("needle_haystack", "number_format", "number_sorting", "palindrome_generation", "palindrome_partitioning"),
    *("path_star", "power_function", "prime_factorization", "products", "rearc", "rectangle_count", "self_reference"),
    *("sentence_reordering", "shortest_path", "spell_backward", "sudoku", "tsumego", "word_ladder", "word_sorting"),
    *("zebra_puzzles",),
}

# The form that an answer must have before the scorer sees it.
FORMS: dict[str, str] = {
    "advanced_geometry": rf"\(?\s*{_NUMBER}\s*(?:,\s*{_NUMBER}\s*)?\)?\s*°?",
    "binary_matrix": _LIST,
    "complex_arithmetic": r"[-+0-9.eij()\s]+",
    "countdown": _SUM,
    "fraction_simplification": r"\$?\s*(?:\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+)\s*\$?",
    "game_of_life": r"[\[\]01,\s]+",
    "gsm_symbolic": _NUMBER,
    "intermediate_integration": "sympy",
    "kakurasu": r"[01\s]+",
    "n_queens": r"[\[\]'\"Q_,\s]*",
    "polynomial_equations": rf"{_NUMBER}(?:\s*,\s*{_NUMBER})*",
    "polynomial_multiplication": "sympy",
    "pool_matrix": r"[-0-9.\s]+",
    "propositional_logic": r"[A-Z∨∧→↔¬()\s]+",
    "puzzle24": _SUM,
    "quantum_lock": r"[A-Ca-c](?:[\s→,>-]*[A-Ca-c])*",
    "rubiks_cube": r"[UDLRFBMESudlrfbxyzw'0-9\s]+",
    "rush_hour": r"(?:[A-Z][+-][0-9]{1,2}[\s,]*)+",
    "simple_integration": "sympy",
    "sokoban": r"[UDLR]+",
    "spiral_matrix": _LIST,
    "string_insertion": r"[\[\]'\"A-E,\s]*",
    "survo": r"[-0-9\s]+",
    "time_intervals": rf"-?[0-9]+(?: days?(?:, {_TIME})?)?|{_TIME}",
    "tower_of_hanoi": r"(?:\s*Move disk [0-9]+ from Peg [0-9]+ to Peg [0-9]+\s*(?:\n|$))+",
}


def _chance(answer: str, gold: str, entry: Entry) -> bool:
    """The scorer accepts a prefix of the right digits, and 0 for any small probability."""
    expected, answered = float(gold), float(Fraction(answer.replace(",", "")))
    return abs(answered - expected) <= min(1e-4, 0.01 * expected)


def _boxes(answer: str, gold: str, entry: Entry) -> bool:
    """The scorer lets targets be moved, too."""
    moves = [move for step in json.loads(answer) for move in step.values()]
    return all(re.fullmatch(_BOX_MOVE, move) for move in moves)


def _coloring(answer: str, gold: str, entry: Entry) -> bool:
    colors = json.loads(answer)
    return isinstance(colors, dict) and set(colors) == {str(v) for v in entry["metadata"]["puzzle"]["vertices"]}


def _pours(answer: str, gold: str, entry: Entry) -> bool:
    moves = json.loads(answer)
    return isinstance(moves, list) and all(re.fullmatch(_JUG_MOVE, move) for move in moves)


def _roles(answer: str, gold: str, entry: Entry) -> bool:
    words = {*re.findall(r"\w+", gold.lower()), "is", "a", "an", "and"}
    return words.issuperset(re.findall(r"\w+", answer.lower()))


def _conclusion(answer: str, gold: str, entry: Entry) -> bool:
    """The scorer accepts what the premises say already, and a variable as `¬¬P`. Neither is a conclusion.

    Compared by truth tables, as bits: a formula restates a premise where it is equivalent to it, or where a part of it
    is and the premise is more than a literal.
    """
    from reasoning_gym.logic.propositional_logic import Expression

    names = entry["metadata"]["variables"]
    rows = [dict(zip(names, row, strict=True)) for row in itertools.product((False, True), repeat=len(names))]

    def table(formula: Any) -> int:
        return sum(1 << i for i, row in enumerate(rows) if formula.evaluate(row))

    def parts(formula: Any) -> Iterator[Any]:
        yield formula
        for part in (formula.left, formula.right):
            if isinstance(part, Expression):
                yield from parts(part)

    conclusion = Expression.from_string(answer)
    premises = [Expression.from_string(premise) for premise in entry["metadata"]["premises"]]
    meaning, stated = table(conclusion), {table(premise) for premise in premises}
    variables = {table(Expression(None, name)) for name in names}
    literals = variables | {~variable & (1 << len(rows)) - 1 for variable in variables}
    restated = meaning in stated or any(table(part) in stated - literals for part in parts(conclusion))
    return not restated and (meaning not in variables or answer == gold)


def _sorted(answer: str, gold: str, entry: Entry) -> bool:
    """The scorer tolerates a difference of 1."""
    both = [[float(n) for n in json.loads(text.replace("'", '"'))] for text in (answer, gold)]
    return both[0] == both[1]


def _pooled(answer: str, gold: str, entry: Entry) -> bool:
    both = [[float(n) for n in text.split()] for text in (answer, gold)]
    return all(abs(x - y) <= 0.0101 for x, y in zip(*both, strict=True))


def _makes(answer: str, numbers: list[int], target: int) -> bool:
    """Whether an expression of the form `_SUM` uses these numbers and equals the target."""
    from sympy.parsing.sympy_parser import parse_expr

    used = sorted(map(int, re.findall("[0-9]+", answer)))
    return used == sorted(numbers) and bool(parse_expr(answer) == target)


# Whether an answer that the scorer gives full marks deserves them: (answer, gold, entry) -> bool.
CHECKS: dict[str, Any] = {
    "boxnet": _boxes,
    "codeio": lambda answer, gold, entry: json.loads(answer) == json.loads(gold),
    "coin_flip": _chance,
    "countdown": lambda answer, gold, entry: _makes(answer, entry["metadata"]["numbers"], entry["metadata"]["target"]),
    "cryptarithm": lambda answer, gold, entry: answer.count("=") == len(set(re.findall(r"\w(?=\s*=)", answer))),
    "figlet_font": lambda answer, gold, entry: answer.replace(" ", "").lower() == gold.lower(),
    "game_of_life": lambda answer, gold, entry: json.loads(answer) == json.loads(gold),
    "game_of_life_halting": lambda answer, gold, entry: answer.lower() == gold.lower(),
    "graph_color": _coloring,
    "gsm_symbolic": lambda answer, gold, entry: float(answer) == float(gold),
    "jugs": _pours,
    "knights_knaves": _roles,
    "letter_jumble": lambda answer, gold, entry: answer.lower().split() == gold.lower().split(),
    "number_sorting": _sorted,
    "pool_matrix": _pooled,
    "propositional_logic": _conclusion,
    "puzzle24": lambda answer, gold, entry: _makes(answer, entry["metadata"]["numbers"], 24),
    "spell_backward": lambda answer, gold, entry: answer.lower() == gold.lower(),
    "word_sorting": lambda answer, gold, entry: re.split(r"\s*,\s*", answer) == entry["metadata"]["sorted_words"],
}

STRICT = {"propositional_logic"}  # the check decides about the gold, too, and there is no partial credit
_EMPTY = ("", " ", "?", "-", "[]", "{}", '""')
_VISIBLE = re.compile(
    r"[^\W_\u115f\u1160\u3164\uffa0]|[\u2190-\u2bff\U0001f000-\U0001faff]"
)  # letters, digits, symbols

_generators: dict[str, Any] = {}  # by name and options: some take long to create


def referee(name: str, options: Entry, entry: Entry, gold: str | None, answer: str | None) -> list[Any]:
    """A score from 0 to 1, and a reason. Without an answer it only creates the generator, for the next call."""
    from reasoning_gym.factory import create_dataset

    key = repr((name, options))
    if key not in _generators:
        _generators[key] = create_dataset(name, size=1, seed=0, **options)
    if answer is None:
        return [0.0, ""]
    if gold is not None and answer.strip() == gold.strip() and name not in STRICT:
        return [1.0, ""]
    if not _VISIBLE.search(answer) and not re.search(r"[^\w\s]", gold or ""):
        return [0.0, "the answer is empty"]
    return _scored(_generators[key], name, entry, (gold or "").strip(), answer.strip())


def _scored(dataset: Any, name: str, entry: Entry, gold: str, answer: str) -> list[Any]:
    from reasoning_gym.dataset import ProceduralDataset

    custom = type(dataset).score_answer is not ProceduralDataset.score_answer
    if custom and name not in FORMS and name not in ANY_TEXT:
        return [0.0, "not the gold answer, and the scorer of this generator is not known to be safe"]
    form = FORMS.get(name, "") if custom else ""
    if form and not (_is_formula(answer, gold) if form == "sympy" else re.fullmatch(form, answer)):
        return [0.0, "not in the required form"]
    try:
        score = float(dataset.score_answer(answer, entry))
        full = score >= 1 or (name in STRICT and answer == gold)
        if full and name in CHECKS and not CHECKS[name](answer, gold, entry):
            return [0.0, "not the answer, although the scorer accepts it"]
    except Exception as error:
        return [0.0, f"cannot parse the answer ({type(error).__name__})"]
    return [1.0, ""] if full else [_partial(dataset, name, entry, answer, score), "not fully right"]


def _partial(dataset: Any, name: str, entry: Entry, answer: str, score: float) -> float:
    """A partial score, or 0 where the scorer gives as much to an answer without content."""
    if not math.isfinite(score) or score <= 0 or name in STRICT or not _VISIBLE.search(answer):
        return 0.0
    return score if score > max(_score(dataset, entry, empty) for empty in _EMPTY) else 0.0


def _score(dataset: Any, entry: Entry, answer: str) -> float:
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0


def _is_formula(text: str, gold: str) -> bool:
    """Whether sympy may parse it: numbers, signs, brackets, common functions, and names of the gold."""
    names = {*_FUNCTIONS, *re.findall(r"[A-Za-z]\w*", gold)}
    tokens = re.findall(r"[A-Za-z_]\w*|[0-9.]+|\S", text)
    return all(token in names or token in "+-*/()" or re.fullmatch(_DECIMAL, token) for token in tokens)
