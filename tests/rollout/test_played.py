"""The signals of answers of several turns, from answers written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from outdo.metrics.measure import Clock, measure
from outdo.metrics.played import gold_of, measure_played, moves_of
from outdo.types import Episode, Finish, Grade, Group, Message, Segment, Trajectory
from support.basics import prompt_of

Turns = list[tuple[Any, ...]]


def said(*turns: tuple[Any, ...]) -> list[Message]:
    """A conversation: ("text",) or ("text", "reply"), or (tool, arguments, "result") with several such in a row."""
    messages: list[Message] = []
    for turn in turns:
        if len(turn) % 3:
            messages.append({"role": "assistant", "content": turn[0]})
            messages += [{"role": "user", "content": reply} for reply in turn[1:]]
            continue
        calls = [turn[i : i + 3] for i in range(0, len(turn), 3)]
        made = [{"name": name, "arguments": {"x": given}} for name, given, _ in calls]
        messages.append({"role": "assistant", "content": "", "tool_calls": made})
        messages += [{"role": "tool", "name": name, "content": result} for name, _, result in calls]
    return messages


def answer(*turns: tuple[Any, ...], reward: float = 0.0, finish: Finish = "stop", **episode: Any) -> Any:
    messages = said(*turns)
    text = next((str(one["content"]) for one in reversed(messages) if one["role"] == "assistant"), "")
    calls = sum(len(one.get("tool_calls", ())) for one in messages)
    fields = {"num_turns": len(turns), "num_calls": calls, "num_tools": 1, **episode}
    grade = Grade(None, "broken") if episode.get("broken") else Grade(reward, "right" if reward >= 1 else "wrong")
    segment = Segment((1, 2), (-0.1, -0.2))
    return Trajectory((segment,), text, finish, episode=Episode(tuple(messages), **fields)), grade


def group(gold: Any, *answers: Any) -> Group:
    return Group(prompt_of(f"is {gold}", gold), (1,), tuple(one for one, _ in answers), tuple(g for _, g in answers))


def of(*answers: Any) -> dict[str, float | None]:
    return measure_played([group("7", *answers)])


ADD, WALL = ("add", 1, "ok"), ("move", "left", "a wall")


def test_moves() -> None:
    moves = list(moves_of(said(("add", 1, "2", "add", 2, "4"), ("say more", "why?"), ("done",))))
    assert [(one.name, one.reply) for one in moves] == [("add", "2"), ("add", "4"), ("", "why?")]
    unread = [
        {"role": "assistant", "content": "", "tool_calls": [{"error": "not JSON"}]},
        {"role": "tool", "content": "?"},
    ]
    assert [*moves_of(unread), *moves_of(unread[:1])] == [("None", "not JSON", "?")]


def test_one_turn_has_none() -> None:
    plain = Trajectory.single((1,), (-0.1,), "7", "stop", 0)
    assert measure_played([Group(prompt_of("a"), (1,), (plain,), (Grade(1.0, "right"),))]) == {}


def test_games_have_no_tool_signals() -> None:
    row = of(answer(("5", "higher"), ("6",), num_tools=0))
    assert row["turns_mean"] == 2 and not [name for name in row if name.startswith("tool")]


def test_use_and_failures() -> None:
    bad = {"num_failed_calls": 1, "failures": {"arguments": 1}}
    row = of(
        answer(ADD, ADD, ("7",), **bad), answer(("7",)), answer(("7",)), answer(("add", 3, "late", "add", 4, "ok"))
    )
    assert (row["tool_users"], row["tool_calls_mean"], row["tool_calls_failed"]) == (0.5, 1.0, 0.25)
    assert row["tool_calls_failed/arguments"] == 0.25 and row["tool_calls_failed/timeout"] == 0
    unknown = of(answer(ADD, num_failed_calls=1))  # of an environment that does not say why
    assert unknown["tool_calls_failed"] == 1 and "tool_calls_failed/raised" not in unknown
    agent = of(answer(ADD, num_failed_calls=None))
    assert agent["tool_calls_failed"] is None and agent["tool_users"] == 1


def test_advantage_is_within_groups() -> None:
    """Callers are paid more in each group, though callers of all groups together are paid less."""
    easy = group("1", answer(("1",), reward=0.8), answer(("1",), reward=0.8), answer(ADD, ("1",), reward=1.0))
    hard = group("2", answer(("2",), reward=0.0), answer(ADD, ("2",), reward=0.2), answer(ADD, ("2",), reward=0.2))
    alone = group("3", answer(ADD, ("3",), reward=0.0))
    assert measure_played([easy, hard, alone])["tool_advantage"] == pytest.approx(0.2)
    assert measure_played([alone])["tool_advantage"] is None


def test_loops() -> None:
    stuck, steps = [WALL] * 4, [("move", "left", f"at {i}") for i in range(4)]
    row = of(answer(*stuck, finish="length"), answer(*steps, finish="length"), answer(*stuck), answer(*steps[:2]))
    assert row["looping"] == 0.25  # the third ended by itself
    assert row["repeats"] == pytest.approx(6 / 14)
    again = [("5", "higher")] * 3
    assert of(answer(*again, num_tools=0, out_of_turns=True))["looping"] == 1
    assert of(answer(WALL, WALL, *steps, finish="length"))["looping"] == 0  # one repeat of six


def test_out_of_turns_is_not_truncated() -> None:
    answers = (answer(WALL, finish="length", out_of_turns=True), answer(WALL, finish="length"), answer(WALL))
    row = measure([group("7", *answers)], [], {}, Clock())
    assert row["truncated"] == row["out_of_turns"] == pytest.approx(1 / 3)


def test_broken() -> None:
    row = of(answer(broken="the environment failed"), answer(("7",)))
    assert row["env_broken"] == 0.5 and row["turns_mean"] == 0.5


def test_copies() -> None:
    passage = "The tower was finished in 1889 and stands in Paris."
    cases = [
        ("1889", passage),
        (passage, passage),
        (f"It says: {passage}", passage),
        ("24", "24"),
        ("The sum is 24", "24"),
    ]
    copied = [of(answer(("find", 1, result), (text,)))["copied"] for text, result in cases]
    assert copied == [0, 1, 1, 1, 0]
    assert of(answer(("find", 1, "24"), (f"<think>{'so ' * 50}</think>24",)))["copied"] == 1
    assert of(answer((passage,)))["copied"] is None


def given(*answers: tuple[str, str, str]) -> float | None:
    """Of right answers (gold, arguments, result)."""
    rows = [group(gold, answer(("tell", said_, result), (gold,), reward=1.0)) for gold, said_, result in answers]
    return measure_played(rows)["given_away"]


def test_given_away() -> None:
    assert given(("7", "", "7"), ("8", "", " 8\n"), ("9", "", "9")) == 1  # whatever is asked
    assert given(("7", "3+4", "7"), ("8", "4+4", "8"), ("9", "4+5", "9")) == 0  # a calculator
    assert given(("7", "board", "it is 7"), ("8", "board", "it is 8")) == 0  # it must be read
    assert given(("7", "3+4", "7"), ("7", "3+4", "7")) is None  # one gold
    assert given(("7", "", "7"), ("8", "", "8"), ("9", "4+5", "9")) == pytest.approx(2 / 3)
    wrong = group("9", answer(("tell", "", "9"), ("9",)))
    assert measure_played([wrong, group("8", answer(("tell", "", "8"), ("8",)))])["given_away"] is None


def test_gold() -> None:
    golds = [gold_of(group(one)) for one in ("#### 24", 24, 24.0, 0.5, True, {"x": 1}, "x" * 300, None)]
    assert golds == ["24", "24", "24", "0.5", "", "", "", ""]
