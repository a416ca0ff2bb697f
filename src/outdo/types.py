"""The data that flows through one step: prompts become groups of answers, groups get grades, grades become a batch.

Everything here is frozen and knows no engine. A stage takes these and returns new ones (`replace(group, grades=…)`);
nothing is ever overwritten. Axis suffixes used across the package: P prompts, G answers of one prompt, B = rows
(answers) of a batch, T tokens of an answer, L tokens of a prompt, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Message = Mapping[str, str]  # {"role": "user", "content": "…"}
Verdict = Literal["right", "wrong", "broken"]
Finish = Literal["stop", "length"]  # ended by itself, or cut at max_completion_length
Support = tuple[tuple[int, ...], ...]
PART = "mixture_part"  # the column that says which of a mixture's tasks a prompt is of


@dataclass(frozen=True)
class Prompt:
    """One problem. `answer` is the gold that a verifier compares with; it never reaches the model."""

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # further columns, handed to rewards by name

    @property
    def text(self) -> str:
        """What the last message says: the problem as a person would read it."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class Completion:
    """One sampled answer. All of `token_ids` were chosen by the model, the closing token included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # the sampler's own, under the distribution that each token was drawn from
    text: str
    finish: Finish
    version: int  # which weights wrote it: the number of training steps they had seen
    support: Support = ()  # the tokens that top_k, top_p or min_p left to choose from, for each token; else empty

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs), "one log-probability for each token"


@dataclass(frozen=True)
class Grade:
    """What the rewards said of one answer. `reward` is None exactly where nobody could judge it (broken)."""

    reward: float | None
    verdict: Verdict
    parts: Mapping[str, float | None] = field(default_factory=dict)  # each reward by name, before weights
    reason: str = ""

    def __post_init__(self) -> None:
        assert (self.reward is None) == (self.verdict == "broken"), "broken means no reward, and only that"


@dataclass(frozen=True)
class Group:
    """A prompt and its G answers. Grades and advantages are empty until their stage has run."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    grades: tuple[Grade, ...] = ()
    advantages: tuple[float, ...] = ()

    @property
    def rewards(self) -> list[float | None]:
        return [grade.reward for grade in self.grades]

    @property
    def has_spread(self) -> bool:
        """True where siblings differ in reward, so that the group teaches something."""
        return len({r for r in self.rewards if r is not None}) > 1


@dataclass(frozen=True)
class Row:
    """One answer as the learner sees it."""

    prompt: int  # which of the batch's prompts it answers
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    support: Support = ()


@dataclass(frozen=True)
class Batch:
    """The answers of one step, ragged: padding is the learner's business. Rows of one prompt are neighbours."""

    prompt_ids: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    version: int  # of the weights that sampled it

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True)
class SampleParams:
    """How to sample. Temperature 0 is greedy."""

    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0  # leave out what is less likely than this share of the likeliest
    stop: tuple[str, ...] = ()  # texts that end an answer; they stay in it

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("max_completion_length", self.max_completion_length >= 1, "1 or more"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("stop", "" not in self.stop, "texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)}: it must be {rule}")

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and bool(self.top_k or self.top_p < 1 or self.min_p)


class Sampler(Protocol):
    """Anything that turns prompts into groups of answers.

    A group is yielded as soon as its last answer is done, in any order, so that grading overlaps sampling. The seed
    of every answer is `seed_of(seed, prompt.id, index)`: batch layout does not change what is sampled.
    """

    def sample(self, prompts: list[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]: ...

    def load(self, weights: Mapping[str, Any], version: int) -> None: ...


class Learner(Protocol):
    """Anything that turns a batch into new weights. Both samplers and learners count versions in training steps."""

    def update(self, batch: Batch, step: int) -> dict[str, float]: ...

    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        """What to take off each answer's reward (KL shaped into the reward), or None."""
        ...

    def weights(self) -> Mapping[str, Any]: ...


RewardFunction = Callable[..., Sequence[Any]]  # reward(completions, **columns) -> a number, None or Grade for each
