"""What a task is, and how one is found by name.

    @task(rewards=["exact"])
    def shout(split: str, seed: int) -> Iterator[Prompt]: ...

The function yields the prompts of a split (`train`, `test`, optionally `ood`), a finite or an endless number. A prompt
of `test` must never occur in `train`: `tasks.splits.belongs(key, split)` decides that by hash.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar

from outdo.errors import TaskError, did_you_mean
from outdo.recipe import plugins
from outdo.seeds import seed_of
from outdo.tasks import arithmetic, countdown, data, grid, gsm8k, guess, gym, repair, shop, verifiers
from outdo.tasks.sources import SOURCE_KEYS, Source, is_source, read
from outdo.types import Message, Prompt
from outdo.untrusted.parse import MAX_PROMPT_CHARS

ALL_SPLITS = "all"  # as a split: every split of a finite task, for evaluations
MAX_PROBED = 20_000  # held-out prompts after which a task is treated as endless, unless it is marked finite
MAX_UNANSWERED = 100  # first prompts of an endless task without a demonstration, before it is refused
HOW_TO_MAKE_ONE = "put @outdo.task(rewards=[…]) above the function"
Shown = str | Sequence[Message]  # what follows a prompt: an answer, or the messages of several turns, the model's and
# those of its tools and environment
Teacher = Callable[..., Shown | None]  # teacher(prompt, rng) -> a demonstration, not always correct; None: none here
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """One task of a mixture, with its weight and rewards. Its prompts carry its name."""

    name: str
    task: Task
    weight: float = 1.0  # how often it is drawn, relative to the others
    reward_funcs: tuple[str, ...] = ()  # empty: the recipe's, or the task's own
    reward_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Task:
    name: str
    function: Callable[..., Iterator[Prompt]]
    rewards: tuple[str, ...]  # the first decides what counts as success; empty: the recipe must name one
    teacher: Teacher | None = None
    splits: tuple[str, ...] = ("train", "test", "ood")
    args: dict[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    finite: bool = False  # True for a data set, False for a generator
    parts: tuple[Part, ...] = ()  # of a mixture
    easier: Task | None = None  # that the curriculum starts with
    keep: Callable[[Prompt], bool] | None = None  # prompts for which it is False are skipped
    environment: str = ""  # that answers are played in, where the recipe names none
    agent: str = ""  # that plays answers, where the recipe names none
    solution: Callable[[Prompt], Sequence[Message]] | None = None  # the play of one who deserves full marks, for audits

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        """Prompts of a split; of all splits for `all`, if the task is finite. Raises TaskError if there are none."""
        if split == ALL_SPLITS and self.finite:
            for each in self.splits:
                yield from self.prompts(each, seed)
            return
        if split not in self.splits:
            few = " (too few rows to hold any out)" if self.finite and self.splits == ("train",) else ""
            raise TaskError(f"task {self.name} has no split {split!r}; it has {', '.join(self.splits)}{few}")
        empty = True
        for prompt in self._call(split, seed):
            empty = False
            if not isinstance(prompt, Prompt):
                raise TaskError(f"task {self.name} yielded a {type(prompt).__name__}; it must yield outdo.Prompt")
            messages = prompt.messages
            if not isinstance(messages, (tuple, list)) or not messages or not all(map(data.is_message, messages)):
                raise TaskError(
                    f"task {self.name}: the messages of prompt {prompt.id!r:.60} are {messages!r:.80}; they "
                    'must be a tuple such as ({"role": "user", "content": "What is 2+2?"},)'
                )
            complete = add_system_prompt(prompt, self.system_prompt)
            if (size := sum(len(message["content"]) for message in complete.messages)) > MAX_PROMPT_CHARS:
                raise TaskError(
                    f"task {self.name}: prompt {prompt.id!r:.60} has {size:,} characters; at most "
                    f"{MAX_PROMPT_CHARS:,} are read: remove or shorten it"
                )
            if self.keep is None or self.keep(complete):
                yield complete
        if empty:
            raise TaskError(f"task {self.name} has no prompts in split {split!r}: nothing to train or test on")

    def demonstrations(self, seed: int) -> Iterator[tuple[Prompt, Shown]]:
        """Training prompts with the teacher's answers, endlessly. Prompts without an answer are skipped."""
        if self.teacher is None:
            raise TaskError(
                f"task {self.name} has no demonstrations. A data set has them in a column `completion` "
                "(columns.completion=NAME), or as messages that end with an assistant turn; to use other data set "
                "sft_dataset_name=FILE; to train with rewards only, `outdo train` with sft_steps=0"
            )
        rng = random.Random(seed_of("teacher", seed))
        yield from repeat_epochs(lambda epoch: self._demonstrations(seed_of("demonstrations", seed, epoch), rng))

    def _demonstrations(self, seed: int, rng: random.Random) -> Iterator[tuple[Prompt, Shown]]:
        assert self.teacher
        empty = True
        for num_seen, prompt in enumerate(self.prompts("train", seed), 1):
            if (shown := self.teacher(prompt, rng)) is not None:
                empty = False
                yield prompt, shown
            elif empty and not self.finite and num_seen == MAX_UNANSWERED:
                break
        if empty:
            raise TaskError(
                f"task {self.name}: none of its training prompts has a demonstration. Set sft_dataset_name=FILE to use "
                "other data, or sft_steps=0 to train with rewards only"
            )

    def with_args(self, args: dict[str, Any]) -> Task:
        return replace(self, args={**self.args, **args})

    def _call(self, split: str, seed: int) -> Iterator[Prompt]:
        parameters = inspect.signature(self.function).parameters
        names, takes_any = list(parameters)[2:], any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for key in self.args:
            if key not in names and not takes_any:
                meant = did_you_mean(key, names, "did you mean {!r}? ")
                raise TaskError(
                    f"task {self.name} takes no {key!r}: {meant}It takes {', '.join(names) or 'no arguments'}"
                )
        try:
            yield from self.function(split, seed, **self.args)
        except TaskError:
            raise
        except Exception as error:  # a user's task may raise anything
            given = "".join(f", {key}={value!r:.60}" for key, value in self.args.items())
            cause = f"{type(error).__name__}: {error}"
            raise TaskError(f"task {self.name} failed in split {split!r}{given}: {cause}") from error


