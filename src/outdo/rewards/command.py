"""What `outdo grade` and `outdo audit` do with their parsed options."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from outdo.errors import GraderError
from outdo.recipe.reward_names import canonical_reward
from outdo.rewards import rft
from outdo.rewards.arguments import Input
from outdo.rewards.audit import Audit, is_costly
from outdo.rewards.audit import audit as audit_rewards
from outdo.rewards.compose import Rewards, find_rewards
from outdo.rewards.lines import Encoder, graded_lines
from outdo.rewards.registry import GRADERS
from outdo.runs.outputs import refuse_file
from outdo.tasks.task import Task, find_task
from outdo.types import Prompt

PROGRESS_SECONDS = 2.0  # between two lines of progress
ByPlay = Callable[[Task, Sequence[Prompt]], Audit]
PROMPTS, COSTLY_PROMPTS = 20, 3  # of an audit; fewer where each answer costs a call


@dataclass(frozen=True)
class Options:
    names: list[str]
    weights: str = ""
    gate: str = ""
    timeout: float = 10.0
    max_completion_length: int = 0
    encode: Encoder | None = None
    args: Mapping[str, Any] = field(default_factory=dict)  # of rewards, by name
    input: Input = "auto"
    pass_threshold: float | None = None  # of the first reward, which decides what is right


def validate(path: str) -> None:
    """Checks a grader file. Raises GraderError with every problem and its line."""
    if problems := rft.validate(path):
        raise GraderError("\n".join(problems))
    print(f"{path}: valid")


def grade_file(path: str, out: Path | None, options: Options, over: bool = False) -> int:
    """Grades a file and prints a summary; the exit status: 0, or 1 where a line could not be parsed."""
    if out:
        refuse_file(out, over=over)
    rewards = _rewards(options)
    counts: Counter[str] = Counter()
    total, first_broken, unreadable = 0.0, "", False
    start = reported = time.monotonic()
    with _opened(path) as lines, _sink(out) as sink, redirect_stdout(sys.stderr):  # standard output holds grades only
        for grade in graded_lines(lines, rewards, options.encode):
            row = {"reward": grade.reward, "verdict": grade.verdict, "parts": dict(grade.parts), "reason": grade.reason}
            sink.write(json.dumps(row) + "\n")
            counts[grade.verdict] += 1
            total += grade.reward or 0.0
            first_broken = first_broken or (grade.reason if grade.verdict == "broken" else "")
            unreadable |= grade.verdict == "broken" and not grade.parts and grade.reason.startswith("line ")
            if time.monotonic() - reported > PROGRESS_SECONDS and sys.stderr.isatty():
                reported = time.monotonic()
                print(f"  {sum(counts.values()):,} graded", file=sys.stderr)
    n = sum(counts.values())
    if not n:
        raise GraderError(f"{path}: nothing to grade: the file has no lines")
    if counts["broken"] == n:
        raise GraderError(f"{path}: not one of {n} answers could be judged; the first: {first_broken}")
    print(
        f"{n:,} answers in {time.monotonic() - start:.1f} s: {counts['right']:,} right, {counts['wrong']:,} wrong, "
        f"{counts['broken']:,} broken; mean reward {total / (n - counts['broken']):.4f}"
        + (f"; the first broken: {first_broken}" if first_broken else ""),
        file=sys.stderr,
    )
    return int(unreadable)


def _rewards(options: Options) -> Rewards:
    if not options.names:
        raise GraderError("--reward is missing: a name from `outdo graders`, file.py:function, or grader.json")
    try:
        weights = [float(weight) for weight in options.weights.split(",") if weight.strip()]
    except ValueError:
        raise GraderError(f"--weights {options.weights}: use numbers with commas, such as 1.0,0.1") from None
    if weights and len(weights) != len(options.names):
        raise GraderError(f"--weights has {len(weights)} numbers and --reward {len(options.names)} names: one each")
    truth, limit = options.names[0], options.max_completion_length
    known: dict[str, Any] = {
        "gate": options.gate,
        "timeout": options.timeout,
        "args": options.args,
        "input": options.input,
        "pass_threshold": options.pass_threshold,
    }
    return find_rewards(options.names, weights, truth, limit, **known)


@contextmanager
def _opened(path: str) -> Iterator[Iterable[str]]:
    if path == "-":
        yield sys.stdin
        return
    try:
        file = open(path, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise GraderError(f"{path}: {error.strerror or error}") from None
    with file:
        yield file


@contextmanager
def _sink(out: Path | None) -> Iterator[TextIO]:
    """Where the grades go. A file appears only once it is complete."""
    if out is None:
        yield sys.stdout
        return
    aside = out.with_name(out.name + ".part")
    try:
        with aside.open("w", encoding="utf-8") as file:
            yield file
        aside.replace(out)
    except OSError as error:
        raise GraderError(f"--out {out}: {error.strerror or error}") from None


def audit(
    task: str | None, options: Options, size: int | None, task_args: Mapping[str, Any], by_play: ByPlay | None = None
) -> int:
    """Audits rewards and prints the result; the exit status: 0 where they are fit to train on. `by_play` audits what
    the task's environment pays."""
    names = [canonical_reward(name) for name in options.names]
    if task is None and not names:
        raise GraderError("name a task or a --reward: `outdo audit arithmetic`, `outdo audit --reward math`")
    source = find_task(task, dict(task_args)) if task is not None else None
    names = names or (list(source.rewards) if source else [])
    if not names:
        raise GraderError(f"{task} has no verifier of its own: name one with --reward")
    options = replace(options, names=names, max_completion_length=1024)
    rewards = _rewards(options)
    costly = is_costly(rewards)
    size = size or (COSTLY_PROMPTS if costly else PROMPTS)
    prompts = list(islice(source.prompts("train", 0), size)) if source else [_example(names[0])]
    if costly:
        print(f"each of about {12 * len(prompts)} test answers is a call of the judge; --size sets how many prompts")
    plays = source if rewards.judge and rewards.judge.plays else None
    result = by_play(plays, prompts) if by_play and plays else audit_rewards(rewards, prompts)
    tested = f"{result.num_prompts} prompts" + (f" of {len(prompts)}" if result.num_prompts < len(prompts) else "")
    print(f"{', '.join(names)}{f' on {task}' if task else ''}: {tested}, {result.gradings} gradings")
    _print(result)
    return 0 if result.fit else 1


def _print(result: Audit) -> None:
    for check in result.checks:
        sign = {"passed": "ok", "failed": "NO", "unknown": "??"}[check.outcome]
        print(f"  {sign}  {check.name}" + (f" ({check.detail})" if check.detail else ""))
    print(f"  latency p50 {_time(result.p50)}, p99 {_time(result.p99)} an answer")
    if result.failures:
        print("not fit to train on: " + "; ".join(check.detail for check in result.failures))
    elif result.form_only:
        print("fit to train on, beside a reward that decides what is right")
    elif result.fit:
        print("fit to train on")
    else:
        print(f"not known to be fit to train on: {result.checks[0].detail}")


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _example(name: str) -> Prompt:
    """The example row of a built-in grader."""
    row = dict(GRADERS[name].example) if name in GRADERS else {}
    if not row:
        raise GraderError(f"{name} has no example: give prompts with --data problems.jsonl, or name a task")
    return Prompt("example", ({"role": "user", "content": row.pop("prompt")},), row.pop("answer", None), row)
