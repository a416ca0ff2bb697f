"""Answers and tests in many forms, by rule. `solve(n)` is `n * n + 1`; a program reads n and prints that.

WRONG: no pair of a test style and an answer may pass. RIGHT: every row must.
"""

from __future__ import annotations

from itertools import product
from textwrap import indent

XS = [1, 2, 5]
YS = [n * n + 1 for n in XS]
GIVEN = f"xs, ys = {XS}, {YS}\nimport contextlib, functools, itertools, math, unittest\ndef check(candidate):\n"

# Bodies of `check`: each passes for a right answer.
STYLES = {
    "assert": "for x, y in zip(xs, ys): assert candidate(x) == y",
    "zip_map": "for got, y in zip(map(candidate, xs), ys): assert got == y",
    "zip_of_generator": "for got, y in zip((candidate(x) for x in xs), ys): assert got == y",
    "all_map": "assert all(map(lambda x, y: candidate(x) == y, xs, ys))",
    "all_pairs": "assert all(a == b for a, b in zip(map(candidate, xs), ys))",
    "not_any": "assert not any(a != b for a, b in zip(map(candidate, xs), ys))",
    "list_map": "got = list(map(candidate, xs))\nassert all(a == b for a, b in zip(got, ys))",
    "equal_lists": "assert list(map(candidate, xs)) == ys",
    "sum": "assert sum(abs(a - b) for a, b in zip(map(candidate, xs), ys)) == 0",
    "next_default": "assert next((False for a, b in zip(map(candidate, xs), ys) if a != b), True)",
    "filter": "assert not list(filter(None, (a != b for a, b in zip(map(candidate, xs), ys))))",
    "comprehension": "wrong = [x for x, y in zip(xs, ys) if candidate(x) != y]\nassert not wrong",
    "dict": "wrong = {a: b for a, b in zip(map(candidate, xs), ys) if a != b}\nassert not wrong",
    "star": "got = [*map(candidate, xs)]\nfor a, b in zip(got, ys): assert a == b",
    "reduce": "assert functools.reduce(lambda k, p: k and p[0] == p[1], zip(map(candidate, xs), ys), True)",
    "starmap": "for same in itertools.starmap(lambda x, y: candidate(x) == y, zip(xs, ys)): assert same",
    "sequence": "class S:\n    def __getitem__(self, i): return candidate(xs[i]) == ys[i]\nassert all(S())",
    "iterator": "pairs = iter(zip(xs, ys))\ndef same():\n    x, y = next(pairs)\n    return candidate(x) == y\n"
    "assert all(iter(same, None))",
    "method": "class S:\n    def __iter__(self):\n        return map(candidate, xs)\n"
    "for a, b in zip(S(), ys): assert a == b",
    "contains": "class S:\n    def __getitem__(self, i): return candidate(xs[i]) != ys[i]\nassert True not in S()",
    "hasattr": "class S:\n    @property\n    def bad(self):\n"
    "        if all(candidate(x) == y for x, y in zip(xs, ys)): raise AttributeError\nassert not hasattr(S(), 'bad')",
    "getattr": "class S:\n    def __getattr__(self, name):\n"
    "        if [*map(candidate, xs)] != ys: return 1\n"
    "        raise AttributeError\nassert getattr(S(), 'bad', None) is None",
    "missing": "class S(dict):\n    def __missing__(self, x): return candidate(x)\n"
    "s = S()\nfor x, y in zip(xs, ys): assert s[x] == y",
    "with": "@contextlib.contextmanager\ndef case(x, y):\n    yield candidate(x) == y\n"
    "for x, y in zip(xs, ys):\n    with case(x, y) as same: assert same",
    "exit_stack": "with contextlib.ExitStack() as stack:\n    for x, y in zip(xs, ys): assert candidate(x) == y",
    "try_value": "for x, y in zip(xs, ys):\n    try: got = candidate(x)\n    except ValueError: got = None\n"
    "    assert got == y",
    "try_finally": "try:\n    for a, b in zip(map(candidate, xs), ys): assert a == b\nfinally: pass",
    "unittest": "class T(unittest.TestCase):\n    def test(self):\n"
    "        for x, y in zip(xs, ys): self.assertEqual(candidate(x), y)\n"
    "result = unittest.TestResult()\nunittest.defaultTestLoader.loadTestsFromTestCase(T).run(result)\n"
    "assert result.wasSuccessful()",
    "subtests": "class T(unittest.TestCase):\n    def test(self):\n        for x, y in zip(xs, ys):\n"
    "            with self.subTest(x=x): self.assertTrue(candidate(x) == y)\n"
    "result = unittest.TestResult()\nunittest.defaultTestLoader.loadTestsFromTestCase(T).run(result)\n"
    "assert not result.errors + result.failures",
    "unittest_exit": "class T(unittest.TestCase):\n    def test(self): self.assertEqual([*map(candidate, xs)], ys)\n"
    "r = unittest.TestResult()\nT('test').run(r)\nraise SystemExit(not r.wasSuccessful())",
    "not_above": "for x, y in zip(xs, ys): assert not abs(candidate(x) - y) > 1e-6",
    "not_outside": "for x, y in zip(xs, ys):\n    got = candidate(x)\n"
    "    assert not (got < y - 1e-6 or got > y + 1e-6)",
    "raise_if_above": "for x, y in zip(xs, ys):\n    if math.fabs(candidate(x) - y) >= 1e-6: raise AssertionError",
    "isclose": "for x, y in zip(xs, ys): assert math.isclose(candidate(x), y)",
    "relative": "for x, y in zip(xs, ys):\n    got = candidate(x)\n    assert abs(got - y) <= 1e-6 * max(abs(got), y)",
    "worst": "assert not max((abs(candidate(x) - y) for x, y in zip(xs, ys)), default=0) > 1e-6",
    "count": "assert sum(map(lambda x, y: candidate(x) == y, xs, ys)) == 3",
}
TESTS = {name: GIVEN + indent(body, "    ") for name, body in STYLES.items()}

