"""Gold answers in the forms of competition problems: right for themselves, respelt too, and wrong for the others."""

from __future__ import annotations

import re

from outdo.rewards.maths import math

GOLDS = r"""
17 ; -46 ; 1{,}729 ; \$48,\!215 ; 3,\!628,\!801 ; 0 ; 2^{61}-1 ; 0.0625 ; -7.35 ; 90625 ; 12.04 ; 1.3\times 10^{9}
\frac{7}{19} ; -\frac{11}{13} ; \frac{137}{60} ; 4\frac{5}{9} ; -2\frac{3}{8} ; \frac{-3}{29} ; \dfrac{221}{5}
\frac{1}{1024}
3\sqrt{7} ; -5\sqrt{11} ; \frac{\sqrt{15}}{4} ; 2+\sqrt{3} ; 2-\sqrt{3} ; \frac{1+\sqrt{5}}{2} ; \frac{1-\sqrt{5}}{2}
\sqrt[3]{19} ; 6\sqrt[4]{5} ; \sqrt{2}+\sqrt{5} ; \frac{8\sqrt{3}-9}{13} ; \sqrt{7+\sqrt{6}}
3+4i ; 3-4i ; -9i ; \frac{1}{2}+\frac{\sqrt{3}}{2}i ; -\frac{5}{13}+\frac{12}{13}i ; 2e^{i\pi/7} ; 8+0.5i
(3,-8) ; (-8,3) ; \left(\frac{2}{7},\frac{9}{7}\right) ; (1,4,-6) ; (1,-6,4) ; \left(5,\frac{\pi}{6}\right)
(0,0,0,7) ; \left(\frac{1}{3},-\frac{1}{3},\frac{7}{3}\right)
[2,9) ; (2,9] ; (-\infty,4] ; (-\infty,4) ; [-6,-1]\cup[8,\infty) ; (-5,0)\cup(0,5) ; (-\infty,-3)\cup(3,\infty)
\left(\frac{3}{4},\infty\right) ; [0,1)\cup\{5\}
\begin{pmatrix}1&2\\3&5\end{pmatrix} ; \begin{pmatrix}1&3\\2&5\end{pmatrix} ; \begin{bmatrix}0&-1\\1&0\end{bmatrix}
\begin{pmatrix}6\\-7\end{pmatrix} ; \begin{pmatrix}2\\0\\-9\end{pmatrix}
\left(\begin{array}{cc}8&1\\0&8\end{array}\right)
\begin{pmatrix}\frac{1}{5}&\frac{2}{5}\\-\frac{2}{5}&\frac{1}{5}\end{pmatrix}
\begin{pmatrix}1&0&4\\0&1&0\\0&0&1\end{pmatrix}
3214_5 ; 3214_6 ; 1011101_2 ; 2BA_{12} ; 777_8
x^2+6xy-y^2 ; 3x^3-5x+14 ; 2a^2b-7ab^2 ; p^2+q^2+r^2-pq ; x^4+x^2+1 ; 5n^2+3n ; \frac{n(n+1)}{2} ; \frac{x+4}{x-6}
\frac{3t^2}{t^2+8} ; a+b+c ; -x^2+11x-13
y=3x-8 ; y=-\frac{2}{5}x+7 ; 4x-9y=22 ; (x-3)^2+(y+2)^2=49 ; x^2+y^2=75 ; x+2y-3z+10=0
\frac{x^2}{25}+\frac{y^2}{9}=1 ; y=2x^2-12x+19 ; f(x)=x^2-10 ; g(x)=\frac{x}{x+21}
(x-4)(x+9) ; (x^2+5)(x-5) ; 6(y-2)(y+8) ; (a-b)(a+b+7) ; (3z-4)^2 ; x(x+1)(x-10)
\sin 3x ; \cos^2 x ; \frac{\sin 2\theta}{5} ; \tan\frac{\pi}{11} ; \sec\theta+\tan\theta ; \arctan\frac{3}{7}
4\cos^3\alpha-3\cos\alpha+1 ; -\cot 5x
\log_2 7 ; \ln 19 ; \frac{\ln 5}{\ln 3} ; 2\ln 3-1 ; \log_{10}23 ; e^5 ; e^{-2}-1 ; 7e^{3x} ; 3^{x+4} ; 5\cdot 2^{n}-6
2^{100}
37^\circ ; 142^{\circ} ; \frac{5\pi}{18} ; \frac{11\pi}{12} ; 81\pi ; 24\pi+16\sqrt{3} ; \frac{\pi^2}{12} ; 22.5^\circ
10:45\text{ p.m.} ; 6:20\text{ a.m.} ; \text{Thursday} ; \text{Priya} ; \text{October 14} ; \text{(C)} ; \text{(D)}
\text{odd} ; \text{hyperbola} ; \text{No} ; \text{undefined} ; \text{East}
1,-2 ; 2,-1 ; 3,5,13 ; -4,\frac{1}{6} ; \pm 15 ; 3\pm\sqrt{13} ; \{2,7,31\} ; \{-1,0,41\} ; x=4,y=-11 ; 2i,-2i
6.4\text{ cents} ; 55\text{ mph} ; 130\text{ cm}^2 ; 19\text{ inches} ; 84\% ; 3:8 ; 5:12:14 ; \$7.65
e-2 ; \frac{\pi^2}{6}-1 ; \frac{1}{2}\ln 2 ; 1-\ln 2 ; \frac{3e}{4} ; \binom{40}{7} ; 23! ; \frac{50!}{3!}
\binom{n}{4} ; \lfloor\sqrt{n}\rfloor ; \lceil\frac{x}{9}\rceil ; |x-12| ; -\infty ; \infty ; \emptyset ; \mathbb{R}
f(x)=\begin{cases}x+1&x<0\\2x&x\ge 0\end{cases} ; x\equiv 3\pmod{7} ; x\equiv 4\pmod{7}
9\mathbf{i}-2\mathbf{j}+\mathbf{k} ; x>18 ; x\le -33 ; -14<x\le 21 ; x\ne 27 ; \{x\mid x<-52\} ; k\ge\frac{3}{14}
"""
FORMS = [form.strip() for form in re.split(r" ; |\n", GOLDS) if form.strip()]
REORDERED = r"""
2+\sqrt{3} ; \sqrt{3}+2 | 3+4i ; 4i+3 | x^2+6xy-y^2 ; -y^2+6yx+x^2 | 2a^2b-7ab^2 ; -7b^2a+2ba^2
(x-4)(x+9) ; (x+9)(x-4)
24\pi+16\sqrt{3} ; 16\sqrt3+24\pi | x^2+y^2=75 ; 75=y^2+x^2 | 4x-9y=22 ; -9y+4x=22 | \{2,7,31\} ; \{31,2,7\}
1,-2 ; -2,1
[-6,-1]\cup[8,\infty) ; [8,\infty)\cup[-6,-1] | 2\ln 3-1 ; -1+2\ln 3 | a+b+c ; c+b+a | e-2 ; -2+e | x>18 ; 18<x
\sec\theta+\tan\theta ; \tan\theta+\sec\theta | 5n^2+3n ; 3n+5n^2 | x=4,y=-11 ; y=-11,x=4
\sqrt{2}+\sqrt{5} ; \sqrt5+\sqrt2
"""
PARTS = 8  # of the table of all pairs: one is tried here


