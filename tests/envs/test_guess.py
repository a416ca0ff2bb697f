"""The guessing game: what is a guess, what is paid, and how often careless players win."""

from __future__ import annotations

import itertools
import random

import pytest

from outdo.envs.guess import Guess, number_in
from outdo.errors import TaskError
from outdo.tasks import guess
from outdo.tasks.task import TASKS, find_task, held_out
from outdo.types import Prompt
from support.play import assistant, play

GAME = Prompt("g", ({"role": "user", "content": "1-20"},), "14", {"low": 1, "high": 20, "max_guesses": 5})


def some(count: int, split: str = "train", **args: object) -> list[Prompt]:
    return list(itertools.islice(find_task("guess", dict(args)).prompts(split, 3), count))


def test_solution_is_paid_and_demonstrations_are_what_is_played() -> None:
    rng = random.Random(0)
    for prompt in (*some(200), *some(100, "ood"), *some(50, hints=["up", "down"], sizes=[5, 7], max_guesses=3)):
        messages = guess.solution(prompt)
        assert play(Guess(), prompt, messages) == (messages, 1.0)
        shown = guess.teacher(prompt, rng)
        assert play(Guess(), prompt, shown) == (shown, float(shown[-1]["content"] == prompt.answer))


def test_room_to_learn() -> None:
    """A model that imitates the teacher wins less than 30% of the games; one that halves the range, all."""
    for size, guesses in ((20, 5), (31, 5), (63, 6)):
        games = [Prompt("", (), str(n), {"low": 1, "high": size, "max_guesses": guesses}) for n in range(1, size + 1)]
        assert all(guess.solution(game)[-1]["content"] == game.answer for game in games)
    careful, repeats, guesses = 0.22, 0.95, 5
    tried = 1 + (guesses - 1) * (1 - repeats)  # different numbers by a careless player, on average
    exact = sum(careful + (1 - careful) * tried / size for size in range(16, 21)) / 5
    assert exact == pytest.approx(0.2724, abs=1e-4)
    rng = random.Random(1)
    wins = [guess.teacher(prompt, rng)[-1]["content"] == prompt.answer for prompt in some(6000)]
    assert abs(sum(wins) / len(wins) - exact) < 0.02


def test_hints() -> None:
    conversation, reward = play(Guess(), GAME, assistant("5", "no idea", "18", "99", "<think>5 or 7?</think>14"))
    seen = [message["content"] for message in conversation if message["role"] == "user"]
    assert seen == ["higher: 6-20", "write one number", "lower: 6-17", "lower: 6-17"] and reward == 1.0


def test_wrong_play_is_not_paid() -> None:
    for texts in (["5"] * 5, [""] * 5, ["20", "19", "18", "17", "16"], ["-14"] * 5, ["13.9"] * 5):
        assert play(Guess(), GAME, assistant(*texts))[1] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        " ".join(map(str, range(1, 21))),
        ",".join(map(str, range(1, 21))),
        "13 or 14",
        "12-16",
        "\\boxed{13} \\boxed{14}",
        "<answer>13</answer><answer>14</answer>",
        "1" * 5000,
        "١٤",
        "<think>14",
        "14" + " " * 20_000,
    ],
)
def test_several_numbers_are_no_guess(text: str) -> None:
    game = Guess()
    game.reset(GAME)
    assert game.step(assistant(text)[0]).messages == [{"role": "user", "content": guess.NO_GUESS}]
    assert play(Guess(), GAME, assistant(*[text] * 5))[1] == 0.0


def test_one_number_in_words_is_a_guess() -> None:
    assert number_in("I say 14!") == number_in("14.") == number_in("+14") == 14
    for text in (
        "So 14",
        "<think>1 to 20: 10</think>It is 14.",
        "Between 1 and 20: <answer>14</answer>",
        "\\boxed{14}",
    ):
        assert play(Guess(), GAME, assistant(text))[1] == 1.0


