"""Rejection sampling: many answers to each prompt, and the distinct right ones of them as demonstrations.

    FILE.jsonl           the demonstrations: `prompt` or `messages`, `answer`, `completion`, and further columns
    FILE.prompts.jsonl   the journal: a row for each prompt that is done, with the answers that are kept

The journal is written as prompts are done, so that an interrupted harvest resumes; several processes write it when
thousands of answers are done. An answer that was cut at its limit is not kept, right or not: it would teach the model
not to end.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from outdo.errors import BrokenGraders, RecipeError
from outdo.evals.from_recipe import playing_keys
from outdo.learn.memory import frozen_objects
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards
from outdo.rollout import make_sampler
from outdo.rollout.shares import sample_graded, sample_share
from outdo.rollout.source import sample_params
from outdo.runs.files import disk_errors, write_atomic
from outdo.runs.no_links import open_no_links
from outdo.runs.reader import read_rows
from outdo.runs.writer import RunWriter, default_folder
from outdo.seeds import seed_of
from outdo.tasks.task import Task, held_out
from outdo.training import interrupts
from outdo.training.context import Result, RunContext
from outdo.training.plan import policy_for
from outdo.training.start import open_writer, remember_run, without_long_prompts
from outdo.types import Group, Prompt, SampleParams, Sampler

ANSWERS_PER_CALL = 8192  # of the sampler
# Keys that decide which prompts are sampled and how: a harvest resumes with the same ones only.
DECIDING_KEYS = (
    *("model_name_or_path", "dtype", "dataset_name", "dataset_mixture", "task_args", "columns", "system_prompt"),
    *("max_prompt_length", "max_completion_length", "temperature", "top_p", "top_k", "min_p", "stop"),
    *("reward_funcs", "pass_threshold", "harvest_size"),
)


@dataclass(frozen=True)
class Tally:
    """What came of a harvest, in answers unless stated otherwise."""

    prompts: int = 0
    solved: int = 0  # prompts with a right answer
    sampled: int = 0
    right: int = 0
    truncated: int = 0  # right, but cut at the limit
    duplicates: int = 0  # right, and equal to an earlier one except for whitespace
    kept: int = 0
    broken: int = 0  # could not be judged

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        share = self.solved / max(self.prompts, 1)
        line = f"{self.prompts} prompts, {share:.1%} solved; {self.right} of {self.sampled} right, {self.kept} kept"
        dropped = {"duplicates dropped": self.duplicates, "cut at the limit": self.truncated, "not judged": self.broken}
        return line + "".join(f", {count} {name}" for name, count in dropped.items() if count)


def run_harvest(context: RunContext) -> Result:
    """A harvest as a run with a folder of its own, which a stage of a recipe is."""
    recipe, rewards = context.recipe, context.rewards
    assert rewards, "a harvest has rewards"
    if context.resume:
        resumed = context.resume
        writer = open_writer(lambda: RunWriter.reopen(resumed, "harvest", context.manifest))
        writer.update_manifest(status="running", why="")
    else:
        default = partial(default_folder, f"harvest-{context.task.name}", recipe.run_name)
        folder = Path(recipe.output_dir) if recipe.output_dir else get_world().first(default)
        recipe = context.given.place(recipe, folder)
        context = replace(context, recipe=recipe)
        writer = open_writer(lambda: RunWriter.create(folder, recipe.model_dump(mode="json"), {"kind": "harvest"}))
        get_world().first(lambda: remember_run(context, folder, recipe))
    with writer.until_done(), frozen_objects():
        get_world().first(lambda: context.given.write(writer.folder))
        tally = harvest_to(context, writer.demonstrations)
        facts = {"model": recipe.model_name_or_path, "harvest": str(writer.demonstrations)}
        writer.update_manifest(**facts, tally=vars(tally))
    model = Path(recipe.model_name_or_path)
    return Result(writer.folder, model, [], [], recipe, harvest=writer.demonstrations)


def harvest_to(context: RunContext, out: Path, split: str = "train") -> Tally:
    """Harvests by the recipe's keys into a file. Raises RecipeError where no answer was right."""
    recipe, task, reporter = context.recipe, context.task, context.reporter
    assert context.rewards
    policy = get_world().in_turn(lambda: policy_for(recipe, learns=False), "loading the model")
    prompts = held_out(without_long_prompts(recipe, task, policy, reporter.note), split, recipe.harvest_size)
    sampler = make_sampler(policy, recipe, learns=False, notify=reporter.note, play=context.play)
    demonstrate = _demonstrator(recipe, task)  # refused now, not after all was sampled
    reporter.begin(f"harvest: {len(prompts)} prompts of {task.name} x {recipe.harvest_samples} answers")

    def show(tally: Tally) -> None:
        more = f"solved {tally.solved / tally.prompts:.2f}  kept {tally.kept}"
        reporter.progress("prompt", tally.prompts - 1, len(prompts), more)

    settings = {"split": split, **{key: getattr(recipe, key) for key in DECIDING_KEYS}, **playing_keys(recipe)}
    counts = {"samples": recipe.harvest_samples, "keep": recipe.harvest_keep, "seed": seed_of("harvest", recipe.seed)}
    params = sample_params(recipe)
    with interrupts.listen():
        tally = harvest(
            prompts, sampler, context.rewards, params, out, settings, demonstrate=demonstrate, progress=show, **counts
        )
    reporter.close()
    reporter.note(f"  {tally}")
    if not tally.kept and not recipe.harvest_teacher:
        raise RecipeError(
            f"none of {tally.sampled} answers was right and complete, so there is nothing to train on. Take more "
            "samples, an easier task or a better model, or raise max_completion_length"
        )
    reporter.note(f"  demonstrations are in {out}")
    return tally


