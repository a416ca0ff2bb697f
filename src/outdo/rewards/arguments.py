"""What a reward function is called with: which form it has, by its parameters, and the columns that it takes.

A function of lists (`completions`) is called as TRL calls it: one value for each answer in every column; where the data
is conversational, `completions` are lists of messages (one; after several turns all of them, the environment's too) and
`prompts` lists of messages. A function of one answer (`completion`, `response`) is called once for each, with single
values, and its prompt and answer are always text: the last turn.

What was played in an environment comes with `episodes` and, for the user's own objects, `environments`, to functions
that name them. Such objects cannot leave this process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

from outdo.errors import GraderError
from outdo.types import Group, Trajectory

Form = Literal["many", "one"]  # called with the answers of a group or a step, or with one answer
Input = Literal["auto", "text", "messages"]  # what `completions` are; auto: as the prompts of the data are
LIST_NAMES = ("completions", "prompts", "completion_ids", "verdicts", "finish")  # one of these: a function of lists
COMPLETION_TOOLS = "completion_tools"  # the calls that a server has parsed from each answer
EPISODES, ENVIRONMENTS, EPISODE = "episodes", "environments", "episode"  # the last for a function of one answer
PLAYED = (EPISODES, ENVIRONMENTS, EPISODE)  # handed to functions that name them, never as **columns
ANSWER_NAMES = ("completion", "response", "output", "solution_str")  # the model's answer, in a function of one
PROMPT_NAMES = ("prompt", "question")
GOLD_NAMES = ("answer", "ground_truth")
SHARED = ("max_completion_length", "reward_timeout", "trainer_state", "cache_folder")  # one value, not a list
NOT_DATA = (*LIST_NAMES, COMPLETION_TOOLS, *SHARED)  # what a column of the data with such a name cannot replace


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call for several answers."""

    lists: Mapping[str, Sequence[Any]]  # one value for each answer
    shared: Mapping[str, Any]  # the same for all
    count: int
    played: bool = False  # in an environment: some of the lists are objects of this process (PLAYED)

    def take(self, start: int, stop: int) -> Inputs:
        """Those of some of the answers."""
        return replace(self, lists={k: list(v[start:stop]) for k, v in self.lists.items()}, count=stop - start)

    def arguments(self) -> dict[str, Any]:
        return {**self.shared, **self.lists}

    def of_each(self) -> list[dict[str, Any]]:
        """The arguments of a call for each answer."""
        return [{**self.shared, **{k: v[i] for k, v in self.lists.items()}} for i in range(self.count)]


def join_inputs(inputs: Sequence[Inputs]) -> Inputs:
    """Those of all groups in one call. A column that a group lacks is None there."""
    names = dict.fromkeys(name for one in inputs for name in one.lists)
    lists = {name: [v for one in inputs for v in one.lists.get(name, [None] * one.count)] for name in names}
    return Inputs(lists, inputs[0].shared, sum(one.count for one in inputs), any(one.played for one in inputs))


def texts(completions: Sequence[Any]) -> list[str]:
    """The text of each completion, given as text or as messages, of which the model's last one is the answer."""
    return [text if isinstance(text, str) else _last_turn(text) for text in completions]


def _last_turn(messages: Sequence[Mapping[str, Any]]) -> str:
    turns = [message for message in messages if message.get("role") == "assistant"]
    return str(turns[-1].get("content") or "") if turns else ""


def group_inputs(
    group: Group, shared: Mapping[str, Any], verdicts: Sequence[str] | None, messages: bool = False
) -> Inputs:
    """Every column of a group. With `messages`, completions and prompts are lists of messages, as TRL has them. No
    column of the data stands for something of the answer (NOT_DATA)."""
    n = len(group.trajectories)
    answers = [answer.text for answer in group.trajectories]
    prompt = [dict(message) for message in group.prompt.messages]
    lists: dict[str, list[Any]] = {key: [value] * n for key, value in group.prompt.meta.items() if key not in NOT_DATA}
    lists |= {
        "completions": [_messages(answer) for answer in group.trajectories] if messages else answers,
        "prompts": [prompt if messages else group.prompt.text] * n,
        "messages": [group.prompt.messages] * n,
        "answer": [group.prompt.answer] * n,
        "finish": [answer.finish for answer in group.trajectories],
    }
    if any(answer.token_ids for answer in group.trajectories):
        lists["completion_ids"] = [answer.token_ids for answer in group.trajectories]
    if any(answer.tool_calls is not None for answer in group.trajectories):
        lists[COMPLETION_TOOLS] = [answer.tool_calls for answer in group.trajectories]
    played = any(answer.episode for answer in group.trajectories)
    if played:
        lists = {name: values for name, values in lists.items() if name not in PLAYED}
        lists[EPISODES] = [answer.episode for answer in group.trajectories]
        lists[ENVIRONMENTS] = [answer.episode and answer.episode.environment for answer in group.trajectories]
    if verdicts is not None:
        lists["verdicts"] = list(verdicts)
    return Inputs(lists, shared, n, played)


def _messages(answer: Trajectory) -> list[dict[str, Any]]:
    """What was said after the prompt, as TRL's completions have it."""
    if answer.episode:
        return [dict(message) for message in answer.episode.messages]
    return [{"role": "assistant", "content": answer.text}]


def takes_objects(function: Callable[..., Any]) -> bool:
    """Whether a function asks for what cannot leave this process."""
    return not set(PLAYED).isdisjoint(_parameters("", function)[0])


