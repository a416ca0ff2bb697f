"""Tools: which functions are accepted, and what a call answers whatever the model and the function do."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from typing import Literal

import pytest

from outdo.envs import threads
from outdo.envs.calls import CallError, Direct, call_tool, result_text, shortened, valid_arguments
from outdo.envs.environment import ToolResult
from outdo.envs.threads import Lane, Overdue, run
from outdo.envs.tools import find_tools, schema_of
from outdo.errors import ToolError
from outdo.rewards.schema import read_json, violation


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", places: list[int] | None = None) -> str:
    """Looks up the weather.

    Args:
        city: Name of the city
        days: How many days ahead
        unit: Of the temperature
        places: Which stations
    """
    return f"{city} {days} {unit} {places}"


WEATHER = schema_of(weather)


def call(function, arguments=None, timeout=5.0, schema=None, **options):
    plain = {"type": "function", "function": {"name": "it", "parameters": {"type": "object", "properties": {}}}}
    return asyncio.run(call_tool(function, schema or plain, arguments or {}, timeout, **options))


class Shop:
    def look_up(self, order: int) -> str:
        """Finds an order.

        Args:
            order: Its number
        """
        return f"order {order}"


async def fetch(page: str) -> str:
    """Fetches a page.

    Args:
        page: Its name
    """
    await asyncio.sleep(0)
    return page.upper()


def test_objects_and_names(tmp_path, monkeypatch):
    (tmp_path / "my_tools.py").write_text(
        textwrap.dedent('''
        def search_web(query: str) -> str:
            """Searches.

            Args:
                query: What for
            """
            return query[::-1]
        ''')
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_tools.py:search_web", "my_tools:search_web"):
        tools = find_tools(["calculator", name, weather, fetch, Shop().look_up])
        assert [tool.name for tool in tools] == ["calculator", "search_web", "weather", "fetch", "look_up"]
    assert tools[1].make()(query="abc") == "cba"
    assert find_tools(tools) == tools
    assert tools[4].schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"order": {"type": "integer", "description": "Its number"}},
        "required": ["order"],
    }
    assert tools[0].schema["function"]["parameters"]["required"] == ["expression"]


def no_docstring(x: int) -> int:
    return x


def no_types(x):
    """Does it.

    Args:
        x: A number
    """


def no_description(x: int, y: int) -> int:
    """Does it.

    Args:
        x: A number
    """
    return x + y


def variadic(*numbers: int) -> int:
    """Adds.

    Args:
        numbers: All of them
    """
    return sum(numbers)


def keywords(x: int, **others: int) -> int:
    """Adds.

    Args:
        x: One
        others: All of them
    """
    return x


def positional(x: int, /) -> int:
    """Does it.

    Args:
        x: A number
    """
    return x


def unknown_type(x: Missing) -> int:  # noqa: F821
    """Does it.

    Args:
        x: A number
    """
    return 1


def yields(x: int):
    """Does it.

    Args:
        x: A number
    """
    yield x


def only_arguments(x: int) -> int:
    """
    Args:
        x: A number
    """
    return x


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (no_docstring, "no_docstring has no docstring"),
        (no_types, "no_types: the parameter x has no type"),
        (no_description, "no description for the argument 'y'"),
        (variadic, r"\*numbers: name each"),
        (keywords, r"\*\*others: name each"),
        (positional, "remove the /"),
        (unknown_type, "Missing"),
        (yields, "`return` one result"),
        (only_arguments, "does not say|no description"),
        (lambda x: x, "a lambda"),
        (functools.partial(weather, days=2), "partial"),
        (Shop, "a class"),
        (Shop(), "of the type Shop"),
        (3, "not a function, but of the type int"),
        (None, "not a function"),
        (len, "remove the /"),
        ("calculater", "did you mean 'calculator'"),
        ("no_such.py:tool", "no such file"),
        ("json:dumpz", "did you mean 'dump'"),
        ("json:decoder", "of the type module"),
        ("calculator:3", "calculator takes no arguments"),
        ("search", "search:docs/"),
        ("search:no_such_folder/", "no such file"),
        ({"search": {"folder": "docs"}}, "no argument 'folder'.*takes path, column, title"),
        ({"search": {"path": 3}}, "path of search must be text, not 3"),
        ({"search": {"path": "x", "column": True}}, "column of search must be text"),
        ({"python": {"seconds": "2"}}, "seconds of python must be a number"),
        ({"python": 3}, "by name"),
        ({"my_tools.py:x": {"a": 1}}, "not a built-in tool"),
        ({"search": {}, "python": {}}, "must be one name"),
    ],
)
def test_refused_before_training(given, says):
    with pytest.raises(ToolError, match=says) as caught:
        find_tools([given])
    assert "\n" not in str(caught.value) and caught.value.exit_status == 2


def test_two_of_one_name():
    with pytest.raises(ToolError, match="2 tools have the name weather"):
        find_tools([weather, weather])


@pytest.mark.parametrize("given", ["calculator", {"calculator": {}}, None, 3])
def test_not_a_list(given):
    with pytest.raises(ToolError, match="must be a list"):
        find_tools(given)


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"city": "Rome"}, "Rome 1 C None"),
        ({"city": "Rome", "days": 2.0, "unit": "F", "places": [1]}, "Rome 2 F [1]"),
        ({"city": "Rome", "places": None}, "Rome 1 C None"),
        ({"city": ""}, " 1 C None"),
    ],
)
def test_arguments_that_fit(arguments, result):
    assert call(weather, arguments, schema=WEATHER).text == result


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, ["'city' is missing", "city (string), days (integer, optional)"]),
        ({"town": "Rome"}, ["unexpected argument 'town'", "city (string)"]),
        ({"city": "Rome", "day": 1}, ["unexpected argument 'day'", "did you mean 'days'"]),
        ({"city": "Rome", "days": "2"}, ["'days' does not fit", "'2' is not of type 'integer'"]),
        ({"city": "Rome", "days": True}, ["'days' does not fit"]),
        ({"city": "Rome", "days": 1.5}, ["'days' does not fit"]),
        ({"city": None}, ["'city' does not fit"]),
        ({"city": "Rome", "unit": "K"}, ["'unit' does not fit", 'one of "C", "F"']),
        (
            {"city": "Rome", "places": ["x"]},
            ["$['places'][0]: 'x' is not of type 'integer'", "places (array of integer or null, optional)"],
        ),
        ({"city": float("nan")}, ["not JSON"]),
        ({"city": object()}, ["not JSON"]),
        ({"city": "x" * 200_000}, ["not JSON", "more than 100000"]),
        ({"x" * 5_000: 1}, ["unexpected argument 'xxx"]),
        ({1: 1}, ["unexpected argument '1'"]),
        ("city", ["must be an object"]),
        ([1], ["must be an object"]),
    ],
)
def test_arguments_that_do_not(arguments, says):
    result = asyncio.run(call_tool(lambda **_: "called", WEATHER, arguments))
    assert result.failed and result.text.startswith("Error: ") and len(result.text) < 600
    for words in says:
        assert words in result.text


@pytest.mark.parametrize("kind", ["string", "integer", "number", "boolean"])
def test_simple_types_are_those_of_the_standard(kind):
    """They are seen without a validator; any other keyword of a schema makes the validator decide."""
    schema = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": kind}}}}
    for value in ("1", "", 1, 0, -3, 1.5, 2.0, True, False, None, [], [1], {}, 10**20):
        fits = violation(read_json(json.dumps(value)), {"type": kind}) is None
        assert (call(lambda x: "called", {"x": value}, schema=schema).text == "called") is fits, value
    narrow = {**schema, "parameters": {"type": "object", "properties": {"x": {"type": kind, "enum": ["only"]}}}}
    assert call(lambda x: "called", {"x": {"string": "1", "boolean": True}.get(kind, 1)}, schema=narrow).failed


def test_deep_arguments_are_bounded():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert call(weather, {"city": deep}, schema=WEATHER).failed
    loop: dict = {}
    loop["city"] = loop
    assert call(weather, loop, schema=WEATHER).failed


def test_a_parameter_named_nullable():
    def odd(nullable: int | None, properties: str) -> str:
        """Odd names.

        Args:
            nullable: A number
            properties: A text
        """
        return f"{nullable} {properties}"

    assert call(odd, {"nullable": None, "properties": "x"}, schema=schema_of(odd)).text == "None x"
    assert call(odd, {"nullable": "y", "properties": "x"}, schema=schema_of(odd)).failed


@dataclass
class Point:
    x: int


class Silent:
    pass


class Loud:
    def __str__(self) -> str:
        return "loud"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\x1b[31m\x00b <|im_end|>", "a\x1b[31m\x00b <|im_end|>"),
        (None, ""),
        (3, "3"),
        (2.5, "2.5"),
        (True, "true"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        ((1, 2), "[1, 2]"),
        ([Point(1)], '["Point(x=1)"]'),
        (Point(2), "Point(x=2)"),
        (Loud(), "loud"),
        ({1}, "{1}"),
        ("\ud800x", "?x"),
    ],
)
def test_results_as_text(value, text):
    assert call(lambda: value) == ToolResult(text)


@pytest.mark.parametrize(
    "value", [b"bytes", bytearray(b"x"), Silent(), iter([1]), (i for i in [1]), [Silent()], {(1, 2): 3}]
)
def test_results_that_are_no_text(value):
    result = call(lambda: value)
    assert result.failed and result.text.startswith("Error: the tool returned ")


def test_a_list_in_itself():
    loop: list = []
    loop.append(loop)
    with pytest.raises(CallError, match="JSON"):
        result_text(loop)


def test_a_megabyte_is_cut():
    text = "".join(chr(97 + i % 26) for i in range(1_000_000))
    result = call(lambda: text)
    assert not result.failed and 8_000 <= len(result.text) < 8_100
    head, _, rest = result.text.partition("\n… 1,000,000 characters, 992,000 of them cut here …\n")
    assert head == text[:6_000] and rest == text[-2_000:]
    assert shortened("x" * 8_000, 8_000) == "x" * 8_000
    error = call(lambda: (_ for _ in ()).throw(ValueError("y" * 1_000_000)))
    assert error.failed and len(error.text) < 8_100


def raises(error):
    def function():
        raise error

    return function


class BadMessage(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such city"), "Error: ValueError: no such city"),
        (KeyError("x"), "Error: KeyError: 'x'"),
        (TimeoutError("server"), "Error: TimeoutError: server"),
        (CallError("in words"), "Error: in words"),
        (SystemExit(3), "Error: RuntimeError: SystemExit: 3"),
        (KeyboardInterrupt(), "Error: RuntimeError: KeyboardInterrupt: "),
        (asyncio.CancelledError(), "Error: RuntimeError: CancelledError: "),
        (StopIteration(1), "Error: RuntimeError: StopIteration: 1"),
        (BadMessage(), "Error: BadMessage: an error without a message"),
    ],
)
def test_what_raises(error, text):
    async def later():
        raise error

    def returns_awaitable():
        return later()

    assert call(raises(error)).text == text
    assert call(returns_awaitable).failed
    if not isinstance(error, StopIteration):  # Python itself replaces it
        assert call(later).text == text


@pytest.mark.parametrize("kind", ["sync", "async", "blocking async", "stubborn async"])
def test_what_never_returns(kind):
    release = threading.Event()

    def hangs():
        release.wait(30)

    async def waits():
        await asyncio.sleep(30)

    async def blocks():
        release.wait(30)

    async def ignores_cancelling():
        while not release.is_set():
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    function = {"sync": hangs, "async": waits, "blocking async": blocks, "stubborn async": ignores_cancelling}[kind]

    async def both():
        started = time.monotonic()
        result = await call_tool(function, WEATHER | {"function": {"name": "it"}}, {}, 0.2)
        seconds = time.monotonic() - started
        after = await call_tool(fetch, schema_of(fetch), {"page": "x"}, 5.0)
        return result, seconds, after

    result, seconds, after = asyncio.run(both())
    release.set()
    assert result.failed and result.text == "Error: timed out after 0.2 s"
    assert seconds < 2.0 and after.text == "X"


def test_hanging_calls_do_not_hold_up_the_exit():
    code = textwrap.dedent("""
        import asyncio, time
        from outdo.envs.calls import call_tool
        schema = {"function": {"name": "it"}}
        def hangs(): time.sleep(60)
        async def blocks(): time.sleep(60)
        async def main():
            return await asyncio.gather(*(call_tool(one, schema, {}, 0.2) for one in (hangs, blocks, hangs)))
        print([one.text for one in asyncio.run(main())])
    """)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=True)
    assert done.stdout == f"{['Error: timed out after 0.2 s'] * 3}\n" and time.monotonic() - started < 30


def test_hundreds_wait_at_once():
    async def many():
        schema = {"function": {"name": "it"}}
        return await asyncio.gather(*(call_tool(lambda: time.sleep(0.5), schema, {}, 20.0) for _ in range(300)))

    started = time.monotonic()
    assert not any(result.failed for result in asyncio.run(many()))
    assert time.monotonic() - started < 5.0  # 150 s one after another


def test_more_than_there_are_threads(monkeypatch):
    monkeypatch.setattr(threads, "MAX_THREADS", 4)
    most, running = [0], [0]

    def one():
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1

    async def many():
        await asyncio.gather(*(run(one, seconds=5.0) for _ in range(20)))

    asyncio.run(many())
    assert 2 <= most[0] <= 4


def test_calls_that_hang_are_counted(monkeypatch):
    monkeypatch.setattr(threads, "MAX_HANGING", threads._Worker.num_hanging + 2)
    before, release = threads._Worker.num_hanging, threading.Event()
    texts = [call(lambda: release.wait(20), timeout=0.05).text for _ in range(3)]
    release.set()
    assert texts[:2] == ["Error: timed out after 0.05 s"] * 2 and "have not returned" in texts[2]
    deadline = time.monotonic() + 5
    while threads._Worker.num_hanging > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads._Worker.num_hanging == before
    assert call(lambda: "again").text == "again"


def test_a_lane_is_one_thread_and_keeps_order():
    seen = []

    def note(number):
        time.sleep(0.02 if number == 0 else 0)
        seen.append((number, threading.get_ident()))

    async def main():
        lane = Lane()
        await asyncio.gather(*(run(note, i, seconds=5.0, lane=lane) for i in range(5)))
        with pytest.raises(Overdue):
            await run(time.sleep, 1.0, seconds=0.05, lane=lane)
        await run(note, 5, seconds=5.0, lane=lane)
        lane.close()

    asyncio.run(main())
    assert [number for number, _ in seen] == list(range(6))
    idents = [ident for _, ident in seen]
    assert len(set(idents[:5])) == 1 and idents[5] != idents[0] and idents[0] != threading.get_ident()


def test_prints_do_not_reach_the_terminal(capsys):
    def loud():
        print("from a tool")
        sys.stdout.write("written")
        sys.stdout.buffer.write(b"bytes")
        print("an error", file=sys.stderr)
        time.sleep(0.1)

    async def loud_later():
        print("from a coroutine")
        await asyncio.sleep(0.05)
        print("again")

    async def main():
        waiting = asyncio.gather(run(loud, seconds=5.0), run(loud_later, seconds=5.0))
        await asyncio.sleep(0.05)
        print("from the run")
        await waiting

    asyncio.run(main())
    print("afterwards")
    out, err = capsys.readouterr()
    assert out == "from the run\nafterwards\n" and err == ""


def test_a_console_keeps_its_codes_while_tools_print():
    code = textwrap.dedent("""
        import asyncio, sys
        from outdo.envs.threads import run
        from outdo.untrusted.terminal import PrintableConsole, make_output_printable
        make_output_printable()
        console = PrintableConsole(force_terminal=True, color_system="standard", width=80)
        asyncio.run(run(lambda: print("a tool"), seconds=5.0))
        console.print("shown", style="red")
        print("\\x1b[1mplain")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=True)
    assert done.stdout == "\x1b[31mshown\x1b[0m\n␛[1mplain\n"


def test_a_direct_tool_has_a_deadline():
    class Slow(Direct):
        async def __call__(self, **arguments):
            await asyncio.sleep(10)

    assert call(Slow(str), timeout=0.05).text == "Error: timed out after 0.05 s"
    assert call(Direct(lambda: "now")).text == "now"


def test_arguments_stay_plain():
    valid = valid_arguments(WEATHER, {"city": "x", "days": 3.0})
    assert valid == {"city": "x", "days": 3} and type(valid["days"]) is int
    assert json.dumps(WEATHER)  # nothing was changed in the schema that a template shows
    assert WEATHER["function"]["parameters"]["properties"]["places"]["nullable"] is True
