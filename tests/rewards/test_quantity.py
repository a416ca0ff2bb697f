"""Numbers with text around them: every listed spelling of the right number is right, and no other text is."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.rewards.answer import gsm8k, numeric
from outdo.rewards.quantity import number, read
from outdo.rewards.units import COUNTED, canonical_unit
from outdo.rewards.vocabulary import NEVER_NOUNS, words_value

QUESTION = "Tom packs widgets in blue crates. How many blue widgets, of every grand kind in lakh lots, does he pack?"
ASKED = f"{QUESTION} How many percent? How many times?"


def listed(text, separator=None):
    return [part.strip() for part in text.split(separator)]


UNITS = listed(r"""cm m km mm kg g mg L mL ml ft in yd mi oz lb lbs s ms min h hrs hours minutes days weeks months
years mph km/h m/s m/s^2 cm² m³ m^2 km^2 ft² °C °F ° % percent $ € £ dollars cents euros rupees USD EUR MB GB kB Mbps
Hz kHz MHz W kW kWh J kJ cal kcal N Pa kPa V mA Ω mol radians degrees acres hectares gallons cups tablespoons inches
feet yards miles kilometers centimetres kilograms grams litres people students apples marbles books cookies children
boxes tickets cars pages eggs dogs points games""")
PHRASES = listed(
    r"""square meters | sq ft | sq. ft. | cubic centimeters | meters squared | miles per hour |
dollars per hour | dollars an hour | pages a day | cups of flour | gallons of water | pieces of candy | years old |
feet tall | apples left | books in total | students altogether | cookies each | miles away | left | in all | total |
widgets | blue widgets | widgets left | crates of widgets | times | light years | degrees Celsius | square units |
units | \text{ cm} | \text{ cm}^2 | \,\mathrm{kg} | \mathrm{~km} | \% | ^\circ | ^{\circ} | \text{ m/s} |
\ \text{apples} | \text{ blue widgets} | \text{ cm}^{3} | ^\circ\text{C} | (forty-two) | (Forty two) apples |
apples (forty-two) | (42) | (cm) | (dollars) | miles/hour | /hour""",
    "|",
)
LEADS = listed(
    r"""Answer: {} | The answer is {} | The answer is: {} | the final answer is {}. | Final Answer: {} |
