"""Results of several models on the same problems: tables, paired differences, JSON, and a line per answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from outdo.evals.held_out import Evaluation, GradedAnswers
from outdo.metrics.estimate import Difference, format_share, paired_difference, paired_rewards
from outdo.runs.layout import MODEL
from outdo.types import Group

if TYPE_CHECKING:
    from outdo.evals.retention import Retention

MAX_NAME_CHARS = 24  # of a model in a table
ENTROPY = "entropy"
REWARDS = ("reward", "sampled reward")  # measures that have no range of their own


@dataclass(frozen=True)
class EvalResult:
    """One model on one split of one task."""

    model: str
    task: str
    evaluation: Evaluation
    answers: GradedAnswers

    @property
    def split(self) -> str:
        return self.evaluation.split

    @property
    def cut(self) -> float:
        """The share of greedy answers that were cut at max_completion_length."""
        return sum(group.trajectories[0].finish == "length" for group in self.answers.greedy) / len(self.answers.greedy)

    def row(self) -> dict[str, Any]:
        return {"model": self.model, "task": self.task, **self.evaluation.row(), "cut": round(self.cut, 6)}


def compare(new: EvalResult, old: EvalResult) -> dict[str, Difference]:
    """The difference in `success`, each shared `pass@k` and, with partial credit, the mean reward, on the problems that
    could be judged for both models."""
    pairs = {"success": (new.answers.success_by_problem(), old.answers.success_by_problem())}
    for k in sorted(new.evaluation.pass_at.keys() & old.evaluation.pass_at.keys()):
        pairs[f"pass@{k}"] = new.answers.pass_by_problem(k), old.answers.pass_by_problem(k)
    if new.evaluation.has_partial_credit or old.evaluation.has_partial_credit:
        pairs["reward"] = new.answers.reward_by_problem(), old.answers.reward_by_problem()
        sampled = new.answers.sampled_reward_by_problem(), old.answers.sampled_reward_by_problem()
        pairs["sampled reward"] = sampled
    differences = {}
    for name, (ours, theirs) in pairs.items():
        shared = [key for key in ours if key in theirs]
        if shared:
            how = paired_rewards if name in REWARDS else paired_difference
            differences[name] = how([ours[key] for key in shared], [theirs[key] for key in shared])
    return differences


def by_split(results: Sequence[EvalResult]) -> list[list[EvalResult]]:
    """The results grouped by task and split, the models in the order they were evaluated."""
    keys = list(dict.fromkeys((r.task, r.split) for r in results))
    return [[r for r in results if (r.task, r.split) == key] for key in keys]


def format_interval(value: float, low: float, high: float) -> str:
    return f"{format_share(value)} [{low:.3f}, {high:.3f}]"


def format_difference(d: Difference) -> str:
    return f"{d.value:+.3f}" + (f" [{d.low:+.3f}, {d.high:+.3f}]" if math.isfinite(d.low) else "")


def describe_difference(d: Difference) -> str:
    if d.is_noise:
        return "within noise"
    return "higher" if d.value > 0 else "lower"


def short_names(models: Sequence[str]) -> dict[str, str]:
    """What a table calls each model: its name where that is short, else the shortest end of its path that no other
    model has. A run's `model` folder goes by the run's name."""
    parts = {name: _parts(name) for name in models}
    short = {name: name for name in models if len(name) <= MAX_NAME_CHARS}
    for name in (name for name in models if name not in short):
        tails = ["/".join(parts[name][-count:]) for count in range(1, len(parts[name]) + 1)]
        others = ["/".join(["", *parts[other]]) for other in models if other != name]
        short[name] = next((tail for tail in tails if not any(o.endswith(f"/{tail}") for o in others)), name)
    cut = {name: _cut(text) for name, text in short.items()}
    return cut if len(set(cut.values())) == len(cut) else short


def _parts(name: str) -> tuple[str, ...]:
    parts = Path(name).parts
    return parts[:-1] if len(parts) > 1 and parts[-1] == MODEL else parts


def _cut(text: str) -> str:
    """The start and the end: names that start alike often end differently, as dates do."""
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS // 2 - 1]}…{text[-MAX_NAME_CHARS // 2 :]}"


def table(results: Sequence[EvalResult], names: Mapping[str, str]) -> Table:
    """One task and split, a line per model."""
    shown = [_cells(r, _has_partial_credit(results)) for r in results]
    columns = list(dict.fromkeys(name for cells in shown for name in cells))
    out = _table("model", *(name if name == ENTROPY else f"{name} [95%]" for name in columns))
    for r, cells in zip(results, shown, strict=True):
        out.add_row(Text(names[r.model]), *(cells.get(name, "–") for name in columns))
    return out


def narrow_table(results: Sequence[EvalResult], names: Mapping[str, str]) -> Table:
    """The same for a narrow terminal, a line per number."""
    out = _table("model", "", "share [95%]")
    for r in results:
        for i, (name, cell) in enumerate(_cells(r, _has_partial_credit(results)).items()):
            out.add_row(Text("" if i else names[r.model]), name, cell)
    return out


def _has_partial_credit(results: Sequence[EvalResult]) -> bool:
    return any(r.evaluation.has_partial_credit for r in results)


def _cells(r: EvalResult, with_rewards: bool) -> dict[str, str]:
    e = r.evaluation
    cells = {"success": format_interval(e.success_rate, e.low, e.high)}
    cells |= {f"pass@{k}": format_interval(value, *e.pass_interval[k]) for k, value in sorted(e.pass_at.items())}
    means = zip(REWARDS, (e.reward_interval, e.sampled_reward_interval), strict=True)
    cells |= {name: format_interval(*ends) for name, ends in means if ends and with_rewards}
    return cells | ({} if e.entropy_mean is None else {ENTROPY: f"{e.entropy_mean:.3f}"})


def differences(results: Sequence[EvalResult], names: Mapping[str, str]) -> Table:
    """Each model against the first, on the same problems."""
    out = _table(f"against {names[results[0].model]}", "", "difference [95%]", "")
    for r in results[1:]:
        for i, (name, d) in enumerate(compare(r, results[0]).items()):
            out.add_row(Text("" if i else names[r.model]), name, format_difference(d), describe_difference(d))
    return out


def retention_table(rows: Sequence[Retention], names: Mapping[str, str]) -> Table:
    out = _table("model", "perplexity", "nats per token against the base [95%]", "")
    out.add_row(Text(names[rows[0].base]), f"{rows[0].base_perplexity:.3f}", "–", "")
    for row in rows:
        change = format_difference(row.change), describe_difference(row.change)
        out.add_row(Text(names[row.model]), f"{row.perplexity:.3f}", *change)
    return out


def _table(*columns: str) -> Table:
    out = Table(box=None, header_style="dim", padding=(0, 1))
    for name in columns:
        out.add_column(Text(name), no_wrap=True)
    return out


def as_json(results: Sequence[EvalResult], retention: Sequence[Retention], settings: Mapping[str, Any]) -> str:
    """Everything but the answers."""
    differences = [
        {"model": r.model, "against": group[0].model, "task": r.task, "split": r.split, "measure": name}
        | {"n": d.n, "difference": round(d.value, 6), "low": round(d.low, 6), "high": round(d.high, 6)}
        | {"noise": d.is_noise}
        for group in by_split(results)
        for r in group[1:]
        for name, d in compare(r, group[0]).items()
    ]
    data = {"settings": settings, "results": [r.row() for r in results], "differences": differences}
    return json.dumps(data | {"retention": [row.row() for row in retention]}, indent=2)


def answer_lines(result: EvalResult) -> Iterator[str]:
    """A JSON line per answer with its verdict, greedy ones first, problems in the order of their ids."""
    for kind, groups in (("greedy", result.answers.greedy), ("sampled", result.answers.sampled)):
        for group in sorted(groups, key=lambda group: group.prompt.id):
            for index in range(len(group.trajectories)):
                yield json.dumps(_line(result, kind, group, index), ensure_ascii=False, default=str)


def _line(result: EvalResult, kind: str, group: Group, index: int) -> dict[str, Any]:
    prompt, completion, grade = group.prompt, group.trajectories[index], group.grades[index]
    return (
        {"model": result.model, "task": result.task, "split": result.split}
        | {"id": prompt.id, "kind": kind, "index": index, "prompt": prompt.text, "answer": prompt.answer}
        | {"completion": completion.text, "finish": completion.finish, "tokens": completion.num_tokens}
        | {"verdict": grade.verdict, "reward": grade.reward, "reason": grade.reason}
    )
