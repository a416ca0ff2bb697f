"""The data that flows through one step: prompts become groups of answers, groups get grades, grades become a batch.

Everything here is frozen and knows no engine: a stage returns new ones (`replace(group, grades=…)`). Axis suffixes:
P prompts, G answers of one prompt, B rows (answers) of a batch, T tokens of an answer, L tokens of a prompt, N tokens
of a forward, M tokens trained on, A answers or their tokens, K tokens of a support, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

Message = Mapping[str, Any]  # {"role": "user", "content": "…"}; an assistant's may have `tool_calls`
Verdict = Literal["right", "wrong", "broken"]
Finish = Literal["stop", "length"]  # ended by itself, or cut at max_completion_length
Failure = Literal["malformed", "unknown", "arguments", "raised", "timeout", "too_many"]  # why a call of a tool did
Support = tuple[tuple[int, ...], ...]
Mask = tuple[bool, ...]  # for each token, whether it is trained on; empty: all are
PART = "mixture_part"  # the column that says which of a mixture's tasks a prompt is of


@dataclass(frozen=True)
class Prompt:
    """One problem. `answer` is the gold that a verifier compares with; it never reaches the model."""

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # further columns, handed to rewards by name
    conversational: bool = False  # the data gives messages, not text: a user's reward gets completions as messages too

    @property
    def text(self) -> str:
        """What the last message says: the problem as a person would read it."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class Segment:
    """Tokens that the model wrote, or an environment that answered it; only the model's have log-probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # the sampler's own, under the distribution that each token was drawn from
    version: int = 0  # which weights wrote it: the number of training steps they had seen
    support: Support = ()  # the tokens that top_k, top_p or min_p left to choose from, for each token; else empty
    trained: bool = True  # False: an environment's; its tokens are context, without a gradient
    prompt_ids: tuple[int, ...] | None = None  # all it was sampled from, where that is not the prompt and what precedes

    def __post_init__(self) -> None:
        expected = len(self.token_ids) if self.trained else 0
        assert len(self.logprobs) == expected, "one log-probability for each token of the model's own, else none"


class Origin(NamedTuple):
    """Of a message of an episode: whose tokens it is."""

    segments: tuple[int, ...] = ()  # of the trajectory's; none: encoded with the message before, or in a later prompt
    inserted: tuple[tuple[int, int], ...] = ()  # from where to where its text is an environment's, in the model's turn
    failed: bool = False  # an error message in place of a call's result


@dataclass(frozen=True)
class Episode:
    """How an answer of several turns went."""

    messages: tuple[Message, ...]  # what was said after the prompt: by the model, its tools and its environment
    num_turns: int  # of the model
    num_calls: int = 0  # of tools
    num_failed_calls: int | None = 0  # that were answered with an error message; None: an agent runs them, so unknown
    failures: Mapping[str, int] = field(default_factory=dict)  # of those, where known: how many of each `Failure`
    num_tools: int = 0  # that it was shown
    out_of_turns: bool = False  # it was ended by a limit of turns or calls, not of tokens
    wait_seconds: float = 0.0  # for the environment
    reward: float | None = None  # the environment's own
    broken: str = ""  # why the environment failed: then nobody can judge the answer
    environment: Any = None  # the user's object, for rewards that ask it; it is not stored
    origins: tuple[Origin, ...] = ()  # of each message
    start: tuple[Message, ...] = ()  # what it began with, where those are not the prompt's messages


@dataclass(frozen=True)
class Trajectory:
    """One sampled answer: what the model wrote and, over several turns, what it was answered. Token ids are those that
    were sampled: text is never encoded again to get them back."""

    segments: tuple[Segment, ...]
    text: str  # the model's last turn, which rewards see
    finish: Finish
    tool_calls: Any = None  # those that a server has parsed from the answer, where it did
    episode: Episode | None = None  # None: one turn

    @classmethod
    def single(
        cls, token_ids: tuple[int, ...], logprobs: tuple[float, ...], text: str, finish: Finish, version: int
    ) -> Trajectory:
        """The common case: one turn, all of it the model's."""
        return cls((Segment(token_ids, logprobs, version),), text, finish)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens after the prompt, the environment's included."""
        return self._joined("token_ids")

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Of the model's own tokens."""
        return self._joined("logprobs")

    @property
    def support(self) -> Support:
        """Of the model's own tokens."""
        return self._joined("support")

    @property
    def mask(self) -> Mask:
        """True for the model's own tokens; empty where all are."""
        if all(segment.trained for segment in self.segments):
            return ()
        return tuple(segment.trained for segment in self.segments for _ in segment.token_ids)

    @property
    def num_tokens(self) -> int:
        """How many tokens the model wrote."""
        return sum(len(segment.logprobs) for segment in self.segments)

    @property
    def version(self) -> int:
        """Of the oldest weights that wrote any of it."""
        return min(segment.version for segment in self.segments if segment.trained)

    @property
    def branches(self) -> tuple[Trajectory, ...]:
        """The texts that it is trained on: one, and one more for each segment with a prompt of its own."""
        starts = [i for i, segment in enumerate(self.segments) if i == 0 or segment.prompt_ids is not None]
        if len(starts) == 1:
            return (self,)
        ends = [*starts[1:], len(self.segments)]
        return tuple(replace(self, segments=self.segments[a:b]) for a, b in zip(starts, ends, strict=True))

    def _joined(self, name: str) -> tuple[Any, ...]:
        if len(self.segments) == 1:
            return getattr(self.segments[0], name)
        return tuple(value for segment in self.segments for value in getattr(segment, name))


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
    trajectories: tuple[Trajectory, ...]
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
class Sample:
    """One answer as the learner sees it. Log-probabilities and support are of its trained tokens."""

    prompt: int  # which of the batch's prompts it answers
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    support: Support = ()
    mask: Mask = ()  # empty: every token is trained on
    chosen: Mask = ()  # trained tokens that the loss treats apart (algo/choose.py); empty: none were chosen

    @property
    def num_trained(self) -> int:
        return len(self.logprobs)


