"""Everything that a report shows of a run. What cannot be read is left out and listed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.doctor.report import FindingRecord, findings_of
from outdo.doctor.summary import RunPage, RunSummary, run_page, summarize
from outdo.errors import PlaceError
from outdo.evals.changes import Changes
from outdo.recipe.schema import Recipe
from outdo.report.examples import Example, find_examples
from outdo.report.held_out import find_changes
from outdo.runs import usage
from outdo.runs.curves import EvalRecord, Metrics, eval_records, load_curves
from outdo.runs.manifest import manifest_path
from outdo.runs.reader import JsonRow
from outdo.runs.run_reader import RunReader
from outdo.runs.values import as_list

POINTS = 500  # of a curve
MAX_STAGES = 100
DEFAULTS: dict[str, Any] = {key: field.get_default() for key, field in Recipe.model_fields.items()}


@dataclass(frozen=True)
class RunFacts:
    name: str
    page: RunPage  # its summary, recipe, facts and cost
    metrics: Metrics
    sft: Metrics
    evals: list[EvalRecord]
    eval_rows: list[JsonRow]  # with the intervals of pass@k
    findings: list[FindingRecord]
    examples: list[Example]
    changes: list[Changes]  # of held-out answers, by split
    stages: list[RunSummary]  # the runs of a run with stages
    problems: list[str]

    @property
    def changed(self) -> dict[str, Any]:
        return {key: value for key, value in self.page.recipe.items() if key not in DEFAULTS or value != DEFAULTS[key]}


def read_facts(folder: Path) -> RunFacts:
    """Raises PlaceError where the folder holds no run."""
    folder = folder.resolve()
    reader = RunReader(folder, folder)
    manifest, unread = reader.manifest()
    if not isinstance(manifest.get("recipe"), dict):
        why = unread[0] if unread else f"its {manifest_path(folder).name} has no recipe"
        raise PlaceError(f"{folder} holds no run: {why}")
    page, stages = read_page(reader)
    findings = findings_of(reader)
    metrics, sft = (load_curves(file, POINTS) for file in (reader.metrics, reader.sft))
    return RunFacts(
        name=folder.name,
        page=page,
        metrics=metrics,
        sft=sft,
        evals=eval_records(reader.evals.all()),
        eval_rows=reader.evals.all(),
        findings=findings.findings,
        examples=find_examples(reader),
        changes=find_changes([folder / stage.id for stage in stages] or [folder], folder),
        stages=stages,
        problems=list(dict.fromkeys([*page.trouble, *findings.trouble, *sft.trouble])),
    )


def read_page(reader: RunReader) -> tuple[RunPage, list[RunSummary]]:
    """The run and its stages: tokens are those of all stages, and the device time is at least theirs."""
    folder = reader.folder
    stages = _stages(folder, reader.manifest()[0].get("stages"))
    page = run_page(reader, _over_stages(summarize(folder, folder, "."), stages))
    if not stages:
        return page, []
    pages = [run_page(RunReader(folder, folder / stage.id), stage) for stage in stages]
    counts = {name: sum(getattr(each, name) for each in pages) for name in ("tokens", "trained_tokens", "answers")}
    used = max(page.device_seconds, sum(each.device_seconds for each in pages))
    costs = {**counts, "device_seconds": used, "price": usage.price_of(page.recipe, used)}
    return page.model_copy(update=costs), stages


def _stages(folder: Path, names: Any) -> list[RunSummary]:
    """The stages that were started. Only folders inside the run's own are read."""
    valid = [name for name in as_list(names) if isinstance(name, str) and re.fullmatch(r"[\w-]+", name)]
    started = [name for name in valid if manifest_path(folder / name).is_file()]
    return [summarize(folder, folder / name, name) for name in started[:MAX_STAGES]]


def _over_stages(summary: RunSummary, stages: Sequence[RunSummary]) -> RunSummary:
    """With stages: from before the first to after the last."""
    if not stages:
        return summary
    before = next((stage.before for stage in stages if stage.before), None)
    after = next((stage.after for stage in reversed(stages) if stage.after), None)
    steps = sum(stage.steps for stage in stages)
    changes = [change for stage in stages for change in stage.splits]
    firsts = {change.split: change.before for change in reversed(changes) if change.before}
    lasts = {change.split: change for change in changes if change.after}
    splits = [last.model_copy(update={"before": firsts.get(split)}) for split, last in lasts.items()]
    ends = {"before": before, "after": after, "splits": splits}
    return summary.model_copy(update={**ends, "steps": steps, "max_steps": None})
