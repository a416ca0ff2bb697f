"""One notation for an answer: tokens of plain LaTeX, without what does not show or does not matter.

Unicode signs become commands; spacing, colours, sizes and fonts vanish, and so do empty groups. Everything that judges
an answer works on these tokens, so nothing is visible to one check and hidden from another.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from outdo.rewards.answer import without_emphasis, without_zeros
from outdo.rewards.maths.phrasing import is_harmless, without_lead_in, without_phrases
from outdo.rewards.units import canonical_unit

MAX_CHARS = 1000  # of an answer
_MAX_DEPTH = 30  # of wrappers around a token

_SIGNS = {
    **dict.fromkeys("\u2212\u2012\u2013\u2010\u2011\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00b7\u22c5\u2219\u2022", "\\cdot "),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u205f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **{"×": "\\times ", "÷": "\\div ", "∗": "*", "⁄": "/", "∕": "/", "∣": "|", "∶": ":", "′": "'", "’": "'"},
    **{"√": "\\sqrt ", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]", "∞": "\\infty ", "°": "^{\\circ}", "º": "^{\\circ}"},
    **{"≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≡": "\\equiv "},
    **{"±": "\\pm ", "∓": "\\mp ", "∈": "\\in ", "∉": "\\notin ", "∪": "\\cup ", "∩": "\\cap ", "∖": "\\setminus "},
    **{"∅": "\\emptyset ", "⌀": "\\emptyset ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}"},
    **{
        "ℚ": "\\mathbb{Q}",
        "ℂ": "\\mathbb{C}",
        "⟨": "\\langle ",
        "⟩": "\\rangle ",
        "〈": "\\langle ",
        "〉": "\\rangle ",
    },
    **{"⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "→": "\\to ", "⇒": "\\implies "},
    **{"∧": "\\land ", "∨": "\\lor ", "¬": "\\lnot ", "∑": "\\sum ", "∏": "\\prod ", "∫": "\\int ", "∂": "\\partial "},
    **{"∠": "\\angle ", "△": "\\triangle ", "％": "%", "＄": "\\$", "ℓ": "l"},
    **{"π": "\\pi ", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta "},
    **{"ε": "\\epsilon ", "ζ": "\\zeta ", "η": "\\eta ", "κ": "\\kappa ", "λ": "\\lambda ", "μ": "\\mu "},
    **{"ν": "\\nu ", "ξ": "\\xi ", "ρ": "\\rho ", "σ": "\\sigma ", "τ": "\\tau ", "φ": "\\phi ", "ϕ": "\\phi "},
    **{"χ": "\\chi ", "ψ": "\\psi ", "ω": "\\omega ", "Γ": "\\Gamma ", "Δ": "\\Delta ", "Θ": "\\Theta "},
    **{
        "Λ": "\\Lambda ",
        "Π": "\\Pi ",
        "Σ": "\\Sigma ",
        "Φ": "\\Phi ",
        "Ψ": "\\Psi ",
        "Ω": "\\Omega ",
        "Ø": "\\emptyset ",
    },
}
_SIGN = re.compile("[" + re.escape("".join(_SIGNS)) + "]")
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣʸ", "0123456789+-()nixy", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢⱼₖₓ", "0123456789+-()nijkx", strict=True))
_RAISED_RUN, _LOWERED_RUN = (re.compile(f"[{''.join(map(re.escape, signs))}]+") for signs in (_RAISED, _LOWERED))
_FONTS = re.compile("[\U0001d400-\U0001d7ff\uff01-\uff5e\u2100-\u214f]")  # letters and digits in other fonts
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
_DELIMITED = re.compile(r"\$\$?([^$]*)\$\$?|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)
_QUANTITY = re.compile(r"[^$\\]*(\$[^$]*\$|\\\(.*?\\\))\s+([A-Za-z][A-Za-z .]*)", re.DOTALL)
_GROUPED = re.compile(  # digits in groups of three, set apart by spaces or `{,}`
    r"(?<![0-9.,}^_])([0-9]{1,3}(?:(?:\{,\}|\{\\,\}|,\\!\s*|\\[,;:! ]|~|\ )[0-9]{3})+)(?![0-9/])"
)
_COMMAS = re.compile(r"(?<![0-9.,_^])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")

_INVISIBLE = {
    *("left", "right", "middle", "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "quad", "qquad"),
    *("big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "Biggl", "Biggr", "bf", "rm"),
    *("it", "sf", "tt", "bfseries", "large", "Large", "LARGE", "huge", "small", "normalsize", "mathstrut", "strut"),
    *("null", "relax", "thinspace", "enspace", "medspace", "thickspace", "negthinspace", "hfill", "noindent", "par"),
    *("tiny", "footnotesize", "centering", "nonumber", "notag", "protect", "boldmath", "unboldmath", "ignorespaces"),
}
_DIGITS = frozenset("0123456789")
_ASCII_RELATIONS = {"<": "\\le", ">": "\\ge", "!": "\\ne"}
_WITHOUT_ARGUMENT = {"hspace", "vspace", "hskip", "phantom", "hphantom", "vphantom", "color", "label", "mspace"}
_WRAPPERS = {
    *("mathbf", "boldsymbol", "bm", "mathit", "mathsf", "mathtt", "mathnormal", "underline", "fbox", "boxed", "pmb"),
    *("ensuremath", "mathstrut", "smash", "mathop", "mathord", "mathrel", "mathbin", "mathclose", "mathopen", "emph"),
    *("mathinner", "uline", "centerline", "underbrace", "colorbox"),
}
_TEXTS = {
    *("text", "textrm", "textbf", "textit", "textsf", "texttt", "textnormal", "textup", "textmd", "textsc", "mbox"),
    *("hbox", "mathrm", "operatorname", "unit", "textsl"),
}
_RENAMED = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "over": "/", "dbinom": "binom", "tbinom": "binom"},
    **{"leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "colon": ":"},
    **{"varnothing": "emptyset", "O": "emptyset", "degree": "^{\\circ}", "textdegree": "^{\\circ}", "ast": "*"},
    **{"lvert": "|", "rvert": "|", "vert": "|", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"},
    **{"varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "varrho": "rho", "varsigma": "sigma"},
    **{"prime": "'", "dots": "ldots", "cdots": "ldots", "vee": "lor", "wedge": "land", "rightarrow": "to"},
    **{"centerdot": "cdot", "bullet": "cdot", "backslash": "setminus", "smallsetminus": "setminus", "R": "mathbb{R}"},
    **{"Reals": "mathbb{R}", "reals": "mathbb{R}", "tan^{-1}": "arctan", "lor": "lor", "textdollar": "\\$"},
    **{"lang": "langle", "rang": "rangle", "infin": "infty", "lparen": "(", "rparen": ")", "gets": "leftarrow"},
    **{"euro": "€", "texteuro": "€", "pounds": "£", "textsterling": "£", "yen": "¥", "bigcup": "cup", "bigcap": "cap"},
}
_WORDS = {  # of plain text, that are commands
    *("sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln"),
    *("exp", "sqrt", "pi", "theta", "alpha", "beta", "infty", "gcd", "lcm", "max", "min", "det", "cup", "binom"),
    *("pm", "cdot", "times", "frac"),
}
_WORD_NAMES = {"infinity": "infty", "inf": "infty", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_TOKEN = re.compile(
    r"(?P<env>\\(?:begin|end)\s*\{[a-zA-Z]+\*?\})|\\(?P<command>(?:operatorname|hspace|vspace|tag)\*|[A-Za-z]+)|(?P<escaped>\\.)"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<word>[A-Za-z]+)|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)


class NotMathsError(ValueError):
    """The text cannot be read as mathematics."""


@lru_cache(maxsize=2**14)
def normalized(text: str, grouped: bool = True) -> str:
    """The answer in one notation; twice normalized is normalized. `grouped`: `1,234` is one number.

    A sentence of harmless words around a single formula is removed; any other text remains, and counts.
    """
    text = without_zeros(text) if len(text) > MAX_CHARS else text
    text = without_emphasis(text.strip()) if len(text) <= MAX_CHARS else text
    if len(text) > 4 * MAX_CHARS:
        return text[: MAX_CHARS + 1]
    text = unicode_free(text)
    text = re.sub(r"\bUS\s?\\?\$\s?(?=[0-9])", r"\\$", text)
    text = re.sub(r"(?<=[0-9}])(?:\\[ ,]|[\s~])*(?:\\text\{\s*pct\.?\s*\}|pct\b\.?)", r"\\%", text)
    for _ in range(4):
        before, text = text, _without_sentence(text)
        if text == before:
            break
    try:
        found = tokens(text, grouped)
        while found and (found[0] in ("\\approx", "=") or found[-1] == "."):
            found = found[1:] if found[0] in ("\\approx", "=") else found[:-1]
        while len(found) > 2 and found[0] == found[-1] and found[0] in ("*", "^", "`"):
            found = found[1:-1]
        return render(found)
    except NotMathsError:
        return " ".join(text.split())[: MAX_CHARS + 1]


def _without_sentence(text: str) -> str:
    formulas = _DELIMITED.findall(text)
    if len(formulas) == 1 and is_harmless(_DELIMITED.sub(" ", text)):
        return "".join(formulas[0]).strip()
    if len(formulas) == 1 and (sentence := _QUANTITY.fullmatch(text)):
        before, after = text[: sentence.start(1)], sentence[2].strip(" .")
        if is_harmless(before) and canonical_unit(after):
            return f"{sentence[1]} \\text{{{after}}}"
    text = without_lead_in(text)
    text = _DELIMITED.sub(lambda match: f" {match[1] or match[2] or match[3] or ''} ", text)
    text = re.sub(r"(?<!\\)\$", " ", text).strip()
    return without_phrases(text)


def unicode_free(text: str) -> str:
    """The text with commands for the signs, powers and fractions of Unicode."""
    if text.isascii():
        return text
    text = _RAISED_RUN.sub(lambda run: "^{" + "".join(_RAISED[sign] for sign in run[0]) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + "".join(_LOWERED[sign] for sign in run[0]) + "}", text)
    text = _VULGAR.sub(lambda sign: _fraction(sign[0]), text)
    text = _FONTS.sub(lambda sign: unicodedata.normalize("NFKC", sign[0]), _SIGN.sub(_command_of, text))
    return _SIGN.sub(_command_of, text)


def _command_of(sign: re.Match[str]) -> str:
    return _SIGNS[sign[0]]


def _fraction(sign: str) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", sign).partition("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}" if bottom else sign


def tokens(text: str, grouped: bool = True) -> list[str]:
    """The visible tokens of a formula. A text is one token, `\\text{…}`; a space is one between numbers only.

    Raises NotMathsError where braces do not match.
    """
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", unicode_free(text))
    text = _GROUPED.sub(lambda run: re.sub(r"\D", "", run[1]), text)
    return _spaced(_without_empty(_Scanner(text).scan(grouped)))


class _Scanner:
    """Splits a text into tokens, and drops what does not show."""

    def __init__(self, text: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise NotMathsError("nested too deeply")
        self.text, self.place, self.depth, self.brackets = text, 0, depth, 0

    def scan(self, grouped: bool = True) -> list[str]:
        found: list[str] = []
        while self.place < len(self.text):
            if grouped and not self.brackets and not self.depth and (run := _COMMAS.match(self.text, self.place)):
                self.place = run.end()
                found.append(run[0].replace(",", ""))
                if decimals := re.compile(r"\.[0-9]+").match(self.text, self.place):
                    found[-1] += decimals[0]
                    self.place = decimals.end()
                continue
            if found and (unit := _unit_at(self.text, self.place, found)):
                found.append(f"\\text{{{' '.join(unit.split())}}}")
                self.place += len(unit)
                continue
            match = _TOKEN.match(self.text, self.place)
            assert match is not None
            self.place = match.end()
            found += self._token(match)
        return found

    def _token(self, match: re.Match[str]) -> list[str]:
        if match["env"]:
            return [re.sub(r"\s", "", match[0])]
        if match["command"]:
            return self._command(match["command"])
        if match["escaped"]:
            return self._escaped(match["escaped"])
        if match["space"] or match["other"] in ("~", "\\"):  # a lone backslash is the rest of a space
            return [" "]
        if match["word"]:
            return _word(match["word"])
        self.brackets += (match[0] in "([{") - (match[0] in ")]}")
        return [match[0]]

    def _escaped(self, sign: str) -> list[str]:
        self.brackets += (sign == "\\{") - (sign == "\\}")
        if sign[1] in ",;:!> \n\t/()[]":
            return [" "]
        return ["%"] if sign == "\\%" else ["\\\\"] if sign == "\\\\" else [sign]

    def _command(self, name: str) -> list[str]:
        name = name.removesuffix("*")
        if name in _INVISIBLE:
            return [" "]
        if name in _WITHOUT_ARGUMENT:
            self._argument()
            return [" "]
        if name in ("textcolor", "colorbox"):
            self._argument()
            return ["{", *_Scanner(self._argument(), self.depth + 1).scan(), "}"]
        if name in _WRAPPERS:
            inside = _Scanner(self._argument(), self.depth + 1).scan()
            return inside if len(inside) == 1 and inside[0][0].isalpha() else ["{", *inside, "}"]
        if name in _TEXTS:
            return _text(self._argument(), self.depth, name)
        renamed = _RENAMED.get(name, name)
        if renamed == name:
            return [f"\\{name}"]
        self.text = (f"\\{renamed} " if renamed[0].isalpha() else renamed) + self.text[self.place :]
        self.place = 0
        return []

    def _argument(self) -> str:
        """The next group without its braces, or the next sign."""
        rest = self.text[self.place :].lstrip()
        start = len(self.text) - len(rest)
        if not rest:
            return ""
        if rest[0] != "{":
            match = _TOKEN.match(rest)
            assert match is not None
            self.place = start + (match.end() if match["command"] else 1)
            return rest[: self.place - start]
        depth, place = 0, start
        while place < len(self.text):
            sign = self.text[place]
            place += 2 if sign == "\\" else 1
            depth += (sign == "{") - (sign == "}")
            if not depth:
                self.place = place
                return self.text[start + 1 : place - 1]
        raise NotMathsError("a brace is not closed")


_UNIT_WORDS = re.compile(r"[A-Za-z]+(?:[ .'-]+[A-Za-z]+)*\.?(?=\s*(?:[,;]|\\text|$))")


def _unit_at(text: str, place: int, found: list[str]) -> str:
    """A unit of several words, or of four letters or more, behind a value; shorter ones may be variables."""
    if not text[place].isalpha() or (text[place - 1 : place].isalpha() and place):
        return ""
    before = next((token for token in reversed(found) if token != " "), "")
    if not (is_number(before) or before in ("}", ")", "\\pi", "%")):
        return ""
    match = _UNIT_WORDS.match(text, place)
    if not match or not (" " in match[0] or len(match[0]) > 3):
        return ""
    return match[0] if canonical_unit(match[0]) else ""


def _word(word: str) -> list[str]:
    if word in _WORDS or word in _WORD_NAMES:
        return [f"\\{_WORD_NAMES.get(word, word)}"]
    if word.lower() in ("or", "and"):
        return [f"\\text{{{word.lower()}}}"]
    return list(word)


def _text(content: str, depth: int, command: str) -> list[str]:
    """Words as one token; what holds a formula, as that formula."""
    plain = " ".join(re.sub(r"\\[,;:! ]|~|\$", " ", content).split())
    if not plain or not without_phrases(f"{plain} 0").strip("0"):
        return [" "]
    if plain in _WORDS and command in ("operatorname", "mathrm"):
        return [f"\\{plain}"]
    if re.fullmatch(r"[A-Za-z]", plain) and not command.startswith("text"):
        return [plain if plain in "eidxyz" or not canonical_unit(plain) else f"\\text{{{plain}}}"]
    if raised := re.fullmatch(r"([^\W\d_](?:[^\W\d_]|[ .'/-])*)\^\{?(-?[0-9])\}?", plain):
        return [f"\\text{{{raised[1]}}}", "^", *(raised[2] if len(raised[2]) < 2 else ["{", *raised[2], "}"])]
    if re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ .'/-])*", plain):
        return [f"\\text{{{plain}}}"]
    return [" ", *_Scanner(_set_apart(content), depth + 1).scan(), " "]


def _set_apart(content: str) -> str:
    """Words of a text that also holds digits or signs, each as a text of its own."""
    return re.sub(
        r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?:\s+[A-Za-z]{2,})*(?![A-Za-z}])", lambda run: f"\\text{{{run[0]}}}", content
    )


def _without_empty(found: list[str]) -> list[str]:
    """Without empty groups, which show nothing."""
    kept: list[str] = []
    for token in found:
        if token == "}":
            inside = len(kept) - 1
            while inside >= 0 and kept[inside] == " ":
                inside -= 1
            if inside >= 0 and kept[inside] == "{" and (inside == 0 or not _takes_argument(kept[:inside])):
                del kept[inside:]
                kept.append(" ")
                continue
            if kept[inside:] == [":"] and kept[inside - 1 : inside] == ["{"]:
                kept[inside - 1 :] = [":"]
                continue
        kept.append(token)
    return kept


def _takes_argument(before: list[str]) -> bool:
    last = next((token for token in reversed(before) if token != " "), "")
    return last in ("^", "_", "\\frac", "\\sqrt", "\\binom", "}") and last != ""


def _spaced(found: list[str]) -> list[str]:
    """Without spaces, except between two numbers; `>=` and `**` as one sign."""
    kept: list[str] = []
    for place, token in enumerate(found):
        if token == " ":
            continue
        if kept and is_number(kept[-1]) and is_number(token):
            kept.append(" ")
        if token == "*" and kept and kept[-1] == "*":
            kept[-1] = "^"
            continue
        if token == "=" and kept and kept[-1] in _ASCII_RELATIONS and not _is_factorial(kept, found[place - 1]):
            kept[-1] = _ASCII_RELATIONS[kept[-1]]
            continue
        kept.append(token)
    return kept


def _is_factorial(kept: list[str], previous: str) -> bool:  # `5!=120`, `n! = 6`
    return kept[-1] == "!" and (previous == " " or len(kept) < 2 or is_number(kept[-2]) or kept[-2] == ")")


def is_number(token: str) -> bool:
    return token[-1:] in _DIGITS and (token[0] in _DIGITS or token[0] == ".")


def render(found: list[str]) -> str:
    """The tokens as LaTeX that has the same tokens."""
    out = ""
    for token in found:
        command = re.search(r"\\[A-Za-z]+$", out)
        if (command and token[0].isalpha()) or (out.endswith(",") and is_number(token)):
            out += " "
        elif (out[-1:], token) == ("!", "="):
            out += "\\ "
        elif (out.endswith(".") and is_number(token)) or (not command and _joins(out, token)):
            out += "\\,"
        out += token
    return out


def _joins(out: str, token: str) -> bool:
    """Whether a letter would complete a word that is read as a command."""
    run = re.search(r"[A-Za-z]*$", out)
    word = (run[0] if run else "") + token
    return word in _WORDS or word in _WORD_NAMES or word.lower() in ("or", "and")
