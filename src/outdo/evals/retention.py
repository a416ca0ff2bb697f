"""Retention: how likely a trained model still finds texts that its base model finds likely.

The texts are the user's, or the base model's own answers to everyday questions. On its own texts, sampled at
temperature 1, the mean loss in log-probability estimates KL(base || model) per token: 0 where nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outdo.errors import ModelError, TaskError
from outdo.evals.held_out import Progress, no_progress
from outdo.learn.score import Text, log_likelihoods
from outdo.metrics.estimate import Difference, ratio_difference
from outdo.models.load import Policy
from outdo.rollout import make_sampler
from outdo.types import Prompt, SampleParams

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
ANSWER_TOKENS = 128  # of the base's answer to each question
MAX_WINDOW = 1024  # tokens of a user's text that are scored at once


@dataclass(frozen=True)
class Retention:
    """One model on the texts. `change` is its log-probability minus the base's, in nats per token."""

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
            **{name: getattr(self, name) for name in ("model", "base", "texts", "tokens")},
            **{name: round(getattr(self, name), 6) for name in ("perplexity", "base_perplexity")},
            "change": round(self.change.value, 6),
            **{key: round(value, 6) if math.isfinite(value) else None for key, value in ends.items()},
        }


def windows(ids: Sequence[int], lead: tuple[int, ...], longest: int) -> list[Text]:
    """A text's tokens in windows, at least sixteen where it is long enough, as pairs (context, scored tokens).

    The context is `lead`, or without one the window's first token. The last window may be short.
    """
    size = max(2, min(MAX_WINDOW, longest - len(lead), max(32, len(ids) // 16)))
    parts = [tuple(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [(lead, part) if lead else (part[:1], part[1:]) for part in parts if lead or len(part) > 1]


class RetentionTexts:
    """The texts that retention is measured on (the user's, if there is a path), and how likely the base finds them."""

    def __init__(self, path: Path | None = None, seed: int = 0) -> None:
        self.seed, self.text = seed, _read(path) if path else None
        self.base = ""
        self.texts: list[Text] = []
        self.decoded: list[str] = []  # by the base's tokenizer
        self.base_scores: list[float] = []

    def set_base(self, model: str, policy: Policy, progress: Progress = no_progress) -> None:
        self.base = model
        self.texts = self._encode(policy) if self.text is not None else self._sample(policy)
        if not self.texts:
            raise TaskError("retention: the text has fewer than two tokens, so there is nothing to score")
        self.decoded = self._decode(policy)
        self.base_scores = self._score(model, policy, progress)

    def measure(self, model: str, policy: Policy, progress: Progress = no_progress) -> Retention:
        """Raises ModelError for a model with another tokenizer than the base's: losses per token would not compare."""
        alike = self._decode(policy) == self.decoded if self.text is None else self._encode(policy) == self.texts
        if not alike:
            raise ModelError(f"{model} has another tokenizer than {self.base}: their losses per token do not compare")
        counts = [len(scored) for _, scored in self.texts]
        new, old, total = self._score(model, policy, progress), self.base_scores, sum(counts)
        change = ratio_difference([a - b for a, b in zip(new, old, strict=True)], counts)
        ours, theirs = (math.exp(min(700.0, -math.fsum(values) / total)) for values in (new, old))
        return Retention(model, self.base, len(counts), total, ours, theirs, change)

    def _score(self, model: str, policy: Policy, progress: Progress) -> list[float]:
        with progress(f"{model} on the retention texts", len(self.texts)) as advance:
            return log_likelihoods(policy, self.texts, advance)

    def _encode(self, policy: Policy) -> list[Text]:
        assert self.text is not None
        tokenizer, (ids,) = policy.renderer.tokenizer, policy.renderer.encode_texts([self.text])
        first = tokenizer("")["input_ids"][:1]  # what the tokenizer itself puts before a text, if anything
        return windows(ids, tuple(first) if first == [tokenizer.bos_token_id] else (), policy.context)

    def _sample(self, policy: Policy) -> list[Text]:
        params = SampleParams(min(ANSWER_TOKENS, policy.context // 2))
        groups = make_sampler(policy).sample(list(QUESTIONS), 1, params, self.seed)
        return sorted((group.prompt_ids, group.trajectories[0].token_ids) for group in groups)

    def _decode(self, policy: Policy) -> list[str]:
        return policy.renderer.tokenizer.batch_decode([[*context, *scored] for context, scored in self.texts])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path}: {error}") from None
