"""Several models, several tasks: each model is loaded once, asked everything, and let go before the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from outdo.errors import ModelError, RecipeError, TaskError
from outdo.evals.held_out import Tell, answer, measure
from outdo.evals.report import Result
from outdo.evals.retention import QUESTIONS, TOKENS, Retention, retention, windows
from outdo.learn.memory import release_memory
from outdo.learn.score import Text, log_likelihoods
from outdo.models.load import Policy, load_policy
from outdo.models.sources import find_source
from outdo.parallel.host import keep_memory
from outdo.rewards.compose import find_rewards
from outdo.rollout import make_sampler
from outdo.tasks.task import Task, find_task, held_out
from outdo.types import Prompt, RewardFunction, SampleParams

T = TypeVar("T")
DTYPES = ("float32", "bfloat16")
_KINDS: tuple[tuple[tuple[str, ...], Any, str], ...] = (  # what settings are, for those who give them by hand
    (("size", "samples", "max_completion_length", "seed"), Integral, "a whole number"),
    (("temperature", "top_p"), Real, "a number"),
    (("ks", "stop"), (tuple, list), "a list"),
    (("dtype", "device"), str, "a name"),
)
Counting = Callable[[str, int], AbstractContextManager[Tell]]  # shows progress of so many, under that name


def silent(name: str, total: int) -> AbstractContextManager[Tell]:
    return nullcontext(lambda count: None)


@dataclass(frozen=True)
class Settings:
    """How models are asked. `size` 0: the whole split; `samples` 0: greedy only; no `ks`: those that suit `samples`."""

    size: int = 200
    samples: int = 10
    ks: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    max_completion_length: int = 256
    stop: tuple[str, ...] = ()
    dtype: str = "float32"
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for names, kind, words in _KINDS:
            for name in names:
                if not isinstance(value := getattr(self, name), kind) or isinstance(value, bool):
                    raise RecipeError(f"{name}={value!r:.80}: expected {words}")
        if not all(isinstance(k, Integral) for k in self.ks) or not all(isinstance(text, str) for text in self.stop):
            raise RecipeError(f"ks={self.ks}, stop={self.stop}: expected whole numbers, and texts")
        if self.size < 0 or self.samples < 0:
            raise RecipeError(f"size={self.size}, samples={self.samples}: neither may be less than 0")
        if self.dtype not in DTYPES:
            raise RecipeError(f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")
        if not all(1 <= k <= self.samples for k in self.ks):
            raise RecipeError(f"k={','.join(map(str, self.ks))}: pass@k needs k from 1 to samples={self.samples}")
        try:
            self.params(self.max_completion_length)
        except ValueError as error:
            raise RecipeError(str(error)) from None

    def params(self, limit: int) -> SampleParams:
        return SampleParams(limit, self.temperature, self.top_p, stop=self.stop)


@dataclass(frozen=True)
class Quiz:
    """A split's problems and the reward that judges them."""

    task: str
    split: str
    prompts: list[Prompt]
    truth: str
    own: Mapping[str, RewardFunction] = field(default_factory=dict)  # where the reward is an object: it, by that name


def quizzes(
    tasks: Sequence[str | Task],
    splits: Sequence[str],
    size: int,
    *,
    task_args: Mapping[str, Any] | None = None,
    reward: str | None = None,
    own: Mapping[str, RewardFunction] | None = None,
    system_prompt: str | None = None,
) -> list[Quiz]:
    """Every split of every task. An argument is for all tasks, or for one where it is given under that one's name."""
    found = []
    names = [task.name if isinstance(task, Task) else task for task in tasks]
    for name, given in zip(names, tasks, strict=True):
        args = {key: value for key, value in (task_args or {}).items() if key not in names}
        args |= (task_args or {}).get(name, {})
        task = given if isinstance(given, Task) else find_task(given, args, system_prompt)
        if reward is None and not task.rewards:
            raise RecipeError(f"{name} has no verifier of its own: name one, as --reward numeric or exact does")
        truth = reward or task.rewards[0]
        # Says now, not after a model is loaded, that there is none of that name.
        find_rewards([truth], [], truth, own=own)
        found += [Quiz(name, split, held_out(task, split, size), truth, own or {}) for split in splits]
    return found


def weights_of(models: Sequence[str]) -> list[str]:
    """Of runs that have no model yet: which of their checkpoints is measured.

    Raises ModelError before the first is asked for an hour, where the second does not exist.
    """
    told = []
    for name in models:
        path = find_source(name).path
        if path and path.parent.name == "checkpoints" and path != Path(name).expanduser().resolve():
            told.append(f"{name} has no model yet: measuring its newest whole checkpoint, {path.name}")
    return told


