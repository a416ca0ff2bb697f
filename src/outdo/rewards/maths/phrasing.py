"""The words that may stand around an answer without changing it. An allow-list: any other word counts."""

from __future__ import annotations

import re

_PLAIN = """a an the this that these those its it our his her their so thus therefore hence then finally and final
answer answers result results value values solution solutions expression equation function is are was be equals equal
to must have has we get obtain find found conclude know which gives us there of exactly approximately about simplifies
becomes total sum difference product quotient remainder area perimeter volume length width height radius diameter
circumference distance speed time cost price profit probability mean median mode average ratio slope angle measure
number count digit digits amount interval set range domain point points coordinates vector matrix root roots maximum
minimum greatest least largest smallest correct required desired requested by in for with simplest form simplified
factored expanded as written can"""
HARMLESS = frozenset(_PLAIN.split())
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|finally)\b,?\s*)?(?:(?:the|my|our)\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|result|solution|value)\s*(?:is|are|equals|=|:|\bis\b\s*:)\s*(?::\s*)?"
    r"|(?:so|thus|hence|therefore)\b,?\s+(?=[\d\\(\[{$x-z-])",
    re.IGNORECASE,
)
_INTRODUCES = re.compile(r"(?:\b(?:is|are):?|:)\s+", re.IGNORECASE)
_LEAD_WORDS = re.compile(r"[A-Za-z'’,:\s]*")
_NAMED = re.compile(r"\$[A-Za-z]\$|\\\([A-Za-z]\\\)")
_MAX_LEAD = 100
_QUANTITIES = """area perimeter volume length width height radius diameter circumference distance speed time cost
price profit probability mean median mode average ratio slope angle measure number count total sum difference product
quotient remainder answer result value solution solutions final maximum minimum max min domain range surface base side
sides rate mass weight age ages the of a an is degree degrees center vertex focus limit integral derivative
determinant rank variance deviation standard expected ways discount tax interest amount balance percent percentage
increase decrease velocity acceleration force energy work power density pressure temperature hypotenuse diagonal
midpoint intercept lcm gcd hcf gcf order period amplitude frequency"""
_NAMES = frozenset(_QUANTITIES.split())
_DENYING = """not no never nor neither none without except excluding but other than unlike wrong incorrect false
impossible isn aren doesn don cannot cant isnt invalid instead opposite negative negated minus reciprocal inverse half
twice double triple times plus hundred thousand million billion dozen or and if unless less more fewer greater non bad
untrue mistaken error reject rejected"""
_HEDGING = """about approximately roughly around nearly almost close near under over above below between at most least
maybe perhaps probably possibly might may could should would guess suppose assume assuming estimate estimated upper
lower bound up to only half part square squared cube cubed log complement conjugate negation different another others
previous earlier old original first second last next next-to any anything everything nothing something far old
contradiction fake bogus nonsense unlikely hardly barely scarcely seldom rarely neither sometimes question problem
asked given hypothetically say said claims claim claimed they someone he she you i was were
ignore ignored discard discarded dropped exclude excluded omit omitted doubtful lie lies
irrelevant unrelated refuted disproved outdated trial dummy example sample counterexample"""
_DESCRIBED = """matrix vector polynomial integer integers number numbers function equation expression
sequence line circle triangle prime primes divisor term factor pair triple sum product area volume probability
length radius angle ratio maximum minimum fraction permutation inequality interval set point"""
_OBJECTS = frozenset(_DESCRIBED.split())
HEDGES = frozenset(_HEDGING.split())  # with these, a lead-in may say something else than what the answer is
DENIALS = frozenset(_DENYING.split())  # words of a question that do not name a quantity


def is_harmless(text: str) -> bool:
    """Whether a text around a formula says no more than that this is the answer: `The area is … .`"""
    if re.search(r"[^\sA-Za-z.,:;!*'’`-]", text):
        return False
    words = re.findall(r"[A-Za-z'’]+", text.lower())
    return "-" not in text and all(word in HARMLESS or len(word) == 1 for word in words)


def without_lead_in(text: str) -> str:
    """A formula without the words that introduce it: `Here is the identity matrix: …`, `The largest $n$ is 34.`

    Two words may be of any meaning where they describe an object, unless they deny, hedge or compare.
    """
    ends = [match.span() for match in _INTRODUCES.finditer(text[:_MAX_LEAD])]
    leads = [(_NAMED.sub(" ", text[:start]), text[end:].strip()) for start, end in ends]
    lead, formula = next((pair for pair in reversed(leads) if _LEAD_WORDS.fullmatch(pair[0])), ("", ""))
    if not re.search(r"[\\\d$]", formula):
        return text
    words = re.findall(r"[a-z'’]+", lead.lower())
    unknown = [place for place, word in enumerate(words) if word not in HARMLESS and word != "here" and len(word) > 1]
    if len(unknown) > 2 or len(words) > 10 or any(_denies(word) for word in words):
        return text
    described = all({*words[place + 1 : place + 3]} & _OBJECTS or words[place] in _OBJECTS for place in unknown)
    return formula if described and not (unknown and "of" in words) else text


def _denies(word: str) -> bool:
    prefixed = re.match(r"un[a-z]{3}|in(?:cor|val)|im(?:pos|pro)|mis[a-z]{3}|non", word)
    return word in DENIALS or word in HEDGES or "'" in word or "’" in word or bool(prefixed)


def without_phrases(text: str) -> str:
    """A bare answer without `The answer is` before it."""
    match = _LEAD.match(text)
    return text[match.end() :].strip() if match and match.end() < len(text) else text


def names_a_quantity(text: str, question: str = "") -> bool:
    """Whether words before an equals sign name what the question asks for: quantities, or words of the question."""
    words = re.findall(r"[a-z]+", text.lower())
    asked = set(re.findall(r"[a-z]+", question.lower())) - DENIALS
    return 0 < len(words) <= 6 and all(word in _NAMES or word in asked for word in words)
