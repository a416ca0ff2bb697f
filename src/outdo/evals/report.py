"""Several models on the same problems: who got how many, what differs beyond noise, and the answers themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.evals.estimate import Difference, as_share, paired_difference
from outdo.evals.held_out import Answers, Evaluation
from outdo.evals.retention import Retention
from outdo.types import Group

LONGEST = 24  # letters of a model's name in a table


@dataclass(frozen=True)
class Result:
    """One model on one split of one task."""

    model: str
    task: str
    evaluation: Evaluation
    answers: Answers

    @property
    def split(self) -> str:
        return self.evaluation.split

    @property
    def cut(self) -> float:
        """The share of greedy answers that were cut at the limit."""
        return sum(group.trajectories[0].finish == "length" for group in self.answers.greedy) / len(self.answers.greedy)

    def row(self) -> dict[str, Any]:
        return {"model": self.model, "task": self.task, **self.evaluation.row(), "cut": round(self.cut, 6)}


def compare(new: Result, old: Result) -> dict[str, Difference]:
    """`success` and each `pass@k` that both have, on the problems that both have answers to that could be judged."""
    pairs = {"success": (new.answers.right(), old.answers.right())}
    for k in new.evaluation.pass_at.keys() & old.evaluation.pass_at.keys():
        pairs[f"pass@{k}"] = new.answers.passes(k), old.answers.passes(k)
    found = {}
    for name, (ours, theirs) in sorted(pairs.items(), key=lambda pair: _order(pair[0])):
        both = [key for key in ours if key in theirs]
        if both:
            found[name] = paired_difference([ours[key] for key in both], [theirs[key] for key in both])
    return found


def _order(name: str) -> int:
    return int(name.partition("@")[2] or 0)


def rounds(results: Sequence[Result]) -> list[list[Result]]:
    """The results by task and split, the models of each in the order they were asked."""
    keys = list(dict.fromkeys((r.task, r.split) for r in results))
    return [[r for r in results if (r.task, r.split) == key] for key in keys]


def share(value: float, low: float, high: float) -> str:
    return f"{as_share(value)} [{low:.3f}, {high:.3f}]"


def change(d: Difference) -> str:
    return f"{d.value:+.3f}" + (f" [{d.low:+.3f}, {d.high:+.3f}]" if math.isfinite(d.low) else "")


def in_words(d: Difference) -> str:
    if d.is_noise:
        return "within noise"
    return "higher" if d.value > 0 else "lower"


def short_names(models: Sequence[str]) -> dict[str, str]:
    """What a table calls each model: its name as it was given where that is short, else the end of its path, with as
    much before it as tells it from the others. A run's `model` folder goes by the run's name."""
    parts = {name: _parts(name) for name in models}
    short = {name: name for name in models if len(name) <= LONGEST}
    for name in (name for name in models if name not in short):
        tails = ["/".join(parts[name][-count:]) for count in range(1, len(parts[name]) + 1)]
        others = ["/".join(["", *parts[other]]) for other in models if other != name]
        short[name] = next((tail for tail in tails if not any(o.endswith(f"/{tail}") for o in others)), name)
    cut = {name: _cut(text) for name, text in short.items()}
    return cut if len(set(cut.values())) == len(cut) else short


def _parts(name: str) -> tuple[str, ...]:
    parts = Path(name).parts
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts


def _cut(text: str) -> str:
    """Its two ends: what begins alike often ends differently, as a date does."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 1]}…{text[-LONGEST // 2 :]}"


def table(results: Sequence[Result], names: Mapping[str, str]) -> Table:
    """One task and split: a line for each model."""
    ks = sorted({k for r in results for k in r.evaluation.pass_at})
    shown = _table("model", "success [95%]", *(f"pass@{k} [95%]" for k in ks))
    for r in results:
        found = _shares(r)
        shown.add_row(Text(names[r.model]), *(found.get(name, "–") for name in ("success", *(f"pass@{k}" for k in ks))))
    return shown


def tall_table(results: Sequence[Result], names: Mapping[str, str]) -> Table:
    """The same for a narrow window: a line for each number."""
    shown = _table("model", "", "share [95%]")
    for r in results:
        for i, (name, found) in enumerate(_shares(r).items()):
            shown.add_row(Text("" if i else names[r.model]), name, found)
    return shown


def _shares(r: Result) -> dict[str, str]:
    e = r.evaluation
    passes = {f"pass@{k}": share(value, *e.pass_interval[k]) for k, value in sorted(e.pass_at.items())}
    return {"success": share(e.success_rate, e.low, e.high), **passes}


def differences(results: Sequence[Result], names: Mapping[str, str]) -> Table:
    """The same problems: each model against the first."""
    shown = _table(f"against {names[results[0].model]}", "", "difference [95%]", "")
    for r in results[1:]:
        for i, (name, d) in enumerate(compare(r, results[0]).items()):
            shown.add_row(Text("" if i else names[r.model]), name, change(d), in_words(d))
    return shown


def retention_table(rows: Sequence[Retention], names: Mapping[str, str]) -> Table:
    shown = _table("model", "perplexity", "nats a token against the base [95%]", "")
    shown.add_row(Text(names[rows[0].base]), f"{rows[0].base_perplexity:.3f}", "–", "")
    for row in rows:
        shown.add_row(Text(names[row.model]), f"{row.perplexity:.3f}", change(row.change), in_words(row.change))
    return shown


def _table(*columns: str) -> Table:
    shown = Table(box=None, header_style="dim", padding=(0, 1))
    for name in columns:
        shown.add_column(Text(name), no_wrap=True)
    return shown


def as_json(results: Sequence[Result], kept: Sequence[Retention], about: dict[str, Any]) -> str:
    """Everything but the answers, for a program."""
    differences = [
        {"model": r.model, "against": group[0].model, "task": r.task, "split": r.split, "measure": name}
        | {"n": d.n, "difference": round(d.value, 6), "low": round(d.low, 6), "high": round(d.high, 6)}
        | {"noise": d.is_noise}
        for group in rounds(results)
        for r in group[1:]
        for name, d in compare(r, group[0]).items()
    ]
    whole = {"settings": about, "results": [r.row() for r in results], "differences": differences}
    return json.dumps(whole | {"retention": [row.row() for row in kept]}, indent=2)


def answer_lines(result: Result) -> Iterator[str]:
    """A JSON line for each answer with its verdict, greedy ones first, problems in a fixed order."""
    for kind, groups in (("greedy", result.answers.greedy), ("sampled", result.answers.sampled)):
        for group in sorted(groups, key=lambda group: group.prompt.id):
            for index in range(len(group.trajectories)):
                yield json.dumps(_line(result, kind, group, index), ensure_ascii=False, default=str)


def _line(result: Result, kind: str, group: Group, index: int) -> dict[str, Any]:
    completion, grade = group.trajectories[index], group.grades[index]
    return {
        "model": result.model,
        "task": result.task,
        "split": result.split,
        "id": group.prompt.id,
        "kind": kind,
        "index": index,
        "prompt": group.prompt.text,
        "answer": group.prompt.answer,
        "completion": completion.text,
        "finish": completion.finish,
        "tokens": completion.num_tokens,
        "verdict": grade.verdict,
        "reward": grade.reward,
        "reason": grade.reason,
    }
