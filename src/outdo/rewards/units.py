"""The units, currencies and counted nouns that may stand beside a number without changing it, in one spelling each.

An allow-list: a word that is missing here is no unit. Words that multiply or divide a number (dozen, k, M, half) are
missing on purpose, and so are symbols that are more often something else (K, B, t, d, x).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import product

MAX_CHARS = 80
_MAX_TERMS = 4

_PREFIXES = {"kilo": "k", "mega": "M", "giga": "G", "hecto": "h", "deci": "d", "centi": "c", "milli": "m"} | {
    **{"micro": "µ", "nano": "n", "pico": "p", "tera": "T"},
}
_PREFIXED = {  # a symbol, its names, and the prefixes that it takes
    "m": ("meter metre", "k h d c m µ n p"),
    "g": ("gram gramme", "k h d c m µ n"),
    "L": ("liter litre", "k h d c m µ"),
    "s": ("second sec", "m µ n"),
    "Hz": ("hertz", "k M G T"),
    "W": ("watt", "m k M G T"),
    "J": ("joule", "m k M G"),
    "N": ("newton", "m k M"),
    "V": ("volt", "m k M"),
    "A": ("ampere amp", "m µ k"),
    "Pa": ("pascal", "h k M G"),
    "Ω": ("ohm", "k M"),
    "mol": ("mole", "m µ"),
    "eV": ("electronvolt", "k M G T"),
    "cal": ("calorie", "k"),
    "bar": ("bar", "m"),
    "bit": ("bit", "k M G T"),
    "byte": ("byte", "k M G T"),
}
_SYMBOLS = """m g L s Hz W J N V A Pa Ω mol eV cal bar l=L ml=mL mℓ=mL ℓ=L cl=cL dl=dL h hr=h hrs=h min mins=min sec=s
secs=s ms=ms wk=week wks=week yr=year yrs=year mo=month mos=month in ft yd mi mph=mi/h MPH=mi/h kph=km/h kmh=km/h
kmph=km/h KM=km Km=km KG=kg Kg=kg kgs=kg KGS=kg Kgs=kg kms=km Kms=km cms=cm CM=cm Cm=cm mpg=mi/gal cc=cm^3 oz lb
lbs=lb gal gals=gal qt qts=qt pt pts=pt tbsp tsp floz ha acre sqft=ft^2 sqm=m^2 sqkm=km^2 rad deg=degree kWh=kW*h
Wh=W*h kwh=kW*h MWh=MW*h GWh=GW*h mAh=mA*h Ah=A*h rpm=revolution/min bps=bit/s kbps=kbit/s Kbps=kbit/s Mbps=Mbit/s
Gbps=Gbit/s kB=kbyte KB=kbyte MB=Mbyte GB=Gbyte TB=Tbyte KiB MiB GiB TiB kb=kbit Kb=kbit Mb=Mbit Gb=Gbit atm psi mmHg
torr dB C=°C F=°F AU ly pp=%"""
_NAMES = """minute=min hour=h day=day week=week fortnight month=month year=year decade century centuries=century
millennium millennia=millennium inch=in inches=in foot=ft feet=ft yard=yd mile=mi furlong fathom league ounce=oz
pound=lb ton tonne=tonne stone gallon=gal quart=qt pint=pt cup tablespoon=tbsp teaspoon=tsp barrel bushel acre
hectare=ha degree degrees=degree radian=rad arcminute arcsecond celsius=°C centigrade=°C fahrenheit=°F kelvin=kelvin
kelvins=kelvin percent=% percentage=% knot horsepower=hp micron=µm angstrom carat atmosphere decibel=dB lightyear=ly
henry farad coulomb tesla weber lumen lux candela newtons=N siemens revolution"""
_CURRENCY_SIGNS = {
    "$": "$",
    "€": "€",
    "£": "£",
    "¥": "¥",
    "₹": "₹",
    "¢": "¢",
    "₩": "₩",
    "₽": "₽",
    "₺": "₺",
    "₪": "₪",
} | {
    **{"₫": "₫", "₱": "₱", "฿": "฿", "₦": "₦", "₴": "₴"},
}
_CURRENCY_CODES = """USD=$ EUR=€ GBP=£ JPY=¥ INR=₹ CNY=CNY RMB=CNY KRW=₩ RUB=₽ TRY=₺ ILS=₪ AUD CAD NZD SGD HKD CHF SEK
NOK DKK PLN CZK HUF MXN BRL ZAR THB PHP VND IDR MYR Rs=₹ INRs=₹"""
_CURRENCY_NAMES = """dollar=$ buck=$ euro=€ euros=€ cent=¢ penny=¢ pennies=¢ pence=¢ rupee=₹ yen=¥ yuan=CNY
renminbi=CNY ruble=₽ rouble=₽ franc peso rand krona kronor=krona krone kroner=krone lira won=₩ shekel zloty baht
dirham riyal dinar shilling sterling=£ nickel dime"""
_NOUNS = """account acorn action activity actor adult airplane animal ant apartment apple apricot aquarium area
arrangement arrow article artist attendee aunt author avocado award baby bag bagel baker ball balloon ballot banana
bandage barn baseball basket basketball bat batch bath battery bead bean bear bed bedroom bee beer beetle bell bench
beverage bill bin bird birthday biscuit bite block blossom blouse boat body bond bone book bookcase bookmark boot
bottle bouquet bow bowl box boy bracelet branch bread brick bride bridge brother brownie brush bucket building bulb
bun bunch bundle bunny burger burrito bus bush business butter butterfly button buyer cabbage cabin cabinet cage cake
calculator calf call camel camera camp camper can candle candy cap car card carnation carpet carrot cart carton case
cashier cat caterpillar cell cereal chair champion chapter chart cheese cheetah chef cherry chick chicken child chip
chocolate choice chore circle citizen city class classmate classroom client clip clock closet cloth clown club coach
coat coconut coffee coin collar color colour column combination comic committee community company computer concert
cone container contestant cook cookie corn corner cost costume couch cow cowboy coworker crab cracker crate crayon
cream creature crew cricket crop cub cucumber cupcake curtain customer cyclist dancer dart date daughter deer desk
dessert diagonal diamond diaper dinner dinosaur dish disk divisor doctor dog doll dolphin donkey donut door dot
doughnut dragon drawer drawing dress drink driver duck eagle ear earring earthworm edge egg element elephant elf
employee engine engineer envelope episode eraser error essay event exam exercise eye fabric face factory family fan
fare farm farmer father feather fence festival field fig file film finger firefighter fireman fireplace fish flag
flamingo flavor flight floor flour flower fly foal folder follower fork fox frame friend frog fruit game garage garden
gas gasoline gem ghost gift giraffe girl glass glove goal goat goose gorilla grade grandchild granddaughter grandson
grape grapefruit graph grass gravel group guard guest guitar gumball gumdrop guppy gym hair hamburger hamster hand
handful hat hay head heart heel hen hero hippo hive hole holiday home homework horse hospital hotel house human
inhabitant inning insect instrument integer invitation item jacket jar jelly jellybean job jog joke judge jug juice
jump kangaroo key kid kiss kit kitchen kite kitten kiwi knife knight koala ladder lady lake lamb lamp lap laptop lawn
lawyer layer leaf leg lego lemon lemonade leopard lesson letter level library license life light lily lime line lion
litter lizard loaf loan lobster lock log lollipop lunch lunchbox machine magazine magnet man mango map maple marble
mark marker marshmallow mask mat match matchbook meal meat medal medicine meeting melon member message method milk
milkshake mistake model mom money monkey monster mother mountain mouse movie muffin mug muscle museum mushroom
musician nail name napkin necklace needle neighbor neighbour nest net newspaper night note notebook novel nurse nut
oak object octopus office officer oil olive onion option orange orchid order ornament outcome outfit outlet oven owl
owner ox oyster pack package packet pad page pail paint painter painting palm pan pancake panda panel pant pants paper
paperclip paragraph parent park parking parrot part participant party pass passenger pasta pastry patch path patient
patron pattern pea peach peacock peanut pear pebble pedestrian pen pencil penguin pepper pepperoni performer
permutation person pet petal phone photo photograph piano pickle picture pie piece pig pigeon piglet pile pill pillow
pilot pin pineapple pipe pitcher pizza place plane planet plant plate platter player plot plum pocket poem poet point
pole police policeman polygon pond pony pool popcorn porcupine portion position possibility post postcard poster pot
potato practice prawn present president price prize problem product profit program project puddle pumpkin pup puppy
purse puzzle quail queen question quilt quiz rabbit raccoon race rack radish rat ray recipe record rectangle reindeer
rental report resident restaurant rhino ribbon rice ride rider ring river road robin robot rock roll room rooster rope
rose route row rower rug ruler run runner salad salesman salmon sand sandwich sausage scarf school scientist scissors
scoop sculpture seal seashell seat section seed segment semester sentence serving session set shape share shark sheep
sheet shelf shell shift ship shirt shoe shop shot shovel show shrimp side sink sister site skater sketch skirt sled
sleeve slice slide snack snail snake snowball snowflake snowman soap sock soda sofa soil soldier solution son song
soup space spectator spider spoon spoonful spot sprinkle squirrel stack stadium staff stair stall stamp star starfish
state station steak step stick sticker stool stop store story stove straw strawberry stream street string stripe
student subject subscriber subset sugar suit suitcase supporter swan sweater swimmer symbol table tablet taco tail
tank task taxi tea teacher team teammate tennis tent terrarium test text theater thing ticket tie tier tiger tile time
tip tire tissue toe token tomato tool tooth toothbrush toothpick top topping tourist towel tower town toy track
tractor train trainee tray treat tree triangle trip trophy truck trumpet tub tube tulip turkey turn turtle tv umbrella
uncle unicorn unit van vanilla vase vegetable vehicle vertex video village violin visit visitor vote voter wagon
waiter walk wall watch water watermelon wave way wedding weed whale wheat wheel whistle wife window wine winner wire
wolf woman wood word workbook workday worker worm wreath yak zebra"""
_IRREGULAR = """people=person children=child grandchildren=grandchild men=man women=woman mice=mouse geese=goose
teeth=tooth oxen=ox knives=knife wives=wife lives=life loaves=loaf leaves=leaf shelves=shelf wolves=wolf
scarves=scarf calves=calf elves=elf firemen=fireman policemen=policeman snowmen=snowman salesmen=salesman
vertices=vertex potatoes=potato mangoes=mango tomatoes=tomato heroes=hero fish=fish sheep=sheep deer=deer
times=time"""


def _pairs(listing: str) -> dict[str, str]:
    """`a b=c` as {"a": "a", "b": "c"}."""
    return {word: canonical or word for word, _, canonical in (item.partition("=") for item in listing.split())}


def _plurals(noun: str) -> tuple[str, ...]:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies", noun + "s"
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return (noun + "es",)
    return (noun + "s",)


def _with_plurals(words: dict[str, str]) -> dict[str, str]:
    return {plural: canonical for word, canonical in words.items() for plural in (*_plurals(word), word)}


def _prefixed() -> tuple[dict[str, str], dict[str, str]]:
    """The symbols and the names of units that take prefixes."""
    symbols, names = {}, {}
    for unit, (listing, prefixes) in _PREFIXED.items():
        for (word, symbol), name in product([("", ""), *_PREFIXES.items()], listing.split()):
            if not symbol or symbol in prefixes.split():
                symbols[symbol + unit] = names[word + name] = symbol + unit
    return symbols, _with_plurals(names)


_SYMBOL = {**_prefixed()[0], **_pairs(_SYMBOLS), **_pairs(_CURRENCY_CODES), **_CURRENCY_SIGNS}  # case matters
_NAME = {**_with_plurals(_pairs(_NAMES)), **_with_plurals(_pairs(_CURRENCY_NAMES)), **_prefixed()[1]}
_AMBIGUOUS = {"pair", "pairs", "time", "point"}  # they multiply, or start a decimal
COUNTED = {  # lower-case nouns, and the singular of each
    noun: singular
    for noun, singular in {**_with_plurals(_pairs(_NOUNS)), **_pairs(_IRREGULAR)}.items()
    if noun not in _AMBIGUOUS
}
_SINGULARS = frozenset(COUNTED.values())
_HOLDS = _SINGULARS | {
    "cup",
    "gal",
    "L",
    "mL",
    "lb",
    "oz",
    "kg",
    "g",
    "ton",
    "pt",
    "qt",
    "tbsp",
    "tsp",
    "ft",
    "in",
    "yd",
    "m",
}
CURRENCIES = frozenset(
    {*_CURRENCY_SIGNS.values(), *_pairs(_CURRENCY_CODES).values(), *_pairs(_CURRENCY_NAMES).values()}
)
_NOT_RAISED = (_SINGULARS | CURRENCIES | {"", "%", "degree"}) - {"unit"}

_DOLLARS = ("AUD", "CAD", "NZD", "HKD", "SGD", "BRL")
_Rewrites = list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
_LATEX: _Rewrites = [  # each takes time linear in the text
    (re.compile(r"\\(?:text|math)(?:rm|bf|it|sf|tt|normal)?\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:mbox|operatorname|unit|si)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" \1/\2 "),
    (re.compile(r"\^\s*\{?\s*(?:\\circ|°)\s*\}?|\\(?:text)?degree\b|\\circ\b"), "°"),
    (re.compile(r"\\[,;:! ]|\\q?quad\b|~"), " "),
    (re.compile(r"\\cdot\b|\\times\b|[·⋅×]"), "*"),
    (re.compile(r"\\mu(?![A-Za-z])\s*|\u03bc"), "µ"),
    (re.compile(r"\\Omega\b|\u2126"), "Ω"),
    (re.compile(r"\\textdollar\b|\\\$|\bUS\s*\\?\$"), "$"),
    (re.compile(r"\b(?:AU?|(CA?)|(NZ)|(HK)|(S)|(R))\\?\$"), lambda found: f" {_DOLLARS[found.lastindex or 0]} "),
    (re.compile(r"\\pounds?\b|\\textsterling\b"), "£"),
    (re.compile(r"\\(?:text)?euro\b"), "€"),
    (re.compile(r"\^\s*\{\s*(-?[0-9])\s*\}"), r"^\1"),
    (re.compile(r"⁻¹"), "^-1"),
    (re.compile(r"⁻²"), "^-2"),
    (re.compile(r"²"), "^2"),
    (re.compile(r"³"), "^3"),
    (re.compile(r"℃|°\s*C\b"), " celsius "),
    (re.compile(r"℉|°\s*F\b"), " fahrenheit "),
    (re.compile(r"[°º](?![A-Za-z])"), " degree "),
    (re.compile(r"\\?[%％]"), " percent "),
]
_PHRASES = {  # several words for one unit
    **{"degrees celsius": "celsius", "degree celsius": "celsius", "degrees centigrade": "celsius"},
    **{"degrees fahrenheit": "fahrenheit", "degree fahrenheit": "fahrenheit", "per cent": "percent"},
    **{"percentage points": "percent", "percentage point": "percent", "light years": "lightyear"},
    **{"fluid ounces": "floz", "fluid ounce": "floz", "fl oz": "floz", "fl. oz": "floz", "us dollars": "dollars"},
    **{"u.s. dollars": "dollars", "american dollars": "dollars", "pounds sterling": "sterling", "years old": "years"},
}
_PHRASE = re.compile("|".join(rf"\b{re.escape(phrase)}\b" for phrase in _PHRASES), re.IGNORECASE)
_TOKEN = re.compile(r"(\s*)(?:([A-Za-zµΩℓ]+)|(\^-?[1-9]|[23])(?![0-9])|([/*$€£¥₹¢₩₽₺₪₫₱฿₦₴-]))\.?")
_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTER = {"squared": 2, "cubed": 3, "2": 2, "3": 3, **{f"^{n}": n for n in range(-9, 10) if n}}
_BELOW = {"per", "/", "a", "an", "each", "every"}
_BESIDE = {"*", "-"}
_MULTIPLIED = frozenset(_pairs("N kN m cm kW W MW GW kg g s h A mA ft lb Pa J mol V"))  # `N m`, `kg m/s`


def canonical_unit(text: str) -> str | None:
    """One spelling for all of a unit's: "cm^2" for `cm²`, `square centimeters` and `\\text{ cm}^2`.

    The empty string for no text; None for what is not in the list, or is longer than MAX_CHARS. A counted noun is
    named by its singular, and `of …` after it is left out: "cup" for `cups of coffee`.
    """
    return _canonical(text) if len(text) <= MAX_CHARS else None


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str | None:
    tokens = _tokens(text)
    if not tokens:
        return tokens if tokens is None else ""
    powers = _powers(tokens)
    if not powers or len(powers) > _MAX_TERMS or 0 in powers.values():
        return None
    above = "*".join(_raised(unit, n) for unit, n in sorted(powers.items()) if n > 0)
    return above + "".join(f"/{_raised(unit, -n)}" for unit, n in sorted(powers.items()) if n < 0)


def _raised(unit: str, exponent: int) -> str:
    return unit if exponent == 1 else f"{unit}^{exponent}"


def _tokens(text: str) -> list[str] | None:
    """The words, signs and exponents of a text; None where it holds anything else."""
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    text = _PHRASE.sub(lambda match: _PHRASES[match[0].lower()], text).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        if match[3] and match[1]:  # `m 2` is not `m2`
            return None
        tokens.append(match[2] or match[3] or match[4])
        end = match.end()
    return tokens if end == len(text) else None


def _powers(tokens: list[str]) -> dict[str, int]:
    """Each unit with its exponent; empty where a token is not in the list, or out of place."""
    powers: dict[str, int] = {}
    sign, power, last = 1, 1, ""  # the sign and the exponent of the next unit; the previous unit
    for i, token in enumerate(tokens):
        word = token.lower()
        if word == "of" and last in _HOLDS and all(other.lower() in COUNTED for other in tokens[i + 1 :] or [""]):
            return powers
        if word in _AFTER:
            if last in _NOT_RAISED or abs(powers[last]) != 1:
                return {}
            powers[last] *= _AFTER[word]
            last = ""
        elif word in _BEFORE and i + 1 < len(tokens):
            power, last = _BEFORE[word], ""
        elif word in _BELOW and sign > 0 and i + 1 < len(tokens):
            sign, last = -1, ""
        elif word in _BESIDE and powers and sign > 0 and i + 1 < len(tokens):
            continue
        elif (units := _units(token)) and (power == 1 or not _NOT_RAISED & units.keys()):
            if sign > 0 and powers and not ({*powers, *units} <= _MULTIPLIED and powers.keys().isdisjoint(units)):
                return {}
            for last, n in units.items():
                powers[last] = powers.get(last, 0) + sign * power * n
            sign, power = 1, 1
        else:
            return {}
    return powers


@lru_cache(maxsize=1024)
def _units(token: str) -> dict[str, int]:
    """The units of one word with their exponents: mi and 1/h of `mph`."""
    word = token.lower()
    canonical = _SYMBOL.get(token) or _NAME.get(word) or COUNTED.get(word, "")
    above, _, below = canonical.partition("/")
    parts = [(part, 1) for part in above.split("*") if part] + [(part, -1) for part in below.split("*") if part]
    return {part.partition("^")[0]: sign * int(part.partition("^")[2] or 1) for part, sign in parts}
