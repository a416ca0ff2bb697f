"""A recipe in, a run out: puts the parts together. The algorithm itself is in `loop.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.config import Recipe, load_recipe
from outdo.errors import Halted, NumericsError, OutdoError, RecipeError, RunError
from outdo.evals.held_out import Evaluation, evaluate_prompts
from outdo.grade.audit import refuse_unfit
from outdo.grade.compose import Rewards, find_rewards
from outdo.host import keep_memory
from outdo.learn.learner import LocalLearner
from outdo.learn.sft import warm_up
from outdo.loop import Row, run_loop
from outdo.models.load import Policy, load_policy, save_policy
from outdo.rollout.hf import HFSampler
from outdo.rollout.local import LocalSampler
from outdo.run import Run, Status, default_folder
from outdo.seeds import seed_of
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.task import Task, find_task, held_out
from outdo.track.console import LiveTable, PlainLines, interval, make_reporter
from outdo.types import Group, SampleParams, Sampler

SAMPLERS: dict[str, Callable[[Policy, Recipe], Sampler]] = {
    "local": lambda policy, recipe: LocalSampler(policy, recipe.rollout_rows),
    "hf": lambda policy, recipe: HFSampler(policy),
}
PATIENCE = 3  # steps in a row past kl_limit before the run halts


@dataclass(frozen=True)
class Result:
    """What a run came to. The numbers by step are in `folder`."""

    folder: Path
    model: Path
    before: list[Evaluation]
    after: list[Evaluation]


def train(
    recipe: str | Path | Recipe | None = None,
    *,
    task: Task | None = None,
    reward_funcs: Sequence[str | Callable[..., Any]] | None = None,
    reporter: PlainLines | LiveTable | None = None,
    **keys: Any,
) -> Result:
    """Trains by a recipe (a YAML path, a Recipe, or the default) with `keys` over it, and returns what came of it.

    `task` and `reward_funcs` may be your own objects instead of names. Raises OutdoError's family; an interrupt is
    passed on after the model has been saved.
    """
    reporter = reporter or make_reporter()
    own = {f.__name__: f for f in reward_funcs or () if callable(f)}
    if reward_funcs is not None:
        keys["reward_funcs"] = [f.__name__ if callable(f) else f for f in reward_funcs]
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, keys, reporter.note)
    elif keys:
        recipe = load_recipe(None, {**recipe.model_dump(), **keys})
    keep_memory()
    task = task or find_task(recipe.dataset_name, recipe.task_args, recipe.system_prompt)
    rewards = _rewards(recipe, task, own)
    if recipe.reward_audit:
        refuse_unfit(rewards, lambda: task.prompts("train", recipe.seed))
    if recipe.sft_steps:
        next(task.demonstrations(recipe.seed))  # says now, not after the model is loaded, that there is no teacher
    policy = load_policy(recipe.model_name_or_path, dtype=recipe.dtype, device=recipe.device, seed=recipe.seed)
    folder = Path(recipe.output_dir) if recipe.output_dir else default_folder(task.name)
    facts = {"device": str(policy.device), "parameters": policy.num_parameters, "eos_ids": policy.eos_ids}
    run = Run.create(folder, recipe.model_dump(), facts)
    reporter.note(f"{policy.num_parameters:,} parameters on {policy.device}; writing to {folder}")
    return _Session(recipe, task, rewards, policy, run, reporter).train()


def evaluate(
    model: str | Path,
    task: str | Task = "arithmetic",
    split: str = "test",
    *,
    size: int = 200,
    samples: int = 10,
    temperature: float = 1.0,
    max_completion_length: int = 256,
    task_args: Mapping[str, Any] | None = None,
    reward: str | None = None,
    device: str = "auto",
    seed: int = 0,
) -> Evaluation:
    """Held-out success of any saved model. `reward` judges instead of the task's own verifier."""
    found = task if isinstance(task, Task) else find_task(task, dict(task_args or {}))
    truth = reward or _truth(found, [])
    policy = load_policy(str(model), device=device, seed=seed)
    limit = min(max_completion_length, policy.context // 2)
    rewards = find_rewards([truth], [], truth, limit)
    prompts = held_out(found, split, size)
    params = SampleParams(limit, temperature)
    return evaluate_prompts(prompts, split, LocalSampler(policy), rewards, params, samples, seed)


class _Session:
    """One run, from the warm-up to the saved model. Whatever ends it, what was learnt is kept."""

    def __init__(
        self, recipe: Recipe, task: Task, rewards: Rewards, policy: Policy, run: Run, reporter: PlainLines | LiveTable
    ) -> None:
        self.recipe, self.task, self.rewards, self.policy = recipe, task, rewards, policy
        self.run, self.reporter = run, reporter
        self.sampler = SAMPLERS[recipe.sampler](policy, recipe)
        self.splits = {s: held_out(task, s, recipe.eval_size) for s in ("test", "ood") if s in task.splits}
        self.past_limit = 0  # steps in a row with KL past its limit
        self.done = 0  # steps finished

    def train(self) -> Result:
        try:
            before, after = self._phases()
        except KeyboardInterrupt:
            self._end("stopped", f"interrupted after step {self.done}")
            raise
        except Halted as error:
            self._end("stopped", str(error))
            raise
        except BaseException as error:
            self._end("failed", str(error) if isinstance(error, OutdoError) else f"{type(error).__name__}: {error}")
            raise
        finally:
            self.reporter.close()
        return Result(self.run.folder, self.run.model_folder, before, after)

    def _phases(self) -> tuple[list[Evaluation], list[Evaluation]]:
        recipe = self.recipe
        if recipe.sft_steps:
            self.reporter.begin(f"warm-up: imitating the {self.task.name} teacher")
            warm_up(
                self.policy,
                self.task.demonstrations(recipe.seed),
                steps=recipe.sft_steps,
                batch_size=recipe.sft_batch_size,
                learning_rate=recipe.sft_learning_rate,
                max_length=recipe.max_completion_length,
                on_step=lambda step, loss: self.reporter.warmup(step, recipe.sft_steps, loss),
            )
        self.reporter.begin("before GRPO: held-out problems")
        before = self._evaluate(0)
        self._foothold(before)
        size = f"{recipe.prompts_per_step} prompts x {recipe.num_generations} answers"
        self.reporter.begin(f"GRPO: {recipe.max_steps} steps of {size}")
        learner = LocalLearner(self.policy, recipe)
        curriculum = Curriculum(self.task, recipe)
        run_loop(recipe, curriculum, self.sampler, self.rewards, learner, self._record)
        self.reporter.begin("after GRPO: held-out problems")
        after = self._evaluate(recipe.max_steps)
        self._save()
        self.run.finish("done")
        return before, after

    def _record(self, step: int, row: Row, groups: Sequence[Group]) -> None:
        recipe = self.recipe
        self.done = step + 1
        self.run.record(step, row, groups)
        self.reporter.step(step, recipe.max_steps, row)
        if recipe.eval_steps and self.done % recipe.eval_steps == 0 and self.done < recipe.max_steps:
            self._evaluate(self.done)
        kl = row["kl_mean"]
        self.past_limit = self.past_limit + 1 if kl is not None and recipe.kl_limit and kl > recipe.kl_limit else 0
        if self.past_limit >= PATIENCE:
            raise NumericsError(
                f"halted at step {self.done}: KL to the starting model is {kl:.3f}, past kl_limit={recipe.kl_limit} "
                f"for {PATIENCE} steps. Raise beta (now {row['beta']:g}), lower learning_rate (now {row['lr']:.2g}), "
                "or set kl_limit=null to let it go. The model so far is kept"
            )

    def _evaluate(self, step: int) -> list[Evaluation]:
        recipe = self.recipe
        params = SampleParams(recipe.max_completion_length, recipe.temperature)
        seed = seed_of("evaluation", recipe.seed, step)
        found = []
        for split, prompts in self.splits.items():
            result = evaluate_prompts(prompts, split, self.sampler, self.rewards, params, recipe.eval_samples, seed)
            self.run.record_eval(result.row(step))
            passes = "".join(f"  pass@{k} {value:.3f}" for k, value in result.pass_at.items())
            self.reporter.note(f"  {split}: success {interval(result)}{passes}")
            found.append(result)
        return found

    def _foothold(self, before: Sequence[Evaluation]) -> None:
        """Says in plain words when GRPO has nothing to hold on to."""
        if not before:
            return
        chance = before[0].pass_at.get(1, before[0].success_rate)
        if chance < 0.005:
            self.reporter.note(
                "  warning: the model is right almost never, so every group will be all wrong and nothing is learnt. "
                "Give it a longer warm-up (sft_steps), an easier start (curriculum_steps, curriculum_args), "
                "or a reward that also pays for part of the way"
            )
        elif chance > 0.995:
            self.reporter.note("  warning: the model is right almost always; there is nothing left to learn here")

    def _end(self, status: Status, why: str) -> None:
        """The last words of a run that did not finish: keep the model if there is any, never hide the first error."""
        try:
            self._save()
        except OutdoError as error:
            why += f" (and the model could not be saved: {error})"
        self.reporter.close()
        self.reporter.note(f"{status}: {self.done} steps are in {self.run.folder}")
        with suppress(RunError):  # a disk that failed the run fails its last line too; the first error is on its way
            self.run.finish(status, why)

    def _save(self) -> None:
        try:
            save_policy(self.policy, self.run.model_folder)
        except OSError as error:
            raise RunError(f"cannot save the model to {self.run.model_folder}: {error.strerror or error}") from error


def _rewards(recipe: Recipe, task: Task, own: Mapping[str, Callable[..., Any]]) -> Rewards:
    names = recipe.reward_funcs or list(task.rewards)
    return find_rewards(
        names,
        recipe.reward_weights,
        _truth(task, names),
        recipe.max_completion_length,
        own,
        recipe.reward_gate,
        recipe.reward_timeout,
    )


def _truth(task: Task, names: Sequence[str]) -> str:
    """The reward that decides success: the task's own verifier, else the first one that was asked for."""
    if not task.rewards and not names:
        raise RecipeError(f"{task.name} has no verifier of its own: name one, such as reward_funcs=numeric or exact")
    return task.rewards[0] if task.rewards else names[0]
