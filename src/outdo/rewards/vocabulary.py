"""English words that change what a number beside them means: they can be no part of a unit or of a counted noun."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {
    **{word: i for i, word in enumerate([*_SMALL.split(), "seventeen", "eighteen", "nineteen"])},
    **{word: 10 * i for i, word in enumerate(_TENS.split(), 2)},
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MODIFIERS = {  # words after a number that change its value
    *("hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion"),
    *("dozen", "dozens", "score", "half", "halves", "third", "thirds", "quarter", "quarters", "fifth", "fifths"),
    *("tenth", "tenths", "squared", "cubed", "factorial", "plus", "minus", "times", "over", "by", "mod", "modulo"),
    *("not", "nor", "no", "isn't", "point", "k", "mn", "bn"),
}
_MULTIPLIERS = """trillions lakh lakhs lac lacs crore crores arab kharab myriad myriads gross grosses scores grand
thou mil mill mille mio mln mrd bil bln tril trl tsd hundo tens ones kilo mega giga tera peta hecto deca deci centi
milli micro nano pico megas couple couples brace braces fold folds tenfold twofold threefold single double
triple quadruple quintuple twice thrice once dual doubled tripled halved squared square cube cubed root roots sqrt
power powers exponent exponents exponential factorial logarithm log ln exp sin cos tan sine cosine tangent mod modulo
pi phi tau euler infinity infinite percent percentage percents base bases binary ternary octal decimal decimals hex
hexadecimal radix modulus remainder quotient reciprocal inverse negative negatives positive opposite negated
complement fraction fractions numerator denominator multiple multiples multiplied divided digit digits zeros
zeroes factor scale scaled dot comma slash ratio"""
_ORDINALS = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth fortieth fiftieth sixtieth seventieth
eightieth ninetieth hundredth thousandth millionth billionth half halve quarter"""
_FUNCTION_WORDS = """a an the this that these those some any each every either neither both all no none nothing nobody
never not nor cannot without except excluding but and or if unless then else than as so such though although because
while whether versus vs against instead rather is are was were be been being am isn't aren't wasn't weren't has have
had having do does did done don't doesn't didn't can could may might must shall should will would won't wouldn't can't
couldn't shouldn't i you he she it we they me him her us them my your his its our their who whom whose which what when
where why how there here of to from for with within by at on in into onto off out up down over under above below
between among about around across after before behind beyond during since until till through toward towards upon via
per plus minus times less least most much many few several lots enough too very quite almost nearly roughly
approximately approx circa exactly precisely maybe perhaps possibly probably likely unlikely certainly surely only
just also again even yet still otherwise however therefore thus hence actually really sorry wait hmm oops ok okay yes
yeah nope etc wrong incorrect false untrue true right correct incorrectly correctly mistaken invalid valid impossible
undefined unknown unsure uncertain guess guessed guessing estimate estimated random fake lie error equals equal
equalling unequal greater larger bigger smaller fewer lower higher another other others differ minimum
maximum"""
_SCALE_WORD = re.compile(  # `zillions`, words for an operation, and scales of other languages
    r".*illi(?:on|ard)|subtract|deduct|divid|multipl|(?:doub|trip|quadrup|quintup)l|halv|halfway|negat"
    r"|(?:add(?:s|ed|ing|ition)?|round(?:ed|ing)|squar(?:e|ed|ing)|cub(?:e|ed|ing)|summed|b\.?c\.?e?)$"
    r"|(?:any|every|some)(?:thing|one|body)$|.*sel(?:f|ves)$|mil[hij]|millon|mill?iar|tausend|hundert|dutzend|douzain|docena|dozzin"
)
NEVER_NOUNS = frozenset(
    {*NUMBER_WORDS, *MODIFIERS, *_SCALES, *_MULTIPLIERS.split(), *_FUNCTION_WORDS.split()}
    | {plural for word in _ORDINALS.split() for plural in (word, f"{word}s")}
    | {f"{word}s" for word in NUMBER_WORDS}
    | {"sixes", "hundredths", "thousandths"}
)


def is_open_class(word: str) -> bool:
    """Whether a lower-case word may be part of a noun phrase: no number, multiplier, fraction or function word."""
    parts = [part for part in re.split(r"['’-]", word) if part]
    return (
        len(word) >= 3
        and not _SCALE_WORD.match(word)
        and NEVER_NOUNS.isdisjoint([word, word.replace("’", "'"), *(part for part in parts if part != "s")])
    )


def words_value(words: Iterable[str]) -> int | None:
    """The value of `one hundred and five` or `forty two`; None for anything else."""
    total, group, step = 0, 0, 10**15  # step: what the next word must be below
    seen = False
    for word in words:
        if word == "and" and seen:
            continue
        if word in NUMBER_WORDS and NUMBER_WORDS[word] < step:
            group += NUMBER_WORDS[word]
            step = 10 if NUMBER_WORDS[word] >= 20 else 1 if NUMBER_WORDS[word] else 0
        elif word == "hundred" and 0 < group < 100:
            group, step = 100 * group, 100
        elif word in _SCALES and group and (not total or total % (1000 * _SCALES[word]) == 0):
            total, group, step = total + group * _SCALES[word], 0, 1000
        else:
            return None
        seen = True
    return total + group if seen else None
