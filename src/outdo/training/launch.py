"""The kinds of run, by name. `outdo train`, `sft` and `harvest`, and their functions in Python, all call `launch`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from outdo.host import keep_memory
from outdo.parallel.world import joined
from outdo.training import resume
from outdo.training.backend import Runner, runner_of
from outdo.training.cluster_plan import refuse_pretended
from outdo.training.context import Result, RunContext
from outdo.training.elsewhere import end_with_parent_if_child, is_elsewhere, run_elsewhere
from outdo.training.stages import RUNNERS, run_stages
from outdo.training.trackers import select_trackers

KINDS: dict[str, Runner] = {**RUNNERS, "stages": run_stages}


def launch(context: RunContext) -> Result:
    """Starts the run, or resumes one. Raises a subclass of OutdoError; an interrupt, once the run is saved."""
    refuse_pretended(context.recipe)
    end_with_parent_if_child()
    select_trackers(context.recipe.report_to)  # a tracker that is not installed is refused now
    keep_memory()
    with joined(context.recipe.parallel_timeout, context.recipe.device) as world:
        if context.resume is None and context.recipe.resume == "auto" and context.kind != "harvest":
            data = "" if context.kind == "stages" else resume.fingerprint(context.task, context.recipe.seed)
            files = resume.reward_files(context.rewards)
            find = partial(resume.find_unfinished, context.recipe, data, context.kind, files)
            if unfinished := world.first(find, "looking for an unfinished run"):
                context = replace(context, resume=unfinished[0], manifest=unfinished[1])
        if is_elsewhere(context.recipe) and context.kind in ("grpo", "stages"):
            return run_elsewhere(context)
        with context.given.model.as_given() if context.given.model else nullcontext():
            return runner_of(context, KINDS)(context)
