"""The smallest parts of a formula: numbers, symbols, brackets, fractions, roots, functions, matrices."""

from __future__ import annotations

from fractions import Fraction

from outdo.rewards.maths.notation import NotMathsError, is_number
from outdo.rewards.maths.tree import Node, negated, number

_MAX_DEPTH = 40  # of brackets
_OF_SEVERAL = ("gcd", "lcm", "max", "min")
REVERSED = {"]": "\\open]", "[": "\\close["}  # brackets of open ends: `]2,7[`
_CLOSING = {"(": (")", "]"), "[": ("]", ")", REVERSED["["]), REVERSED["]"]: ("]", REVERSED["["])}
FUNCTIONS = {
    *("sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh", "tanh"),
    *(
        "coth",
        "log",
        "ln",
        "lg",
        "exp",
        "gcd",
        "lcm",
        "max",
        "min",
        "det",
        "arg",
        "deg",
        "dim",
        "ker",
        "Re",
        "Im",
        "Pr",
    ),
}
_GREEK = {
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"),
    *("xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi"),
    *("Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar", "aleph", "clubsuit", "diamondsuit", "heartsuit"),
    *("spadesuit", "star", "checkmark", "partial", "nabla", "square", "Box", "triangle", "ldots"),
}
_BIG = {"sum", "prod", "int", "iint", "iiint", "oint", "lim", "limsup", "liminf", "sup"}
_ACCENTS = {"vec", "hat", "bar", "tilde", "overrightarrow", "widehat", "dot", "ddot", "mathcal", "mathfrak", "mathscr"}
_PAIRS = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceil"), "\\lVert": ("\\rVert", "norm")}
_CONSTANTS = {"\\pi": "pi", "\\infty": "inf", "e": "e", "i": "i", "\\emptyset": "empty"}
_SETS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}
_CURRENCIES = {"\\$", "€", "£", "¥", "₹", "₩", "₽", "₺", "₪"}
_PHRASES = {  # sets in words, without spaces
    **dict.fromkeys(("allrealnumbers", "allreals", "therealnumbers", "thesetofallrealnumbers"), "reals"),
    **dict.fromkeys(("nosolution", "nosolutions", "norealsolution", "norealsolutions"), "empty"),
    **dict.fromkeys(("emptyset", "theemptyset"), "empty"),
}
_MAX_PHRASE = 40
_OF_EVENTS = {"=", "<", ">", "|", "\\mid", "\\ge", "\\le", "\\cap", "\\cup", "\\ne", "\\in"}
_MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "smallmatrix", "array")