Total: {} | Total = {} | Result: {} | x = {} | n={} | x_1 = {} | \theta = {} | f(x) = {} | = {} | Answer = {} |
So the answer is {} | Therefore, the total is {} | The total number is {} | **Answer:** {} | Answer: **{}** |
The total number of blue widgets is {} | Widgets = {} | \text{{Answer}} = {} | \text{{Total}}: {} | Ans: {} |
\({}\) | \[{}\] | ${}$ | $${}$$ | **{}** | *{}* | `{}` | **{}**. | {}. | +{} | $x = {}$ | \({}\). | US${} | \${} |
$ {} | USD {} | €{} | £ {} | Rs. {} | Rs {} | ₹{} | A${} | \text{{{}}} | \mathbf{{{}}} | {}.0 | {}.00 | 0{} |
\(x = {}\) | Thus, {} | So {} | Answer: ${} | Total cost: ${} | {{{}}}""",
    "|",
)
SPELLINGS = {  # of one number each
    "1234": [
        "1,234",
        "1{,}234",
        "1\\,234",
        "1,\\!234",
        "1\u00a0234",
        "1\u202f234",
        "1\u2009234",
        "1'234",
        "1234.",
        "1234.0",
    ],
    "1234567": ["1,234,567", "1{,}234{,}567", "1\\,234\\,567", "1\u202f234\u202f567", "$1,234,567.00", "+1,234,567"],
    "1234.5": ["1.234,50", "1.234,5", "1,234.50", "1\u202f234,5", "1\u00a0234.50", "€1.234,50", "1'234.5"],
    "-7": [
        "-7",
        "\u22127",
        "- 7",
        "-7.0",
        "-$7",
        "$-7",
        "－7",
        "\u22127 (minus seven)",
        "minus 7",
        "Negative $7",
        "The answer is negative 7.",
        "-7 degrees",
        "x = -7",
        "\\(-7\\)",
    ],
    "42": ["４２", "４２.０", "42 (42.0)", "+42", "42.000", "0042", "＋42", "Answer：42", "x＝42"],
    "0.5": [".5", "0.50", "+.5", "0.5%", "0.5 km", "x = .5", "\\(0.5\\)", "$0.50", "0.5 cups of sugar"],
    "105": ["105 (one hundred and five)", "105 (one hundred five)", "$105 (one hundred five) dollars"],
    "2030": ["2,030 (two thousand thirty)", "2030 (two thousand and thirty) people"],
}
RIGHT = [
    *((f"42{gap}{unit}", "42") for unit in UNITS for gap in (" ", "")),
    *((f"42 {phrase}", "42") for phrase in PHRASES),
    *(
        (f"${{}} {phrase}".format(42), "42")
        for phrase in ("per hour", "each", "left", "in total", "USD", "a day", "/hour")
    ),
    *((lead.format("42"), "42") for lead in LEADS),
    *((text, gold) for gold, texts in SPELLINGS.items() for text in texts),
]
# What makes 42 another number, or no number: after it, and around it.
AFTER = listed(r"""lakh lakhs lac crore crores M k K m.n. mn bn B b T t G MM million billion trillion thousand
hundred hundreds tens dozen dozens score gross grand myriad mil mille mio mrd thou pi π e i phi x y n sixths sixth
halves half third quarters hundredths two forty-three zero e5 E5 e-3 ×10 ×10^2 x10 *10 · ! !! ^2 ^{2} ² ³ ^-1 ½ ¼ ٣ 万
億 千 百 २ тысяч squared cubed factorial mod base hex percentile permille ‰ fold -fold th nd st rd or and versus vs not
is isn't wrong false? ? ~ ± + - / * = ≠ < > ; : , | & ^ _2 _{8} \sqrt{2} \pi \cdot2 \times10 \frac12 \%2 /2 //2 +1 -1
%5 =43 ,5 .5.5 :30 '5 #""")
AROUND = listed(
    r"""42 in base eight | 42 in base 8 | 42_8 | 42 (base 8) | 42 is wrong | 42 versus forty-three |
42 or so | 42 or 43 | 42, not 43 | 42 and 43 | 42 to 43 | 42-43 | 42–43 | 42 ± 1 | ~42 | ≈42 | about 42 |
approximately 42 | not 42 | less than 42 | more than 42 | at least 42 | >42 | < 42 | x > 42 | x \ne 42 | x != 42 |
-x = 42 | 2x = 42 | x^2 = 42 | 1/x = 42 | log x = 42 | half is 42 | Twice the answer: 42 | Wrong answer: 42 |
The answer is not 42 | The answer isn't 42 | The answer is 42? | The answer is 43, not 42 | Is it 42 | I think 42 |
maybe 42 | 42 maybe | 42 million apples | 42 dozen eggs | $42 million | $42M | $42k | $42 m | $42bn | $42 b |
42 hundred dollars | 42 and a half | 42 1/2 | 42/2 | 42 / 7 | 42*1 | 42 + 0 | 42 - 1 | 40 + 2 = 42 |
x = 40 + 2 = 42 | 42 = 43 | 6*7 | 42 (forty-three) | 42 (43) | 42 (four two) | 42 (wrong) | 42 (or 43) |
42 (forty-two | (42) | ((42)) | 42) | [42] | 42 lakh lots | 42 grand | 42 grand widgets | 42 of every kind |
42 lots in lakh | 42 green zorps | 42 zorps | 42 blue and red widgets | 42 widgets or crates |
42 widgets minus crates | 42 times that | 42 times more | 42 x | 42 degrees below zero | 42 below | 42 under par |
42 percent of widgets | 42% of crates | 42 thousandths | 42 tenths of m | 4 2 | 4, 2 | 4.2e1 | 4,2 | 042,0 | 42,00 |
4_2 | 0x2A | 0b101010 | XLII | forty-two | forty two | 42;42 | 42,42 | 1 + 41 apples | 42 apples 43 |
42 apples and 1 pear | 42 m 2 | 42 cm 5 mm | 42 h 30 min | 42:00 | 42°30' | 5'42 | 42.. | --42 | +-42 | $$42 | 42$$ |
$42$43 | $42$ $43$ | \(42\) \(43\) | \(42 | 42\) | **42 | 42** | **42** **43** | ２４ | ٤٢ | ४२ | 42١ | ④② | ⁴² | ₄₂ |
42₂ | 𝟜𝟚 | 42 pairs | 42 couples | 42 scores | 42 squares of | 42 cubed | 42 kilo | 42 hundred-dollar bills |
42 half-dollars | Answer: 43 | x = 43 | \(43\) | US$43 | 43 (forty-two) | 43 m^2 | 43 apples | The answer is 43 |
**43** | 1{,}042 | 42{,}000 | 42\,000 | 42,000 | 42.001 | 41.999 | -42 | −42 | $-42 | x = -42 | 42.0.0 | 4 200 |
42 000""",
    "|",
)
UNPRINTED = ["42\u200b3", "4\u200b2", "42\x00", "42\u202f000"]
# Each of these words is in the question.
QUESTION_WORDS = listed(
    """42 times itself | 42 times more | 42 doubles | 42 tripled | 42 subtracted | 42 divided |
42 mm dollars | 42 % of tiles | 42 percent of tiles | 42 below zero | 42 under par | 42 without tax |
42 versus tax | 42 in thousands | 42 (in thousands) | 42 tiles in lakh | 42 hundred tiles | 42 per dozen |
42 at half price | 42 in base eight | 42 BCE | 42 factor | 42 per N | 42 in hexadecimal | 42 modulo twelve |
42 gross of tiles | 42 reciprocal | 42 square root | 42 wrong | Double the tiles = 42 | Tiles in lakh: 42 |
Wrong tiles: 42 | Half the price is 42 | Tiles divided: 42 | Tiles versus tax: 42 | $42 mm | $42 cents""",
    "|",
)
HARD_QUESTION = " ".join(word for text in QUESTION_WORDS for word in text.replace("42", "").split())
WRONG = [*(f"42{gap}{text}" for text in AFTER for gap in (" ", "")), *AROUND, *UNPRINTED]