def add_system_prompt(prompt: Prompt, system_prompt: str | None) -> Prompt:
    """The prompt with a system message, unless it has one."""
    if system_prompt is None or prompt.messages[0]["role"] == "system":
        return prompt
    return replace(prompt, messages=({"role": "system", "content": system_prompt}, *prompt.messages))


def repeat_epochs(make_epoch: Callable[[int], Iterable[T]]) -> Iterator[T]:
    """The items of epoch 0, 1, 2 and so on, endlessly."""
    return chain.from_iterable(map(make_epoch, count()))


def endless_prompts(task: Task, *key: object) -> Iterator[Prompt]:
    """Training prompts, epoch after epoch, each in an order of its own that the key decides."""
    return repeat_epochs(lambda epoch: task.prompts("train", seed_of(*key, epoch)))


def task(
    rewards: Sequence[str],
    teacher: Teacher | None = None,
    splits: Sequence[str] = ("train", "test"),
    name: str = "",
    environment: str = "",
) -> Callable[[Callable[..., Iterator[Prompt]]], Task]:
    """Decorator that makes a task of a function. `teacher(prompt, rng)` returns a demonstration or None. With the
    reward `environment`, answers are played in `environment`, or in the recipe's."""
    made: Callable[..., Task] = partial(Task, rewards=tuple(rewards), teacher=teacher, splits=tuple(splits))
    return lambda function: made(name or function.__name__, function, environment=environment)


GAMES = {"guess": guess, "grid": grid, "shop": shop, "repair": repair}


def _game(name: str, module: Any) -> Task:
    """A task that is played in the environment of its name."""
    played = {"environment": name, "solution": module.solution}
    return Task(name, module.prompts, ("environment",), module.teacher, **played)