def graded(pairs):
    grades = math([f"\\boxed{{{final}}}" for _, final in pairs], answer=[gold for gold, _ in pairs])
    return {pair: grade.verdict for pair, grade in zip(pairs, grades, strict=True)}


def respelt(gold):
    """Other sizes, other spaces, other brackets."""
    sized = re.sub(r"\\d?frac", r"\\tfrac", gold)
    spaced = re.sub(r"(?<![\\\w^_{])([+=<>]|\\cup)(?![^{]*\})", r"\\;\1\\,", gold)
    bracketed = gold if "\\left" in gold else re.sub(r"\(([^()]*)\)", r"\\left(\1\\right)", gold)
    return {sized, f"\\displaystyle {spaced}\\,", f"${bracketed}$" if "\\$" not in gold else f"{bracketed} "}


def test_forms():
    assert len(FORMS) == len(set(FORMS)) >= 150
    pairs = [(gold, final) for gold in FORMS for final in {gold, *respelt(gold)}]
    pairs += [tuple(pair.split(" ; ")) for line in REORDERED.strip().splitlines() for pair in line.split(" | ")]
    assert {pair: verdict for pair, verdict in graded(pairs).items() if verdict != "right"} == {}


def test_other_golds_are_wrong():
    places = range(len(FORMS))
    pairs = [(FORMS[i], FORMS[j]) for i in places for j in places if i != j and (3 * i + j) % PARTS == 0]
    assert {pair: verdict for pair, verdict in graded(pairs).items() if verdict != "wrong"} == {}
