"""Contamination: held-out problems that also occur in the training data, exactly or nearly.

Texts are compared as lower-case words. Two are near-duplicates if the Jaccard index of their 3-grams is at least 0.8.
A near-duplicate shares at least one of the rarest fifth of the held-out text's 3-grams: only those are looked up.

Not covered: paraphrases and translations. Problems that differ in one number may count as near-duplicates.
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

MIN_JACCARD = 0.8
NGRAM = 3  # words
MAX_CANDIDATES = 200  # training texts compared for one 3-gram: thousands may share one of a template
_WORDS = re.compile(r"\w+")

Words = tuple[str, ...]
Ngrams = frozenset[int]


@dataclass(frozen=True)
class Overlap:
    """How many held-out texts are also in the training data. `examples` are pairs of held-out and training text."""

    num_held_out: int
    num_trained: int
    exact: int
    near: int
    examples: tuple[tuple[str, str], ...] = ()

    def row(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        if not self.num_held_out:
            return f"none of {self.num_trained:,} prompts is held out, so held-out success cannot be measured"
        if not self.exact + self.near:
            return f"none of {self.num_held_out:,} held-out prompts is among {self.num_trained:,} training prompts"
        held, trained = self.examples[0]
        pair = f"{held!r:.90}" if held == trained else f"{held!r:.90} and {trained!r:.90}"
        return (
            f"of {self.num_held_out:,} held-out prompts {self.exact:,} are also trained on and {self.near:,} more are "
            f"near-duplicates of a training prompt; held-out success includes them. For example {pair}"
        )


def find_overlap(task: Task) -> Overlap | None:
    """Overlap of the test and training prompts of a data set, or of all data sets of a mixture; None for a generator,
    whose splits are disjoint by construction."""
    data_sets = _data_sets(task)
    if not data_sets:
        return None
    held_out = [data.prompts("test", 0) for data in data_sets.values() if "test" in data.splits]
    trained = [data.prompts("train", 0) for data in data_sets.values()]
    return compare_texts(_texts(chain.from_iterable(held_out)), _texts(chain.from_iterable(trained)))


def _data_sets(task: Task) -> dict[str, Task]:
    """The task itself, or the parts of a mixture by name, that are data sets."""
    parts = {part.name: part.task for part in task.parts} or {"": task}
    return {name: each for name, each in parts.items() if each.finite}


def describe_data(task: Task) -> list[str]:
    """Lines of the plan: how many prompts each split has, and their overlap."""
    lines = []
    for name, data in _data_sets(task).items():
        sizes = [f"{len({prompt.id for prompt in data.prompts(split, 0)}):,} {split}" for split in data.splits]
        lines.append(f"data      {f'{name}: ' if name else ''}{', '.join(sizes)}")
    overlap = find_overlap(task)
    return [*lines, *([f"overlap   {overlap.describe()}"] if overlap else [])]


def compare_texts(held_out: Sequence[str], trained: Sequence[str]) -> Overlap:
    """Which held-out texts are also trained on, each counted once."""
    train_words = {i: tuple(_WORDS.findall(text.lower())) for i, text in enumerate(trained)}
    index_of = {words: i for i, words in train_words.items()}
    test_words = {i: tuple(_WORDS.findall(text.lower())) for i, text in enumerate(held_out)}
    exact = [(i, index_of[words]) for i, words in test_words.items() if words in index_of]
    near = _near_duplicates({i: words for i, words in test_words.items() if words not in index_of}, train_words)
    examples = tuple((held_out[i], trained[j]) for i, j in [*exact, *near][:3])
    return Overlap(len(held_out), len(trained), len(exact), len(near), examples)


def _texts(prompts: Iterable[Prompt]) -> list[str]:
    """The distinct questions: rows with the same prompt are one problem."""
    questions = ("\n".join(m["content"] for m in p.messages if m["role"] != "system") or p.text for p in prompts)
    return list(dict.fromkeys(questions))


def _near_duplicates(tests: Mapping[int, Words], trains: Mapping[int, Words]) -> list[tuple[int, int]]:
    """Each test text that has a near-duplicate in training, with the first of those."""
    test_ngrams = {i: _ngrams(words) for i, words in tests.items()}
    all_ngrams = frozenset().union(*test_ngrams.values())
    shared = {j: _ngrams(words) & all_ngrams for j, words in trains.items()}
    frequency = Counter(ngram for ngrams in shared.values() for ngram in ngrams)
    rarest = {i: _rarest(ngrams, frequency) for i, ngrams in test_ngrams.items()}
    indexed = frozenset(ngram for ngrams in rarest.values() for ngram in ngrams)
    index: dict[int, list[int]] = {}
    for j, ngrams in shared.items():
        for ngram in ngrams & indexed:
            index.setdefault(ngram, []).append(j)
    pairs = []
    for i, ngrams in test_ngrams.items():
        candidates = sorted({j for ngram in rarest[i] for j in index.get(ngram, ())[:MAX_CANDIDATES]})
        first = next((j for j in candidates if _are_near(ngrams, _ngrams(trains[j]))), None)
        pairs += [(i, first)] if first is not None else []
    return pairs


def _are_near(one: Ngrams, other: Ngrams) -> bool:
    both = len(one & other)
    return both >= MIN_JACCARD * (len(one) + len(other) - both)


def _ngrams(words: Words) -> Ngrams:
    return frozenset(map(hash, zip(*(words[i:] for i in range(NGRAM)), strict=False)))


def _rarest(ngrams: Ngrams, frequency: Counter[int]) -> list[int]:
    """The rarest of a text's n-grams, as many as make sure that every near-duplicate has one of them."""
    count = len(ngrams) - math.ceil(MIN_JACCARD * len(ngrams)) + 1 if ngrams else 0
    return sorted(ngrams, key=lambda ngram: (frequency[ngram], ngram))[:count]