def test_replies_depend_on_the_guesses_alone() -> None:
    """Two games that differ in a secret that no guess told apart cannot be told apart."""
    other = Prompt("h", GAME.messages, "12", GAME.meta)
    texts = assistant("9", "17", "x", "15")
    played = [play(Guess(), prompt, [*texts, *assistant("1")]) for prompt in (GAME, other)]
    assert played[0] == played[1]


def test_partial_rewards() -> None:
    narrowed = play(Guess(partial=0.5), GAME, assistant("10", "10", "10", "10", "10"))[1]
    assert narrowed == pytest.approx(0.5 * (1 - 2.302585 / 2.995732), abs=1e-5)  # 10 of 20 numbers are left
    assert play(Guess(partial=0.5), GAME, assistant(*["x"] * 5))[1] == 0.0
    all_but = play(Guess(partial=0.9), GAME, assistant("13", "15", "1", "1", "1"))[1]
    assert all_but == pytest.approx(0.9)
    assert play(Guess(fewer=0.5), GAME, assistant("14"))[1] == pytest.approx(1.4)
    assert play(Guess(fewer=0.5), GAME, assistant("1", "2", "3", "4", "14"))[1] == 1.0


def test_splits() -> None:
    """Ranges are held out, with all of their secrets: none of those is known to be no secret."""
    test = {(p.meta["low"], p.meta["high"], p.answer) for p in held_out(TASKS["guess"], "test", 400)}
    ranges = {(low, high) for low, high, _ in test}
    assert not ranges & {(p.meta["low"], p.meta["high"]) for p in some(20_000)}
    assert len(ranges) >= 8 and len(test) == sum(high - low + 1 for low, high in ranges)
    assert all(20 <= p.meta["high"] - p.meta["low"] <= 29 and p.meta["max_guesses"] == 6 for p in some(20, "ood"))


def test_one_range_is_too_few() -> None:
    """It belongs to training or to the test."""
    task = TASKS["guess"].with_args({"sizes": [20, 20], "highest": 20})
    with pytest.raises(TaskError, match="is empty; raise highest"):
        for split in ("train", "test"):
            next(task.prompts(split, 0))


def test_the_question() -> None:
    (prompt,) = some(1, ask="Guess my number from {low} to {high}. You have {guesses} guesses.")
    low, high = prompt.meta["low"], prompt.meta["high"]
    assert prompt.text == f"Guess my number from {low} to {high}. You have 5 guesses."


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"sizes": [1, 5]}, "sizes="),
        ({"sizes": 20}, "sizes=20"),
        ({"sizes": [30, 50]}, "highest=40"),
        ({"sizes": [9, 8]}, "sizes="),
        ({"max_guesses": 0}, "max_guesses=0"),
        ({"ask": "guess"}, "must contain {low}"),
        ({"hints": ["x", "x"]}, "two texts that differ"),
        ({"hints": "ab"}, "two texts"),
        ({"size": 3}, "sizes"),
    ],
)
def test_bad_arguments(args: dict[str, object], part: str) -> None:
    with pytest.raises(TaskError, match=part):
        find_task("guess", args)


@pytest.mark.parametrize("args", [{"partial": 1}, {"partial": -0.1}, {"fewer": True}, {"fewer": "x"}])
def test_bad_environment_arguments(args: dict[str, object]) -> None:
    with pytest.raises(TaskError, match=f"environment_args.{next(iter(args))}"):
        Guess(**args)  # type: ignore[arg-type]


@pytest.mark.parametrize(("answer", "meta"), [("14", {}), ("x", GAME.meta), (None, GAME.meta), ("21", GAME.meta)])
def test_a_prompt_of_another_kind(answer: str | None, meta: dict[str, object]) -> None:
    with pytest.raises(TaskError, match="guess: "):
        Guess().reset(Prompt("p", GAME.messages, answer, meta))
