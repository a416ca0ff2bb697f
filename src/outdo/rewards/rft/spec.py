"""OpenAI's graders, each a frozen type. An answer that scores `pass_threshold` is right; that changes no score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outdo.rewards.rft.formula import Formula
from outdo.rewards.rft.template import Template


@dataclass(frozen=True)
class StringCheck:
    input: Template
    reference: Template
    operation: str  # one of OPERATIONS
    pass_threshold: float = 1.0


@dataclass(frozen=True)
class TextSimilarity:
    input: Template
    reference: Template
    metric: str  # one of similarity.METRICS
    pass_threshold: float = 1.0


@dataclass(frozen=True)
class Python:
    source: str  # defines grade(sample, item)
    pass_threshold: float = 1.0


@dataclass(frozen=True)
class ScoreModel:
    model: str
    messages: tuple[tuple[str, Template], ...]  # role and content
    bounds: tuple[float, float] = (0.0, 1.0)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # under the chat endpoint's names
    pass_threshold: float = 1.0


@dataclass(frozen=True)
class LabelModel:
    model: str
    messages: tuple[tuple[str, Template], ...]
    labels: tuple[str, ...]
    passing: frozenset[str]
    pass_threshold: float = 1.0


Single = StringCheck | TextSimilarity | Python | ScoreModel | LabelModel


@dataclass(frozen=True)
class Multi:
    graders: Mapping[str, Single]
    formula: Formula
    pass_threshold: float = 1.0


Spec = Single | Multi


def is_finite(value: object) -> bool:
    """Whether a value is a number that fits in a finite float. Booleans are not numbers."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
