"""Environments of tools, and those that users write: TRL's kind, the plain kind, several by a column, and bad ones."""

from __future__ import annotations

import asyncio
import functools
import textwrap
import threading
import time

import pytest

from outdo.envs.environment import Environment, Observation, Tool
from outdo.envs.factory import find_environment
from outdo.envs.registry import ENVIRONMENTS
from outdo.envs.toolbox import MAX_CALLS, ToolEnvironment, with_tools
from outdo.envs.tools import find_tools
from outdo.errors import TaskError, ToolError
from outdo.types import Prompt

PROMPT = Prompt("p1", ({"role": "system", "content": "s"}, {"role": "user", "content": "Go."}), "42", {"secret": 7})


def said(*calls):
    """A message of the model with these calls: a name with arguments, or an error."""
    listed = [one if isinstance(one, dict) else {"name": one[0], "arguments": one[1]} for one in calls]
    return {"role": "assistant", "content": "…", **({"tool_calls": listed} if listed else {})}


def play(make, *messages, prompt=PROMPT):
    """All that an environment answers, from its reset to its end."""

    async def episode():
        env = make(prompt)
        try:
            return [await env.reset(prompt), *[await env.step(message) for message in messages]]
        finally:
            await env.close()

    return asyncio.run(episode())


def contents(observation):
    return [message["content"] for message in observation.messages]


def slow(name: str, seconds: float) -> str:
    """Waits.

    Args:
        name: What to return
        seconds: How long
    """
    time.sleep(seconds)
    return name


async def slow_later(name: str, seconds: float) -> str:
    """Waits.

    Args:
        name: What to return
        seconds: How long
    """
    await asyncio.sleep(seconds)
    return name


def fails(x: int) -> int:
    """Fails.

    Args:
        x: A number
    """
    return x // 0


TOOLS = find_tools([slow, slow_later, fails, "calculator"])


def test_calls_and_results():
    start, first, second, last = play(
        with_tools(TOOLS),
        said(("calculator", {"expression": "48/2"})),
        said(("calculator", {"expression": "1/0"}), ("fails", {"x": 3})),
        said(),
    )
    assert start == PROMPT.messages
    assert first == Observation([{"role": "tool", "name": "calculator", "content": "24"}], num_calls=1)
    assert contents(second) == [
        "Error: division by zero",
        "Error: ZeroDivisionError: integer division or modulo by zero",
    ]
    assert (second.num_calls, second.num_failed_calls, second.done) == (2, 2, False)
    assert second.failures == {"raised": 2}
    assert last == Observation(done=True)


def test_calls_of_one_turn_run_at_once_and_keep_their_order():
    calls = [("slow", {"name": str(i), "seconds": 0.4 - i / 10}) for i in range(4)]
    calls += [("slow_later", {"name": "later", "seconds": 0.4})]
    started = time.monotonic()
    _, observation = play(with_tools(TOOLS), said(*calls))
    assert contents(observation) == ["0", "1", "2", "3", "later"]
    assert time.monotonic() - started < 0.8  # 1.4 s one after another


def test_calls_that_cannot_be_run():
    _, observation = play(
        with_tools(TOOLS, tool_timeout=0.2),
        said(
            {"error": "not JSON: {'a"},
            ("calculater", {}),
            ("calculator", {"expresion": "1"}),
            ("slow", {"name": "x", "seconds": 3}),
            {"arguments": {}},
            {"name": None, "id": "call_7"},
            {"name": "x" * 10_000},
        ),
    )
    texts = contents(observation)
    assert (observation.num_calls, observation.num_failed_calls) == (7, 7)
    assert observation.failures == {"malformed": 1, "unknown": 4, "arguments": 1, "timeout": 1}
    assert texts[0] == "Error: not JSON: {'a"
    assert texts[1].startswith("Error: there is no tool 'calculater': did you mean 'calculator'?")
    assert "did you mean 'expression'" in texts[2] and texts[3] == "Error: timed out after 0.2 s"
    assert "there is no tool 'None': the tools are slow, slow_later, fails, calculator" in texts[4]
    assert observation.messages[5]["tool_call_id"] == "call_7" and len(texts[6]) < 300
    assert [message["name"] for message in observation.messages][:2] == ["unknown", "calculater"]


def test_very_many_calls():
    _, observation = play(with_tools(TOOLS), said(*[("calculator", {"expression": "1+1"})] * (MAX_CALLS + 5)))
    assert contents(observation)[:MAX_CALLS] == ["2"] * MAX_CALLS
    assert observation.failures == {"too_many": 5} and observation.num_failed_calls == 5
    assert "was not run" in contents(observation)[-1]