def verdict(text, gold, question=QUESTION, grader=numeric):
    messages = [[{"role": "user", "content": question}]] if question else ()
    (grade,) = grader([text], [gold], messages=messages)
    return grade.verdict


def test_listed_spellings_are_right():
    refused = [text for text, gold in RIGHT if verdict(f"#### {text}", gold, ASKED) != "right"]
    assert not refused and len(RIGHT) > 350
    assert not [text for text, gold in RIGHT if verdict(f"#### {text}", f"{gold}1") != "wrong"]


@pytest.mark.parametrize("form", ["#### {}", "<answer>{}</answer>", "<answer>{}"])
def test_other_text_beside_a_number_is_wrong(form):
    paid = [text for text in WRONG if verdict(form.replace("{}", text), "42") != "wrong"]
    assert not paid and len(WRONG) > 400


def test_words_of_the_question_that_change_a_number():
    assert not [text for text in QUESTION_WORDS if verdict(f"#### {text}", "42", HARD_QUESTION) != "wrong"]
    assert verdict("#### 42 tiles", "42", HARD_QUESTION) == "right"


def test_nouns_of_the_question():
    for text in ("42 widgets", "42 blue widget", "Widgets: 42"):
        assert verdict(f"#### {text}", "42") == "right"
        assert verdict(f"#### {text}", "42", "How many zorps?") == "wrong"
        assert verdict(f"#### {text}", "42", "") == "wrong"
    assert verdict("#### 42 widgets", "42 widgets", "") == "right"  # the gold has the noun
    for text in ("42 lakh", "42 grand", "42 in lakh", "42 every", "42 does", "42 does pack"):
        assert verdict(f"#### {text}", "42") == "wrong"
    assert number("42 widgets") is None and read("42 widgets").nouns == {"widgets"}