def harvest(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    out: Path,
    settings: Mapping[str, Any],
    *,
    samples: int,
    keep: int,
    seed: int,
    demonstrate: Callable[[Prompt], str | None] | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Writes `out`, resuming where an earlier call with the same `settings` was interrupted; another harvest's file
    raises RecipeError. The task's own demonstration of a prompt, from `demonstrate`, stands first."""
    world = get_world()
    settings = {**settings, "samples": samples, "keep": keep, "seed": seed}
    journal = world.first(lambda: _open_journal(out, settings))
    done = world.first(lambda: {row["prompt_id"]: row for row in read_rows(journal) if "prompt_id" in row})
    tally = sum((tally_of(done[p.id]) for p in prompts if p.id in done), Tally())
    remaining = [prompt for prompt in prompts if prompt.id not in done]
    size = max(1, ANSWERS_PER_CALL // samples)
    opened = open_no_links(journal.parent, journal) if world.is_first else open(os.devnull, "w")  # noqa: SIM115
    with disk_errors(journal), opened as file:
        for part in (remaining[i : i + size] for i in range(0, len(remaining), size)):
            sample = partial(sample_share, sampler, n=samples, params=params, seed=seed)
            for group in sample_graded(part, sample, rewards):
                row = select_answers(group, keep)
                file.write(json.dumps(row) + "\n")
                file.flush()
                done[group.prompt.id] = row
                tally += tally_of(row)
                progress(tally)
            if tally.broken == tally.sampled:
                raise BrokenGraders(f"none of {tally.sampled} answers could be judged; `outdo audit` says why")
    world.first(lambda: _write_demonstrations(prompts, done, out, demonstrate), "writing demonstrations")
    return tally


def _write_demonstrations(
    prompts: Sequence[Prompt],
    done: Mapping[str, Mapping[str, Any]],
    out: Path,
    demonstrate: Callable[[Prompt], str | None] | None,
) -> None:
    own = {p.id: [text] for p in prompts if demonstrate and (text := demonstrate(p)) is not None}
    rows = (row for p in prompts for row in demonstrations(p, [*own.get(p.id, []), *done[p.id]["kept"]]))
    with disk_errors(out):
        write_atomic(out, "".join(json.dumps(row, default=str) + "\n" for row in rows))


def select_answers(group: Group, keep: int) -> dict[str, Any]:
    """The journal's row of one prompt: of the right answers that ended by themselves, the first `keep` distinct."""
    right = [c for c, g in zip(group.trajectories, group.grades, strict=True) if g.verdict == "right"]
    complete = [trajectory for trajectory in right if trajectory.finish == "stop"]
    distinct: dict[str, str] = {}
    for trajectory in complete:
        distinct.setdefault(" ".join(trajectory.text.split()), trajectory.text)
    return {
        "prompt_id": group.prompt.id,
        "sampled": len(group.trajectories),
        "right": len(right),
        "truncated": len(right) - len(complete),
        "duplicates": len(complete) - len(distinct),
        "broken": sum(g.verdict == "broken" for g in group.grades),
        "kept": list(distinct.values())[:keep],
    }


def tally_of(row: Mapping[str, Any]) -> Tally:
    same = {name: row[name] for name in ("sampled", "right", "truncated", "duplicates", "broken")}
    return Tally(prompts=1, solved=int(row["right"] > 0), kept=len(row["kept"]), **same)


def demonstrations(prompt: Prompt, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows that `dataset_name` and `sft_dataset_name` read. All are for training, whatever their hash says."""
    is_plain = len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user"
    problem = {"prompt": prompt.text} if is_plain else {"messages": [dict(message) for message in prompt.messages]}
    for text in texts:
        yield {**prompt.meta, **problem, "answer": prompt.answer, "completion": text, "split": "train"}


def _open_journal(out: Path, settings: Mapping[str, Any]) -> Path:
    """The journal, with the settings as its first row; a row that was cut short is removed."""
    journal = out.with_name(out.stem + ".prompts.jsonl")
    wanted = json.loads(json.dumps(settings, default=str))
    with disk_errors(journal, "name another place with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        complete = journal.read_bytes().rpartition(b"\n")[0] if journal.exists() else b""
        if not complete:
            if out.exists():
                raise RecipeError(f"{out} already exists and is no harvest: move it away, or choose another file")
            write_atomic(journal, json.dumps({"settings": wanted}) + "\n")
            return journal
        with open_no_links(journal.parent, journal, "r+b") as file:
            file.truncate(len(complete) + 1)
    before = next(read_rows(journal)).get("settings", {})
    changed = [f"{key} was {before.get(key)!r} and is {now!r}" for key, now in wanted.items() if before.get(key) != now]
    if changed:
        raise RecipeError(f"{out} is another harvest: {'; '.join(changed)}. Choose another file, or remove {journal}")
    return journal


def _demonstrator(recipe: Recipe, task: Task) -> Callable[[Prompt], str | None] | None:
    """The task's own demonstrations, where the recipe wants them. Raises RecipeError where it has none."""
    if not recipe.harvest_teacher:
        return None
    teacher = task.teacher
    if teacher is None:
        raise RecipeError(f"harvest_teacher=true: {task.name} has no demonstrations of its own")
    rng = random.Random(seed_of("teacher", recipe.seed))

    def demonstrate(prompt: Prompt) -> str | None:
        shown = teacher(prompt, rng)
        if shown is None or isinstance(shown, str):
            return shown
        raise RecipeError(f"harvest_teacher=true: the demonstrations of {task.name} have several turns")

    return demonstrate