def trainer_state(step: int, total: int) -> SimpleNamespace:
    """TRL's, as far as a reward can use it: how far training is."""
    return SimpleNamespace(global_step=step, max_steps=total)


def form_of(name: str, function: Callable[..., Any]) -> Form:
    """Whether a function takes lists or one answer, by its parameters. Raises GraderError where they do not say."""
    named, takes_any = _parameters(name, function)
    plural = [p for p in named if p in LIST_NAMES]
    singular = [p for p in named if p in ANSWER_NAMES]
    if "completions" in named:
        return "many"
    if singular and set(plural) - {"finish"}:  # which may be a list or one value
        raise _mixed(name, plural[0], singular[0])
    if singular:
        return "one"
    if plural or takes_any:
        return "many"
    taken = f"takes {', '.join(named)}, but " if named else "takes "
    raise GraderError(
        f"reward {name} {taken}no answer to judge: name a parameter `completions` for a list of answers, or "
        "`completion` or `response` for one"
    )


def select_inputs(name: str, function: Callable[..., Any], inputs: Inputs) -> Inputs:
    """The columns that a function of lists takes; all of them where it takes **columns. Raises GraderError."""
    named, takes_any = _parameters(name, function)
    present = {**inputs.lists, **inputs.shared}
    missing = [p for p in _required(function) if p not in present]
    if "verdicts" in missing:
        raise GraderError(f"reward {name} needs the verdicts of another, named before it: numeric,{name}")
    if mixed := [p for p in missing if p in (*ANSWER_NAMES, *PROMPT_NAMES)]:
        raise _mixed(name, next(p for p in (*LIST_NAMES, *named) if p in named), mixed[0])
    if missing:
        raise _missing(name, missing, list(present))
    return _without_objects(inputs, named) if takes_any else _only(inputs, named)


def single_inputs(name: str, function: Callable[..., Any], inputs: Inputs) -> Inputs:
    """The columns that a function of one answer takes, under its names. Raises GraderError."""
    named, takes_any = _parameters(name, function)
    columns = dict(inputs.lists)
    answers, prompts = columns.pop("completions"), columns.pop("prompts")
    if inputs.played:
        columns[EPISODE] = columns.pop(EPISODES)
    columns.pop("completion", None)  # a demonstration
    spoken = _answer_name(name, named, columns)
    columns[spoken] = answers
    for alias in PROMPT_NAMES:
        columns.setdefault(alias, prompts)
    for alias in GOLD_NAMES:
        columns.setdefault(alias, columns["answer"])
    present = {**columns, **inputs.shared}
    if missing := [p for p in _required(function) if p not in present]:
        raise _missing(name, missing, list(present))
    renamed = replace(inputs, lists=columns)
    return _without_objects(renamed, named) if takes_any else _only(renamed, named)


def _answer_name(name: str, named: Sequence[str], columns: Mapping[str, Any]) -> str:
    """The parameter for the model's answer. A second of these names must be a column of the data."""
    names = [p for p in ANSWER_NAMES if p in named]
    chosen = names[0] if names[0] == "completion" or len(names) == 1 else ""
    others = [p for p in names if p != chosen and p not in columns]
    if not chosen and len(others) == 1:
        return others[0]
    if not chosen or others:
        raise GraderError(
            f"reward {name} takes {' and '.join(f'`{p}`' for p in names)}: which one is the answer to judge? Keep one, "
            "or call it `completion`"
        )
    return chosen


def _only(inputs: Inputs, names: Sequence[str]) -> Inputs:
    lists = {key: value for key, value in inputs.lists.items() if key in names}
    return replace(inputs, lists=lists, shared={key: value for key, value in inputs.shared.items() if key in names})


def _without_objects(inputs: Inputs, named: Sequence[str]) -> Inputs:
    hidden = set(PLAYED) - set(named) if inputs.played else ()
    return replace(inputs, lists={key: value for key, value in inputs.lists.items() if key not in hidden})


def _mixed(name: str, plural: str, singular: str) -> GraderError:
    return GraderError(
        f"reward {name} takes `{plural}`, a list, and `{singular}`, of one answer. Take lists (completions, prompts, "
        "answer), or the values of one answer (completion, prompt, answer)"
    )


def _missing(name: str, missing: Sequence[str], present: Sequence[str]) -> GraderError:
    return GraderError(
        f"reward {name} needs {', '.join(missing)}, which the data lacks; it has {', '.join(present)}. An argument of "
        f"its own is set by reward_args.{name}.{missing[0]}=VALUE"
    )


def refuse_unknown_args(name: str, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raises GraderError for one of `reward_args` that the function does not take, or that is a column."""
    named, takes_any = _parameters(name, function)
    for key in args:
        if key in (*NOT_DATA, *ANSWER_NAMES, *PROMPT_NAMES, *GOLD_NAMES, "messages"):
            raise GraderError(f"reward_args.{name}.{key}: every call has its own `{key}`, so it cannot be set")
        if key not in named and not (takes_any and not _is_builtin(function)):
            own = [p for p in named if p not in (*NOT_DATA, *GOLD_NAMES, "messages")]
            raise GraderError(f"reward_args.{name}.{key}: {name} takes {', '.join(own) or 'no arguments of its own'}")


def _is_builtin(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("outdo.rewards.")


def _parameters(name: str, function: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names that a function takes, and whether it takes any others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise GraderError(f"reward {name}: its parameters cannot be read ({error}): wrap it in a `def`") from None
    for p in parameters:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise GraderError(f"reward {name} takes `{p.name}` by position only: remove the `/` of its parameters")
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _required(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
