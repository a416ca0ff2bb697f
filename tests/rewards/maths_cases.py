"""Answers to mathematical questions by class: (question, gold, answer). Some by hand, some by rule."""

from __future__ import annotations

Case = tuple[str, str, str]  # the question (empty: not known), the gold, the content of the box


def _each(question: str, gold: str, *answers: str) -> list[Case]:
    return [(question, gold, answer) for answer in answers]


def _unevaluated() -> list[Case]:
    cases: list[Case] = []
    for a, b in ((17, 23), (7, 8), (12, 13), (31, 4)):
        for between in (
            *(
                "\\cdot\\text{}",
                "{}\\cdot ",
                "\\,\\cdot\\,",
                "\\times\\mathrm{}",
                "\\phantom{1}\\cdot ",
                "\\hspace{1mm}\\cdot ",
            ),
            *(
                "\\text{}\\times ",
                "\\;*\\;",
                "\\displaystyle\\cdot ",
                "\\!\\times\\!",
                "\\cdot\\left.\\right.",
                "∗",
                "⋅",
            ),
        ):
            cases.append(("", str(a * b), f"{a}{between}{b}"))
        cases += [
            ("", str(a * b), text) for text in (f"{a}({b})", f"({a})({b})", f"{a}\\,({b})", f"{{{a}}}\\cdot{{{b}}}")
        ]
        cases += [("", str(a * b), f"{a}\\frac{{{b}}}{{1}}"), ("", str(a + b), f"{a}\\frac{{{b}}}{{1}}")]
        cases += [("", str(a * b), f"\\textcolor{{red}}{{{a}}}\\cdot\\textcolor{{blue}}{{{b}}}")]
        cases += [("", f"{a * b}", f"{a}\\mathrm{{}}{b}"), ("", f"{a}{b}", f"{a}\\text{{}}{b}")]
        cases += [("", f"{a * b}\\pi", f"{a}\\cdot {b}\\pi"), ("", f"{a * b}x", f"{a}\\cdot {b}x")]
        cases += [("", f"{a + b}\\text{{ cm}}", f"{a}+{b}\\text{{ cm}}"), ("", f"({a * b},1)", f"({a}\\cdot {b},1)")]
    cases += _each(
        "", "6", "3!", "\\binom{4}{2}", "\\lfloor 6.5\\rfloor", "|{-6}|", "\\gcd(12,18)", "\\max(5,6)", "1+2+3"
    )
    cases += _each("", "\\frac{\\pi}{4}", "\\int_0^1\\frac{1}{1+x^2}dx", "\\frac{2\\cdot 3\\pi}{24}")
    cases += _each("", "n^2", "\\sum_{k=1}^{n}(2k-1)")
    return cases


