"""What is told of a run, read from its folder. What cannot be read is left out, and said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.dash.book import Book
from outdo.dash.files import Row
from outdo.dash.findings import findings_of
from outdo.dash.metrics import evals_of, metrics_of
from outdo.dash.shapes import Eval, Finding, Metrics, RunPage, RunSummary
from outdo.dash.summary import run_page, summary_of
from outdo.errors import PlaceError
from outdo.recipe.schema import Recipe
from outdo.report.examples import Example, examples

POINTS = 500  # of a curve
DEFAULTS: dict[str, Any] = {key: field.get_default() for key, field in Recipe.model_fields.items()}


@dataclass(frozen=True)
class Story:
    """One run, as far as it went."""

    name: str
    page: RunPage  # its summary, recipe, facts and cost
    metrics: Metrics
    sft: Metrics
    evals: list[Eval]
    rows: list[Row]  # of evals.jsonl, with the intervals of pass@k
    findings: list[Finding]
    examples: list[Example]
    stages: list[RunSummary]  # runs that this one is made of
    trouble: list[str]

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.page.recipe

    @property
    def changed(self) -> dict[str, Any]:
        """The keys of the recipe that are not as they come."""
        return {key: value for key, value in self.recipe.items() if key not in DEFAULTS or value != DEFAULTS[key]}


def read_story(folder: Path) -> Story:
    """Raises PlaceError where the folder holds no run."""
    folder = folder.resolve()
    book = Book(folder, folder)
    manifest, wrong = book.manifest()
    if not isinstance(manifest.get("recipe"), dict):
        why = wrong[0] if wrong else "its run.json has no recipe"
        raise PlaceError(f"{folder} holds no run: {why}")
    stages = _stages(folder, manifest.get("stages"))
    page = run_page(book, _with(summary_of(folder, folder, "."), stages))
    found = findings_of(book)
    metrics, sft = (metrics_of(numbers, POINTS) for numbers in (book.metrics, book.sft))
    trouble = dict.fromkeys([*page.trouble, *found.trouble, *sft.trouble])
    return Story(
        name=folder.name,
        page=page,
        metrics=metrics,
        sft=sft,
        evals=evals_of(book.evals.all()),
        rows=book.evals.all(),
        findings=found.findings,
        examples=examples(book),
        stages=stages,
        trouble=list(trouble),
    )


def _stages(folder: Path, names: Any) -> list[RunSummary]:
    """Those that were begun; only folders inside the run's are looked at."""
    told = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    inside = [name for name in told if re.fullmatch(r"[\w-]+", name) and (folder / name / "run.json").is_file()]
    return [summary_of(folder, folder / name, name) for name in inside[:100]]


def _with(summary: RunSummary, stages: Sequence[RunSummary]) -> RunSummary:
    """Of several stages: from before the first to after the last."""
    if not stages:
        return summary
    before = next((stage.before for stage in stages if stage.before), None)
    after = next((stage.after for stage in reversed(stages) if stage.after), None)
    return summary.model_copy(
        update={"before": before, "after": after, "steps": sum(stage.steps for stage in stages), "max_steps": None}
    )