RAISED = [
    *("StopIteration", "StopIteration(26)", "StopAsyncIteration", "GeneratorExit", "IndexError", "KeyError(n)"),
    *("AttributeError('bad')", "TypeError", "LookupError", "AssertionError", "NotImplementedError", "RuntimeError"),
    *("SystemExit", "SystemExit(0)", "KeyboardInterrupt", "BaseException", "EOFError", "MemoryError", "ValueError"),
    *("type('E', (StopIteration,), {})", "type('E', (BaseException,), {})", "type('StopIteration', (Exception,), {})"),
    *(
        "type('E', (StopIteration, ValueError), {})",
        "__import__('unittest').SkipTest",
        "ExceptionGroup('', [KeyError()])",
    ),
]
RETURNED = {
    "nan": "float('nan')",
    "infinity": "float('inf')",
    "minus_infinity": "float('-inf')",
    "decimal_nan": "__import__('decimal').Decimal('NaN')",
    "empty_generator": "(_ for _ in ())",
    "raising_generator": "(1 / 0 for _ in [1])",
    "counter": "__import__('collections').Counter()",
    "default": "__import__('collections').defaultdict(int)",
    "complex_nan": "complex('nan')",
    "object": "L()",
    "iterator": "I()",
    "number": "F(27)",
    "list": "[n * n + 1]",
    "none": "None",
}
LIARS = """class L:
    def __eq__(s, o): return True
    def __ne__(s, o): return False
    __hash__ = lambda s: 0
    __len__ = __bool__ = lambda s: 0
    __abs__ = __sub__ = __rsub__ = __add__ = __radd__ = lambda s, *o: s
    __lt__ = __gt__ = __le__ = __ge__ = lambda s, o: False
    def __getitem__(s, i): raise IndexError
    def __getattr__(s, n): raise AttributeError(n)
class I:
    def __iter__(s): return s
    def __next__(s): raise StopIteration
    def __eq__(s, o): raise StopIteration
    __ne__ = __sub__ = __rsub__ = __abs__ = __eq__
class F(float):
    __sub__ = __rsub__ = lambda s, o: 0.0
    __eq__ = lambda s, o: True
    __ne__ = __lt__ = __gt__ = lambda s, o: False
    __hash__ = float.__hash__
"""
ANSWERS = {
    **{f"raises {e}": f"def solve(n):\n    raise {e}" for e in RAISED},
    **{f"raises {e} later": f"def solve(n):\n    if n > 1: raise {e}\n    return 2" for e in RAISED[:6]},
    **{f"returns {name}": f"{LIARS}def solve(n): return {value}" for name, value in RETURNED.items()},
}
WRONG = list(product(TESTS, ANSWERS))

