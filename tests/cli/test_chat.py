"""`outdo chat`: what reaches the terminal, answers as they are generated, the context, and a session in a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outdo.cli import chat as cli
from outdo.errors import RecipeError, TaskError
from outdo.models.load import Policy, load_policy, save_policy
from outdo.rollout.chat import Conversation
from outdo.rollout.follower import Typist
from outdo.types import Message, SampleParams
from outdo.untrusted.terminal import printable

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
SHORT = SampleParams(12, 1.0)


def said(text: str) -> tuple[Message, ...]:
    """As a conversation keeps an answer of one turn."""
    return ({"role": "assistant", "content": text},)


def test_printable() -> None:
    evil = "\x1b[2J\x1b]0;title\x07 \x9b31m \r over \x08 \x7f \u202etxt.exe\u2066"
    shown = printable(evil)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066" for c in shown)
    assert shown.startswith("␛[2J␛]0;title␇") and "<U+009B>31m" in shown and "<U+202E>txt.exe" in shown
    kind = "a\tb\nnaïve 数学 👩‍👩‍👧 می‌خواهم"
    assert printable(kind) == kind


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, as byte-level tokenizers fall back to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<end>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def test_incomplete_character_is_held_back() -> None:
    tokenizer = byte_tokenizer()
    text = "é 😀!"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    pieces: list[str] = []
    typist = Typist(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), pieces.append)
    for count in range(1, len(ids) + 1):
        typist(ids[:count])
    assert pieces == ["é", " ", "😀", "!"]
    typist([*ids, *ids[:1]])  # half a character
    assert "".join(pieces) == text
    typist([*ids, *ids[:1], tokenizer.eos_token_id], done=True)
    assert "".join(pieces) == text + "\ufffd"


@pytest.mark.parametrize("plain", [False, True])
def test_streamed_answer(policy: Policy, plain: bool) -> None:
    if plain:
        policy.model.set_attn_implementation("eager")
        policy = replace(policy, plain=True)
    pieces: list[str] = []
    talk = Conversation(policy, SHORT, seed=5)
    reply = talk.ask("12+30", pieces.append)
    assert len(pieces) > 3 and "".join(pieces) == reply.text and talk.turns == [("12+30", said(reply.text))]
    again, other = Conversation(policy, SHORT, seed=5), Conversation(policy, SHORT, seed=6)
    texts = [one.ask("12+30", pieces.append).text for one in (again, other)]
    assert texts[0] == reply.text != texts[1]
    assert talk.ask("12+30", pieces.append).text != reply.text  # the second turn sees the first, and has its own seed


def test_earlier_turns_in_prompt(policy: Policy) -> None:
    talk = Conversation(policy, replace(SHORT, temperature=0.0), system="Be brief")
    reply = talk.ask("one", lambda piece: None)
    prompt, _ = talk._fit_context("two")
    roles = [(m["role"], m["content"]) for m in prompt.messages]
    assert roles == [("system", "Be brief"), ("user", "one"), ("assistant", reply.text), ("user", "two")]
    talk.reset()
    assert [m["content"] for m in talk._fit_context("two")[0].messages] == ["Be brief", "two"]


def test_full_context_drops_oldest_turns(policy: Policy) -> None:
    talk = Conversation(policy, SHORT)
    talk.turns = [("a" * 150, said("b")), ("c" * 150, said("d")), ("e" * 150, said("f"))]
    reply = talk.ask("g" * 100, lambda piece: None)  # 512 in all, 12 for the answer
    assert reply.forgotten == 1 and [text[0] for text, _ in talk.turns] == ["c", "e", "g"]
    before = list(talk.turns)
    with pytest.raises(TaskError, match=r"60\d tokens, and 500 fit"):
        talk.ask("h" * 600, lambda piece: None)
    assert talk.turns == before and talk.ask("i", lambda piece: None).forgotten == 0


def test_interrupt_keeps_partial_answer(policy: Policy) -> None:
    seen: list[str] = []

    def impatient(piece: str) -> None:
        seen.append(piece)
        if len(seen) == 3:
            raise KeyboardInterrupt

    talk = Conversation(policy, SHORT, seed=5)
    reply = talk.ask("12+30", impatient)
    assert reply.finish == "interrupted" and len(talk.turns) == 1
    whole = Conversation(policy, SHORT, seed=5).ask("12+30", lambda piece: None).text
    assert whole.startswith(reply.text) and 0 < len(reply.text) < len(whole)
    assert talk.ask("go on", lambda piece: None).finish in ("stop", "length")


def test_one_answer_in_a_pipe(outdo: Outdo, tmp_path: Path) -> None:
    save_policy(load_policy("tiny", device="cpu", seed=1), tmp_path / "m")
    tokenizer = tmp_path / "m" / "tokenizer.json"
    done = outdo("chat", "m", "-p", "12+30", "--temperature", "0", "--max-completion-length", "5")
    assert done.returncode == 0 and len(done.stdout.rstrip("\n")) == 5 and "cut at 5 tokens" in done.stderr
    favourite = done.stdout[0]
    tokenizer.write_text(tokenizer.read_text().replace(f'"{favourite}":', '"\\u001b[2J\\u0007":'))
    done = outdo("chat", "m", "-p", "12+30", "--temperature", "0", "--max-completion-length", "5")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout and "␛[2J␇" in done.stdout
    for words in (("m", "-p", " "), ("nowhere/at/all", "-p", "x"), ("m", "-p", "x", "--top-p", "0")):
        done = outdo("chat", *words)
        assert done.returncode == 2 and not done.stdout and "Traceback" not in done.stderr, words
    done = outdo("chat", "m", "-p", "x" * 600)
    assert done.returncode == 2 and "fit beside an answer" in done.stderr


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """What is typed: a line for each `input`, or what it raises."""
    waiting: Iterator[str | type[BaseException]] = iter(lines)

    def typed(prompt: str = "") -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(cli, "_has_input", lambda: False)


def test_commands_and_exits(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation(policy, SHORT)
    type_lines(monkeypatch, "one", "two \\", "lines", "/nonsense", "", KeyboardInterrupt, "/etc/passwd ?", "/quit")
    cli._converse(talk, "m")
    assert [turn[0] for turn in talk.turns] == ["one", "two \nlines", "/etc/passwd ?"]
    shown = capsys.readouterr().out
    assert "/nonsense is not a command" in shown and "Ctrl-C again or Ctrl-D exits" in shown
    type_lines(monkeypatch, "/reset", KeyboardInterrupt, KeyboardInterrupt, "never read")
    cli._converse(talk, "m")
    assert talk.turns == []
    policy.renderer.tokenizer.chat_template = None
    type_lines(monkeypatch, "x" * 600, EOFError)
    cli._converse(talk, "m")
    shown = capsys.readouterr().out
    assert shown.count("no chat template") == 1 and "shorten it" in shown


@pytest.mark.slow
def test_terminal_session(tmp_path: Path) -> None:
    save_policy(load_policy("tiny", device="cpu", seed=1), tmp_path / "m")
    here, there = pty.openpty()
    words = [sys.executable, "-m", "outdo", "chat", "m", "--temperature", "0", "--max-completion-length", "250"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdin=there, stdout=there, stderr=there, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509 its controlling terminal
    )  # fmt: skip
    os.close(there)
    screen = ""

    def until(text: str, seconds: float = 60.0) -> None:
        nonlocal screen
        end = time.monotonic() + seconds
        while text not in screen:
            assert select.select([here], [], [], max(0.0, end - time.monotonic()))[0], f"no {text!r} in {screen!r}"
            screen += os.read(here, 4096).decode(errors="replace")
        screen = screen.partition(text)[2]

    try:
        until("> ")
        os.write(here, b"first line\nsecond line\n")  # pasted at once: one message, one answer
        until("second line")
        until("allows more)")
        os.write(here, b"again\n")
        until("again")
        time.sleep(0.1)
        os.write(here, b"\x03")
        until("(stopped)")
        os.write(here, b"/reset\n")
        until("(conversation cleared)")
        until("> ")  # typed before it, an end of input would be the old mode's, and lost
        os.write(here, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(here)


def test_bad_options_refused(outdo: Outdo, tmp_path: Path) -> None:
    for words, part in (
        (("-p", ""), "the prompt is empty"),
        (("-p", "hi", "--top-p", "0"), "top_p=0.0: it must be more than 0 and at most 1"),
        (("-p", "hi", "--device", "gpu"), "device=gpu: no such device"),
    ):
        done = outdo("chat", "tiny", *words)
        assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(("given", "part"), [(None, "standard input is closed"), (b"\xff\xfe\x80", "not valid UTF-8")])
def test_bad_standard_input(given: bytes | None, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for errors in ("strict", "surrogateescape"):  # the second where the locale is C
        file = None if given is None else io.TextIOWrapper(io.BytesIO(given), "utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(RecipeError, match=part):
            cli._single_prompt(None)
        monkeypatch.undo()


def test_invalid_bytes_in_a_message(policy: Policy) -> None:
    assert Conversation(policy, SHORT).ask("1\udcff2", lambda piece: None).finish in ("stop", "length")