def _given_back() -> list[Case]:
    cases: list[Case] = []
    for a, b in ((391, 23), (84, 7), (144, 9), (1001, 77)):
        for prompt in (f"Compute {a}/{b}.", f"What is ${a}/{b}$?", f"Evaluate \\({a}/{b}\\)."):
            cases += _each(prompt, str(a // b), f"{a}/{b}", f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{2 * a}}}{{{2 * b}}}")
    for a, n in ((6, 2), (3, 4), (11, 2)):
        cases += _each(f"Compute {a}^{n}.", str(a**n), f"{a}^{n}", f"{a}^{{{n}}}", f"{{{a}}}^{{{n}}}", f"({a})^{{{n}}}")
    for a in (9, 4, 7):
        square, expanded = f"(x+{a})^2", f"x^2+{2 * a}x+{a * a}"
        cases += _each(
            f"Expand ${square}$.",
            expanded,
            *(square, f"(x+{a})^{{2}}", f"({a}+x)^2", f"(x+{a})(x+{a})", f"x(x+{2 * a})+{a * a}"),
            *(f"x^2+{2 * a}x+{a * a - 1}+1", f"x^2+{a}x+{a}x+{a * a}"),
        )
        cases += _each(f"Expand {square}", expanded, square, f"(x + {a})^2", f"\\left(x+{a}\\right)^2")
        cases += _each(f"Factor ${expanded}$.", square, expanded, f"{a * a}+{2 * a}x+x^2", f"x(x+{2 * a})+{a * a}")
    for inside, gold, half in ((72, "6\\sqrt{2}", "2\\sqrt{18}"), (50, "5\\sqrt{2}", "\\sqrt{25}\\sqrt{2}")):
        answers = (f"\\sqrt{{{inside}}}", f"\\sqrt {{{inside}}}", f"√{inside}", half, f"{inside}^{{1/2}}")
        cases += _each(f"Simplify \\sqrt{{{inside}}}", gold, *answers)
        cases += _each(f"Simplify $\\sqrt{{{inside}}}$.", gold, *answers)
    cases += _each("Evaluate \\int_0^1 3x^2 dx", "1", "\\int_0^1 3x^2 dx", "\\int_0^1 3x^2\\,dx")
    cases += _each(
        "Evaluate $\\int_0^\\pi \\sin x\\,dx$", "2", "\\int_0^\\pi \\sin x\\,dx", "\\int_0^{\\pi}\\sin x\\,dx"
    )
    cases += _each("Compute $\\sum_{k=1}^{4}k$", "10", "\\sum_{k=1}^{4}k", "1+2+3+4")
    cases += _each("Rationalize $\\frac{1}{\\sqrt{3}}$.", "\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}", "1/\\sqrt 3")
    cases += _each("Simplify $\\frac{x^2-1}{x-1}$.", "x+1", "\\frac{x^2-1}{x-1}", "\\frac{(x-1)(x+1)}{x-1}")
    cases += _each("Solve $2x=10$ for $x$.", "x=5", "2x=10", "10=2x", "x=10-5")
    cases += _each("Solve $3x>12$.", "x>4", "3x>12", "12<3x")
    cases += _each("Simplify \\frac{12}{16}.", "\\frac{3}{4}", "\\frac{12}{16}", "12/16", "\\frac{6}{8}")
    cases += _each("Write $0.75$ as a fraction.", "\\frac{3}{4}", "0.75")
    cases += _each("Write 3/8 as a decimal.", "0.375", "3/8", "\\frac38")
    cases += _each("Compute \\log_2 32.", "5", "\\log_2 32", "\\log_{2}{32}")
    cases += _each("What is $(3x)(4x)$?", "12x^2", "(3x)(4x)", "3x\\cdot 4x")
    return cases


def _other_meanings() -> list[Case]:
    cases = _each(
        "", "2\\!:\\!30\\text{ PM}", "1:15\\text{ AM}", "1:15\\text{ PM}", "2:30\\text{ AM}", "2:31 PM", "\\frac{1}{15}"
    )
    cases += _each("", "4:20", "1:05", "2:10", "8:40", "\\frac15", "0.2")
    for whole, top, bottom in ((1, 1, 2), (2, 3, 4), (3, 2, 5)):
        cases += _each(
            "", f"\\frac{{{whole}{top}}}{{{bottom}}}", f"{whole} {top}/{bottom}", f"{whole}\\ {top}/{bottom}"
        )
        cases += _each("", f"{whole}\\frac{{{top}}}{{{bottom}}}", f"{whole}{top}/{bottom}")
    cases += _each("", "A+a", "2a", "2A", "A+A", "a+a") + _each("", "Bx", "bx", "BX") + _each("", "C", "c")
    for low, high in (("-\\infty", "3"), ("2", "5"), ("0", "\\infty")):
        cases += _each("", f"({low},{high})", f"\\{{{low},{high}\\}}", f"[{low},{high}]", f"({low},{high}]")
    cases += _each("", "\\{2,5\\}", "(2,5)", "[2,5]", "\\langle 2,5\\rangle")
    cases += _each(
        "", "12\\text{ cm}", "12\\text{ kg}", "12\\text{ cm}^2", "12\\text{ m}", "12^\\circ", "\\$12", "12\\%", "12 km"
    )
    cases += _each("", "9\\text{ m}^2", "9\\text{ m}", "9\\text{ m}^3", "9\\text{ ft}^2", "9 cm²")
    cases += _each("", "60\\text{ km/h}", "60\\text{ km}", "60\\text{ mph}", "60\\text{ h}")
    cases += _each("", "\\$5", "€5", "5\\text{ cents}", "£5")
    cases += _each("How many minutes does it take?", "20", "20\\text{ hours}", "20\\text{ seconds}", "20 km")
    cases += _each("How much is left?", "5", "5\\%") + _each("What percent is that?", "5", "500\\%", "0.05\\%")
    for around in (
        *(
            "NOT \\(5\\)",
            "$5$ is wrong",
            "not $5$",
            "$5$ is incorrect",
            "anything but $5$",
            "anything but 5",
            "never $5$",
        ),
        *(
            "It is not $5$",
            "other than $5$",
            "$5$ is not it",
            "minus $5$",
            "twice $5$",
            "$5$ no",
            "half of $5$",
            "5 lakh",
        ),
        *(
            "\\text{not }5",
            "5\\text{ is wrong}",
            "\\lnot 5",
            "\\text{anything but }5",
            "\\text{NOT}=5",
            "\\text{wrong}=5",
        ),
        *(
            "x\\ne 5",
            "x\\neq5",
            "5\\text{ (wrong)}",
            "\\neg 5",
            "5\\text{ million}",
            "5\\text{ dozen}",
            "5 dozen",
            "5!",
        ),
        *(
            "opposite of $5$",
            "\\cancel{5}",
            "\\not{5}",
            "\\overline{5}",
            "less than $5$",
            "at least 5",
            "5\\text{ mod }7",
        ),
    ):
        cases.append(("", "5", around))
    cases += _each("", "x=5", "y=5", "2x=10", "x>5", "x\\ne5", "x=-5") + _each(
        "", "(3,4)", "x=4,y=3", "(y,x)=(3,4)", "3:4", "3/4"
    )
    cases += _each(
        "", "1,-2", "x=1\\text{ or }x=2", "1", "-2", "x=1", "1,-2,0", "(1,-2)\\cup\\{0\\}", "\\pm1", "\\{1,2\\}"
    )
    cases += _each("", "[0,\\infty)", "x>0", "x\\le0", "x\\ge1", "(0,\\infty)", "\\mathbb{R}", "x\\ge0\\text{ or }x<-1")
    cases += _each("", "(-1,4]", "-1\\le x\\le4", "-1<x<4", "-1<x\\text{ or }x\\le 4", "(-1,4)", "\\{-1,4\\}")
    cases += _each("", "\\emptyset", "0", "\\{0\\}", "\\{\\emptyset\\}", "\\mathbb{R}", "\\phi")
    cases += _each("", "0.\\overline{3}", "0.3", "\\frac{3}{10}", "0.\\overline{4}", "0.33") + _each(
        "", "\\frac13", "0.\\overline{33}4"
    )
    cases += _each("", "B", "\\textbf{(C)}\\ 12", "(A)", "\\text{A or B}") + _each(
        "", "\\textbf{(B)}\\ 12", "C", "13", "(C) 12", "(B) 13"
    )
    cases += _each("", "x^2+1", "x^2+1+10^{-30}", "x^{2.0000001}+1", "y^2+1", "x^2-1", "(x+1)^2", "X^2+1")
    cases += _each("", "\\sqrt{2}", "1.41", "1.5", "\\sqrt{3}", "2^{1/3}", "\\sqrt[3]{2}", "-\\sqrt2")
    cases += _each("", "\\frac{1}{3}", "\\frac{1000001}{3000000}", "\\frac{333}{1000}", "0.34")
    cases += _each("", "1234", "1,2,3,4", "1 2 3 4", "12 34", "1{,}23{,}4", "1.234") + _each(
        "", "7", "7 2", "7,2", "2 7"
    )
    cases += _each("", "y=2x+1", "y=2x-1", "x=2y+1", "y=2x+1+c") + _each("", "f(2)", "2f", "f2")
    return cases


WRONG: list[Case] = [*_unevaluated(), *_given_back(), *_other_meanings()]


def _named() -> list[Case]:
    names = (
        *(
            "\\theta",
            "f(2)",
            "\\text{Area}",
            "P(X=2)",
            "x_1",
            "x_{1}",
            "S_n",
            "AB",
            "\\angle ABC",
            "m\\angle A",
            "f'(2)",
            "h(3)",
        ),
        *(
            "\\text{Total cost}",
            "\\text{Perimeter}",
            "\\mathrm{Area}",
            "\\vec{v}",
            "\\overline{AB}",
            "|AB|",
            "a_{10}",
            "g(1)",
            "V(t)",
        ),
    )
    golds = (("5", "5"), ("\\frac{1}{2}", "\\frac12"), ("2\\sqrt{3}", "2√3"))
    cases = [("", gold, f"{name}={answer}") for name in names for gold, answer in golds]
    cases += [("", "5", f"{name} = 5") for name in names[:8]] + [("", "5", "5=x"), ("", "5", "x=\\frac{10}{2}=5")]
    cases += _each("Find $x+y$.", "7", "x+y=7") + _each(
        "What was the profit?", "40", "\\text{Profit}=40", "\\text{Profit}=\\$40"
    )
    return cases


def _several() -> list[Case]:
    cases = _each(
        "",
        "1,-2",
        *(
            "x=1\\text{ or }x=-2",
            "x=-2\\text{ or }x=1",
            "x=1, x=-2",
            "x=1,-2",
            "\\{1,-2\\}",
            "1\\text{ and }-2",
            "x=1\\lor x=-2",
        ),
        *(
            "x_1=1,x_2=-2",
            "x\\in\\{-2,1\\}",
            "-2,1",
            "$x=1$ or $x=-2$",
            "1 or -2",
            "1, and -2",
            "x=-2, 1",
            "x_1=-2, x_2=1",
        ),
        *("1;-2", "\\{-2, 1\\}", "$1$ and $-2$", "n=1\\text{ or }n=-2"),
    )
    cases += _each(
        "",
        "(3,4)",
        "x=3,y=4",
        "y=4,x=3",
        "x=3\\text{ and }y=4",
        "(x,y)=(3,4)",
        "\\langle3,4\\rangle",
        "⟨3,4⟩",
        "x=3, y=4",
    )
    cases += _each("", "x=3,y=4", "(3,4)", "y=4,x=3", "x=3;y=4") + _each(
        "", "\\{-2,2\\}", "\\pm2", "x=\\pm 2", "±2", "2,-2"
    )
    cases += _each(
        "",
        "1\\pm\\sqrt{2}",
        "1+\\sqrt2,1-\\sqrt2",
        "1-\\sqrt2\\text{ or }1+\\sqrt{2}",
        "x=1±√2",
        "\\{1+\\sqrt2,1-\\sqrt2\\}",
    )
    cases += _each("", "(1,2),(3,4)", "(3,4),(1,2)", "\\{(1,2),(3,4)\\}", "(1,2)\\text{ and }(3,4)")
    return cases


def _sets() -> list[Case]:
    cases = _each(
        "",
        "[0,\\infty)",
        "x\\ge0",
        "x\\geq 0",
        "0\\le x",
        "x≥0",
        "x\\in[0,\\infty)",
        "\\{x\\mid x\\ge0\\}",
        "\\{x\\in\\mathbb R:x\\ge 0\\}",
    )
    cases += _each("", "x\\ge0", "[0,\\infty)", "[0,+\\infty)", "0\\leq x", "x\\in[0,\\infty)")
    cases += _each(
        "",
        "(-1,4]",
        "-1<x\\le4",
        "4\\ge x>-1",
        "-1<t\\leq 4",
        "x\\in(-1,4]",
        "x>-1\\text{ and }x\\le4",
        "\\left(-1,4\\right]",
    )
    cases += _each(
        "",
        "(-\\infty,-1)\\cup(2,\\infty)",
        "x<-1\\text{ or }x>2",
        "x>2\\text{ or }x<-1",
        "(2,\\infty)\\cup(-\\infty,-1)",
        "(−∞,−1)∪(2,∞)",
    )
    cases += _each("", "\\mathbb{R}", "(-\\infty,\\infty)", "\\mathbb R", "ℝ", "(-∞,∞)", "x\\in\\mathbb{R}")
    cases += _each("", "(-\\infty,3)\\cup(3,\\infty)", "x\\ne3", "\\mathbb{R}\\setminus\\{3\\}", "x\\neq 3")
    cases += _each("", "\\emptyset", "\\varnothing", "\\{\\}", "∅", "\\{ \\}", "\\O")
    cases += _each(
        "",
        "\\begin{pmatrix}3\\\\4\\end{pmatrix}",
        "(3,4)",
        "\\begin{bmatrix}3\\\\4\\end{bmatrix}",
        "\\langle 3,4\\rangle",
    )
    return cases


def _spellings() -> list[Case]:
    cases = _each(
        "", "\\frac{1}{3}", "0.\\overline3", "0.\\overline{3}", "0.\\bar{3}", "0.333333", "⅓", "1/3", "33\\frac13\\%"
    )
    cases += _each("", "33\\frac{1}{3}\\%", "33\\frac13\\%", "\\frac{100}{3}\\%", "\\frac13", "33.\\overline{3}\\%")
    cases += _each("", "90", "90°", "90^\\circ", "90^{\\circ}", "90\\degree", "90\\text{ degrees}", "90º")
    cases += _each(
        "",
        "2\\sqrt{3}",
        "2√3",
        "2\\sqrt3",
        "2\\cdot\\sqrt{3}",
        "2 √3",
        "√12",
        "2\\times\\sqrt{3}",
        "\\sqrt{3}\\cdot2",
        "2√{3}",
    )
    cases += _each("", "x^2+1", "x²+1", "1+x²", "x^{2}+1", "x**2+1", "x\\cdot x+1") + _each("", "x^{10}", "x¹⁰", "x^10")
    cases += _each(
        "", "\\frac{1}{2}", "½", "1/2", "0.5", ".5", "1⁄2", "\\frac12", "\\frac 1 2", "{1 \\over 2}"[1:-1], "50\\%"
    )
    cases += _each("", "\\frac{5}{2}", "2½", "2\\frac12", "2 1/2", "2 \\frac{1}{2}", "2.5", "5/2") + _each(
        "", "\\frac32", "1 1/2"
    )
    cases += _each(
        "",
        "5",
        "€5",
        "\\$5",
        "£5",
        "5€",
        "US$5",
        "5 dollars",
        "5\\text{ apples}",
        "5 cm",
        "\\text{5}",
        "5.",
        "5.0",
        "+5",
        "{5}",
    )
    cases += _each(
        "",
        "5",
        "The answer is $5$",
        "The answer is 5.",
        "Answer: 5",
        "So the area is $5$.",
        "$5$.",
        "\\(5\\)",
        "**5**",
        "\\color{red}5",
    )
    cases += _each(
        "", "B", "\\textbf{(B)}\\ 12", "(B)", "\\text{(B)}", "\\textbf{B}", "B.", "\\text{B}", "\\mathrm{(B)}"
    )
    cases += _each("", "12", "\\textbf{(B)}\\ 12", "(B) 12", "\\text{(B) }12") + _each(
        "", "\\textbf{(B)}\\ 12", "B", "12", "(B) 12", "\\text{(B)}"
    )
    cases += _each(
        "", "-\\frac{3}{4}", "−3/4", "-¾", "–0.75", "-\\frac{3}{4}", "\\frac{-3}{4}", "\\frac{3}{-4}", "-0.75"
    )
    cases += _each("", "6x", "2·3x"[0:0] + "6·x", "6\\times x", "x·6", "6∗x") + _each(
        "", "a_1+a_2", "a₁+a₂", "a_{1}+a_{2}", "a_2+a_1"
    )
    cases += _each("", "x\\le 3", "x≤3", "x ⩽ 3", "3≥x") + _each(
        "", "\\frac{\\pi}{2}", "π/2", "\\pi/2", "0.5\\pi", "½π", "\\frac12\\pi"
    )
    cases += _each(
        "", "12345", "12,345", "12{,}345", "12\\,345", "12\u202f345", "12,\\!345", "12 345", "12~345"
    ) + _each("", "1,234", "1234")
    cases += _each(
        "", "2:30\\text{ PM}", "2:30 PM", "2\\!:\\!30\\text{ p.m.}", "14:30", "2:30\\text{ pm}", "02:30 PM", "2:30"
    )
    cases += _each("", "3:4", "3:4", "6:8", "\\frac34", "3/4") + _each(
        "", "12\\text{ cm}", "12", "12 cm", "12\\,\\mathrm{cm}", "12\\text{ centimeters}"
    )
    cases += _each("", "9\\text{ m}^2", "9\\text{ m²}", "9 m^2", "9\\text{ square meters}", "9\\,\\mathrm{m}^2", "9")
    cases += _each("", "60\\text{ km/h}", "60\\text{ km}/\\text{h}", "60 km/h", "60\\text{ kilometers per hour}", "60")
    cases += (
        _each("What percent is it?", "5", "5\\%", "5", "5\\text{ percent}", "5%")
        + _each("", "0.05", "5\\%")
        + _each("", "50\\%", "0.5", "50")
    )
    cases += _each("", "\\text{even}", "even", "\\text{Even}", "\\textbf{even}") + _each(
        "", "Evelyn", "\\text{Evelyn}", "evelyn"
    )
    cases += _each("", "y=2x+1", "y=1+2x", "2x+1", "2x-y+1=0", "1+2x=y") + _each(
        "", "2x+3y=6", "4x+6y=12", "3y+2x=6", "6=2x+3y"
    )
    cases += _each("", "e^{2x}", "e^{x\\cdot 2}", "\\exp(2x)", "(e^x)^2", "e^(2x)") + _each(
        "", "\\ln 2", "\\log_e 2", "\\ln(2)", "ln 2"
    )
    cases += _each("", "\\sin x", "\\sin(x)", "sin x", "\\sin{x}") + _each(
        "", "\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt2}", "\\sin 45^\\circ"[0:0] + "√2/2"
    )
    return cases


def _forms() -> list[Case]:
    cases: list[Case] = []
    for a in (9, 4, 7):
        square, expanded = f"(x+{a})^2", f"x^2+{2 * a}x+{a * a}"
        cases += _each(
            f"Expand ${square}$.",
            expanded,
            f"{a * a}+{2 * a}x+x^2",
            f"x^{{2}}+{2 * a}\\cdot x+{a * a}",
            f"y={expanded}"[2:],
        )
        cases += _each(f"Factor ${expanded}$.", square, f"(x+{a})(x+{a})", f"({a}+x)^2", f"\\left(x+{a}\\right)^{{2}}")
    cases += _each("Simplify \\sqrt{72}", "6\\sqrt{2}", "6√2", "6\\cdot\\sqrt{2}", "\\sqrt{2}\\cdot 6", "6\\sqrt2")
    cases += _each("Compute 391/23.", "17", "17", "17.0", "391/23=17", "\\frac{391}{23}=17") + _each(
        "Compute 6^2.", "36", "36", "6^2=36"
    )
    cases += _each("Evaluate $\\int_0^1 3x^2dx$.", "1", "1", "\\int_0^1 3x^2dx=1") + _each(
        "Compute \\frac{1}{4}+\\frac14.", "0.5", "\\frac12", "1/2"
    )
    cases += _each(
        "A coin shows heads with probability 1/2. What is the probability of tails?", "0.5", "\\frac12", "1/2", "50\\%"
    )
    cases += _each("Which is larger, 3/4 or 2/3?", "\\frac{3}{4}", "3/4", "\\frac34", "0.75")
    cases += _each("Is (A) $2^3$ or (B) $3^2$ larger?", "3^2", "3^2", "3^{2}") + _each(
        "Solve $2x=10$ for $x$.", "x=5", "5", "x=5", "x = 5.0"
    )
    cases += _each("Simplify $\\frac{x^2-1}{x-1}$.", "x+1", "1+x") + _each(
        "Solve $3x>12$.", "x>4", "(4,\\infty)", "x>4", "4<x"
    )
    return cases


RIGHT: list[Case] = [*_named(), *_several(), *_sets(), *_spellings(), *_forms()]