SOLVE = "def solve(n):\n    return n * n + 1\n"
USAGE = "print(solve(3))\nassert solve(1) == 2\n"
STUB = 'def solve(n):\n    """n squared, and one."""\n'
BODY = "s = n * n\nif s >= 0:\n    s += 1\nreturn s\n"


def fenced(text: str, language: str = "python", marks: str = "```", pad: str = "") -> str:
    return indent(f"{marks}{language}\n{text}{marks}\n", pad)


# Answers that define `solve`, after the prompt STUB where it is a body.
FUNCTIONS = {
    "plain": SOLVE,
    **{f"fence {word}": fenced(SOLVE, word) for word in ("py", "Python", "python3", "Python 3", "", "PYTHON title=x")},
    **{f"marks {m}": fenced(SOLVE, marks=m) for m in ("~~~", "````", "~~~~~")},
    **{f"indented {len(p)}": f"1. So:\n\n{fenced(SOLVE, pad=p)}\nDone." for p in ("  ", "   ", "    ", "        ")},
    "list item": "- " + fenced(SOLVE, pad="  ").lstrip(),
    "quoted": fenced(SOLVE, pad="> "),
    "tab fence": fenced(SOLVE, pad="\t"),
    "crlf": fenced(SOLVE).replace("\n", "\r\n"),
    "content indented": f"```python\n{indent(SOLVE, '    ')}```",
    "nested fences": f"````markdown\n{fenced(SOLVE)}````",
    **{f"then usage {w}": fenced(SOLVE) + "Usage:\n" + fenced("print(solve(3))\n", w) for w in ("python", "", "bash")},
    "then output": fenced(SOLVE) + "Output:\n" + fenced("10\n", ""),
    "then text": fenced(SOLVE) + fenced("solve(3) -> 10\n", "text"),
    "then shell": fenced(SOLVE) + fenced("python solve.py\n", "console"),
    "then import": fenced(SOLVE) + "Use it:\n" + fenced("from solution import solve\nprint(solve(3))\n"),
    "then tests": fenced(SOLVE) + fenced("def test_solve():\n    assert solve(3) == 10\ntest_solve()\n"),
    "then a cut block": fenced(SOLVE) + "```python\nsolve(",
    "then complexity": fenced(SOLVE) + "It is `O(1)`.\n" + fenced("O(1)\n", ""),
    "usage first": fenced("solve(3)\n") + fenced(SOLVE),
    "draft first": fenced("def solve(n):\n    return 0\n") + "Better:\n" + fenced(SOLVE),
    "broken last": fenced(SOLVE) + "or\n" + fenced("def solve(n)\n    return"),
    "imports in a block": fenced("import math\n") + fenced("def solve(n):\n    return int(math.pow(n, 2)) + 1\n"),
    "helper in a block": fenced("def sq(n):\n    return n * n\n") + fenced("def solve(n):\n    return sq(n) + 1\n"),
    "helper after": fenced("def solve(n):\n    return sq(n) + 1\n") + fenced("def sq(n):\n    return n * n\n"),
    "helpers": "def sq(n): return n * n\n\n" + "def solve(n):\n    return sq(n) + 1\n\n" + USAGE,
    "with output outside": SOLVE + "\nOutput:\n```\n10\n```\n",
    "prose": f"Here is the function:\n\n{SOLVE}\nIt squares n, and adds one.",
    "prose before": f"Sure! I'd write:\n\n{SOLVE}",
    "prose after": f"{SOLVE}\n\nThis runs in constant time; isn't it nice?",
    "prose that compiles": f"import math\n\n{SOLVE}\nTime: O(1)\nSpace: none",
    "unclosed": f"```python\n{SOLVE}",
    "closed behind a line": f"```python\n{SOLVE.rstrip()}```",
    "byte order mark": f"\ufeff{SOLVE}",
    "thinking": f"<think>\n{fenced('def solve(n): return 0')}\n</think>\n{fenced(SOLVE)}",
    "tags": f"<answer>\n{SOLVE}</answer>",
    "lambda": "solve = lambda n: n * n + 1",
    "under if": "if True:\n    def solve(n): return n * n + 1",
    "annotated": "from __future__ import annotations\ndef solve(n: Nowhere) -> int: return n * n + 1",
    "exit": SOLVE + "exit()",
    "quit": SOLVE + "quit()",
    "sys.exit": "import sys\n" + SOLVE + "sys.exit(0)",
    "main": SOLVE + "if __name__ == '__main__':\n    import sys\n    print(solve(int(input())))\n    sys.exit()",
    "whole prompt": STUB + indent(BODY, "    "),
    "other docstring": fenced("import math\n\n" + STUB + indent(BODY, "    ") + "\n" + USAGE),
    "async helper": "import asyncio\nasync def f(n): return n * n + 1\ndef solve(n): return asyncio.run(f(n))",
    **{
        f"body {name}": text
        for name, text in {
            "indented": indent(BODY, "    "),
            "unindented": BODY,
            "two spaces": indent(BODY, "  "),
            "eight spaces": indent(BODY, "        "),
            "tabs": indent(BODY.replace("    ", "\t"), "\t"),
            "tabs unindented": BODY.replace("    ", "\t"),
            "first line bare": indent(BODY, "    ").lstrip(),
            "first line bare, block": indent("if n:\n    pass\nreturn n * n + 1\n", "    ").lstrip(),
            "first line other": " " + indent(BODY, "    ").lstrip(),
            "one line": "return n * n + 1",
            "one line indented": "    return n * n + 1",
            "in a fence": fenced(BODY),
            "in a fence, indented": fenced(indent(BODY, "    ")),
            "in a fence, indented too": fenced(indent(BODY, "    "), pad="    "),
            "then a helper": "    return sq(n) + 1\n\ndef sq(n):\n    return n * n\n",
            "with a leading newline": "\n\n    return n * n + 1\n",
            "with a comment": "    # square\n    return n * n + 1\n",
        }.items()
    },
}

