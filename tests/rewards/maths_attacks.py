"""Answers that were tried to get past the grader, and right ones in unusual spellings: {(question, gold): answers}."""

from __future__ import annotations

WRONG: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "391"): (
        *(
            "17\\ast 23",
            "17\\star23",
            "17\\mathbin{\\cdot}23",
            "17\\operatorname{}23",
            "17\\text{ times }23",
        ),
        *(
            "17\\text{ x }23",
            "17x23",
            "{17}{23}",
            "17^{1}\\cdot23",
            "\\frac{17}{1/23}",
            "\\sqrt{391^2}",
        ),
        *(
            "391+0",
            "391-0",
            "1\\cdot391",
            "391\\cdot1",
            "3.91e2",
            "391\\text{ or so}",
            "391 (mod 400)",
        ),
        *(
            "391\\pmod{400}",
            "391'",
            "391_{8}",
            "\\overline{391}",
            "391!",
            "391i",
            "391?",
            "<391",
            ">391",
        ),
        *(
            "\\le391",
            "391\\pm0",
            "400=391",
            "x=391y",
            "391\\neq392",
            "\\text{391 or 392}",
            "391/391",
        ),
        *(
            "391\\to392",
            "391\\text{ is false}",
            "391\\text{ minus 1}",
            "17\\odot23",
            "17\\circ23",
        ),
        *(
            "17\\bullet 23",
            "17\\textbf{}\\cdot23",
            "17\\\\cdot 23",
            "(17)\\left(23\\right)",
        ),
        *(
            "17\\left\\{23\\right\\}",
            "17[23]",
            "\\mathrm{17\\cdot23}",
            "\\text{17*23}",
            "17&23",
        ),
        *(
            "\\begin{matrix}17&23\\end{matrix}",
            "17^{}23",
            "17_{}23",
            "17\\vphantom{x}(23)",
        ),
        *(
            "\\frac{17\\cdot23}{1}",
            "\\frac{17}{1}\\cdot\\frac{23}{1}",
            "17:23^{-1}",
            "e^{\\ln 391}",
        ),
        *(
            "10^{\\log 391}",
            "\\sqrt{391}\\sqrt{391}",
            "(\\sqrt{391})^2",
            "\\sqrt{17^2\\cdot 23^2}",
        ),
        *(
            "391\\cdot i^4",
            "391\\cos 0",
            "0.391\\cdot1000",
            "400-9\\text{ cm}",
            "\\$17\\cdot 23",
        ),
        *(
            "\\textdollar 391 or 392",
            "391\\text{ nor }392",
            "391\\vee392",
            "391|392",
            "391 392",
            "391;392",
        ),
        *(
            "391\\text{;}392",
            "391\\newline392",
            "391\\quad392",
            "391\\\\392",
            "\\boxed{391}392",
        ),
        *(
            "391 hundred",
            "391k",
            "391M",
            "391 pi",
            "391 thousandths",
            "391 sixths",
            "391 two",
        ),
        *(
            "391 versus 392",
            "391\\text{ base eight}",
            "391\\text{ in base 8}",
            "391\\text{ squared}",
        ),
        *("391\\text{ pairs}",),
    ),
    ("", "5"): (
        *(
            "5\\text{ but negative}",
            "\\text{minus }5",
            "negative 5",
            "\\text{negative }5",
        ),
        *(
            "5\\text{ below zero}",
            "5^{-}",
            "5^+",
            "5^*",
            "\\bar5",
            "\\tilde5",
            "\\hat{5}",
            "\\dot{5}",
        ),
        *(
            "5\\text{ if }x>0",
            "5\\text{ unless}",
            "5\\text{ when }x=2",
            "5+C",
            "5\\,i",
            "5j",
            "5\\vec{i}",
        ),
        *(
            "(5,)",
            "[5]",
            "\\langle5\\rangle,6",
            "5\\text{ to }6",
            "5-6",
            "5\\text{--}6",
            "5–6",
            "5~6",
            "five",
        ),
        *(
            "V",
            "0b101",
            "0x5",
            "5e0",
            "1/0.2",
            "5\\cdot10^0+0",
            "\\frac{10}{2}+0",
            "\\lim_{x\\to5}x",
        ),
        *(
            "\\sqrt{5^2}",
            "5\\text{ is not the answer}",
            "5\\text{ is close}",
            "~5 not",
        ),
        *(
            "I think it is not $5$",
            "the answer is not 5",
            "answer: not 5",
            "The answer is anything but 5",
        ),
        *(
            "The wrong answer is $5$",
            "the answer is 6, not $5$",
            "It cannot be $5$",
            "is it $5$?",
            "$5$?",
        ),
        *(
            "5??",
            "5\\text{?}",
            "maybe 5 or 6",
            "$5$, $6$",
            "$5$ $6$",
            "$5$6",
            "$5$ vs $6$",
        ),
        *(
            "$5$ instead of $6$",
            "\\text{between 4 and }5",
            "up to $5$",
            "\\sim 5",
            "<5>",
        ),
    ),
    ("", "x+1"): (
        *(
            "x+1=0",
            "X+1",
            "x-1",
            "x+1+y",
            "x+1\\text{ or }x-1",
            "2x+1",
            "x+1,x-1",
            "\\frac{x+1}{2}",
            "f(x+1)",
        ),
        *(
            "x+i",
            "x+l",
            "|x+1|",
            "\\sqrt{(x+1)^2}",
            "x+1.0000001",
            "x+1+0\\cdot y+10^{-50}",
            "-(x+1)",
        ),
        *("x=x+1",),
    ),
    ("", "\\infty"): (
        *(
            "-\\infty",
            "2\\infty+x",
            "0",
            "\\pm\\infty",
            "\\text{not }\\infty",
        ),
    ),
    ("", "\\{1,2\\}"): (
        *(
            "\\{1,2,2.5\\}",
            "\\{2\\}",
            "[1,2]",
            "(1,2)",
            "1<x<2",
            "\\{\\{1,2\\}\\}",
            "\\{(1,2)\\}",
        ),
    ),
    ("", "(3,4)"): (
        *(
            "(4,3)",
            "(3,4,0)",
            "[3,4]",
            "(3,4)\\text{ and }(4,3)",
            "\\{3,4\\}",
            "(3,-4)",
            "3+4i",
            "(3,4]",
        ),
        *(
            "(3.0001,4)",
            "((3,4),(4,3))",
        ),
    ),
    ("", "\\pi"): (
        *(
            "3.14",
            "3.1415",
            "22/7",
            "\\frac{355}{113}",
            "\\Pi",
            "p i",
            "\\pi^{1.0000001}",
            "\\pi+10^{-12}",
        ),
        *(
            "180^\\circ",
            "\\pi\\text{ cm or }4",
        ),
    ),
    ("", "y=2x+1"): (
        *(
            "y=2x+1=0",
            "0=0",
            "y-y=2x-2x",
            "(y-2x-1)^2=0",
            "y=2x",
            "f(y)=2x+1",
            "y>2x+1",
            "y\\ne2x+1",
        ),
        *(
            "y^2=(2x+1)^2",
            "2y=2x+1",
            "(y-2x-1)x=0",
        ),
    ),
    ("Expand $(x+9)^2$.", "x^2+18x+81"): (
        *(
            "(x+9)^2+0",
            "1\\cdot(x+9)^2",
            "(x+9)^{1+1}",
            "((x+9))^2",
            "(-x-9)^2",
            "x^2+9(2x+9)",
            "x^2+18x+9^2",
        ),
        *(
            "x^2+2\\cdot9x+81",
            "x^2+18x+\\frac{162}{2}",
            "\\frac{(x+9)^3}{x+9}",
            "|x+9|^2",
            "(x+9)\\cdot(9+x)",
        ),
        *("(x+9)^2 = y",),
    ),
    ("Simplify $\\sqrt{72}$.", "6\\sqrt{2}"): (
        *(
            "6\\sqrt{2}+0",
            "\\frac{12\\sqrt2}{2}",
            "\\frac{6\\sqrt2}{1}",
            "3\\cdot2\\sqrt2",
        ),
        *(
            "\\sqrt{2}+5\\sqrt2",
            "8.485281",
            "\\sqrt{36}\\cdot\\sqrt2",
            "\\sqrt{36\\cdot 2}",
            "\\sqrt{144/2}",
        ),
        *(
            "72^{0.5}",
            "\\frac{12}{\\sqrt2}",
            "\\sqrt[4]{5184}",
            "3\\sqrt{8}",
            "\\sqrt{8}\\cdot 3",
        ),
        *("12\\sqrt{\\frac12}",),
    ),
    ("What is the square root of 144?", "12"): (
        *(
            "\\sqrt{144}",
            "144^{1/2}",
            "144^{0.5}",
        ),
    ),
    ("What is 391 divided by 23?", "17"): (
        *(
            "391/23",
            "\\frac{391}{23}",
            "391\\div23",
        ),
    ),
    ("What is 6 squared?", "36"): (
        *(
            "6^2",
            "6^{2}",
            "6\\cdot6",
        ),
    ),
    ("What is 2 to the power 10?", "1024"): (
        *(
            "2^{10}",
            "2^10",
        ),
    ),
    ("Compute $\\frac{1}{2}+\\frac{1}{3}$", "\\frac56"): (
        *(
            "\\frac12+\\frac13",
            "\\frac{1}{2}+\\frac{1}{3}",
            "\\frac{10}{12}",
        ),
    ),
    ("Differentiate $x^3$.", "3x^2"): (
        *(
            "\\frac{d}{dx}x^3",
            "(x^3)'",
            "3\\cdot x\\cdot x+0",
        ),
    ),
    ("Solve $x^2-5x+6=0$.", "2,3"): (
        *(
            "x^2-5x+6=0",
            "(x-2)(x-3)=0",
            "x=\\frac{5\\pm1}{2}",
            "2\\le x\\le3",
            "(x-2)(x-3)",
        ),
    ),
    ("Factor $x^2-9$.", "(x-3)(x+3)"): (
        *(
            "x^2-9",
            "x^2-3^2",
            "(x-3)(x+3)+0",
            "x(x)-9",
            "-(9-x^2)",
            "1(x^2-9)",
        ),
    ),
    ("Convert 0.75 to a fraction.", "\\frac34"): (
        *(
            "0.75",
            ".75",
            "0.750",
            "75/100",
        ),
    ),
    ("Convert 50\\% to a decimal.", "0.5"): (*("50\\%",),),
    ("Write 1000000 in scientific notation.", "10^6"): (
        *(
            "1000000",
            "1{,}000{,}000",
        ),
    ),
    ("What time does it end?", "2:30\\text{ PM}"): (
        *(
            "2.30",
            "2:03 PM",
            "230",
            "2:30 in the morning",
            "half past two",
            "2:30:01 PM",
            "14:31",
        ),
    ),
    ("What is the length in cm?", "12"): (
        *(
            "12\\text{ kg}",
            "12\\text{ m}",
            "12\\text{ cm}^2",
            "12 mm",
            "12^\\circ",
            "\\$12",
        ),
    ),
    ("", "12\\text{ cm}"): (
        *(
            "12\\text{ cm}/\\text{s}",
            "12\\text{ cm per second}",
            "12\\,\\mathrm{mm}",
            "12\\text{ inches}",
        ),
        *(
            "12''",
            "12\\text{ cubic cm}",
            "120",
        ),
    ),
    ("", "B"): (
        *(
            "A",
            "\\text{(A) and (B)}",
            "(B) or (C)",
            "B, C",
            "not B",
            "\\text{not (B)}",
            "(B)(C)",
        ),
        *(
            "\\text{neither}",
            "BC",
            "\\neg B",
            "A\\text{ or }B",
        ),
    ),
    ("", "2^{10}\\cdot 3"): (
        *(
            "3072\\text{ or }0",
            "2^{10}\\cdot4",
        ),
    ),
    ("", "12"): (
        *(
            "12\\text{ cm or }13\\text{ cm}",
            "12\\text{ cm}, 13\\text{ cm}",
            "12:00",
            "12\\text{ AM}",
        ),
        *(
            "12\\text{ a.m.}",
            "12/1\\cdot1",
            "\\frac{12}{1.0}",
            "12^{1}\\cdot 1",
            "0012x",
            "12\\text{ lakh}",
        ),
        *(
            "12\\text{ crore}",
            "12 M",
            "12\\text{ percent of 100}",
            "12\\text{ out of 20}",
        ),
        *(
            "12\\text{ of them are not}",
            "12\\text{ remainder 3}",
            "12 R 3",
            "12r3",
            "12 rem 3",
        ),
        *(
            "\\text{at most }12",
            "\\text{approximately not }12",
            "12\\text{ (mod 5)}",
            "12\\bmod 5",
        ),
        *(
            "12 mod 5",
            "-12\\cdot-1",
            "|-12|",
            "\\left|12\\right|",
            "12\\angle 30^\\circ",
            "12\\vert_{x=1}",
        ),
        *(
            "[12",
            "12)",
            "(12",
            "12]",
            "{12",
            "12\\text{ dozen}",
            "a dozen",
            "\\text{twelve}",
            "XII",
        ),
        *(
            "12\\times",
            "12+",
            "12=",
            "=",
            "=12=",
            "12==12",
            "12:=12",
            "12\\equiv0",
            "12\\mid 24",
            "12|24",
        ),
        *(
            "\\min(12,13)",
            "12\\wedge13",
            "12\\land13",
            "12\\&13",
            "12 & 13",
            "12\\text{\\&}13",
        ),
        *(
            "\\text{12}\\cdot\\text{1}",
            "12\\cdot\\text{one}",
            "\\text{two times }6",
            "6+6",
            "2\\cdot6",
        ),
        *(
            "\\sum 12",
            "\\Sigma12",
            "\\int 12",
            "12dx",
            "12'",
            "12^T",
            "12^{T}",
            "12^\\prime",
            "12^{st}",
        ),
        *(
            "12\\text{th}",
            "12th",
            "the 12th",
            "12\\%\\%",
            "12\\permil",
            "12‰",
            "₁₂",
            "¹²",
            "①②",
            "12²/12",
        ),
        *(
            "\\frac{12²}{12}",
            "\\sqrt{144}\\cdot1",
            "1 2",
            "1\\,2",
            "1{}2",
            "1\\!2",
            "1\\text{}2",
        ),
        *(
            "\\mathrm{1}\\mathrm{2}",
            "1\\phantom{0}2",
            "1\\cdot 2",
            "1,2",
            "1.2",
            "12e",
            "12\\mathrm{e}0",
        ),
        *(
            "12E0",
            "12×1",
            "12÷1",
            "12/1/1",
        ),
    ),
    ("", "\\frac{3}{4}"): (
        *(
            "\\frac{4}{3}",
            "3\\frac{}{4}",
            "\\frac{3}{4}\\text{ or }\\frac{1}{4}",
            "3\\text{ over }5",
        ),
        *(
            "\\frac{3}{4}x",
            "3-4",
            "\\binom{3}{4}",
            "3|4",
            "\\frac{1}{2}+\\frac{1}{4}",
            "\\frac{1+2}{4}",
        ),
        *(
            "1-\\frac14",
            "\\frac{3}{4}\\%",
            "3\\frac{1}{4}",
            "0.7500001",
            "3\\cdot\\frac14",
            "3\\times4^{-1}",
        ),
        *(
            "\\frac{\\frac{3}{2}}{2}",
            "\\frac{1.5}{2}",
            "75",
        ),
    ),
    ("", "x=2,y=3"): (
        *(
            "x=3,y=2",
            "(3,2)",
            "x=2",
            "y=3",
            "x=2,z=3",
            "2,3,4",
            "x=y=2",
            "\\{2,3\\}\\cup\\{4\\}",
            "x=2,x=3",
        ),
    ),
    ("", "x^2"): (
        *(
            "x\\cdot2",
            "2x",
            "x_2",
            "x^{-2}",
            "X^2",
            "x^2+C",
            "x^{2x}",
            "\\frac{x^3}{y}",
            "x2",
            "|x^2+1|",
        ),
        *("x^2y^0z",),
    ),
    ("", "\\sin x"): (
        *(
            "\\sin y",
            "\\cos x",
            "\\sin",
            "\\sin(-x)",
            "s\\cdot i\\cdot n\\cdot x",
            "\\sin^{-1}x",
        ),
        *(
            "\\arcsin x",
            "\\sinh x",
            "\\sin x^2",
            "\\sin^2x",
        ),
    ),
    ("", "-5"): (
        *(
            "5",
            "(5)",
            "|5|",
            "5-",
            "--5",
            "−−5",
            "\\neg5",
            "5\\cdot-1",
            "-|5|+0",
            "0-5",
        ),
        *("\\text{negative five}",),
    ),
    ("", "[1,3]"): (
        *(
            "(1,3)",
            "[1,3)",
            "1<x<3",
            "\\{1,2,3\\}",
            "1,3",
            "[3,1]",
            "1\\le x\\le 3\\text{ or }x=5",
        ),
        *(
            "x\\ge1\\text{ or }x\\le3",
            "x\\ge1",
            "[1,2]\\cup[2.5,3]",
            "[1,3]\\setminus\\{2\\}",
        ),
        *(
            "(1,3)\\cup\\{1\\}",
            "\\mathbb{R}",
        ),
    ),
    ("", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"): (
        *(
            "\\begin{pmatrix}1&2&3&4\\end{pmatrix}",
            "(1,2,3,4)",
            "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}",
        ),
        *(
            "-2",
            "\\begin{pmatrix}1\\\\2\\\\3\\\\4\\end{pmatrix}",
            "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}",
        ),
        *("\\begin{pmatrix}1&2\\\\4&3\\end{pmatrix}",),
    ),
    ("Simplify $\\frac{x^2-4}{x-2}$.", "x+2"): (
        *(
            "\\frac{x^2-4}{x-2}",
            "\\frac{(x-2)(x+2)}{x-2}",
            "\\frac{x^2-4}{x-2}+0",
            "\\frac{4-x^2}{2-x}",
        ),
        *(
            "\\frac{2x+4}{2}",
            "x+1+1",
            "\\frac{-(x^2-4)}{-(x-2)}",
        ),
    ),
    ("Compute $3!\\cdot 2$.", "12"): (
        *(
            "3!\\cdot 2",
            "2\\cdot3!",
            "3!2",
            "6\\cdot 2",
            "12\\cdot1",
        ),
    ),
    ("Find the derivative of x^2+3x.", "2x+3"): (
        *(
            "x^2+3x",
            "\\frac{d}{dx}(x^2+3x)",
            "(x^2+3x)'",
        ),
    ),
    ("Rewrite $8^{2/3}$ without exponents", "4"): (
        *(
            "8^{2/3}",
            "\\sqrt[3]{8^2}",
            "\\sqrt[3]{64}",
            "2^2",
        ),
    ),
    ("Find $\\lim_{x\\to0}\\frac{\\sin x}{x}$", "1"): (
        *(
            "\\lim_{x\\to0}\\frac{\\sin x}{x}",
            "\\frac{\\sin x}{x}",
            "\\frac11",
        ),
    ),
    ("Evaluate \\(\\binom{5}{2}\\).", "10"): (
        *(
            "\\binom{5}{2}",
            "\\binom52",
            "5C2",
            "\\frac{5!}{2!3!}",
            "\\binom{5}{3}",
            "\\frac{20}{2}",
        ),
    ),
    ("What is 20% of 50?", "10"): (
        *(
            "20\\%\\cdot50",
            "20\\%\\text{ of }50",
            "0.2\\cdot 50",
            "10\\cdot1",
            "\\frac{20\\cdot50}{100}",
        ),
    ),
    ("Calculate 15 + 27", "42"): (
        *(
            "15+27",
            "27+15",
            "15 + 27",
            "15+27+0",
            "42+0",
            "84/2",
        ),
    ),
    ("What is the sum of 15 and 27?", "42"): (
        *(
            "15+27",
            "27+15",
        ),
    ),
    ("Solve for x: 3x + 2 = 11", "3"): (
        *(
            "3x+2=11",
            "x=\\frac{11-2}{3}",
            "(11-2)/3",
            "3x=9",
            "\\frac{9}{3}+0",
            "x+0=3",
        ),
    ),
    ("Write the equation $2y=4x+2$ in slope-intercept form.", "y=2x+1"): (
        *(
            "2y=4x+2",
            "4x+2=2y",
            "y-2x=1",
            "2y-4x=2",
        ),
    ),
    ("Complete the square: $x^2+6x$", "(x+3)^2-9"): (
        *(
            "x^2+6x",
            "x(x+6)",
            "(x+3)^2-3^2",
        ),
    ),
    ("Express $\\log 8$ in terms of $\\log 2$.", "3\\log 2"): (
        *(
            "\\log 8",
            "\\log(8)",
            "\\log 2^3",
        ),
    ),
}

