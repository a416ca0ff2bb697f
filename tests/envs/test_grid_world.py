"""The grid world: every map has a way, walls and doors hold, and only the goal is paid."""

from __future__ import annotations

import itertools
import random

import pytest

from outdo.envs.grid import Grid
from outdo.errors import TaskError
from outdo.tasks import grid
from outdo.tasks.task import find_task
from outdo.types import Prompt
from support.play import assistant, play

KINDS: tuple[dict[str, object], ...] = (
    {},
    {"door": True, "width": 6, "height": 4},
    {"view": 1, "moves_per_turn": 3, "slack": 1},
    {"walls": 0.0, "width": 3, "height": 2},
)
DOOR = "A.D\nK#G"


def world(text: str, max_moves: int = 9, **settings: object) -> Prompt:
    return Prompt("w", ({"role": "user", "content": text},), None, {"map": text, "max_moves": max_moves, **settings})


def some(count: int, split: str = "train", **args: object) -> list[Prompt]:
    return list(itertools.islice(find_task("grid", dict(args)).prompts(split, 3), count))


@pytest.mark.parametrize("args", KINDS)
def test_solution_is_paid_and_demonstrations_are_what_is_played(args: dict[str, object]) -> None:
    rng = random.Random(0)
    for prompt in some(200, **args):
        messages = grid.solution(prompt)
        assert play(Grid(), prompt, messages) == (messages, 1.0)
        moves = " ".join(message["content"] for message in messages if message["role"] == "assistant")
        assert moves == prompt.answer and len(moves.split()) <= prompt.meta["max_moves"]
        shown = grid.teacher(prompt, rng)
        conversation, reward = play(Grid(), prompt, shown)
        assert conversation == shown and reward in (0.0, 1.0)


def test_demonstrations_leave_room() -> None:
    rng = random.Random(1)
    wins = [play(Grid(), prompt, grid.teacher(prompt, rng))[1] for prompt in some(300, slack=1.5)]
    assert 0.15 < sum(filter(None, wins)) / len(wins) < 0.6


def test_shortest_way_is_shortest() -> None:
    """Against every walk of that length."""
    for prompt in some(20, width=3, height=3, door=True):
        first, length = grid.start(prompt), len(prompt.answer.split())
        for moves in itertools.product(grid.MOVES, repeat=min(length, 6) - 1):
            here = first
            for move in moves:
                here = grid.moved(here, move)
                assert not here.solved


def test_moves() -> None:
    conversation, reward = play(Grid(), world(DOOR), assistant("up", "RIGHT", "I go right.", "left", "Then: left"))
    seen = [message["content"] for message in conversation if message["role"] == "user"]
    assert seen == [
        f"up: blocked\n8 moves left\n{DOOR}",
        "7 moves left\n.AD\nK#G",
        "right: blocked\n6 moves left\n.AD\nK#G",
        f"5 moves left\n{DOOR}",
        f"left: blocked\n4 moves left\n{DOOR}",
    ]
    assert reward == 0.0


def test_a_door_needs_its_key() -> None:
    texts = assistant("down", "up", "right", "right", "down")
    conversation, reward = play(Grid(), world(DOOR, 5), texts)
    assert reward == 1.0 and conversation[1]["content"] == "you have the key\n4 moves left\n..D\nA#G"
    assert play(Grid(fewer=0.5), world(DOOR, 10), texts)[1] == pytest.approx(1.25)
    assert play(Grid(), world(DOOR, 4), texts[:4])[1] == 0.0


def test_view() -> None:
    prompt = world("....\n.A..\n....\n...G", view=1)
    seen = play(Grid(), prompt, assistant("down"))[0][1]["content"]
    assert seen == "8 moves left\n????\n...?\n.A.?\n...?"
    assert grid.shown(grid.start(prompt)) == "...?\n.A.?\n...?\n????"


def test_wrong_play_is_not_paid() -> None:
    every_way = " ".join(["right", "down", "up", "left"] * 50)
    for prompt in some(50):
        limit = prompt.meta["max_moves"]
        for text in ("", "G", every_way, "up down left right", "goal"):
            conversation, reward = play(Grid(), prompt, assistant(*[text] * limit))
            assert reward == 0.0 and "write one move" in conversation[1]["content"]
        if set(prompt.answer.split()) != {"up"}:
            assert play(Grid(), prompt, assistant(*["up"] * limit))[1] == 0.0


def test_several_moves_in_a_message() -> None:
    prompt = world("A..G", 9, moves_per_turn=3)
    assert play(Grid(), prompt, assistant("right, right, right"))[1] == 1.0
    assert play(Grid(), prompt, assistant("right right right right"))[0][1]["content"].startswith(
        "write one to 3 moves"
    )
    past = world("A.G.", 9, moves_per_turn=3)
    assert play(Grid(fewer=0.9), past, assistant("right right right"))[1] == pytest.approx(1 + 0.9 * 7 / 9)


def test_splits() -> None:
    train, test, larger = (
        {p.meta["map"] for p in some(n, split)} for n, split in ((500, "train"), (80, "test"), (9, "ood"))
    )
    assert not train & test and len(test) > 75
    assert all(len(rows) == 7 == len(rows[0]) for rows in (text.split("\n") for text in larger))


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"width": 1}, "width=1"),
        ({"walls": 0.9}, "walls=0.9"),
        ({"slack": 0.5}, "slack=0.5"),
        ({"moves_per_turn": 0}, "moves_per_turn=0"),
        ({"ask": "go"}, "contain {map}"),
        ({"height": 2, "width": 3, "walls": 0.6}, "is empty"),
    ],
)
def test_bad_arguments(args: dict[str, object], part: str) -> None:
    with pytest.raises(TaskError, match=part):
        find_task("grid", args)


@pytest.mark.parametrize("text", ["...G", "A.A", "AG\n.", "AGX", ""])
def test_bad_maps(text: str) -> None:
    with pytest.raises(TaskError, match="grid: "):
        Grid().reset(world(text))