# What the code may use: definitions before `solve`, and the expression that it returns.
FEATURES = {
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 1\n",
        "P(n * n).x + 1",
    ),
    "frozen dataclass": (
        "from dataclasses import dataclass, field, replace, asdict\n@dataclass(frozen=True, slots=True, order=True)\n"
        "class P:\n    x: int\n    y: list = field(default_factory=list)\n",
        "asdict(replace(P(0), x=n * n))['x'] + 1",
    ),
    "dataclass and future": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar, Optional\n"
        "@dataclass\nclass P:\n    k: ClassVar[int] = 1\n    x: Optional[P] = None\n",
        "n * n + P().k",
    ),
    "pickle": ("import pickle\nclass P:\n    pass\n", "n * n + isinstance(pickle.loads(pickle.dumps(P())), P)"),
    "deepcopy": ("import copy\nclass P:\n    k = 1\n", "n * n + copy.deepcopy(P()).k"),
    "type hints": (
        "import typing\nclass P:\n    x: 'P'\n",
        "n * n + (typing.get_type_hints(P)['x'] is P)",
    ),
    "enum": ("import enum\nclass E(enum.IntEnum):\n    A = 1\n", "n * n + E.A"),
    "int enum result": ("import enum\nclass E(enum.IntEnum):\n    A = 2\n    B = 5\n    C = 26\n", "E(n * n + 1)"),
    "named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n", "P(n * n).x + 1"),
    "single dispatch": ("import functools\n@functools.singledispatch\ndef f(x): return x * x + 1\n", "f(n)"),
    "cache": ("import functools\n@functools.cache\ndef f(x): return x * x + 1\n", "f(n)"),
    "protocol": (
        "from typing import Protocol, Generic, TypeVar\nT = TypeVar('T')\nclass P(Generic[T]): ...\n",
        "n * n + 1",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n",
        "ThreadPoolExecutor(2).submit(pow, n, 2).result() + 1",
    ),
    "this module": ("import sys\nK = 1\n", "n * n + sys.modules[__name__].K"),
    "fraction": ("from fractions import Fraction\n", "Fraction(n * n + 1)"),
    "decimal": ("from decimal import Decimal\n", "Decimal(n) * n + 1"),
    "own int": ("class N(int): pass\n", "N(n * n + 1)"),
    "float": ("", "float(n * n + 1)"),
}