class Atoms:
    """A place in the tokens, and what starts there. The grammar around it is in the parser."""

    def __init__(self, found: list[str]) -> None:
        self.tokens, self.place, self.depth, self.bars = found, 0, 0, 0
        self.builder = False  # inside `\\{x : …`

    def peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise NotMathsError("incomplete")
        self.place += 1
        return token

    def take(self, *wanted: str) -> str:
        if self.peek() in wanted:
            return self.next()
        return ""

    def expect(self, *wanted: str) -> str:
        return self.take(*wanted) or self._refuse()

    def _refuse(self) -> str:
        raise NotMathsError(f"unexpected {self.peek()!r}")

    def answers(self) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def power(self) -> Node:
        raise NotImplementedError

    def _starts_factor(self, token: str) -> bool:
        raise NotImplementedError

    def argument(self, whole: bool = False) -> Node:
        """A group, or the next sign: of a number its first digit, or all of it (`whole`)."""
        self.take(" ")
        node = self._argument(whole)
        self.take(" ")
        return node

    def _argument(self, whole: bool) -> Node:
        token = self.peek()
        if token == "{":
            return self.group()
        if is_number(token) and not whole and len(token) > 1:
            self.tokens[self.place : self.place + 1] = [token[0], token[1:]]
        if token == "-":
            self.next()
            return negated(self.argument(whole))
        if token == "'":
            return Node("prime", name="'" * len(self._run("'")))
        return self.atom()

    def _run(self, token: str) -> str:
        run = ""
        while self.take(token):
            run += token
        return run

    def group(self) -> Node:
        self.expect("{")
        self._deeper()
        if self.peek() == "'":
            node = Node("prime", name=self._run("'"))
        else:
            bars, self.bars = self.bars, 0
            node = self.answers()
            self.bars = bars
        self.expect("}")
        self.depth -= 1
        return node

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise NotMathsError("nested too deeply")

    def atom(self) -> Node:
        token = self.next()
        if is_number(token):
            return self._number(token)
        if token in _CONSTANTS:
            return Node("const", name=_CONSTANTS[token])
        if token.isalpha() and token.isascii():
            return self._letter(token)
        if token in ("(", "[", "\\langle", REVERSED["]"]):
            return self._bracket(token)
        if token == "\\{":
            return self._set()
        if token == "|":
            return self._bars()
        if token in _CURRENCIES:
            value = self.power()
            return Node("qty", (value,), token.removeprefix("\\"))
        if token == "{":
            self.place -= 1
            return self.group()
        if token.startswith("\\text{") and token not in ("\\text{or}", "\\text{and}"):
            return set_in_words(token[6:-1]) or Node("text", name=token[6:-1])
        if token.startswith("\\begin{"):
            return self._matrix(token[7:-1])
        return self._command(token)

    def _number(self, token: str) -> Node:
        """A number; `0.\\overline{3}` repeats its last digits."""
        if (self.peek() in ("\\overline", "\\bar") and "." in token) or self._repeats_after_point(token):
            self.take(".")
            self.next()
            digits = "".join(self._group_tokens())
            if digits.isdigit() and len(digits) <= 60:
                places = len(token.partition(".")[2])
                value = Fraction(token) + Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
                return number(value, f"{token}({digits})")
            raise NotMathsError("no repeating digits")
        return decimal(token)

    def _repeats_after_point(self, token: str) -> bool:
        return token.isdigit() and self.peek() == "." and self.peek(1) in ("\\overline", "\\bar")

    def _group_tokens(self) -> list[str]:
        if not self.take("{"):
            return [self.next()]
        inside = []
        while self.peek() != "}":
            inside.append(self.next())
        self.next()
        return inside

    def _letter(self, token: str) -> Node:
        if token in "PE" and self.peek() in ("(", "[") and (event := self._event()):
            return Node("fn", name=f"call {token} {event}")
        primes = self._run("'") if token in "fgh" else ""
        if (token in "fg" or primes) and self.take("("):
            inside = self._bracket("(")
            return Node("fn", inside.args if inside.op == "tuple" else (inside,), f"call {token}{primes}")
        if primes:
            return Node("fn", (Node("sym", name=token),), f"prime{primes}")
        return Node("sym", name=token)

    def _event(self) -> str:
        """What stands in the brackets of `P(A|B)` or `E[X]`, and is no factor; empty where it may be one."""
        closing = {"(": ")", "[": "]"}[self.peek()]
        end = next((i for i in range(self.place, len(self.tokens)) if self.tokens[i] == closing), 0)
        inside = self.tokens[self.place + 1 : end]
        if not (set(inside) & _OF_EVENTS or (inside and all(token.isupper() for token in inside))):
            return ""
        self.place = end + 1
        return "".join(inside)

    def _bracket(self, opening: str) -> Node:
        """A group, a tuple or an interval."""
        self._deeper()
        bars, self.bars = self.bars, 0
        inside = self.answers()
        self.bars, self.depth = bars, self.depth - 1
        if opening == "\\langle":
            self.expect("\\rangle")
            kind = "()"
            if any(part.name == "inf" for part in inside.walk()):
                raise NotMathsError("a vector with an infinite part")
        else:
            kind = opening[-1] + self.expect(*_CLOSING[opening])[-1]
        if inside.op == "list" and inside.name == ",":
            return Node("tuple", inside.args, kind)
        if kind == "()" or (kind == "[]" and inside.op == "matrix"):
            return inside
        if kind == "[]":
            return Node("tuple", (inside,), kind)
        raise NotMathsError("an interval has two ends")

    def _set(self) -> Node:
        self._deeper()
        if self.take("\\}"):
            self.depth -= 1
            return Node("const", name="empty")
        bars, self.bars, self.builder = self.bars, 1, True
        inside = self.answers()
        self.bars, self.builder = bars, False
        if self.take("|", "\\mid", ":"):
            condition = self.answers()
            self.expect("\\}")
            self.depth -= 1
            return Node("such", (inside, condition))
        self.expect("\\}")
        self.depth -= 1
        return Node("set", inside.args if inside.op == "list" else (inside,))

    def _bars(self) -> Node:
        self._deeper()
        self.bars += 1
        inside = self.sum()
        self.expect("|")
        self.bars -= 1
        self.depth -= 1
        return Node("fn", (inside,), "abs")

    def _matrix(self, environment: str) -> Node:
        if environment not in (*_MATRICES, "cases"):
            raise NotMathsError(f"unknown environment {environment!r}")
        self._deeper()
        if environment == "array":
            self._group_tokens()
        rows: list[list[Node]] = [[]]
        while not self.peek().startswith("\\end{"):
            rows[-1].append(self.answers())
            if self.take("\\\\"):
                rows.append([])
            elif not self.take("&") and not self.peek().startswith("\\end{"):
                self._refuse()
        if self.next() != f"\\end{{{environment}}}":
            raise NotMathsError("the end of another environment")
        self.depth -= 1
        rows = rows[: -1 if not rows[-1] else None]
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise NotMathsError("rows of different lengths")
        nodes = tuple(node for row in rows for node in row)
        if environment == "cases":
            return Node("list", nodes, ",") if len(rows[0]) == 1 and len(rows) > 1 else Node("matrix", nodes, "cases")
        matrix = Node("matrix", nodes, f"{len(rows)} {len(rows[0])}")
        return Node("fn", (matrix,), "det") if environment == "vmatrix" else matrix

    def _command(self, token: str) -> Node:
        name = token.removeprefix("\\")
        if token == "\\frac":
            top = self.argument()
            return Node("div", (top, self.argument()))
        if token == "\\binom":
            top = self.argument()
            return Node("fn", (top, self.argument()), "binom")
        if token == "\\sqrt":
            return self._root()
        if name in FUNCTIONS and name != "Pr":
            return self._function(name)
        if name in _BIG:
            return self._big(name)
        if name in _GREEK:
            return Node("sym", name=token)
        if name in _ACCENTS:
            return Node("accent", (self.argument(),), name)
        if name == "Pr" or name == "mathbb":
            letter = "P" if name == "Pr" else "".join(self._group_tokens())
            return Node("const", name=_SETS[letter]) if letter in _SETS else self._letter(letter)
        if token in _PAIRS:
            closing, kind = _PAIRS[token]
            self._deeper()
            inside = self.sum()
            self.expect(closing)
            self.depth -= 1
            return Node("fn", (inside,), kind)
        if name in ("overline", "angle", "measuredangle", "widehat", "overarc"):
            return Node("accent", (self._letters() if name != "overline" else self.argument(),), name)
        raise NotMathsError(f"unknown command {token!r}")

    def _letters(self) -> Node:
        letters = ""
        while self.peek().isalpha() and len(self.peek()) == 1:
            letters += self.next()
        return Node("sym", name=letters) if letters else self.atom()

    def _root(self) -> Node:
        index = number(2)
        if self.take("["):
            index = self.sum()
            self.expect("]")
        if self.peek() == "(":
            self.next()
            return Node("root", (self._bracket("("), index))
        return Node("root", (self.argument(whole=True), index))

    def _function(self, name: str) -> Node:
        under: tuple[Node, ...] = ()
        exponent = None
        while self.peek() in ("_", "^"):
            if self.next() == "_":
                under = (self.argument(whole=self.peek() == "10" or self.peek(1) == " "),)
            else:
                exponent = self.argument(whole=True)
        if self.take("("):
            inside = self._bracket("(")
            node = Node("fn", inside.args if name in _OF_SEVERAL and inside.op == "tuple" else (inside, *under), name)
        else:
            node = Node("fn", (self._operand(), *under), name)
        if exponent is None:
            return node
        if exponent.op == "neg" and name in ("sin", "cos", "tan") and exponent.args[0].value == 1:
            return Node("fn", node.args, f"arc{name}")
        return Node("pow", (node, exponent))

    def _operand(self) -> Node:
        """What a function without brackets is applied to: the factors beside it, up to a sign or another function."""
        factors = [self.power()]
        while (token := self.peek()) and self._starts_factor(token) and token not in (" ", "(", "["):
            if token.removeprefix("\\") in FUNCTIONS:
                break
            factors.append(self.power())
        return factors[0] if len(factors) == 1 else Node("mul", tuple(factors))

    def _big(self, name: str) -> Node:
        """A sum, an integral or a limit: kept as written."""
        bounds = []
        while self.peek() in ("_", "^"):
            side = self.next()
            bounds.append(Node("bound", (self.argument(whole=True),), side))
        return Node("big", (*bounds, self.sum()), name)


def decimal(token: str) -> Node:
    return number(Fraction(token), token)


def set_in_words(text: str) -> Node | None:
    """The set that words name, whatever their spaces: `no solution`."""
    known = _PHRASES.get("".join(text.lower().split()).rstrip(".")) if len(text) <= _MAX_PHRASE else None
    return Node("const", name=known) if known else None