def test_a_limit_of_turns_with_calls():
    runs = []

    def count(x: int) -> int:
        """Counts.

        Args:
            x: A number
        """
        runs.append(x)
        return x

    make = with_tools(find_tools([count]), max_tool_calling_iterations=2)
    _, *observations = play(make, *[said(("count", {"x": i})) for i in range(4)])
    assert [one.done for one in observations] == [False, False, True, True] and runs == [0, 1]
    assert observations[2].messages == () and observations[2].num_calls == 0
    assert [one.out_of_turns for one in observations] == [False, False, True, True]
    assert not play(make, said())[1].out_of_turns


def test_a_tool_with_state_is_made_for_each_answer_and_closed():
    made = []

    class Counter:
        def __init__(self):
            self.count, self.is_closed = 0, False
            made.append(self)

        def __call__(self, x: int) -> int:
            self.count += x
            return self.count

        def close(self):
            self.is_closed = True

    tool = Tool("fails", TOOLS[2].schema, Counter)
    for _ in range(2):
        _, first, second = play(with_tools([tool]), said(("fails", {"x": 2})), said(("fails", {"x": 3})))
        assert contents(first) + contents(second) == ["2", "5"]
    play(with_tools([tool]), said())  # one that calls none makes none
    assert [one.is_closed for one in made] == [True, True]


class Number:
    """TRL's kind, in the form of its documentation."""

    closed = 0

    def reset(self, secret: int, **columns) -> str | None:
        self.secret, self.columns, self.guesses = secret, columns, []
        self.thread = threading.get_ident()
        return " It is between 1 and 9."

    def guess(self, number: int) -> str:
        """Guesses the number.

        Args:
            number: What you think it is
        """
        time.sleep(0.01 * (3 - number) if number < 3 else 0)
        self.guesses.append(number)
        assert threading.get_ident() == self.thread
        if number < 0:
            raise ValueError("guess a positive number")
        return "right" if number == self.secret else "wrong"

    async def hint(self) -> str:
        """Gives a hint."""
        await asyncio.sleep(0)
        return "odd" if self.secret % 2 else "even"

    def _private(self) -> str:
        return ""

    @property
    def state(self) -> int:
        return 1

    def get_reward(self) -> float:
        return 1.0 if self.secret in self.guesses else 0.0

    def close(self) -> None:
        Number.closed += 1


def test_trls_kind():
    Number.closed = 0
    start, first, second, last = play(
        find_environment(Number),
        said(("guess", {"number": 1}), ("guess", {"number": 2}), ("hint", {}), ("guess", {"number": -1})),
        said(("guess", {"number": 7}), ("reset", {}), ("close", {}), ("_private", {})),
        said(),
    )
    assert start == (PROMPT.messages[0], {"role": "user", "content": "Go. It is between 1 and 9."})
    assert contents(first) == ["wrong", "wrong", "odd", "Error: ValueError: guess a positive number"]
    assert contents(second)[0] == "right" and second.num_failed_calls == 3
    assert last == Observation(reward=1.0, done=True) and Number.closed == 1
    assert PROMPT.messages[1]["content"] == "Go."


def test_what_reset_gets():
    async def columns_of(make):
        env = make(PROMPT)
        await env.reset(PROMPT)
        await env.close()
        return env.environment

    env = asyncio.run(columns_of(find_environment(Number)))
    assert env.secret == 7 and set(env.columns) == {"answer", "prompt"} and env.columns["answer"] == "42"
    assert env.columns["prompt"] == [dict(message) for message in PROMPT.messages]
    env.columns["prompt"][1]["content"] = "changed"
    assert PROMPT.messages[1]["content"] == "Go."

    class Narrow(Number):
        def reset(self, answer, secret, other=3):
            self.got = answer, secret, other

    assert asyncio.run(columns_of(find_environment(Narrow))).got == ("42", 7, 3)


def test_a_column_that_is_missing():
    class Wide(Number):
        def reset(self, secrets):
            return None

    with pytest.raises(ToolError, match=r"Wide: reset takes 'secrets', and prompt p1.*did you mean 'secret'"):
        find_environment(Wide)(PROMPT)


def test_the_tools_of_a_class():
    env = find_environment(Number, tools=find_tools(["calculator"]))(PROMPT)
    assert [schema["function"]["name"] for schema in env.tools] == ["calculator", "guess", "hint"]
    assert env.tools[1]["function"]["parameters"]["required"] == ["number"]
    _, observation = play(
        find_environment(Number, tools=find_tools(["calculator"])),
        said(("calculator", {"expression": "3*3"}), ("guess", {"number": 9})),
    )
    assert contents(observation) == ["9", "wrong"]