@dataclass(frozen=True)
class Batch:
    """The answers of one step, ragged: padding is the learner's business. Samples of one prompt are neighbours."""

    prompt_ids: tuple[tuple[int, ...], ...]
    samples: tuple[Sample, ...]
    version: int  # of the oldest weights that sampled it
    group_of: tuple[int, ...] = ()  # the group of each prompt; empty: each is of its own

    @property
    def num_groups(self) -> int:
        return max(self.group_of, default=-1) + 1 or len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(sample.num_trained for sample in self.samples)


@dataclass(frozen=True)
class SampleParams:
    """How to sample. Temperature 0 is greedy."""

    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0  # leave out what is less likely than this share of the likeliest
    stop: tuple[str, ...] = ()  # texts that end an answer; they stay in it
    stop_ids: tuple[int, ...] = ()  # tokens that end an answer, beside those that end a turn

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


@dataclass(frozen=True)
class Request:
    """A prompt in tokens, and a seed for each answer wanted to it. Answers to one request share the prompt's cache."""

    id: str
    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    params: SampleParams
    seed: int = 0  # of the request as a whole, for engines that draw all its answers from one generator
    limit: int = 0  # tokens, where it is less than the parameters' max_completion_length; 0: that
    follows: str = ""  # id of the request whose prompt and answer this prompt begins with, where that was kept
    keep: bool = False  # a later request may follow this one: an engine may keep its cache
    watch: Callable[[list[int]], None] | None = None  # of a stream: is called with the tokens so far, as they come


@dataclass(frozen=True)
class Generation:
    """What the model wrote to one request: a segment for each of its seeds, in their order."""

    request: Request
    segments: tuple[Segment, ...]
    finishes: tuple[Finish, ...]
    more: bool = False  # another one is ready: whoever is faster with several at once may wait for it


class WeightSource(Protocol):
    """Whoever has weights to hand on: a learner."""

    def weights(self) -> Mapping[str, Any]:
        """What is trained, by parameter name: the model, or its adapter."""


