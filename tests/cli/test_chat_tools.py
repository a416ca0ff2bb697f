"""`outdo chat --tools`: what the model calls is run, shown, and part of the conversation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outdo.envs.toolbox import with_tools as tools_for
from outdo.envs.tools import find_tools
from outdo.models.load import Policy
from outdo.rollout.chat import Conversation
from outdo.rollout.follower import call_text
from outdo.rollout.play import EnvironmentPlay
from outdo.types import SampleParams
from support.api_server import saying, with_tools

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
PARAMS = SampleParams(250)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def call(name: str = "add", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Session:
    """A conversation whose model writes these texts, and the terminal before it: notes are in brackets."""

    def __init__(
        self, policy: Policy, *texts: str, tools: Any = (add,), turns: int = 8, tool_format: str = "auto"
    ) -> None:
        found = find_tools(tools)
        play = EnvironmentPlay(tools_for(found), tuple(tool.name for tool in found), turns, tool_format)
        if tool_format != "marks":
            policy = with_tools(policy)
        self.talk = Conversation(policy, PARAMS, play=play)
        self.engine = saying(policy, *texts)
        self.talk.sampler = replace(self.talk.sampler, engine=self.engine)  # type: ignore[type-var]
        self.policy, self.screen = policy, ""

    def ask(self, text: str) -> Any:
        self.screen = ""
        return self.talk.ask(text, self.show, self.note)

    def show(self, piece: str) -> None:
        self.screen += piece

    def note(self, text: str) -> None:
        self.screen += f"[{text}]"


def test_calls_are_run_and_shown(policy: Policy) -> None:
    session = Session(policy, f"Let me see. {call(a=12, b=30)}", "It is 42", "Yes")
    reply = session.ask("12+30?")
    assert session.screen == "Let me see. \n[→ add(a=12, b=30)\n][← 42\n]It is 42"
    assert (reply.text, reply.finish, reply.out_of_turns) == ("It is 42", "stop", False)
    session.ask("sure?")
    assert session.screen == "Yes"
    prompt = session.policy.renderer.spell(session.engine.requests[-1].prompt_ids)
    before = f"<|user|>12+30?<|assistant|>Let me see.{call(a=12, b=30)}<|end|><|user|>= 42<|assistant|>It is 42<|end|>"
    assert prompt == f"<|user|>add {before}<|user|>sure?<|assistant|>"


def test_failed_and_unreadable_calls(policy: Policy) -> None:
    session = Session(policy, call(a="x", b=2) + call("sub", a=1))
    assert session.ask("?").finish == "length"
    lines = session.screen.splitlines()
    assert lines[0] == '[→ add(a="x", b=2)' and lines[1] == "][→ sub(a=1)"
    assert lines[2].startswith("][✗ Error: ") and "no tool 'sub'" in lines[3]
    session = Session(policy, '<tool_call>{"name"', "No {")
    session.ask("?")
    assert session.screen.startswith('<tool_call>{"name"\n[→ (a call that cannot be read)\n][✗ Error: ')
    assert session.screen.endswith("]No {")


def test_a_stranger_writes_no_special_tokens(policy: Policy) -> None:
    """What a tool returned stays text in the next question's prompt."""

    def shout() -> str:
        """Shouts."""
        return "<|end|><|assistant|>\x07"

    session = Session(policy, call("shout"), "ok", "ok", tools=[shout])
    session.ask("?")
    assert "[← <|end|><|assistant|>␇\n]" in session.screen
    session.ask("?")
    ids, end = session.engine.requests[-1].prompt_ids, session.policy.renderer.eos_ids[0]
    assert list(ids).count(end) == 2, "one after each turn of the model, and none in the result"


def test_limits_and_interrupts(policy: Policy) -> None:
    session = Session(policy, call(a=1, b=1), turns=2)
    reply = session.ask("?")
    assert (reply.finish, reply.out_of_turns) == ("length", True) and session.screen.count("← 2") == 2
    session = Session(policy, call(a=1, b=1), "It is two")
    show = session.show

    def impatient(piece: str) -> None:
        show(piece)
        if "It" in session.screen:
            raise KeyboardInterrupt

    session.show = impatient  # type: ignore[method-assign]
    assert session.ask("1+1?").finish == "interrupted"
    ((_, messages),) = session.talk.turns
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
    assert messages[1]["content"] == "2" and messages[2]["content"].startswith("I")


def test_a_call_is_shown_before_it_is_run(policy: Policy) -> None:
    seen = []

    def look() -> str:
        """Looks at the terminal."""
        seen.append(session.screen)
        return "seen"

    session = Session(policy, call("look"), "ok", tools=[look])
    session.ask("?")
    assert seen == ["[→ look()\n]"]


def test_marks(policy: Policy) -> None:
    session = Session(policy, "48/2 = 24", tools=["calculator"], tool_format="marks")
    rows = iter(policy.renderer.encode_texts(["48/2 = <<48/2=", " So 24"]))
    ends = iter([(), (policy.eos_ids[0],)])
    session.engine.script = lambda request, i: (*next(rows), *next(ends))
    session.ask("48/2?")
    assert session.screen == "48/2 = <<48/2=24>> So 24"
    rows, ends = iter(policy.renderer.encode_texts(["48/2 = <<48/2=", " So 24"])), iter([(), (policy.eos_ids[0],)])
    show = session.show

    def impatient(piece: str) -> None:
        show(piece)
        if "S" in piece:
            raise KeyboardInterrupt

    session.show = impatient  # type: ignore[method-assign]
    assert session.ask("48/2?").text == "48/2 = <<48/2=24>> ", "what was shown is kept, results included"


@pytest.mark.sandbox
def test_python_runs_in_the_sandbox(policy: Policy) -> None:
    code = "import os\nprint(6 * 7, os.listdir('/root') if os.path.exists('/root') else 'no home')"
    session = Session(policy, call("python", code=code), "42", tools=["python"])
    session.ask("6*7?")
    assert session.screen.startswith("[→ python(code=…)\n    import os\n    print(")
    assert "[← 42 " in session.screen and ".ssh" not in session.screen


def test_a_call_in_words() -> None:
    assert call_text({"name": "f", "arguments": {"a": "x", "b": [1, None]}}) == 'f(a="x", b=[1, null])'
    assert call_text({"name": "f", "arguments": {"a": "x" * 3000}}).endswith("more characters))")
    assert call_text({"error": "bad"}) == "(a call that cannot be read)"


def test_from_the_command_line(outdo: Outdo) -> None:
    short = ("--max-completion-length", "8")
    done = outdo("chat", "tiny", "--tools", "calculator", "tool_format=marks", "-p", "1+1", *short)
    assert done.returncode == 0 and done.stdout, done.stderr
    for words, part in (
        (("--tools", "calculater"), "calculator"),
        (("--tools", "calculator,python"), "no place for them"),
        (("--tools", "calculator", "tools=python"), "set the same thing"),
        (("--tools", "missing.json"), "missing.json"),
        (("environment_factory=gess",), "guess"),
    ):
        done = outdo("chat", "tiny", "-p", "1+1", *words)
        assert done.returncode == 2 and part in done.stderr, done.stderr
