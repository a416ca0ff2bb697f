"""What training cost elsewhere: texts that the base model finds likely, scored under it and under what became of it.

A text is either the user's, or one that the base itself writes to everyday questions. On its own texts, sampled at
temperature 1, the mean loss in log-probability is an estimate of KL(base || model) per token: 0 where nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outdo.evals.estimate import Difference, ratio_difference
from outdo.types import Prompt

_QUESTIONS = (
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Tell me a short story about a lighthouse.",
    "What is the difference between weather and climate?",
    "Write a polite letter that asks for a refund.",
    "Name three rivers in Europe and say where they end.",
    "How does a bicycle stay upright?",
    "Explain what a loop is to someone who has never programmed.",
    "What should I pack for a week in the mountains?",
    "Describe the taste of an orange.",
    "Who was Marie Curie?",
    "Give me some advice on learning a language.",
    "Write a poem about rain.",
    "How do vaccines work?",
    "What makes bread rise?",
    "Summarise the plot of Romeo and Juliet.",
    "Is it better to read in the morning or at night?",
    "Translate 'good morning, my friend' into French and Spanish.",
    "What happens when water freezes?",
    "Write a Python function that reverses a string.",
    "How can I sleep better?",
    "What is a prime number?",
    "Describe a market on a busy day.",
    "Why do leaves change colour in autumn?",
    "How do I say no to a friend kindly?",
    "What are the rules of chess, in brief?",
    "Tell me something surprising about the ocean.",
    "How is cheese made?",
    "What is inflation?",
    "Plan a birthday party for a child of six.",
    "Explain how a mirror works.",
    "What would you ask an astronaut?",
)
QUESTIONS = tuple(Prompt(f"q{i}", ({"role": "user", "content": text},)) for i, text in enumerate(_QUESTIONS))
TOKENS = 128  # of the base's answer to each
WINDOW = 1024  # tokens of a user's text that are seen at once, at most


@dataclass(frozen=True)
class Retention:
    """One model on the texts. `change` is in nats a token: its log-probability less the base's, below 0 for a loss."""

    model: str
    base: str
    texts: int
    tokens: int
    perplexity: float
    base_perplexity: float
    change: Difference

    def row(self) -> dict[str, float | int | str | None]:
        ends = {"change_low": self.change.low, "change_high": self.change.high}
        return {
            "model": self.model,
            "base": self.base,
            "texts": self.texts,
            "tokens": self.tokens,
            "perplexity": round(self.perplexity, 6),
            "base_perplexity": round(self.base_perplexity, 6),
            "change": round(self.change.value, 6),
            **{key: round(value, 6) if math.isfinite(value) else None for key, value in ends.items()},
        }


def retention(model: str, base: str, new: Sequence[float], old: Sequence[float], counts: Sequence[int]) -> Retention:
    """From each text's log-probability under both, and its number of tokens."""
    change = ratio_difference([a - b for a, b in zip(new, old, strict=True)], counts)
    total = sum(counts)
    ours, theirs = (math.exp(min(700.0, -math.fsum(values) / total)) for values in (new, old))
    return Retention(model, base, len(counts), total, ours, theirs, change)


def windows(ids: Sequence[int], lead: tuple[int, ...], longest: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A text's tokens in stretches, sixteen or more where it is long enough, each given `lead` or its own first token.

    What is given is not scored; the last stretch may be short.
    """
    size = max(2, min(WINDOW, longest - len(lead), max(32, len(ids) // 16)))
    parts = [tuple(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [(lead, part) if lead else (part[:1], part[1:]) for part in parts if lead or len(part) > 1]