# Results other than plain values: source of `f()`, an assertion on its result, and the expected value of a case.
RESULTS = {
    "counter": (
        "from collections import Counter\ndef f(): return Counter('aab')",
        "== {'a': 2, 'b': 1}",
        {"a": 2, "b": 1},
    ),
    "counter of none": (
        "from collections import Counter\ndef f(): return Counter('aab')",
        "['z'] == 0",
        {"a": 2, "b": 1},
    ),
    "defaultdict": (
        "from collections import defaultdict\ndef f():\n    d = defaultdict(list)\n    d[1].append(2)\n    return d",
        "== {1: [2]}",
        {1: [2]},
    ),
    "defaultdict of lambda": (
        "from collections import defaultdict\ndef f():\n    d = defaultdict(lambda: 0)\n    d[1] += 2\n    return d",
        "== {1: 2}",
        {1: 2},
    ),
    "nested defaultdict": (
        "from collections import defaultdict\ndef f():\n    d = defaultdict(lambda: defaultdict(int))\n"
        "    d['a']['b'] += 1\n    return [d]",
        "== [{'a': {'b': 1}}]",
        [{"a": {"b": 1}}],
    ),
    "ordered": ("from collections import OrderedDict\ndef f(): return OrderedDict(a=1)", "== {'a': 1}", {"a": 1}),
    "namedtuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "== (1, 2)",
        [1, 2],
    ),
    "namedtuple fields": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return [P(1, 2)]",
        "[0].y == 2",
        [[1, 2]],
    ),
    "typed namedtuple": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 2\ndef f(): return P(1)",
        "== (1, 2)",
        (1, 2),
    ),
    "deque": ("from collections import deque\ndef f(): return deque([1, 2])", "[1] == 2", [1, 2]),
    "set": ("def f(): return {1, 2}", "== {2, 1}", {1, 2}),
    "frozenset": ("def f(): return frozenset([1, 2])", "== {2, 1}", {1, 2}),
    "fraction": ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", "== 0.5", 0.5),
    "decimal": ("from decimal import Decimal\ndef f(): return Decimal('0.1')", ".quantize is not None", 0.1),
    "decimals": ("from decimal import Decimal\ndef f(): return [Decimal('2.5')]", "== [2.5]", [2.5]),
    "own list": ("class L(list): pass\ndef f(): return L([1])", "== [1]", [1]),
    "own str": ("class S(str): pass\ndef f(): return S('a')", "== 'a'", "a"),
    "own dict": ("class D(dict): pass\ndef f(): return D(a=1)", "== {'a': 1}", {"a": 1}),
    "user string enum": (
        "import enum\nclass E(str, enum.Enum):\n    A = 'a'\ndef f(): return E.A",
        "== 'a'",
        "a",
    ),
    "bytearray": ("def f(): return bytearray(b'a')", "== b'a'", b"a"),
}
# The same, for tests only.
OBJECTS = {
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(): return P(3)",
        ".x == 3",
    ),
    "slots": ("class P:\n    __slots__ = ('x',)\ndef f():\n    p = P()\n    p.x = 3\n    return p", ".x == 3"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = 3\ndef f(): return E.A", ".value == 3"),
    "generator": ("def f():\n    yield 1\n    yield 2", ".__next__() == 1"),
    "map": ("def f(): return map(str, [1])", ".__next__() == '1'"),
    "zip": ("def f(): return zip([1], [2])", ".__next__() == (1, 2)"),
    "range": ("def f(): return range(3)", "== range(0, 3)"),
    "keys": ("def f(): return {1: 2}.keys()", "== {1}"),
    "values": ("def f(): return {1: 2}.values()", ".__len__() == 1"),
    "date": ("import datetime\ndef f(): return datetime.date(2024, 2, 29)", ".isoformat() == '2024-02-29'"),
    "timedelta": ("import datetime\ndef f(): return datetime.timedelta(1)", ".days == 1"),
    "endless": ("import itertools\ndef f(): return itertools.count(3)", ".__next__() == 3"),
}