class RequestStream(Protocol):
    """Requests of as many seeds each and with the same parameters, that come while others are answered."""

    @property
    def params(self) -> SampleParams: ...

    @property
    def max_length(self) -> int:
        """The most tokens that a prompt and its answer have."""

    @property
    def capacity(self) -> int:
        """How many are in flight at most."""

    def take(self, wait: bool) -> Sequence[Request] | None:
        """The requests since the last call; with `wait`, one at least unless it takes long. None: no more will come."""

    def settle(self) -> None:
        """Waits until nobody is about to send a request. An engine whose numbers depend on which answers run side by
        side calls it before `take`, so that the same run gives the same numbers."""

    def dropped(self) -> Sequence[str]:
        """The ids of requests that were asked to be kept, and that nobody will follow, since the last call."""


@runtime_checkable
class Engine(Protocol):
    """Token ids in, token ids out. It knows no chat template, no task and no group. A generation is yielded as soon as
    its last answer is done, in any order. What is sampled depends on a request's prompt, seeds and parameters alone,
    not on its neighbours."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Generation]: ...

    def serve(self, stream: RequestStream, n: int = 1) -> Iterator[Generation]:
        """The same, of requests of `n` seeds each that are not known from the start: later turns, or shares."""

    def update(self, source: WeightSource, version: int) -> None:
        """New weights: those of a learner after `version` training steps."""

    def abort(self) -> None: ...  # drops the requests in flight

    @property
    def capacity(self) -> int: ...  # how many answers it decodes side by side


class Sampler(Protocol):
    """Prompts in, groups of answers out: an engine, and the chat template in front of it. A group is yielded as soon as
    its last answer is done, in any order, so that grading overlaps sampling. The seed of every answer is
    `seed_of(seed, prompt.id, index)`: batch layout does not change what is sampled."""

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]: ...

    def update(self, source: WeightSource, version: int) -> None: ...


@dataclass(frozen=True)
class Rollouts:
    """What a step trains on: `groups`, graded, out of all that were `sampled`; and the seconds that went into each."""

    sampled: list[Group]
    groups: list[Group]
    seconds: Mapping[str, float] = field(default_factory=dict)


class RolloutSource(Protocol):
    """Where a step's groups come from. It owns the curriculum's position and the rollouts in flight. No group is more
    than `max_staleness` training steps older than the weights it is trained into."""

    @property
    def max_staleness(self) -> int: ...

    def next(self, step: int) -> Rollouts: ...

    def publish(self, learner: WeightSource, version: int) -> None:
        """The step of the last rollouts is done: these are the weights to sample from."""

    def state(self) -> dict[str, Any]:
        """Where the last step ended, for a checkpoint."""

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Learner(WeightSource, Protocol):
    """Turns a batch into new weights. Engines and learners count versions in training steps. Denominators are those of
    the whole update, whatever part of it is computed at once."""

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One step's updates. Raises NumericsError where too many in a row are non-finite."""

    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        """What to subtract from each answer's reward (KL shaped into the reward), or None."""

    def logprobs(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        """Of the model's own tokens of every answer, under the weights as they are now."""

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint holds beside the weights: tensors by parameter name, and plain values."""

    def load_state(self, tensors: Mapping[str, Any], plain: Mapping[str, Any]) -> None: ...

    def scale_rate(self, factor: float) -> None:
        """Multiplies the learning rate from here on, whatever its schedule."""

    def scale_beta(self, factor: float) -> None: ...

    def check_memory(self) -> None:
        """Tries the largest micro-batch before the first step, and takes a smaller one where it does not fit."""


class Reporter(Protocol):
    """Who shows a run to a person."""

    def note(self, line: str) -> None: ...

    def begin(self, phase: str) -> None: ...

    def progress(self, name: str, step: int, total: int, more: str) -> None: ...  # of what is no GRPO step

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


RewardFunction = Callable[..., Sequence[Any]]  # reward(completions, **columns) -> a number, None or Grade for each
