"""What a question says that matters to its answers: its formulas, the units and the form that it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from outdo.rewards.answer import NUMBER_WORDS
from outdo.rewards.maths.notation import NotMathsError, normalized
from outdo.rewards.maths.parser import parse
from outdo.rewards.maths.tree import Node, is_plain
from outdo.rewards.units import canonical_unit

MAX_CHARS = 20_000  # of a question that are read
MAX_DIGITS = 40  # of a number in it
_MAX_FORMULAS = 64
_MAX_RUN = 24  # words of a formula in plain text
_DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SIGNS = re.compile(r"[\d\\^=+*/<>|!\u00b2\u00b3\u221a\u222b\u2211\u00d7\u00f7\u2212-]|^\(?[A-Za-z]\)?$|^d[a-z]$|sqrt")
_SHORT = "is of in to at by as an on or if it be we us no do so up he my me go am"
_SHORT_WORDS = frozenset(_SHORT.split())
_EXPAND = re.compile(r"\bexpand|\bmultiply out|\bfactor(?:i[sz]e|ed|ing)?\b(?! of)", re.IGNORECASE)
_SIMPLIFY = re.compile(r"\bsimplif|\bsimplest|\blowest terms|\brationali[sz]|\breduce", re.IGNORECASE)
_CONVERT = re.compile(r"\b(?:convert|express|rewrite|write|as an? |in (?:the )?\w+ (?:form|notation))", re.IGNORECASE)
_INTERVAL = re.compile(r"\binterval|\binequalit|\bdomain\b|\brange\b|[<>≤≥]|\\(?:le|ge|leq|geq|lt|gt)\b", re.IGNORECASE)
_POINT = re.compile(r"\bpoint|\bcoordinate|\bpairs?\b|\bordered\b|\btriple|\bvector|\bsystem\b", re.IGNORECASE)
_ONE_POINT = re.compile(r"\bcoordinates\b|\bordered pair\b|\bthe point\b", re.IGNORECASE)
_ANGLE_UNIT = re.compile(r"\bdegrees?\b|\bradians?\b|[\u00b0\u00ba]|\\circ\b|\\degree\b", re.IGNORECASE)
_ANGLE = re.compile(
    r"\bangle|\bargument\b|\brotat|\binclination\b|\\(?:theta|phi|angle|arg|arc(?:sin|cos|tan))\b|θ|φ|∠", re.IGNORECASE
)
_SIZE = re.compile(
    r"\b(?:areas?|lengths?|volumes?|perimeters?|circumferences?|distances?|radius|radii)\b", re.IGNORECASE
)
_ASKED_UNIT = re.compile(
    r"\b(?:how many|in|number of)\s+((?:square |cubic )?[A-Za-z]+(?:\s+per\s+[A-Za-z]+)?)", re.IGNORECASE
)
_ASKED_NOUNS = re.compile(r"\b(?:how many|number of|how much)\s+((?:[A-Za-z]+\s*){1,4})", re.IGNORECASE)


@dataclass(frozen=True)
class Question:
    text: str

    @cached_property
    def formulas(self) -> tuple[Node, ...]:
        """The trees of its formulas and of the sides of its equations."""
        trees: dict[object, Node] = {}
        for latex in _formulas(self.text):
            for tree in _readings(latex):
                for part in (tree, *(tree.args if tree.op in ("rel", "list") else ())):
                    trees.setdefault(part.key, part)
            if len(trees) > _MAX_FORMULAS:
                break
        return tuple(tree for tree in trees.values() if _counts(tree))

    @cached_property
    def keys(self) -> frozenset[object]:
        """Of its formulas and of all their parts, if there is an operation in them."""
        return frozenset(part.key for tree in self.formulas for part in tree.walk() if _counts(part))

    @cached_property
    def whole_keys(self) -> frozenset[object]:
        return frozenset(tree.key for tree in self.formulas)

    @cached_property
    def asks_to_expand(self) -> bool:
        return bool(_EXPAND.search(self.text))

    @cached_property
    def asks_to_simplify(self) -> bool:
        return bool(_SIMPLIFY.search(self.text))

    @cached_property
    def asks_to_convert(self) -> bool:
        return self.asks_to_simplify or bool(_CONVERT.search(self.text))

    @cached_property
    def asks_for_interval(self) -> bool:
        return bool(_INTERVAL.search(self.text)) and not _POINT.search(self.text)

    @cached_property
    def asks_for_point(self) -> bool:
        return bool(_ONE_POINT.search(self.text)) and not _INTERVAL.search(self.text)

    @cached_property
    def asks_for_angle(self) -> bool:
        """In any unit: it names neither degrees nor radians."""
        return bool(_ANGLE.search(self.text)) and not (_SIZE.search(self.text) or _ANGLE_UNIT.search(self.text))

    @cached_property
    def mentions_percent(self) -> bool:
        return "%" in self.text or bool(re.search(r"\bper\s?cent", self.text, re.IGNORECASE))

    @cached_property
    def mentions_ratio(self) -> bool:
        return bool(re.search(r"\b(?:ratios?|odds|proportions?|scale)\b", self.text, re.IGNORECASE))

    @cached_property
    def numbers(self) -> frozenset[Fraction]:
        """The numbers that it gives, in digits or as words."""
        digits = re.findall(r"[0-9]+(?:\.[0-9]+)?", re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3})", "", self.text))
        words = re.findall(r"[a-z]+", self.text.lower())
        spoken = {Fraction(NUMBER_WORDS[word]) for word in words if word in NUMBER_WORDS}
        return frozenset(spoken | {Fraction(run) for run in digits if len(run) <= MAX_DIGITS})

    @cached_property
    def units(self) -> frozenset[str]:
        """The units that it asks for by name: `in cm`, `how many minutes`."""
        found = {canonical_unit(text) for text in _ASKED_UNIT.findall(self.text)}
        return frozenset(unit for unit in found if unit)

    @cached_property
    def nouns(self) -> frozenset[str]:
        """The words after `how many`."""
        runs = _ASKED_NOUNS.findall(self.text)
        return frozenset(word.lower() for run in runs for word in run.split())


def _counts(node: Node) -> bool:
    """An operation, or a number with decimals: what may have another form."""
    return bool(node.args) or (node.value is not None and node.value.denominator != 1)


@lru_cache(maxsize=256)
def question(text: str) -> Question:
    return Question(text[:MAX_CHARS])


def text_of(messages: object) -> str:
    """The contents of the messages of a prompt; empty where there are none."""
    if not isinstance(messages, (list, tuple)):
        return ""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return "\n".join(content for content in contents if isinstance(content, str))


def formulas_to_give_back(text: str, gold: str) -> list[str]:
    """The formulas of a question that a lazy answer may repeat: with an operation in them, and not the gold itself."""
    expected = {tree.key for tree in _readings(gold)}
    found = dict.fromkeys(normalized(latex) for latex in _formulas(text[:MAX_CHARS]))
    trees = [(latex, next(_readings(latex), None)) for latex in found]
    return [latex for latex, tree in trees if tree and tree.args and not is_plain(tree) and tree.key not in expected]


def _readings(latex: str) -> Iterator[Node]:
    try:
        latex = normalized(latex)
        yield parse(latex)
        yield parse(latex, units=False)
    except (NotMathsError, RecursionError):
        return


def _formulas(text: str) -> Iterator[str]:
    for groups in _DELIMITED.findall(text):
        yield from (group.strip().rstrip(".,;:") for group in groups if group)
    for run in _runs(_DELIMITED.sub(" , ", text)):
        yield run
        words = run.split()
        if len(words) > 1:
            yield from words


def _runs(text: str) -> Iterator[str]:
    """Neighbouring words that look like parts of a formula."""
    run: list[str] = []
    for word in text.split():
        bare = word.strip("?\"'").rstrip(".,;:?!") if not re.search(r"\d!$", word) else word
        looks = bool(bare and _SIGNS.search(bare)) or (len(bare) == 2 and bare.isalpha() and bare not in _SHORT_WORDS)
        if looks and len(run) < _MAX_RUN:
            run.append(bare)
        if run and (not looks or bare != word):
            yield _trimmed(run)
            run = []
    if run:
        yield _trimmed(run)


def _trimmed(run: list[str]) -> str:
    while len(run) > 1 and run[0] in ("a", "A", "I"):
        run = run[1:]
    return " ".join(run)