def with_model(name: str | Path, settings: Settings, work: Callable[[Policy], T]) -> T:
    """Loads a model by any name that it can be had by, a run's folder among them, and frees its memory afterwards."""
    keep_memory()
    policy = load_policy(str(name), dtype=settings.dtype, device=settings.device, seed=settings.seed)
    device = policy.device
    try:
        return work(policy)
    finally:
        del policy
        release_memory(device)


def examine(
    model: str, policy: Policy, asked: Sequence[Quiz], settings: Settings, counting: Counting = silent
) -> list[Result]:
    """One model on every quiz. Problems that leave no room for an answer are not asked, and counted."""
    sampler = make_sampler(policy)
    limit = min(settings.max_completion_length, policy.context // 2)
    found = []
    for quiz in asked:
        rewards = find_rewards([quiz.truth], [], quiz.truth, limit, quiz.own)
        asked_of = _that_fit(policy, quiz, limit)
        total = len(asked_of) * (1 + settings.samples)
        with counting(f"{model} on {quiz.task} {quiz.split}", total) as tell:
            how = settings.params(limit), settings.samples, settings.seed
            answers = answer(asked_of, sampler, rewards, *how, tell)
        evaluation = measure(answers, quiz.split, settings.ks, settings.temperature)
        evaluation = replace(evaluation, too_long=len(quiz.prompts) - len(asked_of))
        found.append(Result(model, quiz.task, evaluation, answers))
    return found


def _that_fit(policy: Policy, quiz: Quiz, limit: int) -> list[Prompt]:
    sizes = [len(ids) for ids in policy.renderer.encode_all(quiz.prompts)]
    found = [prompt for prompt, size in zip(quiz.prompts, sizes, strict=True) if size + limit <= policy.context]
    if quiz.prompts and not found:
        raise TaskError(
            f"{quiz.task}: none of {len(quiz.prompts):,} {quiz.split} problems fits the model's {policy.context} "
            f"tokens with max_completion_length={limit} (the shortest has {min(sizes)}): lower it"
        )
    return found


class Keepsake:
    """The texts that retention is measured on: the base is asked for them once, and every later model is held to them.

    With `path`, a text of the user's; else what the base writes to everyday questions at temperature 1.
    """

    def __init__(self, path: Path | None = None, seed: int = 0) -> None:
        self.seed, self.text = seed, _read(path) if path else None
        self.base = ""
        self.texts: list[Text] = []
        self.reading: list[str] = []  # as the base's tokenizer reads them
        self.old: list[float] = []  # how likely the base finds them

    def set_base(self, model: str, policy: Policy, counting: Counting = silent) -> None:
        self.base = model
        self.texts = self._encoded(policy) if self.text is not None else self._written(policy)
        if not self.texts:
            raise TaskError("retention: the text has no two tokens, so there is nothing to score")
        self.reading = self._decoded(policy)
        self.old = self._scored(model, policy, counting)

    def measure(self, model: str, policy: Policy, counting: Counting = silent) -> Retention:
        """Raises ModelError where the model cuts text into other tokens than the base: they could not be compared."""
        alike = self._decoded(policy) == self.reading if self.text is None else self._encoded(policy) == self.texts
        if not alike:
            raise ModelError(f"{model} has another tokenizer than {self.base}: their losses a token do not compare")
        counts = [len(scored) for _, scored in self.texts]
        return retention(model, self.base, self._scored(model, policy, counting), self.old, counts)

    def _scored(self, model: str, policy: Policy, counting: Counting) -> list[float]:
        with counting(f"{model} on the texts", len(self.texts)) as tell:
            return log_likelihoods(policy, self.texts, tell)

    def _encoded(self, policy: Policy) -> list[Text]:
        assert self.text is not None
        tokenizer, (ids,) = policy.renderer.tokenizer, policy.renderer.encode_texts([self.text])
        first = tokenizer("")["input_ids"][:1]  # what the tokenizer itself puts before a text, if anything
        return windows(ids, tuple(first) if first == [tokenizer.bos_token_id] else (), policy.context)

    def _written(self, policy: Policy) -> list[Text]:
        params = SampleParams(min(TOKENS, policy.context // 2))
        groups = make_sampler(policy).sample(list(QUESTIONS), 1, params, self.seed)
        return sorted((group.prompt_ids, group.trajectories[0].token_ids) for group in groups)

    def _decoded(self, policy: Policy) -> list[str]:
        return policy.renderer.tokenizer.batch_decode([[*given, *scored] for given, scored in self.texts])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from None