@pytest.mark.parametrize(("noun", "asked"), [("pairs", "How many pairs?"), ("times", "How often?")])
def test_nouns_that_multiply_need_to_be_asked_for(noun, asked):
    for question in (asked, f"What is the number of {noun} that he needs?", f"How many more {noun} is that?"):
        assert verdict(f"#### 42 {noun}", "42", question) == "right"
    for question in ("", "How much?", f"He has 21 {noun}. How many does he need?", f"How many shoes are in 21 {noun}?"):
        assert verdict(f"#### 42 {noun}", "42", question) == "wrong"
    assert verdict(f"#### 42 {noun}", f"42 {noun}", "How much?") == "right"


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        (
            "He has $5. How many dollars has he left?",
            "$42 | 42 USD | 42 dollars left | $42 a week",
            "42 cents | £42 | 42 h",
        ),
        ("How many more minutes does it take?", "42 min | 42 minutes", "42 hours | 42 s | $42 | 42 cm"),
        ("How many miles per hour is it?", "42 mph | 42 miles per hour | 42 miles", "42 km/h | 42 hours"),
        ("How many square feet is it?", "42 sq ft | 42 ft²", "42 feet | 42 cubic feet | 42 m^2"),
        ("How many degrees is it?", "42° | 42°C | 42 degrees Fahrenheit", "42 km"),
        ("How many pounds did it cost?", "£42 | 42 pounds | 42 lb", "42 kg"),
        ("How many grams of salt per cup?", "42 g | 42 g per cup | 42 grams of salt", "42 kg | 42 mg"),
        ("How many grapes does he need?", "42 grapes | 42 kg", ""),
        ("He runs how many miles? What does he pay?", "$42 | 42 miles", ""),
        ("How many hours does it take and how much does it cost?", "$42 | 42 hours", ""),
    ],
)
def test_the_unit_that_is_asked_for(question, right, wrong):
    assert [text for text in listed(right, "|") if verdict(f"#### {text}", "42", question) != "right"] == []
    assert [
        text for text in filter(None, listed(wrong, "|")) if verdict(f"#### {text}", "42", question) != "wrong"
    ] == []


def test_percent_and_units_of_the_gold():
    assert verdict("#### 42%", "42", "How many percent?") == "right"
    assert verdict("#### 42%", "42", "") == "wrong"
    assert verdict("#### 42%", "42%", "How many?") == "right"
    assert verdict("#### 42%", "42", "How many?") == "wrong"
    for unit in ("12 kg", "12 cm^2", "12 m", "$12"):
        assert verdict(f"#### {unit}", "12 cm") == "wrong"
    for unit in ("12", "12 centimeters", "12\\text{ cm}", "12 units"):
        assert verdict(f"#### {unit}", "12 cm") == "right"


def test_a_spoken_sign_is_no_decoration():
    for text in ("minus 7", "negative 7", "the answer is minus 7", "minus $7", "negative 7 degrees"):
        assert (verdict(text := f"#### {text}", "7"), verdict(text, "-7")) == ("wrong", "right"), text
    for text in ("minus -7", "minus minus 7", "negative (7)", "minus", "7 minus", "minusculely 7"):
        assert (verdict(text := f"#### {text}", "7"), verdict(text, "-7")) == ("wrong", "wrong"), text


def test_unclosed_answer():
    assert verdict("So:\n<answer>42", "42") == "right"
    assert verdict("So:\n<answer>42</ans", "42") == "right"
    assert verdict("<answer>\nThe answer is 42.\n", "42") == "right"
    for text in (
        "<answer>42 43",
        "<answer>41</answer><answer>42",
        "#### 41\n<answer>42",
        "<think><answer>42",
    ):
        assert verdict(text, "42") == "wrong"
    assert verdict("<answer>42</answer><answer>", "42") == "right"


