"""Whether problems that are held out are trained on after all: the same text, or nearly the same.

Texts are compared as lower-case words. Two are near where their 3-word runs have a Jaccard index of at least 0.8. A
text that is near a held-out one has at least one of the rarest fifth of its runs, so those are looked up, and few pairs
are compared.

Not covered: paraphrases, and translations. Problems that differ in one number can be near and are not the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from outdo.tasks.task import Task
from outdo.types import Prompt

NEAR = 0.8
RUN = 3  # words
MOST_ALIKE = 200  # training texts that are looked at for one run of words: of a template's there are thousands
_WORDS = re.compile(r"\w+")

Words = tuple[str, ...]
Runs = frozenset[int]


@dataclass(frozen=True)
class Overlap:
    """What was found. `examples` are a held-out text and the training text that it is like."""

    num_held_out: int
    num_trained: int
    exact: int
    near: int
    examples: tuple[tuple[str, str], ...] = ()

    def row(self) -> dict[str, Any]:
        return asdict(self)

    def words(self) -> str:
        """In a sentence, for a person."""
        if not self.num_held_out:
            return f"nothing is held out of {self.num_trained:,} prompts, so that success cannot be measured"
        if not self.exact + self.near:
            return f"none of {self.num_held_out:,} held-out prompts is among {self.num_trained:,} training prompts"
        held, trained = self.examples[0]
        pair = f"{held!r:.90}" if held == trained else f"{held!r:.90} and {trained!r:.90}"
        return (
            f"of {self.num_held_out:,} held-out prompts {self.exact:,} are also trained on and {self.near:,} more are "
            f"nearly the same as a training prompt; held-out success counts them. For example {pair}"
        )


def find_overlap(task: Task) -> Overlap | None:
    """Of a data set's test and training prompts, or of a mixture's data sets together; None for a task without end,
    which keeps them apart by itself."""
    tables = _tables(task)
    if not tables:
        return None
    held_out = [table.prompts("test", 0) for table in tables.values() if "test" in table.splits]
    trained = [table.prompts("train", 0) for table in tables.values()]
    return overlap(_texts(chain.from_iterable(held_out)), _texts(chain.from_iterable(trained)))


def _tables(task: Task) -> dict[str, Task]:
    """The data sets that it is, or that it has for parts, by name."""
    parts = {part.name: part.task for part in task.parts} or {"": task}
    return {name: each for name, each in parts.items() if each.finite}


def told(task: Task) -> list[str]:
    """The plan's lines on the data: how many prompts each split has, and what they share."""
    lines = []
    for name, table in _tables(task).items():
        sizes = [f"{len({prompt.id for prompt in table.prompts(split, 0)}):,} {split}" for split in table.splits]
        lines.append(f"data      {f'{name}: ' if name else ''}{', '.join(sizes)}")
    found = find_overlap(task)
    return [*lines, *([f"overlap   {found.words()}"] if found else [])]


def overlap(held_out: Sequence[str], trained: Sequence[str]) -> Overlap:
    """Which held-out texts are also trained on, each counted once."""
    words = {i: tuple(_WORDS.findall(text.lower())) for i, text in enumerate(trained)}
    place = {w: i for i, w in words.items()}
    tests = {i: tuple(_WORDS.findall(text.lower())) for i, text in enumerate(held_out)}
    exact = [(i, place[w]) for i, w in tests.items() if w in place]
    near = _near({i: w for i, w in tests.items() if w not in place}, words)
    examples = tuple((held_out[i], trained[j]) for i, j in [*exact, *near][:3])
    return Overlap(len(held_out), len(trained), len(exact), len(near), examples)


def _texts(prompts: Iterable[Prompt]) -> list[str]:
    """What each asks, once: rows with the same prompt are one problem."""
    return list(dict.fromkeys(_asked(prompt) for prompt in prompts))


def _asked(prompt: Prompt) -> str:
    return "\n".join(m["content"] for m in prompt.messages if m["role"] != "system") or prompt.text


def _near(tests: Mapping[int, Words], trains: Mapping[int, Words]) -> list[tuple[int, int]]:
    """For each test the first training text that is near, where there is one."""
    asked = {i: _runs(words) for i, words in tests.items()}
    known = frozenset().union(*asked.values())
    shared = {j: _runs(words) & known for j, words in trains.items()}
    often = Counter(run for found in shared.values() for run in found)
    rarest = {i: _rarest(runs, often) for i, runs in asked.items()}
    looked_up = frozenset(run for runs in rarest.values() for run in runs)
    index: dict[int, list[int]] = {}
    for j, found in shared.items():
        for run in found & looked_up:
            index.setdefault(run, []).append(j)
    pairs = []
    for i, runs in asked.items():
        alike = sorted({j for run in rarest[i] for j in index.get(run, ())[:MOST_ALIKE]})
        first = next((j for j in alike if _are_near(runs, _runs(trains[j]))), None)
        pairs += [(i, first)] if first is not None else []
    return pairs


def _are_near(one: Runs, other: Runs) -> bool:
    both = len(one & other)
    return both >= NEAR * (len(one) + len(other) - both)


def _runs(words: Words) -> Runs:
    return frozenset(map(hash, zip(*(words[i:] for i in range(RUN)), strict=False)))


def _rarest(runs: Runs, often: Counter[int]) -> list[int]:
    """As many of a text's runs as any text that is near must have one of."""
    count = len(runs) - math.ceil(NEAR * len(runs)) + 1 if runs else 0
    return sorted(runs, key=lambda run: (often[run], run))[:count]
