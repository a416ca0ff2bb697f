"""What `outdo grade` and `outdo audit` do, once the words of the command line are read."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from outdo.errors import GraderError
from outdo.rewards import rft
from outdo.rewards.audit import Audit
from outdo.rewards.audit import audit as try_rewards
from outdo.rewards.compose import Rewards, find_rewards
from outdo.rewards.lines import Encoder, graded_lines
from outdo.rewards.registry import GRADERS
from outdo.runs.outputs import refuse_file
from outdo.tasks.task import find_task
from outdo.types import Grade, Prompt

EVERY = 2.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Options:
    names: list[str]
    weights: str = ""
    gate: str = ""
    timeout: float = 10.0
    max_completion_length: int = 0
    encode: Encoder | None = None


def validate(path: str) -> None:
    """Says that a grader file is good. Raises GraderError with every problem and its place."""
    if problems := rft.validate(path):
        raise GraderError("\n".join(problems))
    print(f"{path}: a good grader")


def grade_file(path: str, out: Path | None, options: Options, over: bool = False) -> int:
    """Grades a file and says how it went; the exit status: 0, or 1 where a line could not be read."""
    if out:
        refuse_file(out, over=over)
    rewards = _rewards(options)
    counts: Counter[str] = Counter()
    total, first_broken, unreadable = 0.0, "", False
    start = said = time.monotonic()
    with _opened(path) as lines, _sink(out) as sink, redirect_stdout(sys.stderr):  # what a reward prints is no grade
        for grade in graded_lines(lines, rewards, options.encode):
            sink.write(_row(grade) + "\n")
            counts[grade.verdict] += 1
            total += grade.reward or 0.0
            first_broken = first_broken or (grade.reason if grade.verdict == "broken" else "")
            unreadable |= grade.verdict == "broken" and not grade.parts and grade.reason.startswith("line ")
            if time.monotonic() - said > EVERY and sys.stderr.isatty():
                said = time.monotonic()
                print(f"  {sum(counts.values()):,} graded", file=sys.stderr)
    n = sum(counts.values())
    if not n:
        raise GraderError(f"{path}: there is nothing to grade: it has no lines")
    if counts["broken"] == n:
        raise GraderError(f"{path}: not one of {n} answers could be judged; the first: {first_broken}")
    judged = n - counts["broken"]
    print(
        f"{n:,} answers in {time.monotonic() - start:.1f} s: {counts['right']:,} right, {counts['wrong']:,} wrong, "
        f"{counts['broken']:,} broken; mean reward {total / judged:.4f}"
        + (f"; the first broken: {first_broken}" if first_broken else ""),
        file=sys.stderr,
    )
    return int(unreadable)


def _rewards(options: Options) -> Rewards:
    if not options.names:
        raise GraderError("--reward is missing: a name of `outdo graders`, file.py:function, or grader.json")
    try:
        weights = [float(weight) for weight in options.weights.split(",") if weight.strip()]
    except ValueError:
        raise GraderError(f"--weights {options.weights}: numbers with commas, such as 1.0,0.1") from None
    if weights and len(weights) != len(options.names):
        raise GraderError(f"--weights has {len(weights)} numbers and --reward {len(options.names)} names: one each")
    return find_rewards(
        options.names,
        weights,
        options.names[0],
        options.max_completion_length,
        gate=options.gate,
        timeout=options.timeout,
    )


def _row(grade: Grade) -> str:
    row = {"reward": grade.reward, "verdict": grade.verdict, "parts": dict(grade.parts), "reason": grade.reason}
    return json.dumps(row)


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
    """Where the grades go. A file is there only when it is whole."""
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


def audit(task: str | None, reward: str, size: int, task_args: Mapping[str, Any], timeout: float) -> int:
    """Tries rewards and prints what came of it; the exit status: 0 where they are fit to train on."""
    names = [name.strip() for name in reward.split(",") if name.strip()]
    if task is None and not names:
        raise GraderError("name a task or a --reward: `outdo audit arithmetic`, `outdo audit --reward math`")
    if task is not None:
        found = find_task(task, dict(task_args))
        names = names or list(found.rewards)
        prompts = [prompt for _, prompt in zip(range(size), found.prompts("train", 0), strict=False)]
    else:
        prompts = [_example(names[0])]
    if not names:
        raise GraderError(f"{task} has no verifier of its own: name one with --reward")
    rewards = find_rewards(names, [], names[0], max_completion_length=1024, timeout=timeout)
    result = try_rewards(rewards, prompts)
    print(f"{', '.join(names)}{f' on {task}' if task else ''}: {len(prompts)} prompts, {result.answers} gradings")
    _print(result)
    return 0 if result.fit else 1


def _print(result: Audit) -> None:
    for check in result.checks:
        sign = {"passed": "ok", "failed": "NO", "unknown": "??"}[check.outcome]
        print(f"  {sign}  {check.name}" + (f" ({check.words})" if check.words else ""))
    print(f"  latency p50 {_time(result.p50)}, p99 {_time(result.p99)} an answer")
    print("fit to train on" if result.fit else "not fit to train on: " + "; ".join(c.words for c in result.failures))


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
    )


def _example(name: str) -> Prompt:
    """The row that a built-in grader brings with it."""
    row = dict(GRADERS[name].example) if name in GRADERS else {}
    if not row:
        raise GraderError(f"{name} brings no example: give it prompts with --data problems.jsonl, or a task")
    return Prompt("example", ({"role": "user", "content": row.pop("prompt")},), row.pop("answer", None), row)