def test_the_reward_is_read_once_and_however_it_ends():
    class Counted(Number):
        num_reads = 0

        async def get_reward(self):
            Counted.num_reads += 1
            return 0.25

    async def cut():
        env = find_environment(Counted, max_tool_calling_iterations=1)(PROMPT)
        await env.reset(PROMPT)
        await env.step(said(("hint", {})))
        rewards = [await env.get_reward(), (await env.step(said(("hint", {})))).reward]
        await env.close()
        return rewards

    assert asyncio.run(cut()) == [0.25, 0.25] and Counted.num_reads == 1

    class Without(Number):
        get_reward = None

    assert play(find_environment(Without), said())[1] == Observation(done=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", [1], 10**400])
def test_a_reward_that_is_none(value):
    class Odd(Number):
        def get_reward(self):
            return value

    with pytest.raises(TypeError, match=r"Odd: get_reward gave .* give a finite number"):
        play(find_environment(Odd), said())


def test_errors_of_the_environment_propagate():
    closed = []

    class Fails(Number):
        at = ""

        def __init__(self):
            self.fail("init")

        def fail(self, where):
            """Fails.

            Args:
                where: In which method
            """
            if self.at == where:
                raise ConnectionError(f"no server in {where}")

        fail.__annotations__["where"] = str

        def reset(self, **columns):
            self.fail("reset")

        def get_reward(self):
            self.fail("reward")
            return 1.0

        def close(self):
            closed.append(self.at)

    for at in ("init", "reset", "reward"):
        with pytest.raises(ConnectionError, match=f"no server in {at}"):
            play(find_environment(type("Fails", (Fails,), {"at": at})), said())
    assert closed == ["reset", "reward"]

    class Odd(Number):
        def reset(self, **columns):
            return {"text": "x"}

    with pytest.raises(TypeError, match="Odd: reset returned a dict: return text or None"):
        play(find_environment(Odd))


def test_a_prompt_without_a_user():
    system = Prompt("s", ({"role": "system", "content": "s"},), None, {"secret": 1})
    start = play(find_environment(Number), prompt=system)[0]
    assert start == (*system.messages, {"role": "user", "content": " It is between 1 and 9."})


class Countdown:
    """The plain kind."""

    blocking = True

    def __init__(self, start: int = 2) -> None:
        self.left = start

    def reset(self, prompt):
        return [*prompt.messages, {"role": "user", "content": f"From {self.left}."}]

    def step(self, message):
        self.left -= 1
        done = self.left == 0
        return Observation([] if done else [{"role": "user", "content": "more"}], float(done), done)


def test_the_plain_kind():
    start, first, last = play(find_environment(Countdown), said(), said())
    assert start[-1]["content"] == "From 2." and not first.done and first.reward == 0.0
    assert last == Observation([], 1.0, True)
    assert play(find_environment(Countdown, {"start": 5}))[0][-1]["content"] == "From 5."


def test_the_plain_kind_with_coroutines_and_tools():
    class Later:
        def __init__(self):
            self.tools = [{"type": "function", "function": {"name": "end", "parameters": {}}}]
            self.is_closed = False

        async def reset(self, prompt):
            return prompt.messages

        async def step(self, message):
            await asyncio.sleep(0)
            return Observation(done="tool_calls" in message)

        async def close(self):
            self.is_closed = True

    async def episode():
        env: Environment = find_environment(Later)(PROMPT)
        await env.reset(PROMPT)
        names = [tool["function"]["name"] for tool in env.tools]
        done = [(await env.step(said())).done, (await env.step(said(("end", {})))).done]
        await env.close()
        return names, done, env.environment.is_closed

    assert asyncio.run(episode()) == (["end"], [False, True], True)


CIRCULAR: list[object] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("reset", "text", "reset gave a str for messages"),
        ("reset", None, "reset gave a NoneType for messages"),
        ("reset", ["text"], "reset gave 'text' for a message"),
        ("reset", [{"role": "robot", "content": "x"}], "for a message"),
        ("reset", [{"role": "user", "content": 3}], "for a message"),
        ("reset", [{"role": "user", "content": "x", "seen": {1, 2}}], "not plain JSON"),
        ("reset", [{"role": "user", "content": CIRCULAR}], "not plain JSON"),
        ("step", None, "step returned a NoneType"),
        ("step", ([], 1.0, True), "step returned a tuple"),
        ("step", Observation("text"), "step gave a str for messages"),
        ("step", Observation([{"content": "x"}]), "for a message"),
        ("step", Observation(reward=float("nan")), "step gave nan for a reward"),
    ],
)
def test_nonsense_of_the_plain_kind(method, value, says):
    odd = type("Odd", (Countdown,), {method: lambda self, _: value})
    with pytest.raises(TypeError, match=f"Odd: .*{says}"):
        play(find_environment(odd), said())