TASKS: dict[str, Task] = {
    "arithmetic": Task("arithmetic", arithmetic.prompts, ("numeric",), arithmetic.teacher),
    "countdown": Task("countdown", countdown.prompts, ("countdown",), countdown.teacher),
    "gsm8k": Task("gsm8k", gsm8k.prompts, ("gsm8k",), gsm8k.teacher, ("train", "dev", "test"), finite=True),
    **{name: _game(name, module) for name, module in GAMES.items()},
}


def find_task(
    name: str, args: dict[str, Any] | None = None, system_prompt: str | None = None, source: Source | None = None
) -> Task:
    """A task by name, by the location of its data, or a user's own by `path/to/file.py:function`. Raises TaskError.

    `source` gives the splits and columns of data (docs/data.md); `args` may too, under the recipe's names.
    """
    args = dict(args or {})
    if name not in TASKS and is_source(name):  # a local folder with the name of a task is written ./gsm8k
        given = {field: args.pop(key) for key, field in SOURCE_KEYS.items() if key in args}
        task = _data_task(replace(source or Source(name), **given))
    elif name.startswith("reasoning_gym/"):
        generator = {"name": name.partition("/")[2]}
        task = Task(name, gym.prompts, ("reasoning_gym",), gym.teacher, ("train", "test"), generator)
    elif name.startswith(plugins.VERIFIERS):
        task = _verifiers_task(name, args)
    else:
        task = plugins.find(name, TASKS, "outdo.tasks", TaskError)
    if not isinstance(task, Task):
        raise TaskError(f"{name} is a {type(task).__name__}, not a task: {HOW_TO_MAKE_ONE}")
    task = replace(task.with_args(args), system_prompt=system_prompt)
    next(task.prompts("train", 0))  # raises now, before a model is loaded, if there is nothing to train on
    return task


def refuse_no_task(given: object) -> None:
    """Raises TaskError unless it is a task or the name of one."""
    if not isinstance(given, (Task, str)):
        raise TaskError(
            f"task={given!r:.80} is neither a task nor the name of one. To make a task of a function, {HOW_TO_MAKE_ONE}"
        )


def _verifiers_task(name: str, args: dict[str, Any]) -> Task:
    taskset = name.removeprefix(plugins.VERIFIERS)
    finite, own = verifiers.is_finite(taskset, args), {"name": taskset}
    splits = ("train", "test")
    return Task(
        name, verifiers.prompts, ("environment",), splits=splits, args=own, finite=finite, agent=verifiers.AGENT
    )


def _data_task(source: Source) -> Task:
    if source.name == gsm8k.HUB and source.columns.items() <= gsm8k.COLUMNS.items():
        rows = read(replace(source, config=source.config or "main"))
        return replace(TASKS["gsm8k"], function=gsm8k.from_rows(rows))
    return task_of_table(source.name, data.load_table(source))


def task_of_table(name: str, table: data.Table) -> Task:
    """The task of a data set in memory."""
    teacher = data.demonstration if table.has_demonstrations else None
    return Task(name, table.prompts, (), teacher, table.splits, finite=True)


def held_out(task: Task, split: str, size: int) -> list[Prompt]:
    """The first `size` distinct prompts of an evaluation split, the same for every seed, so that runs are comparable.

    Size 0 means all of them. Raises TaskError for size 0 of an endless task.
    """
    prompts: dict[str, Prompt] = {}
    for num_drawn, prompt in enumerate(task.prompts(split, seed_of("held out"))):
        prompts.setdefault(prompt.id, prompt)
        if size and (len(prompts) == size or num_drawn > 50 * size):  # a small space may hold fewer
            break
        if not size and not task.finite and num_drawn > MAX_PROBED:
            keys = "--size, eval_size or harvest_size"
            raise TaskError(f"task {task.name} generates {split!r} problems endlessly: set how many ({keys})")
    return list(prompts.values())
