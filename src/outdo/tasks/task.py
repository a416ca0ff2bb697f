"""What a task is, and finding one by name.

    @task(rewards=["exact"])
    def shout(split: str, seed: int) -> Iterator[Prompt]: ...

The function yields prompts of a split (`train`, `test`, and `ood` where it has one), endlessly or to an end. What it
yields for `test` must never come up in `train`: `tasks.splits.belongs(key, split)` decides that by hash.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outdo.errors import TaskError
from outdo.recipe import plugins
from outdo.seeds import seed_of
from outdo.tasks import arithmetic, countdown, data, gsm8k, gym
from outdo.tasks.sources import SOURCE_KEYS, Source, is_source, read
from outdo.types import Prompt

MANY = 20_000  # held-out prompts past which a task that does not say that it ends is taken to go on for ever
ALL = "all"  # every split of a task with an end, for evaluations
PATIENCE = 100  # prompts without an answer to imitate, from the first on, of a task without end
MADE = "put @outdo.task(rewards=[…]) above it"
WHOLE = 200_000  # prompts that a split with an end may have
Teacher = Callable[..., str | None]  # teacher(prompt, rng) -> an answer to imitate, not always right; None: none here


@dataclass(frozen=True)
class Part:
    """One of a mixture's tasks, by the name that its prompts carry, and what it is rewarded by."""

    name: str
    task: Task
    weight: float = 1.0  # how often it comes up, against the others'
    reward_funcs: tuple[str, ...] = ()  # empty: the recipe's, or the task's own
    reward_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Task:
    name: str
    function: Callable[..., Iterator[Prompt]]
    rewards: tuple[str, ...]  # the first one decides what counts as success; none: the recipe must name one
    teacher: Teacher | None = None
    splits: tuple[str, ...] = ("train", "test", "ood")
    args: dict[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    finite: bool = False  # whether its prompts come to an end: a data set's do, a generator's do not
    parts: tuple[Part, ...] = ()  # of a mixture
    keep: Callable[[Prompt], bool] | None = None  # prompts that it says no to are left out

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        """Prompts of a split, with the user's arguments; of all splits for `all`, where they have an end. Raises
        TaskError where it has none."""
        if split == ALL and self.finite:
            for each in self.splits:
                yield from self.prompts(each, seed)
            return
        if split not in self.splits:
            few = " (of so few rows none is held out)" if self.finite and self.splits == ("train",) else ""
            raise TaskError(f"task {self.name} has no split {split!r}; it has {', '.join(self.splits)}{few}")
        empty = True
        for prompt in self._call(split, seed):
            empty = False
            if not isinstance(prompt, Prompt):
                raise TaskError(f"task {self.name} yielded a {type(prompt).__name__}; it must yield outdo.Prompt")
            if not _are_messages(prompt.messages):
                raise TaskError(
                    f"task {self.name}: the messages of prompt {prompt.id!r:.60} are {prompt.messages!r:.80}, and must "
                    'be a tuple such as ({"role": "user", "content": "What is 2+2?"},)'
                )
            framed = self._framed(prompt)
            if self.keep is None or self.keep(framed):
                yield framed
        if empty:
            raise TaskError(f"task {self.name} has no prompts in split {split!r}: nothing to train or test on")

    def demonstrations(self, seed: int) -> Iterator[tuple[Prompt, str]]:
        """Training prompts with the teacher's answers, without end. Those it has no answer to are left out."""
        if self.teacher is None:
            raise TaskError(
                f"task {self.name} has no teacher to imitate. A data set is imitated where it has a column "
                "`completion` (columns.completion=NAME), or messages that end in an assistant's turn; other data to "
                "imitate is sft_dataset_name=FILE. `outdo train` does without, by the rewards alone, where sft_steps=0"
            )
        rng = random.Random(seed_of("teacher", seed))
        for epoch in range(2**31):
            shown = False
            for tried, prompt in enumerate(self.prompts("train", seed_of("demonstrations", seed, epoch)), 1):
                if (text := self.teacher(prompt, rng)) is not None:
                    shown = True
                    yield prompt, text
                elif not shown and not self.finite and tried == PATIENCE:
                    break
            if not shown:
                raise TaskError(
                    f"task {self.name}: not one of its training prompts has an answer to imitate. Other data is "
                    "sft_dataset_name=FILE; sft_steps=0 trains by the rewards alone"
                )

    def with_args(self, args: dict[str, Any]) -> Task:
        return replace(self, args={**self.args, **args})

    def _call(self, split: str, seed: int) -> Iterator[Prompt]:
        parameters = inspect.signature(self.function).parameters
        known, takes_any = list(parameters)[2:], any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for key in self.args:
            if key not in known and not takes_any:
                raise TaskError(f"task {self.name} takes no {key!r}; it takes {', '.join(known) or 'no arguments'}")
        try:
            yield from self.function(split, seed, **self.args)
        except TaskError:
            raise
        except Exception as error:  # a user's task: say whose it is and what it said
            given = "".join(f", {key}={value!r:.60}" for key, value in self.args.items())
            words = f"{type(error).__name__}: {error}"
            raise TaskError(f"task {self.name} failed in split {split!r}{given}: {words}") from error

    def _framed(self, prompt: Prompt) -> Prompt:
        if self.system_prompt is None or prompt.messages[0]["role"] == "system":
            return prompt
        return replace(prompt, messages=({"role": "system", "content": self.system_prompt}, *prompt.messages))


def _are_messages(found: Any) -> bool:
    """Whether it is what a chat is made of: at least one message, each with a role and a text."""
    if not isinstance(found, (tuple, list)) or not found:
        return False
    texts = [m.get(key) for m in found if isinstance(m, Mapping) for key in ("role", "content")]
    return len(texts) == 2 * len(found) and all(isinstance(text, str) for text in texts)


def task(
    rewards: Sequence[str], teacher: Teacher | None = None, splits: Sequence[str] = ("train", "test"), name: str = ""
) -> Callable[[Callable[..., Iterator[Prompt]]], Task]:
    """Makes a task of a function."""
    return lambda function: Task(name or function.__name__, function, tuple(rewards), teacher, tuple(splits))


TASKS: dict[str, Task] = {
    "arithmetic": Task("arithmetic", arithmetic.prompts, ("numeric",), arithmetic.teacher),
    "countdown": Task("countdown", countdown.prompts, ("countdown",), countdown.teacher),
    "gsm8k": Task("gsm8k", gsm8k.prompts, ("gsm8k",), gsm8k.teacher, ("train", "dev", "test"), finite=True),
}


def find_task(
    name: str,
    args: dict[str, Any] | None = None,
    system_prompt: str | None = None,
    source: Source | None = None,
) -> Task:
    """A task by name, by where its data is, or a user's own by `path/to/file.py:function`. Raises TaskError.

    `source` says more of data: its splits and columns (docs/data.md); `args` may, by the names that a recipe has.
    """
    args = dict(args or {})
    if name not in TASKS and is_source(name):  # a folder of a task's name is ./gsm8k
        said = {field: args.pop(key) for key, field in SOURCE_KEYS.items() if key in args}
        found = _of_data(replace(source or Source(name), **said))
    elif name.startswith("reasoning_gym/"):
        own = {"name": name.partition("/")[2]}
        found = Task(name, gym.prompts, ("reasoning_gym",), gym.teacher, ("train", "test"), own)
    else:
        found = plugins.find(name, TASKS, "outdo.tasks", TaskError)
    if not isinstance(found, Task):
        raise TaskError(f"{name} is a {type(found).__name__}, not a task: {MADE}")
    found = replace(found.with_args(args), system_prompt=system_prompt)
    next(found.prompts("train", 0))  # says at once, and before anything is loaded, if there is nothing to train on
    return found


def refuse_no_task(given: object) -> None:
    """What is handed over as a task is one, or the name of one. Raises TaskError."""
    if not isinstance(given, (Task, str)):
        raise TaskError(f"task={given!r:.80} is neither a task nor the name of one. A function is made one: {MADE}")


def _of_data(source: Source) -> Task:
    if source.name == gsm8k.HUB and source.columns.items() <= gsm8k.COLUMNS.items():
        rows = read(replace(source, config=source.config or "main"))
        return replace(TASKS["gsm8k"], function=gsm8k.from_rows(rows))
    table = data.load(source)
    teacher = data.demonstration if table.can_be_imitated else None
    return Task(source.name, table.prompts, (), teacher, table.splits, finite=True)


def held_out(task: Task, split: str, size: int) -> list[Prompt]:
    """The first `size` distinct prompts of an evaluation split: the same for every seed, so that runs compare. Of size
    0, all of them; of a task without end that is refused."""
    found: dict[str, Prompt] = {}
    for tried, prompt in enumerate(task.prompts(split, seed_of("held out"))):
        found.setdefault(prompt.id, prompt)
        if size and (len(found) == size or tried > 50 * size):  # a small space may hold fewer
            break
        if not size and not task.finite and tried > MANY:
            where = "--size, eval_size or harvest_size"
            raise TaskError(f"task {task.name} makes {split!r} problems without end: say how many ({where})")
    return list(found.values())
