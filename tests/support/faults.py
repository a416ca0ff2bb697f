"""Faults at named points of a run: the Nth time that it comes by, something happens.

A fault is {"point": …, "nth": 1, "action": …}. Points are functions that are wrapped in the child; `a|b` is the part of
a function's work before (the default) or after it. Actions: kill, saved (kill, when the checkpoint that is being
written is on disk), term, twice (SIGTERM two times), full (ENOSPC), denied (EACCES); nan and inf spoil what the
function returns; answers puts `texts` in place of what was sampled.
`often`, at no point in particular, saves after every supervised update.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

import outdo.learn.learner
import outdo.learn.sft
import outdo.rewards.compose
import outdo.rollout.groups
import outdo.rollout.source
import outdo.runs.checkpoint
import outdo.runs.files
import outdo.runs.manifest
import outdo.runs.writer
import outdo.training.checkpointing
import outdo.training.evaluation
import outdo.training.harvest
import outdo.training.loop
import outdo.training.optimizer_files
import outdo.training.sft
from outdo.types import Group

POINTS: dict[str, tuple[Any, str]] = {
    "rollout": (outdo.rollout.groups.Sampler, "sample"),
    "grade": (outdo.rewards.compose, "grade"),
    "graded": (outdo.rollout.source, "sample_graded"),
    "advantages": (outdo.training.loop, "with_advantages"),
    "update": (outdo.learn.learner.LocalLearner, "update"),
    "one update": (outdo.learn.learner.LocalLearner, "_one_update"),
    "clip": (torch.nn.utils, "clip_grad_norm_"),
    "loss": (outdo.learn.learner, "grpo_loss"),
    "record": (outdo.runs.writer.RunWriter, "record_step"),
    "append": (outdo.runs.writer.RunWriter, "_append"),
    "manifest": (outdo.runs.writer, "write_manifest"),
    "pick": (outdo.training.harvest, "select_answers"),
    "imitate": (outdo.learn.sft.SFTLearner, "update"),
    "evaluate": (outdo.training.evaluation, "evaluate_prompts"),
    "save": (outdo.runs.checkpoint, "save"),
    "save weights": (outdo.training.checkpointing, "save_policy"),
    "save optimizer": (outdo.training.optimizer_files, "save_file"),
    "save rollouts": (outdo.rollout.source, "write_rounds"),
    "flush": (outdo.runs.files, "fsync_path"),
    "rename": (os, "replace"),
    "prune": (outdo.runs.checkpoint, "prune"),
}
SPOILS = {"nan": math.nan, "inf": math.inf}


def install(wanted: list[dict[str, Any]]) -> None:
    for fault in wanted:
        if fault["action"] == "often":
            outdo.training.sft.SAVE_INTERVAL, outdo.training.sft.SAVE_SHARE = -1.0, math.inf
            continue
        name, _, when = fault["point"].partition("|")
        owner, attribute = POINTS[name]
        setattr(owner, attribute, _wrapped(getattr(owner, attribute), fault, when or "before"))


def _wrapped(function: Callable[..., Any], fault: dict[str, Any], when: str) -> Callable[..., Any]:
    seen, action, told = 0, fault["action"], itertools.cycle(fault.get("texts", ()))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        due = seen == fault["nth"] or (fault.get("always") and seen >= fault["nth"])
        if due and action == "answers":
            prompts, sample, *more = args
            return function(prompts, lambda deal: _retold(sample(deal), told), *more, **kwargs)
        if due and action in SPOILS:
            return _spoilt(function(*args, **kwargs), SPOILS[action])
        if due and when == "before":
            _act(action)
        result = function(*args, **kwargs)
        if due and when == "after":
            _act(action)
        return result

    return wrapper


def _act(action: str) -> None:
    if action == "saved":
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
    if action in ("kill", "saved"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif action in ("term", "int"):
        os.kill(os.getpid(), signal.SIGTERM if action == "term" else signal.SIGINT)
    elif action == "twice":
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        number = {"full": errno.ENOSPC, "denied": errno.EACCES}[action]
        raise OSError(number, os.strerror(number))


def _spoilt(result: Any, value: float) -> Any:
    """The result with a number in it that is none."""
    if isinstance(result, Iterator):  # of groups: one log-probability of the sampler's in each
        return [replace(group, trajectories=(_unsure(group, value), *group.trajectories[1:])) for group in result]
    if isinstance(result, tuple):  # grpo_loss: the loss and its statistics
        return result[0] * value, result[1]
    return result * value


def _unsure(group: Group, value: float) -> Any:
    first = group.trajectories[0]
    segment = replace(first.segments[0], logprobs=(value, *first.logprobs[1:]))
    return replace(first, segments=(segment, *first.segments[1:]))


def _retold(groups: Iterable[Group], told: Iterator[str]) -> Iterator[Group]:
    """Groups as they come, with these texts for their answers."""
    for group in groups:
        yield replace(group, trajectories=tuple(replace(answer, text=next(told)) for answer in group.trajectories))
