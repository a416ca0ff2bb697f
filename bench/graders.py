"""How fast the graders are, and what they make of the data sets that they are for: `python -m bench.graders`.

Wants GSM8K and HumanEval in a folder (`--data`, with gsm8k/*.jsonl and humaneval/HumanEval.jsonl.gz); what is not there
is left out. Rates are over wall time, except where it says CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import facts, line
from outdo.rewards.answer import gsm8k, number
from outdo.rewards.code import code
from outdo.rewards.form import format as form
from outdo.rewards.maths import TIMEOUT, math
from outdo.types import Grade


def rate(work: Callable[[], Any], count: int, clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    start = clock()
    result = work()
    return count / (clock() - start), result


def paid(grades: list[Grade]) -> int:
    return sum(grade.reward == 1.0 for grade in grades)


def bench_answers(data: Path) -> dict[str, Any]:
    """GSM8K's own solutions against their own gold, and against the next problem's."""
    files = [data / "gsm8k" / name for name in ("train.jsonl", "test.jsonl")]
    if not all(path.exists() for path in files):
        return {}
    rows = [json.loads(text) for path in files for text in path.read_text().splitlines()]
    golds = [row["answer"] for row in rows]
    asked = [({"role": "user", "content": row["question"]},) for row in rows]
    speed, own = rate(lambda: gsm8k(golds, answer=golds, messages=asked), len(rows), time.process_time)
    following = golds[1:] + golds[:1]
    last = [number(gold.rpartition("####")[2]) for gold in golds]
    differ = [a != b for a, b in zip(last, last[1:] + last[:1], strict=True)]
    others = gsm8k(golds, answer=following, messages=asked)
    tagged = [f"<think>{g.partition('####')[0]}</think>\n<answer>{g.partition('####')[2]}</answer>" for g in golds]
    form_speed, formed = rate(lambda: form(tagged), len(tagged), time.process_time)
    return {
        "gsm8k_per_cpu_s": speed,
        "gsm8k_own_gold": f"{paid(own)} of {len(rows)}",
        "gsm8k_next_gold": f"{sum(g.reward for g, d in zip(others, differ, strict=True) if d):g} of {sum(differ)}",
        "format_per_cpu_s": form_speed,
        "format_paid": f"{sum(formed):g} of {len(tagged)}",
    }


def ordinary(rng: random.Random, i: int) -> tuple[str, str]:
    """A gold answer and one that a model might give."""
    a, b = rng.randint(1, 99), rng.randint(2, 99)
    return (
        (f"{a}", f"{a}"),
        (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{2 * a}}}{{{2 * b}}}"),
        (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}"),
        (f"x^2+{2 * a}x+{a * a}", f"(x+{a})^2"),
        (f"({a},{b})", f"({a}, {b + 1})"),
        (f"{a}\\pi", f"\\pi \\cdot {a}"),
        (f"\\frac{{{a}}}{{{b}}}", f"{a / b:.3f}"),
        (f"{a}^{{\\circ}}", f"{a}"),
    )[i % 8]


def bench_maths(count: int = 512) -> dict[str, Any]:
    rng = random.Random(0)
    pairs = [ordinary(rng, i) for i in range(count)]
    golds, answers = [gold for gold, _ in pairs], [f"Thus \\boxed{{{answer}}}." for _, answer in pairs]
    start = time.perf_counter()
    math(answers[:8], answer=golds[:8])
    started = time.perf_counter() - start
    speed, _ = rate(lambda: math(answers, answer=golds), count)
    hanging = [f"\\boxed{{9^{{9^{{9^{{{i + 9}}}}}}}}}" if i % 8 == 2 else text for i, text in enumerate(answers)]
    start = time.perf_counter()
    grades = math(hanging, answer=golds)
    took = time.perf_counter() - start
    return {
        "math_start_s": started,
        "math_per_s": speed,
        "math_hanging": sum(grade.reason.startswith("no verdict") for grade in grades),
        "math_hanging_s": took,
        "math_hanging_limit_s": 2 * TIMEOUT + 1,
    }


def bench_code(data: Path) -> dict[str, Any]:
    count = 200
    cases = [{"args": [1], "expected": 3}, {"args": [2], "expected": 4}]
    answers = [f"def f(x):\n    return x + {i}" for i in range(count)]
    speed, grades = rate(lambda: code(answers, cases=[cases] * count, entry_point=["f"] * count), count)
    out = {"code_per_s": speed, "code_paid": paid(grades)}
    file = data / "humaneval" / "HumanEval.jsonl.gz"
    if file.exists():
        rows = [json.loads(text) for text in gzip.decompress(file.read_bytes()).decode().splitlines()]
        columns = {
            key: [row[name] for row in rows]
            for key, name in (("prompts", "prompt"), ("test", "test"), ("entry_point", "entry_point"))
        }
        speed, right = rate(lambda: code([row["canonical_solution"] for row in rows], **columns), len(rows))
        nothing = code(["    pass\n"] * len(rows), **columns)
        out |= {"humaneval_per_s": speed, "humaneval_own": paid(right), "humaneval_pass": paid(nothing)}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    data = parser.parse_args().data
    print(line(facts()))
    for part in (bench_answers(data), bench_maths(), bench_code(data)):
        for name, value in part.items():
            print(f"{name:22} {value:,.1f}" if isinstance(value, float) else f"{name:22} {value}")


if __name__ == "__main__":
    main()