PRINTS = "n = int(input())\nprint(n * n + 1)\n"
PROGRAMS = {
    "plain": PRINTS,
    **{
        f"reads {how}": f"import sys, os, io, fileinput, pathlib\nn = int({how})\nprint(n * n + 1)"
        for how in (
            "sys.stdin.read()",
            "sys.stdin.readline()",
            "sys.stdin.buffer.read()",
            "open(0).read()",
            "open('/dev/stdin').read()",
            "open('/dev/stdin', 'rb').read()",
            "open('/dev/fd/0').readline()",
            "open('/proc/self/fd/0').read()",
            "io.open('/dev/stdin', encoding='utf-8').read()",
            "pathlib.Path('/dev/stdin').read_text()",
            "pathlib.Path('/dev/stdin').open().read()",
            "os.read(0, 99)",
            "os.read(os.open('/dev/stdin', os.O_RDONLY), 99)",
            "os.fdopen(0).read()",
            "next(fileinput.input())",
            "next(fileinput.input('/dev/stdin'))",
            "next(sys.stdin)",
            "io.TextIOWrapper(sys.stdin.buffer).read()",
        )
    },
    **{f"ends by {end}": f"import sys, os\n{PRINTS}{end}" for end in ("exit()", "quit()", "exit(0)", "sys.exit()")},
    "ends in main": "def main():\n    n = int(input())\n    print(n * n + 1)\n    exit()\n"
    "if __name__ == '__main__':\n    main()",
    "returns main": "import sys\ndef main():\n    print(int(input()) ** 2 + 1)\n"
    "if __name__ == '__main__':\n    sys.exit(main())",
    "writes /dev/stdout": "n = int(input())\nprint(n * n + 1, file=open('/dev/stdout', 'w'))",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
    "print(P(int(input()) ** 2).x + 1)",
    "pickle": "import pickle\nclass P: k = 1\nprint(int(input()) ** 2 + pickle.loads(pickle.dumps(P())).k)",
    "hints": "import typing\nclass P:\n    x: 'P'\ntyping.get_type_hints(P)\n" + PRINTS,
    "main module": "import __main__\nK = 1\nprint(int(input()) ** 2 + __main__.K)",
    "pool": "from multiprocessing import Pool\ndef f(n): return n * n + 1\n"
    "if __name__ == '__main__':\n    with Pool(2) as p: print(*p.map(f, [int(input())]))",
    "fence": fenced(PRINTS),
    "then output": fenced(PRINTS) + "prints\n" + fenced("10\n", ""),
    "then word": fenced(PRINTS) + "prints\n" + fenced("done\n", ""),
    "then usage": fenced(PRINTS) + fenced("echo 3 | python main.py\n", "bash"),
    "then usage, no language": fenced(PRINTS) + fenced("python main.py < in.txt\n", ""),
    "then input": fenced(PRINTS) + "Input:\n" + fenced("3\n", "text") + "Output:\n" + fenced("10\n", "text"),
    "then call": fenced(SOLVE + "print(solve(int(input())))\n") + "Try it:\n" + fenced("print(solve(3))\n"),
    "split": fenced(SOLVE) + "and then\n" + fenced("print(solve(int(input())))\n"),
    "indented": fenced(PRINTS, pad="   "),
    "tilde": fenced(PRINTS, marks="~~~"),
    "prose": f"The program:\n\n{PRINTS}\nThat's it.",
}