def test_an_environment_that_never_returns(monkeypatch):
    release = threading.Event()

    class Hangs(Countdown):
        def step(self, message):
            release.wait(20)

    monkeypatch.setattr("outdo.envs.factory.SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"Hangs: step timed out after 0.2 s"):
        play(find_environment(Hangs), said())
    release.set()


def test_several_by_a_column():
    make = find_environment({"number": Number, "countdown": Countdown}, {"countdown": {"start": 4}})
    row = Prompt("p", PROMPT.messages, "42", {"environment": "countdown"})
    assert play(make, prompt=row)[0][-1]["content"] == "From 4."
    for meta, says in (({}, "is missing"), ({"environment": "numbr"}, "says 'numbr': did you mean 'number'")):
        with pytest.raises(ToolError, match=says):
            make(Prompt("p", PROMPT.messages, "42", meta))
    with pytest.raises(ToolError, match="'count', which is no environment here: did you mean 'countdown'"):
        find_environment({"countdown": Countdown}, {"count": {}})
    with pytest.raises(ToolError, match="is empty"):
        find_environment({})


def test_names_and_functions(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            class Echo:
                def reset(self, prompt): return prompt.messages
                def step(self, message):
                    from outdo.envs.environment import Observation
                    return Observation([{"role": "user", "content": message["content"]}])
        """)
    )
    monkeypatch.chdir(tmp_path)
    assert play(find_environment("mine.py:Echo"), said())[1].messages == [{"role": "user", "content": "…"}]
    assert play(find_environment(functools.partial(Countdown, 3)))[0][-1]["content"] == "From 3."
    assert play(find_environment(lambda start=1: Countdown(start), {"start": 6}))[0][-1]["content"] == "From 6."


def test_built_in_ones_run_on_the_loop(monkeypatch):
    threads = []

    class Quick(Countdown):
        blocking = False

        def step(self, message):
            threads.append(threading.get_ident())
            return super().step(message)

    monkeypatch.setitem(ENVIRONMENTS, "quick", Quick)
    play(find_environment("quick"), said())
    monkeypatch.setitem(ENVIRONMENTS, "quick", type("Blocks", (Quick,), {"blocking": True}))
    play(find_environment("quick"), said())
    play(find_environment(Quick), said())
    assert [ident == threading.get_ident() for ident in threads] == [True, False, False]

    class Picky(Number):
        def __init__(self, share: float = 0.5):
            if share > 1:
                raise TaskError(f"share={share}")

        def guess(self, number: int) -> str:
            """Guesses.

            Args:
                number: A number
            """
            threads.append(threading.get_ident())
            return "x"

    monkeypatch.setitem(ENVIRONMENTS, "picky", Picky)
    assert contents(play(find_environment("picky"), said(("guess", {"number": 1})))[1]) == ["x"]
    assert threads[-1] == threading.get_ident()
    with pytest.raises(TaskError, match="share=2"):
        find_environment("picky", {"share": 2})


class Empty:
    def reset(self, **columns):
        return None


class Untyped(Empty):
    def move(self, where):
        """Moves.

        Args:
            where: Direction
        """


class NoReset:
    def step(self, message):
        return Observation()


def broken():
    raise ConnectionError("no server")


@pytest.mark.parametrize(
    ("given", "args", "says"),
    [
        (Empty, {}, "Empty has neither a method `step` nor a public method"),
        (Untyped, {}, "tool Untyped.move: the parameter where has no type"),
        (NoReset, {}, "NoReset has no method `reset`"),
        (Number(), {}, "an object of Number: give the class"),
        (Countdown, {"strat": 3}, "environment_args=.*strat.*did you mean 'start'"),
        (Countdown, [3], "must be arguments by name"),
        (broken, {}, "broken cannot be made: ConnectionError: no server"),
        ("gues", {}, "unknown name 'gues'"),
        ("no_such.py:Env", {}, "no such file"),
    ],
)
def test_refused_before_training(given, args, says):
    with pytest.raises(ToolError, match=says):
        find_environment(given, args)


def test_tools_that_an_environment_cannot_take():
    with pytest.raises(ToolError, match="Countdown has a `step`"):
        find_environment(Countdown, tools=TOOLS)
    with pytest.raises(ToolError, match="2 tools have the name guess"):
        find_environment(Number, tools=[Tool("guess", TOOLS[0].schema, lambda: slow)])


def test_many_at_once():
    make = find_environment(Number)

    async def answer(number):
        prompt = Prompt(str(number), PROMPT.messages, None, {"secret": number})
        env = make(prompt)
        await env.reset(prompt)
        await env.step(said(("guess", {"number": number})))
        reward = (await env.step(said())).reward
        await env.close()
        return reward

    async def all_of_them():
        return await asyncio.gather(*map(answer, range(200)))

    before = threading.active_count()
    assert asyncio.run(all_of_them()) == [1.0] * 200
    deadline = time.monotonic() + 5
    while threading.active_count() > before + 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before + 5  # threads end with their answers
    assert isinstance(with_tools(TOOLS)(PROMPT), ToolEnvironment)