RIGHT: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "391"): (
        *(
            "391.0",
            "+391",
            "(391)",
            "{391}",
            "391.",
            "\\approx391",
            "391_{10}",
            "\\text{391}",
        ),
        *(
            "\\mathbf{391}",
            "\\left(391\\right)",
            "\\$391",
            "391\\text{ units}",
            "391 students",
        ),
        *(
            "3.91\\times10^2",
            "\\underline{391}",
            "x=391",
            "N = 391",
            "$391$",
            "\\(391\\)",
        ),
        *(
            "The final answer is $391$.",
            "Therefore, the answer is $391$",
            "n=391",
            "391\\,",
            "~391",
            "391\\ ",
        ),
        *(
            "\\large 391",
            "391\\text{ people}",
            "\\text{Answer: }391",
            "**391**",
            "\\mathrm{391}",
        ),
        *("391\\;\\text{cm}",),
    ),
    ("", "\\frac{x+1}{2}"): (
        *(
            "(x+1)/2",
            "\\frac12(x+1)",
            "\\frac12x+\\frac12",
            "0.5x+0.5",
            "\\frac{1+x}{2}",
            "y=\\frac{x+1}{2}",
        ),
        *("f(x)=\\frac{x+1}{2}",),
    ),
    ("", "6+9i"): (
        *(
            "9i+6",
            "6+9\\mathrm{i}",
            "z=6+9i",
            "3(2+3i)",
        ),
    ),
    ("", "7(x+3)(x-3)"): (
        *(
            "7(x-3)(x+3)",
            "7x^2-63",
            "7(x^2-9)",
            "7 (x+3) (x-3)",
        ),
    ),
    ("Factor the following expression: $7x^2-63$.", "7(x+3)(x-3)"): (
        *(
            "7(x-3)(x+3)",
            "7\\cdot(x+3)\\cdot(x-3)",
            "(x-3)(x+3)\\cdot7",
        ),
    ),
    ("", "x\\in[-2,7]"): (
        *(
            "[-2,7]",
            "-2\\le x\\le 7",
            "[-2, 7]",
            "x \\in [-2, 7]",
            "-2\\leq x\\leq7",
        ),
    ),
    ("", "(-\\sqrt{3},\\sqrt{3})"): (
        *(
            "-\\sqrt3<x<\\sqrt3",
            "(-√3,√3)",
            "x\\in(-\\sqrt3,\\sqrt3)",
            "\\left(-\\sqrt{3},\\sqrt{3}\\right)",
        ),
    ),
    ("", "12, 10, 6"): (
        *(
            "12,10,6",
            "12, 10, \\text{ and } 6",
            "6,10,12",
            "c=12,10,6",
            "\\{6,10,12\\}",
        ),
        *("12\\text{, }10\\text{, and }6",),
    ),
    ("", ".5"): (
        *(
            "0.5",
            "\\frac12",
            "1/2",
        ),
    ),
    ("", "\\$40"): (
        *(
            "40",
            "\\$40.00",
            "40\\text{ dollars}",
            "40 dollars",
            "\\$ 40",
        ),
    ),
    ("", "11\\sqrt{2}"): (
        *(
            "11√2",
            "11 \\sqrt 2",
            "\\sqrt{242}",
            "s=11\\sqrt2",
            "15.556349",
        ),
    ),
    ("", "\\frac{\\sqrt{3}}{3}"): (
        *(
            "\\frac{1}{\\sqrt3}",
            "\\sqrt3/3",
            "\\frac13\\sqrt3",
            "0.577350",
            "\\dfrac{\\sqrt 3}{3}",
        ),
        *("\\sqrt{\\frac13}",),
    ),
    ("", "\\begin{pmatrix} -1/3 \\\\ 2/3 \\\\ 5/3 \\end{pmatrix}"): (
        *("\\begin{pmatrix}-\\frac13\\\\\\frac23\\\\\\frac53\\end{pmatrix}",),
        *(
            "\\left(-\\frac13,\\frac23,\\frac53\\right)",
            "\\begin{bmatrix}-1/3\\\\2/3\\\\5/3\\end{bmatrix}",
        ),
    ),
    ("", "\\left(3,\\frac{\\pi}{2}\\right)"): (
        *(
            "(3,\\pi/2)",
            "(3, \\frac{\\pi}{2})",
            "(r,\\theta)=(3,\\frac\\pi2)",
        ),
    ),
    ("", "p-q"): (
        *(
            "-q+p",
            "p - q",
            "-(q-p)",
        ),
    ),
    ("", "x^2+y^2=25"): (
        *(
            "y^2+x^2=25",
            "x^2+y^2-25=0",
            "25=x^2+y^2",
        ),
    ),
    ("", "\\cot x"): (
        *(
            "\\frac{\\cos x}{\\sin x}",
            "\\frac{1}{\\tan x}",
            "cot x",
            "\\cot(x)",
        ),
    ),
    ("", "e^{i\\pi/4}"): (
        *(
            "e^{\\frac{i\\pi}{4}}",
            "e^{\\pi i/4}",
            "\\frac{\\sqrt2}{2}+\\frac{\\sqrt2}{2}i",
        ),
        *("\\frac{1+i}{\\sqrt2}",),
    ),
    ("", "5.4\\text{ cents}"): (
        *(
            "5.4",
            "5.4 cents",
            "5.4\\text{ cents}",
        ),
    ),
    ("", "3\\pmod 7"): (
        *(
            "3\\pmod{7}",
            "3 \\pmod 7",
        ),
    ),
    ("", "\\text{no solution}"): (
        *(
            "\\text{No solution}",
            "no solution",
            "No solution.",
        ),
    ),
    ("", "2k+2"): (
        *(
            "2(k+1)",
            "2 + 2k",
            "2k + 2",
        ),
    ),
    ("", "\\frac{3}{56}"): (
        *(
            "3/56",
            "\\frac{6}{112}",
        ),
    ),
    ("", "1\\frac{4}{5}"): (
        *(
            "\\frac95",
            "1.8",
            "9/5",
            "1 4/5",
            "1\\tfrac45",
            "1 ⅘",
        ),
    ),
    ("", "80\\%"): (
        *(
            "80",
            "0.8",
            "80 percent",
            "80\\text{ percent}",
            "80%",
        ),
    ),
    ("", "10\\text{ cm}^2"): (
        *(
            "10\\text{ square centimeters}",
            "10 cm^2",
            "10cm²",
            "10\\,\\text{cm}^2",
            "10",
        ),
    ),
    ("", "\\text{(C)}"): (
        *(
            "C",
            "(C)",
            "\\textbf{(C)}",
            "\\mathrm{C}",
            "\\text{C}",
            "C.",
            "(C) 42",
        ),
    ),
    ("", "3, -1"): (
        *(
            "x=3,-1",
            "x = 3 \\text{ or } x = -1",
            "x=3\\text{ and }x=-1",
            "-1,3",
            "x=-1, x=3",
        ),
        *("3\\text{ or }-1",),
    ),
    ("", "(1,2),(3,4)"): (
        *(
            "(x,y)=(1,2),(3,4)",
            "(1, 2), (3, 4)",
            "(x,y)=(1,2)\\text{ or }(x,y)=(3,4)",
        ),
    ),
    ("Find $\\sin\\theta$.", "\\frac35"): (
        *(
            "\\sin\\theta=\\frac35",
            "\\frac{3}{5}",
            "0.6",
        ),
    ),
    ("Find the value of $a+b+c$.", "23"): (
        *(
            "a+b+c=23",
            "23",
        ),
    ),
    ("Evaluate $i^5+i^{-25}+i^{45}$.", "i"): (
        *(
            "i",
            "i^5+i^{-25}+i^{45}=i",
        ),
    ),
    ("Simplify $\\frac{x^2+2x+1}{x+1}$", "x+1"): (
        *(
            "1+x",
            "x+1",
            "(x+1)",
        ),
    ),
    ("Find $x$ such that $\\lceil x\\rceil+x=\\frac{23}{7}$. Express $x$ as a common fraction.", "\\frac{9}{7}"): (
        *(
            "\\frac97",
            "9/7",
            "x=\\frac{9}{7}",
            "1\\frac27",
        ),
    ),
    ("Compute $\\frac{1}{2}+\\frac{1}{3}$", "\\frac56"): (
        *(
            "5/6",
            "\\frac12+\\frac13=\\frac56",
            "0.833333",
        ),
    ),
    ("Expand $(2x^5 + 3x^2)(x^4 - 4x^2 + 3x - 8)$.", "2x^9 - 8x^7 + 9x^6 - 16x^5 - 12x^4 + 9x^3 - 24x^2"): (
        *(
            "-24x^2+9x^3-12x^4-16x^5+9x^6-8x^7+2x^9",
            "2x^{9}-8x^{7}+9x^{6}-16x^{5}-12x^{4}+9x^{3}-24x^{2}",
        ),
    ),
    ("A circle has radius 3. What is its area in terms of $\\pi$?", "9\\pi"): (
        *(
            "\\pi\\cdot 9",
            "9 \\pi",
            "A=9\\pi",
            "9π",
            "9\\pi\\text{ square units}",
        ),
    ),
    ("Solve $x^2=2$.", "\\pm\\sqrt{2}"): (
        *(
            "x=\\pm\\sqrt2",
            "\\sqrt2,-\\sqrt2",
            "-\\sqrt{2}\\text{ and }\\sqrt{2}",
        ),
    ),
    ("What is the probability? Express your answer as a common fraction.", "\\frac{1}{4}"): (
        *(
            "\\frac14",
            "1/4",
            "P=\\frac14",
            "0.25",
        ),
    ),
    ("How many hours?", "3"): (
        *(
            "3\\text{ hours}",
            "3 hours",
            "3h",
            "3 hrs",
            "t=3\\text{ hours}",
            "3\\,\\text{h}",
        ),
    ),
    ("How long is it in meters?", "3"): (
        *(
            "3\\text{ m}",
            "3 m",
            "3\\,\\mathrm{m}",
            "3 meters",
        ),
    ),
    ("", "2520"): (
        *(
            "2{,}520",
            "2,520",
            "2520\\text{ ways}",
            "2 520",
        ),
    ),
    ("", "\\frac{\\pi}{6}+2k\\pi"): (
        *(
            "2k\\pi+\\frac\\pi6",
            "\\frac{\\pi}{6}+2\\pi k",
        ),
    ),
    ("", "x<3"): (
        *(
            "x < 3",
            "3>x",
            "(-\\infty,3)",
        ),
    ),
    ("", "A"): (
        *(
            "\\text{A}",
            "(A)",
            "\\textbf{A}",
            "A)",
        ),
    ),
    ("", "\\frac{n(n+1)}{2}"): (
        *(
            "\\frac{n^2+n}{2}",
            "\\binom{n+1}{2}",
            "n(n+1)/2",
            "\\frac12 n(n+1)",
        ),
    ),
    ("", "\\log_2 3"): (
        *(
            "\\frac{\\ln3}{\\ln2}",
            "\\log_{2}3",
            "\\log_2(3)",
            "\\frac{\\log 3}{\\log 2}",
        ),
    ),
    ("", "-\\frac{1}{8}"): (
        *(
            "-0.125",
            "-1/8",
            "\\frac{-1}{8}",
            "−⅛",
        ),
    ),
    ("", "0"): (
        *(
            "0.0",
            "0",
            "x=0",
            "0^\\circ",
            "\\$0",
        ),
    ),
    ("", "\\text{Tuesday}"): (
        *(
            "Tuesday",
            "tuesday",
            "\\textbf{Tuesday}",
        ),
    ),
    ("", "\\sqrt[3]{5}"): (
        *(
            "5^{1/3}",
            "5^{\\frac13}",
            "∛5",
            "\\sqrt[3]5",
        ),
    ),
    ("Write the equation $2y=4x+2$ in slope-intercept form.", "y=2x+1"): (
        *(
            "y=2x+1",
            "y=1+2x",
            "2x+1",
        ),
    ),
    ("Complete the square: $x^2+6x$", "(x+3)^2-9"): (
        *(
            "(x+3)^2-9",
            "-9+(x+3)^2",
            "(3+x)^2-9",
        ),
    ),
    ("Express $\\log 8$ in terms of $\\log 2$.", "3\\log 2"): (
        *(
            "3\\log 2",
            "3\\log(2)",
            "3\\cdot\\log2",
        ),
    ),
    ("Calculate 15 + 27", "42"): (
        *(
            "42",
            "15+27=42",
            "=42",
            "42.0",
        ),
    ),
    ("Solve for x: 3x + 2 = 11", "3"): (
        *(
            "x=3",
            "3",
            "x = 3",
            "\\boxed{3}",
            "3.0",
            "x=\\frac{9}{3}=3",
        ),
    ),
    ("Evaluate \\(\\binom{5}{2}\\).", "10"): (
        *(
            "10",
            "\\binom{5}{2}=10",
        ),
    ),
    ("What is 20% of 50?", "10"): (
        *(
            "10",
            "20\\%\\cdot50=10",
            "10.0",
        ),
    ),
    ("", "12"): (
        *(
            "12\\text{ cm}",
            "12 cm",
            "$12$ cm",
            "12\\ \\text{cm}",
            "12\\text{ ways}",
            "\\text{12 ways}",
        ),
        *(
            "12 ways",
            "12\\text{ students}",
            "\\text{12}",
            "12\\text{ (twelve)}",
            "=12",
            "x=12",
        ),
        *(
            "There are $12$ ways",
            "We get $12$.",
            "12.00",
            "1.2\\times 10^1",
            "12\\text{ square units}",
        ),
        *(
            "12\\text{ units}^2",
            "12\\text{ sq. units}",
            "12 units",
            "12\\text{ minutes}",
        ),
        *(
            "12\\text{ miles per hour}",
            "12\\text{ mph}",
            "\\frac{24}{2}",
        ),
    ),
    ("", "\\frac{3}{4}"): (
        *(
            "3/4",
            "\\frac34",
            "0.75",
            ".75",
            "¾",
            "\\tfrac{3}{4}",
            "\\frac{3}{4}.",
            "P=\\frac{3}{4}",
        ),
        *(
            "P(A)=\\frac{3}{4}",
            "75\\%",
            "\\frac{6}{8}",
            "\\frac{3}{4}\\text{ cup}",
            "P(A\\mid B)=\\frac34",
        ),
        *(
            "P(A|B)=\\frac34",
            "P(X\\ge 2)=\\frac34",
            "\\Pr(X=1)=\\frac34",
            "\\mathbb{P}(A)=\\frac34",
        ),
        *(
            "\\mathbb{E}[X]=\\frac34",
            "E[X]=\\frac34",
            "E(X)=\\frac34",
            "\\frac{3}{4}",
        ),
    ),
    ("", "x=2,y=3"): (
        *(
            "x=2, y=3",
            "y=3, x=2",
            "(2,3)",
            "x=2\\text{ and }y=3",
            "(x,y)=(2,3)",
            "x=2;\\ y=3",
        ),
        *("\\begin{cases}x=2\\\\y=3\\end{cases}",),
    ),
    ("", "[1,3]"): (
        *(
            "1\\le x\\le3",
            "x\\in[1,3]",
            "[1, 3]",
            "3\\ge x\\ge1",
            "1≤x≤3",
            "x\\ge1\\text{ and }x\\le3",
        ),
        *("\\{x:1\\le x\\le 3\\}",),
    ),
    ("", "x+2"): (
        *(
            "2+x",
            "(x+2)",
            "f(x)=x+2",
            "y = x + 2",
            "x+2",
        ),
    ),
    ("", "3x^2+2x"): (
        *(
            "2x+3x^2",
            "x(3x+2)",
            "f'(x)=3x^2+2x",
            "\\frac{dy}{dx}=3x^2+2x",
            "y'=3x^2+2x",
        ),
        *(
            "f^{\\prime}(x)=3x^2+2x",
            "\\frac{d}{dx}f(x)=3x^2+2x",
        ),
    ),
    ("", "\\frac{x^3}{3}+C"): (
        *(
            "\\frac13x^3+C",
            "C+\\frac{x^3}{3}",
            "\\frac{x^3}{3} + C",
        ),
    ),
    ("", "120^\\circ"): (
        *(
            "120",
            "120°",
            "120\\text{ degrees}",
            "\\angle A=120^\\circ",
            "m\\angle ABC=120^{\\circ}",
        ),
        *(
            "\\theta = 120°",
            "x=120^\\circ",
        ),
    ),
    ("", "1:2"): (
        *(
            "1:2",
            "2:4",
            "1 : 2",
            "\\frac12",
            "1\\text{ to }2",
        ),
    ),
    ("", "-3"): (
        *(
            "−3",
            "x=-3",
            "-3.0",
            "- 3",
            "(-3)",
            "-3",
        ),
    ),
    ("", "10^{6}"): (
        *(
            "1000000",
            "1{,}000{,}000",
            "10^6",
            "1\\times10^6",
            "1,000,000",
        ),
    ),
    ("", "\\$1,250.50"): (
        *(
            "1250.5",
            "\\$1250.50",
            "1,250.50 dollars",
            "\\$1{,}250.50",
            "1250.50",
        ),
    ),
    ("", "x=\\frac{-1\\pm\\sqrt{5}}{2}"): (
        *(
            "\\frac{-1+\\sqrt5}{2},\\frac{-1-\\sqrt5}{2}",
            "\\frac{-1\\pm\\sqrt5}{2}",
        ),
        *(
            "x=\\frac{-1+\\sqrt{5}}{2}\\text{ or }x=\\frac{-1-\\sqrt{5}}{2}",
            "-\\frac12\\pm\\frac{\\sqrt5}{2}",
        ),
    ),
    ("", "\\vec{v}=\\langle 1,2\\rangle"): (
        *(
            "\\langle 1,2\\rangle",
            "(1,2)",
            "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        ),
    ),
    ("", "a=2, b=3, c=5"): (
        *(
            "a=2,b=3,c=5",
            "(2,3,5)",
            "(a,b,c)=(2,3,5)",
            "c=5,b=3,a=2",
        ),
    ),
}
