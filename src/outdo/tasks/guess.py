"""Number guessing: a secret number of a range, and after each guess whether it is higher or lower.

The rules are here, and a player of them; `envs/guess.py` plays them with a model. Ranges are held out, not secrets: a
model could learn which numbers of a range are never the secret in training. The out-of-distribution split has ranges
that are up to half as large again, and one more guess. Few of the demonstrations halve the range; most search it from
one of its ends, and repeat guesses that were wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt

HINTS = "higher: {low}-{high}", "lower: {low}-{high}"  # they repeat the range that is left
NO_GUESS = "write one number"
MAX_MISSES = 10_000  # problems in a row that belong to other splits, before this split is refused as empty
Strategy = Callable[["Game"], int]


@dataclass(frozen=True)
class Game:
    """A game in progress."""

    secret: int
    low: int  # the secret is one of low..high, by the hints so far
    high: int
    guesses: int  # that remain
    hints: tuple[str, str] = HINTS
    last: int | None = None  # guess
    solved: bool = False

    @property
    def done(self) -> bool:
        return self.solved or self.guesses < 1

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2


def prompts(
    split: str,
    seed: int,
    sizes: Sequence[int] = (16, 20),
    highest: int = 40,
    max_guesses: int = 5,
    ask: str = "{low}-{high}",
    hints: Sequence[str] = HINTS,
) -> Iterator[Prompt]:
    """Endless problems: as many numbers in a row as `sizes` has between its two, none above `highest`, and one of them
    as the secret.

    `ask` is the format of the question, and may contain {guesses}; `hints` are the formats of the two hints, with the
    range that is left or without.
    """
    is_pair = isinstance(sizes, Sequence) and len(sizes) == 2 and all(isinstance(size, int) for size in sizes)
    if not is_pair or not 2 <= sizes[0] <= sizes[1] <= highest or max_guesses < 1:
        raise TaskError(
            f"guess: sizes={sizes!r:.40} must be two numbers of 2 or more, such as [16, 20], highest={highest} not "
            f"less than they are, and max_guesses={max_guesses} 1 or more"
        )
    if "{low}" not in ask or "{high}" not in ask:
        raise TaskError(f"guess: ask={ask!r} must contain {{low}} and {{high}}")
    if isinstance(hints, str) or len(hints) != 2 or hints[0] == hints[1] or not all(isinstance(h, str) for h in hints):
        raise TaskError(f"guess: hints={hints!r:.80} must be two texts that differ, the first for `higher`")
    smallest, largest = sizes
    if split == "ood":
        smallest, largest, highest, max_guesses = largest + 1, largest * 3 // 2, highest * 3 // 2, max_guesses + 1
    rng = random.Random(seed_of("guess", split, seed))
    missed = 0
    while missed < MAX_MISSES:
        size, missed = rng.randint(smallest, largest), missed + 1
        low = rng.randint(1, highest - size + 1)
        high = low + size - 1
        secret = rng.randint(low, high)
        if belongs((low, high), split):
            missed = 0
            text = _filled(ask, low, high).replace("{guesses}", str(max_guesses))
            meta = {"low": low, "high": high, "max_guesses": max_guesses, "hints": tuple(hints)}
            yield Prompt(f"{low}-{high}:{secret}", ({"role": "user", "content": text},), str(secret), meta)
    raise TaskError(f"guess: too few numbers up to {highest}: split {split!r} is empty; raise highest")


def start(prompt: Prompt) -> Game:
    """The game of a prompt. Raises TaskError where it lacks a column."""
    meta = prompt.meta
    try:
        higher, lower = meta.get("hints") or HINTS
        low, high, guesses = (int(meta[name]) for name in ("low", "high", "max_guesses"))
        game = Game(int(prompt.answer), low, high, guesses, (str(higher), str(lower)))
    except (KeyError, TypeError, ValueError):
        raise TaskError(
            "guess: a prompt needs the columns low, high and max_guesses, and the secret number as its answer; prompt "
            f"{prompt.id!r:.60} has {', '.join(meta) or 'none'}, and the answer {prompt.answer!r:.40}"
        ) from None
    if not game.low <= game.secret <= game.high:
        raise TaskError(f"guess: the secret of prompt {prompt.id!r:.60} is not one of {game.low} to {game.high}")
    return game


def after(game: Game, guess: int | None) -> tuple[Game, str]:
    """The game after a guess, and what the player is shown: nothing once it is over. None is a message without a
    guess: it costs one."""
    game = replace(game, guesses=game.guesses - 1, last=guess)
    if guess is None:
        shown = NO_GUESS
    elif guess == game.secret:
        game, shown = replace(game, solved=True), ""
    elif guess < game.secret:
        game, shown = replace(game, low=max(game.low, guess + 1)), game.hints[0]
    else:
        game, shown = replace(game, high=min(game.high, guess - 1)), game.hints[1]
    return game, "" if game.done else _filled(shown, game.low, game.high)


def _filled(text: str, low: int, high: int) -> str:
    return text.replace("{low}", str(low)).replace("{high}", str(high))


def played(prompt: Prompt, strategy: Strategy) -> list[Message]:
    """The conversation of a player."""
    game, messages = start(prompt), list[Message]()
    while not game.done:
        guess = strategy(game)
        messages.append({"role": "assistant", "content": str(guess)})
        game, hint = after(game, guess)
        if hint:
            messages.append({"role": "user", "content": hint})
    return messages


def solution(prompt: Prompt) -> list[Message]:
    """Halves the range with every guess."""
    return played(prompt, lambda game: game.middle)


def teacher(prompt: Prompt, rng: random.Random, careful: float = 0.22, repeats: float = 0.95) -> list[Message]:
    """A demonstration: with probability `careful` the range is halved with every guess. Else it is searched from one of
    its ends, and with probability `repeats` the last guess is made again."""
    if rng.random() < careful:
        return solution(prompt)
    upwards = rng.random() < 0.5

    def guess(game: Game) -> int:
        if game.last is not None and rng.random() < repeats:
            return game.last
        return game.low if upwards else game.high

    return played(prompt, guess)
