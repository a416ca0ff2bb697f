"""Several models on the same problems: who got how many, what differs beyond noise, and the answers themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.evals.estimate import Difference, paired_difference
from outdo.evals.held_out import Answers, Evaluation
from outdo.evals.retention import Retention
from outdo.types import Group


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
        return sum(group.completions[0].finish == "length" for group in self.answers.greedy) / len(self.answers.greedy)

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
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def change(d: Difference) -> str:
    return f"{d.value:+.3f}" + (f" [{d.low:+.3f}, {d.high:+.3f}]" if math.isfinite(d.low) else "")


def in_words(d: Difference) -> str:
    if d.is_noise:
        return "within noise"
    return "higher" if d.value > 0 else "lower"


def table(results: Sequence[Result]) -> Table:
    """One task and split: a line for each model."""
    ks = sorted({k for r in results for k in r.evaluation.pass_at})
    shown = _table("model", "success [95%]", *(f"pass@{k} [95%]" for k in ks))
    for r in results:
        e = r.evaluation
        passes = [share(e.pass_at[k], *e.pass_interval[k]) if k in e.pass_at else "–" for k in ks]
        shown.add_row(Text(r.model), share(e.success_rate, e.low, e.high), *passes)
    return shown


def differences(results: Sequence[Result]) -> Table:
    """The same problems: each model against the first."""
    shown = _table(f"against {results[0].model}", "", "difference [95%]", "")
    for r in results[1:]:
        for i, (name, d) in enumerate(compare(r, results[0]).items()):
            shown.add_row(Text("" if i else r.model), name, change(d), in_words(d))
    return shown


def retention_table(rows: Sequence[Retention]) -> Table:
    shown = _table("model", "perplexity", "nats a token against the base [95%]", "")
    shown.add_row(Text(rows[0].base), f"{rows[0].base_perplexity:.3f}", "–", "")
    for row in rows:
        shown.add_row(Text(row.model), f"{row.perplexity:.3f}", change(row.change), in_words(row.change))
    return shown


def _table(*columns: str) -> Table:
    """Names and numbers in a line of their own each, whatever the window's width."""
    shown = Table(box=None, header_style="dim", padding=(0, 1))
    for name in columns:
        shown.add_column(Text(name), no_wrap=name != columns[0], overflow="fold")
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
            for index in range(len(group.completions)):
                yield json.dumps(_line(result, kind, group, index), ensure_ascii=False, default=str)


def _line(result: Result, kind: str, group: Group, index: int) -> dict[str, Any]:
    completion, grade = group.completions[index], group.grades[index]
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
        "tokens": len(completion.token_ids),
        "verdict": grade.verdict,
        "reward": grade.reward,
        "reason": grade.reason,
    }