NUMBERS = st.decimals(-(10**7), 10**7, allow_nan=False, places=2) | st.integers(-(10**9), 10**9)
TEXTS = st.text(max_size=30) | st.text("0123456789.,-+ $%()\\{}xeKMkm²°", max_size=20) | st.sampled_from(WRONG)


@settings(max_examples=300, deadline=None)
@given(NUMBERS, NUMBERS, TEXTS, TEXTS)
def test_a_wrong_number_is_never_right(gold, other, before, after):
    digits = str(abs(other))
    if not any(c.isnumeric() for c in before + after) and Fraction(digits) != abs(Fraction(str(gold))):
        assert verdict(f"<answer>{before}{digits}{after}</answer>", str(gold)) == "wrong"


@settings(max_examples=300, deadline=None)
@given(
    NUMBERS,
    st.sampled_from([*UNITS, *PHRASES[:40], ""]),
    st.sampled_from(["{}", "**{}**", "Answer: {}", "x = {}", "So {}"]),
)
def test_any_listed_spelling_is_right(gold, unit, form):
    text = form.format(f"{gold:,} {unit}".strip())
    assert verdict(f"<answer>{text}</answer>", str(gold), ASKED) == "right"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([text for text, _ in RIGHT] + WRONG) | TEXTS)
def test_reading_twice_changes_nothing(text):
    reading = read(text)
    if reading:
        again = read(f"{float(reading.value):.2f}" if reading.value.denominator > 1 else str(reading.value))
        assert reading.value.denominator > 1 or again.value == reading.value
        assert canonical_unit(reading.unit) in (reading.unit, None)


def test_canonical_units():
    for unit in [*UNITS, *PHRASES]:
        canonical = canonical_unit(unit)
        assert canonical is None or canonical_unit(canonical) == canonical, unit
    same = [
        "km/h",
        "kmh",
        "kilometers per hour",
        "km per hour",
        "\\text{km}/\\text{h}",
        "\\mathrm{km/h}",
        "km h^-1",
        "kph",
    ]
    assert {canonical_unit(text) for text in same} == {"km/h"}
    same = ["cm^2", "cm²", "square centimeters", "sq cm", "\\text{ cm}^2", "cm^{2}", "cm2", "centimetres squared"]
    assert {canonical_unit(text) for text in same} == {"cm^2"}
    assert [canonical_unit(text) for text in ("", "  ", "apples", "people", "µm", "\\mu m", "^\\circ", "US$")] == [
        *("", "", "apple", "person", "µm", "µm", "degree", "$")
    ]
    nothing = listed("k K M B T x e pi lakh dozen half tenths two is or per of ^2 ! 2 m/m apples^2 $^2 %^2 / - * ~")
    assert {canonical_unit(text) for text in [*nothing, "m 2", "apples oranges", "c" * 81]} == {None}


def test_no_multiplier_is_listed():
    assert [word for word in NEVER_NOUNS if word in COUNTED] == ["times"]


def test_words_value():
    assert [
        words_value(text.split()) for text in ("zero", "forty two", "one hundred and five", "two thousand thirty")
    ] == [*(0, 42, 105, 2030)]
    bad = (
        "",
        "and",
        "two two",
        "two forty",
        "hundred",
        "one two hundred",
        "one million million",
        "five thousand million",
    )
    assert {words_value(text.split()) for text in bad} == {None}


@pytest.mark.parametrize(
    "text",
    [
        "({",
        "\\text{",
        "$",
        "**",
        "1,",
        "1.",
        "x = ",
        "is ",
        "a ",
        "(",
        "\\frac{",
        "1\u202f",
        "'",
        "of ",
        "=",
    ],
)
def test_reading_takes_linear_time(text):
    start = time.perf_counter()
    for grader in (numeric, gsm8k):
        for final in (text * (100_000 // len(text)), "42 " + text * 30_000, text * 60 + "42"):
            assert verdict(f"#### {final}", "42", grader=grader) == "wrong"
    assert time.perf_counter() - start < 5
