"""Held-out answers side by side: two evaluations of a run, or one of each of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from outdo.dash.models import AnswerPage, EvalChoice
from outdo.evals.changes import ChangeRecord, Changes, changes_between, evaluations
from outdo.runs.run_reader import RunReader
from outdo.runs.values import MAX_EXACT_INT

Show = Literal["all", "gained", "lost", "both", "neither", "unjudged"]
Side = tuple[str, RunReader]  # a run's id, and its reader


def answers_page(
    sides: tuple[Side, Side], split: str, steps: tuple[int | None, int | None], show: Show, q: str, page: slice
) -> AnswerPage:
    """The problems that both evaluations have. Without steps: one run's first evaluation and its last; of two runs, the
    last of each. What does not exist is null."""
    (first, reader), (second, other) = sides
    choices = [evaluations(each.folder, each.evals.all()) for each in (reader, other)]
    splits = [name for name in choices[0] if name in choices[1]]
    split = split if split in splits or not splits else splits[0]
    listed: dict[str, Any] = {"splits": splits, "evaluations": _listed(choices[0]), "others": _listed(choices[1])}
    if split not in splits:
        return AnswerPage(**listed, trouble=[*reader.evals.problems(), *other.evals.problems()])
    same = reader.folder == other.folder
    chosen = (
        _chosen(choices[0][split], steps[0], 0 if same else MAX_EXACT_INT),
        _chosen(choices[1][split], steps[1], MAX_EXACT_INT),
    )
    folders, roots = [reader.folder, other.folder], [reader.root, other.root]
    changes = changes_between(folders, [first, second], chosen, split, roots)
    shown = [change for change in changes.changes if show in ("all", change.kind) and _matches(change, q)]
    shown.sort(key=lambda change: ORDER.index(change.kind))
    page_of = Changes(**{**dict(changes), "changes": shown[page]})
    return AnswerPage(**listed, changes=page_of, total=len(shown), trouble=changes.trouble)


ORDER = ("gained", "lost", "neither", "both", "unjudged")


def _listed(choices: dict[str, list[int]]) -> list[EvalChoice]:
    return [EvalChoice(split=split, steps=steps) for split, steps in choices.items()]


def _chosen(steps: Sequence[int], wanted: int | None, default: int) -> int:
    """The evaluation that is nearest to the step that is wanted."""
    target = default if wanted is None else wanted
    return min(steps, key=lambda step: abs(step - target))


def _matches(change: ChangeRecord, q: str) -> bool:
    if not q:
        return True
    texts = (change.id, change.prompt, str(change.answer), change.before.text, change.after.text)
    content = "\n".join(texts).casefold()
    return all(word in content for word in q.casefold().split())
